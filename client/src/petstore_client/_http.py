"""Builds httpx2 requests, bounds what a response may cost, and interprets the exceptions of httpx2.

Importing httpx2 takes most of a client's start-up time, so this module is not imported until a client is created.
"""

import ipaddress
import math
import ssl
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from time import monotonic
from typing import Any

import httpx2

from petstore_client import __version__
from petstore_client._keys import Secret
from petstore_client._messages import Failure, FailureKind, Request, Response, Timeouts

CLIENT_OPTIONS: dict[str, Any] = {
    "headers": {"User-Agent": f"petstore-client/{__version__}"},
    "limits": httpx2.Limits(),  # the rate limiter limits the connections
}
MAX_BYTES = 8 << 20  # of a response: what is read from the socket, and what that contains after decompression
MAX_HEAD = 32 << 10  # bytes of a response's headers
CONNECT_TIMEOUT = 5.0  # seconds
# httpx2 raises InvalidURL or UnicodeError if the URL of a redirect or a proxy is invalid.
FAILURES = (httpx2.RequestError, httpx2.InvalidURL, UnicodeError, TimeoutError)
UNSENDABLE = (
    httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.LocalProtocolError, httpx2.TooManyRedirects, UnicodeError,
)  # fmt: skip


class TooLarge(httpx2.RequestError):
    """The response is too large."""


class Budget(Mapping[str, float]):
    """The bytes and seconds that one exchange may use, charged whenever a part of its response is read.

    As a mapping, it is the timeouts of the phases in the form that httpx2 expects. No phase can outlast the total.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        # The rate limiter has already waited for a permit, so `pool` matters only for an http_client of the caller.
        self._phases = {
            "connect": timeouts.connect, "read": timeouts.read, "write": timeouts.write, "pool": timeouts.total,
        }  # fmt: skip
        self._end = monotonic() + timeouts.total
        self._bytes = MAX_BYTES

    def __getitem__(self, phase: str) -> float:
        # A socket with a timeout of 0 would not wait at all, and sockets do not accept an infinite timeout.
        return min(max(self._end - monotonic(), 0.001), self._phases[phase], 1e6)

    def __iter__(self) -> Iterator[str]:
        return iter(self._phases)

    def __len__(self) -> int:
        return len(self._phases)

    def charge(self, received: int) -> None:
        """Charges the budget for received bytes. Raises TooLarge, or httpx2.ReadTimeout if the time is up."""
        self._bytes -= received
        if self._bytes < 0:
            raise TooLarge(f"the response is larger than {MAX_BYTES >> 20} MiB")
        if monotonic() > self._end:
            raise httpx2.ReadTimeout("the response took too long")


current_budget: ContextVar[Budget | None] = ContextVar("current_budget", default=None)
"""The budget of the exchange that this thread or task is reading."""


def opened_stream(event: str, info: Mapping[str, Any]) -> Any:
    """Returns the network stream that httpx2 has just opened according to an event of its `trace` extension, or None.

    httpx2 reads interim responses, such as an endless sequence of 103s, without returning from `send`. Therefore, the
    budget must be charged where the stream is read.
    """
    is_opened = event.endswith((".connect_tcp.complete", ".connect_unix_socket.complete", ".start_tls.complete"))
    return info["return_value"] if is_opened else None


class Endpoint:
    """The base URL of the service.

    Raises ValueError if the base URL is not valid. The message does not show the URL, which may contain a password.
    """

    def __init__(self, base_url: str, *, allow_http: bool = False) -> None:
        _check_url(base_url, allow_http)
        self.base_url = base_url

    def build(
        self, client: httpx2.Client | httpx2.AsyncClient, request: Request, secret: Secret, extensions: dict[str, Any]
    ) -> httpx2.Request:
        """Builds the httpx2 request. On failure, raises one of the exceptions in FAILURES."""
        # The repr of httpx2.Headers shows "[secure]" instead of the key, even in a debugger.
        headers = httpx2.Headers({"Accept": "application/json", "Authorization": f"Bearer {secret.value}"})
        headers.update(request.headers)
        url = self.base_url + request.path
        return client.build_request(request.method, url, headers=headers, content=request.body, extensions=extensions)

    def failure(self, error: Exception) -> Failure:
        """Returns the failure that an exception in FAILURES means."""
        is_connecting = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError)
        kind: FailureKind = "unreachable" if is_connecting else "outage"
        if isinstance(error, (*UNSENDABLE, TooLarge)) or _is_untrusted(error):
            kind = "final"
        if isinstance(error, httpx2.TimeoutException | TimeoutError):
            return Failure(error, f"timed out waiting for a response from {self.base_url}", kind, timed_out=True)
        return Failure(error, f"no response from {self.base_url}: {str(error) or type(error).__name__}", kind)


def _is_untrusted(error: BaseException | None) -> bool:
    """Returns whether an exception was caused by an invalid certificate."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


def response_of(response: httpx2.Response, body: list[bytes], problem: Exception | None = None) -> Response:
    """Returns a response, without its body if there was a problem, and without its headers if these are too large."""
    if sum(len(name) + len(value) for name, value in response.headers.raw) > MAX_HEAD:
        return Response(response.status_code, {}, b"", f"the response headers are larger than {MAX_HEAD >> 10} KiB")
    if problem is not None:
        return Response(response.status_code, response.headers, b"", str(problem))
    return Response(response.status_code, response.headers, b"".join(body))


def _check_url(base_url: str, allow_http: bool) -> None:
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
    if url.scheme == "http" and not allow_http and not _is_loopback(url.host):
        raise ValueError("base_url must start with https://, because http:// would send the API key unencrypted; to "
                         "allow that, pass allow_http=True (--allow-http)")  # fmt: skip


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def check_types(http_client: object, client_type: type, transport: object, transport_type: type) -> None:
    """Raises TypeError or ValueError if the caller's HTTP client or transport cannot be used."""
    if http_client is not None and transport is not None:
        raise ValueError("http_client cannot be combined with transport")
    _check_type("http_client", http_client, client_type)
    _check_type("transport", transport, transport_type)


def _check_type(name: str, given: object, expected: type) -> None:
    """Raises TypeError if an argument is not an instance of an httpx2 class, for example an instance of httpx's."""
    if given is not None and not isinstance(given, expected):
        kind = type(given)
        raise TypeError(f"{name} must be an httpx2.{expected.__name__}, not {kind.__module__}.{kind.__qualname__}")


def timeouts_of(timeout: float | httpx2.Timeout | None) -> Timeouts:
    """Returns the timeouts for one attempt. Raises ValueError if any is not positive, or TypeError for another type.

    A number limits the whole attempt. An httpx2.Timeout limits each phase separately.
    """
    if isinstance(timeout, int | float):
        return Timeouts(timeout, CONNECT_TIMEOUT, timeout, timeout)
    _check_type("timeout", timeout, httpx2.Timeout)
    if timeout is None:
        return Timeouts(math.inf, CONNECT_TIMEOUT, math.inf, math.inf)
    return Timeouts(math.inf, *(seconds_of(seconds) for seconds in (timeout.connect, timeout.read, timeout.write)))


def seconds_of(seconds: float | None) -> float:
    """Returns a timeout as a number. None, which means no timeout, becomes infinity."""
    return math.inf if seconds is None else seconds
