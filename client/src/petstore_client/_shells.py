"""The two shells around the core: one sends and sleeps in a thread, the other in an asyncio task. Nothing else differs.

All that knows httpx is here. Importing httpx takes most of a client's start, so this module waits for the first client.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from time import monotonic
from typing import TypeVar

import httpx

from petstore_client import __version__
from petstore_client._steps import Answer, Failure, Flow, Send

T = TypeVar("T")

USER_AGENT = {"User-Agent": f"petstore-client/{__version__}"}
# The last two come of a page's link, a redirection or a proxy that is no address.
FAILURES = (httpx.RequestError, httpx.InvalidURL, UnicodeError)


class Address:
    """Where requests go, with which key, and how long one may take."""

    def __init__(self, base_url: str, api_key: str, timeout: float, connect_timeout: float) -> None:
        self.base_url = base_url
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        # httpx.Headers shows "[secure]" in place of the key, in every repr and so in every debugger.
        self.headers = httpx.Headers({"Accept": "application/json", "Authorization": f"Bearer {api_key}"})

    def request(self, client: httpx.Client | httpx.AsyncClient, send: Send) -> httpx.Request:
        headers = self.headers
        if send.headers:
            headers = headers.copy()
            headers.update(send.headers)
        extensions = {"timeout": Deadline(self.timeout, self.connect_timeout)}
        return client.build_request(
            send.method, self.base_url + send.path, headers=headers, content=send.body, extensions=extensions
        )

    def failure(self, error: Exception) -> Failure:
        unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        if isinstance(error, httpx.TimeoutException | TimeoutError):
            return Failure(error, f"no answer in time from {self.base_url}", timed_out=True, unsent=unsent)
        return Failure(error, f"no answer from {self.base_url}: {str(error) or type(error).__name__}", unsent=unsent)


def check_url(base_url: str) -> None:
    """Raises ValueError for what no request could be sent to, without showing it: it may have a password."""
    if not base_url.startswith(("http://", "https://")):
        raise ValueError("base_url must start with http:// or https://")
    try:
        url = httpx.URL(base_url)
        url.raw_host.decode("ascii").encode("idna")  # as a socket will do
    except (httpx.InvalidURL, UnicodeError) as error:
        why = f": {error}" if "@" not in base_url else ""
        raise ValueError(f"base_url is no address{why}") from error
    if not url.host or (url.port or 0) > 65535:
        raise ValueError("base_url must have a host, and a port up to 65535 if any")
    if url.userinfo:
        raise ValueError("base_url must not have a user or a password: the service takes an API key")
    if "?" in base_url or "#" in base_url:
        raise ValueError("base_url must end with its path: no query and no fragment")


def check_one(client: object, transport: object) -> None:
    if client is not None and transport is not None:
        raise ValueError("pass http_client or transport, not both: a client has a transport of its own")


def answer_of(response: httpx.Response, body: bytes) -> Answer:
    headers: dict[str, str] = {}
    for raw_name, raw_value in response.headers.raw:
        name, value = raw_name.lower().decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Answer(response.status_code, headers, body)


class Deadline(Mapping[str, float]):
    """The timeouts of one try, as a transport asks for them: for each phase, what is left of the total."""

    def __init__(self, total: float, connect: float) -> None:
        self._connect = connect
        self._end = monotonic() + total

    def __getitem__(self, phase: str) -> float:
        left = max(self._end - monotonic(), 0.001)  # a socket takes 0 for "do not wait at all"
        return min(left, self._connect) if phase == "connect" else left

    def __iter__(self) -> Iterator[str]:
        return iter(("connect", "pool", "write", "read"))

    def __len__(self) -> int:
        return 4

    def check(self) -> None:
        """Raises httpx.ReadTimeout once it has passed."""
        if monotonic() > self._end:
            raise httpx.ReadTimeout("the answer goes on for too long")


class ThreadShell:
    """Runs flows in the calling thread. Many threads may share one."""

    def __init__(
        self,
        address: Address,
        client: httpx.Client | None,
        transport: httpx.BaseTransport | None,
        sleep: Callable[[float], object],
    ) -> None:
        check_one(client, transport)
        self._address = address
        self._client = client or httpx.Client(transport=transport, headers=USER_AGENT)
        self._is_ours = client is None
        self._sleep = sleep

    def run(self, flow: Flow[T]) -> T:
        """Raises what the flow raises."""
        outcome: Answer | Failure | None = None
        try:
            while True:
                try:
                    step = next(flow) if outcome is None else flow.send(outcome)
                except StopIteration as done:
                    result: T = done.value
                    return result
                if isinstance(step, Send):
                    outcome = self._send(step)
                else:
                    self._sleep(step.seconds)
                    outcome = None
        finally:
            flow.close()

    def _send(self, send: Send) -> Answer | Failure:
        body = []
        try:
            request = self._address.request(self._client, send)
            deadline: Deadline = request.extensions["timeout"]
            response = self._client.send(request, auth=None, stream=True)
            try:
                for chunk in response.iter_bytes():
                    body.append(chunk)
                    deadline.check()  # each read has its timeout, but a trickle of them could go on for ever
            finally:
                response.close()
        except FAILURES as error:
            return self._address.failure(error)
        return answer_of(response, b"".join(body))

    def close(self) -> None:
        if self._is_ours:
            self._client.close()


class TaskShell:
    """Runs flows in the calling asyncio task. Many tasks may share one."""

    def __init__(
        self,
        address: Address,
        client: httpx.AsyncClient | None,
        transport: httpx.AsyncBaseTransport | None,
        sleep: Callable[[float], Awaitable[object]] | None,
    ) -> None:
        check_one(client, transport)
        self._address = address
        self._client = client or httpx.AsyncClient(transport=transport, headers=USER_AGENT)
        self._is_ours = client is None
        self._sleep = sleep or asyncio.sleep

    async def run(self, flow: Flow[T]) -> T:
        """Raises what the flow raises."""
        outcome: Answer | Failure | None = None
        try:
            while True:
                try:
                    step = next(flow) if outcome is None else flow.send(outcome)
                except StopIteration as done:
                    result: T = done.value
                    return result
                if isinstance(step, Send):
                    outcome = await self._send(step)
                else:
                    await self._sleep(step.seconds)
                    outcome = None
        finally:
            flow.close()

    async def _send(self, send: Send) -> Answer | Failure:
        try:
            request = self._address.request(self._client, send)
            async with asyncio.timeout(self._address.timeout):
                response = await self._client.send(request, auth=None)
        except (*FAILURES, TimeoutError) as error:
            return self._address.failure(error)
        return answer_of(response, response.content)

    async def aclose(self) -> None:
        if self._is_ours:
            await self._client.aclose()
