"""A transport that records the times of requests and responses, to show that no request was sent too early."""

import threading
from typing import NamedTuple

import httpx2

from petstore_client._shells import Time


class Event(NamedTuple):
    moment: float
    status: int | None
    """None for a request that is being sent."""
    retry_after: float = 0.0


class Recorder(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """A network transport for both clients, with its own clock. Records all events in order."""

    def __init__(self, time: Time) -> None:
        self.events: list[Event] = []
        self.time = time
        self._lock = threading.Lock()
        self._sync = httpx2.HTTPTransport(verify=False)
        self._async = httpx2.AsyncHTTPTransport(verify=False)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self._sending()
        return self._received(self._sync.handle_request(request))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._sending()
        return self._received(await self._async.handle_async_request(request))

    def close(self) -> None:
        self._sync.close()

    async def aclose(self) -> None:
        await self._async.aclose()

    def _sending(self) -> None:
        with self._lock:
            self.events.append(Event(self.time.clock(), None))

    def _received(self, response: httpx2.Response) -> httpx2.Response:
        with self._lock:
            seconds = float(response.headers.get("Retry-After", 0))
            self.events.append(Event(self.time.clock(), response.status_code, seconds))
        return response


def sent_too_early(events: list[Event]) -> list[Event]:
    """Returns the requests that were sent before the Retry-After of an earlier 429 had passed."""
    early, forbidden_until = [], 0.0
    for event in events:
        if event.status == 429:
            forbidden_until = max(forbidden_until, event.moment + event.retry_after)
        elif event.status is None and event.moment < forbidden_until:
            early.append(event)
    return early
