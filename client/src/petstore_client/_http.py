"""The senders, which use httpx2: a blocking sender for the sync client and an async sender for the async client.

Importing httpx2 takes most of a client's start-up time, so this module is not imported until a client is created.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from time import monotonic

import httpx2

from petstore_client import __version__
from petstore_client._messages import Failure, Request, Response, Timeouts

USER_AGENT = {"User-Agent": f"petstore-client/{__version__}"}
# httpx2 raises InvalidURL or UnicodeError if the URL of a redirect or a proxy is invalid.
FAILURES = (httpx2.RequestError, httpx2.InvalidURL, UnicodeError)


class Endpoint:
    """The base URL of the service, and the headers with the API key.

    Raises ValueError if the base URL is not valid. The message does not show the URL, which may contain a password.
    """

    def __init__(self, base_url: str, api_key: str) -> None:
        _check_url(base_url)
        self.base_url = base_url
        # Keep the key in httpx2.Headers, whose repr shows "[secure]" instead of the key, even in a debugger.
        self.headers = httpx2.Headers({"Accept": "application/json", "Authorization": f"Bearer {api_key}"})

    def build(self, client: httpx2.Client | httpx2.AsyncClient, request: Request) -> httpx2.Request:
        """Builds the httpx2 request. On failure, raises one of the exceptions in FAILURES."""
        headers = self.headers
        if request.headers:
            headers = headers.copy()
            headers.update(request.headers)
        extensions = {"timeout": Deadline(request.timeouts)}
        url = self.base_url + request.path
        return client.build_request(request.method, url, headers=headers, content=request.body, extensions=extensions)

    def failure(self, error: Exception) -> Failure:
        if isinstance(error, httpx2.TimeoutException | TimeoutError):
            return Failure(error, f"timed out waiting for a response from {self.base_url}", timed_out=True)
        return Failure(error, f"no response from {self.base_url}: {str(error) or type(error).__name__}")


def _check_url(base_url: str) -> None:
    if not base_url.startswith(("http://", "https://")):
        raise ValueError("base_url must start with http:// or https://")
    try:
        url = httpx2.URL(base_url)
        url.raw_host.decode("ascii").encode("idna")  # raises UnicodeError for a host name that a socket would reject
    except (httpx2.InvalidURL, UnicodeError) as error:
        why = f": {error}" if "@" not in base_url else ""
        raise ValueError(f"base_url is not a valid URL{why}") from error
    if not url.host or (url.port or 0) > 65535:
        raise ValueError("base_url must have a host, and its port must be at most 65535")
    if url.userinfo:
        raise ValueError("base_url must not contain a user name or password; use an API key instead")
    if "?" in base_url or "#" in base_url:
        raise ValueError("base_url must not contain a query or a fragment")


def _check_options(client: object, client_type: type, transport: object, transport_type: type) -> None:
    if client is not None and transport is not None:
        raise ValueError("http_client cannot be combined with transport")
    _require("http_client", client, client_type)
    _require("transport", transport, transport_type)


def _require(name: str, given: object, expected: type) -> None:
    """Raises TypeError if an argument is not an instance of an httpx2 class, for example an instance of httpx's."""
    if given is not None and not isinstance(given, expected):
        kind = type(given)
        raise TypeError(f"{name} must be an httpx2.{expected.__name__}, not {kind.__module__}.{kind.__qualname__}")


def timeouts_of(timeout: float | httpx2.Timeout | None, connect_timeout: float | None) -> Timeouts:
    """Returns the timeouts for one attempt. Raises ValueError if any is not positive, or TypeError for another type.

    A number limits the whole attempt. An httpx2.Timeout limits each phase separately.
    """
    if not isinstance(timeout, int | float):
        _require("timeout", timeout, httpx2.Timeout)
    if isinstance(timeout, httpx2.Timeout):
        phases = (timeout.connect, timeout.read, timeout.write, timeout.pool)
        return Timeouts(math.inf, *(seconds_of(seconds) for seconds in phases))
    total, connect = seconds_of(timeout), seconds_of(connect_timeout)
    return Timeouts(total, connect, read=total, write=total, pool=total)


def seconds_of(seconds: float | None) -> float:
    """Returns a timeout as a number. None, which means no timeout, becomes infinity."""
    return math.inf if seconds is None else seconds


class Deadline(Mapping[str, float]):
    """The timeouts for one attempt, in the form that httpx2 expects. No phase can outlast the total timeout."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._phases = {
            "connect": timeouts.connect, "read": timeouts.read, "write": timeouts.write, "pool": timeouts.pool,
        }  # fmt: skip
        self._end = monotonic() + timeouts.total

    def __getitem__(self, phase: str) -> float:
        # A socket with a timeout of 0 would not wait at all, and sockets do not accept an infinite timeout.
        return min(max(self._end - monotonic(), 0.001), self._phases[phase], 1e6)

    def __iter__(self) -> Iterator[str]:
        return iter(self._phases)

    def __len__(self) -> int:
        return len(self._phases)

    def check(self) -> None:
        """Raises httpx2.ReadTimeout if the deadline has passed."""
        if monotonic() > self._end:
            raise httpx2.ReadTimeout("the response took too long")


class SyncSender:
    """Sends requests and blocks the calling thread. Its coroutines never suspend. Threads may share a sender."""

    def __init__(
        self,
        endpoint: Endpoint,
        client: httpx2.Client | None,
        transport: httpx2.BaseTransport | None,
        sleep: Callable[[float], object],
    ) -> None:
        _check_options(client, httpx2.Client, transport, httpx2.BaseTransport)
        self._endpoint = endpoint
        self._client = client or httpx2.Client(transport=transport, headers=USER_AGENT)
        self._owns_client = client is None
        self._sleep = sleep

    async def send(self, request: Request) -> Response | Failure:
        body: list[bytes] = []
        try:
            built = self._endpoint.build(self._client, request)
            deadline: Deadline = built.extensions["timeout"]
            response = self._client.send(built, auth=None, stream=True)
            try:
                for chunk in response.iter_bytes():
                    body.append(chunk)
                    deadline.check()  # httpx2 applies the timeout to each read, not to the whole body
            finally:
                response.close()
        except FAILURES as error:
            return self._endpoint.failure(error)
        return Response(response.status_code, response.headers, b"".join(body))

    async def sleep(self, seconds: float) -> None:
        self._sleep(seconds)

    def close(self) -> None:
        if self._owns_client:
            self._client.close()


class AsyncSender:
    """Sends requests without blocking the event loop. Tasks may share a sender."""

    def __init__(
        self,
        endpoint: Endpoint,
        client: httpx2.AsyncClient | None,
        transport: httpx2.AsyncBaseTransport | None,
        sleep: Callable[[float], Awaitable[object]] | None,
    ) -> None:
        _check_options(client, httpx2.AsyncClient, transport, httpx2.AsyncBaseTransport)
        self._endpoint = endpoint
        self._client = client or httpx2.AsyncClient(transport=transport, headers=USER_AGENT)
        self._owns_client = client is None
        self.sleep = sleep or asyncio.sleep

    async def send(self, request: Request) -> Response | Failure:
        try:
            built = self._endpoint.build(self._client, request)
            total = request.timeouts.total
            async with asyncio.timeout(None if math.isinf(total) else total):
                response = await self._client.send(built, auth=None)
        except (*FAILURES, TimeoutError) as error:
            return self._endpoint.failure(error)
        return Response(response.status_code, response.headers, response.content)

    async def aclose(self) -> None:
        if self._owns_client:
            await self._client.aclose()
