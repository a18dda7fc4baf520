"""Code shared by both clients: the API key, the base URL and the options."""

import copy
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from petstore_client._calls import Caller, Options, checked_headers
from petstore_client._events import Events
from petstore_client._keys import Key
from petstore_client._messages import Shell
from petstore_client._models import RateLimit
from petstore_client._operations import AsyncPetstoreWithRawResponse
from petstore_client._rate_limiter import RateLimiter

if TYPE_CHECKING:
    import httpx2

    from petstore_client._http import Endpoint

DEFAULT_BASE_URL = "http://127.0.0.1:8080/v1"  # the live environment of a service on this machine
KeyT = TypeVar("KeyT", str | Callable[[], str], str | Callable[[], str | Awaitable[str]])


class NotGiven:
    """The type of `NOT_GIVEN`."""

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN: Final = NotGiven()
"""The default for timeout arguments. None cannot be the default, because it means no timeout."""


class BaseClient(Generic[KeyT]):
    """The base class of both clients. Does no I/O itself."""

    def __init__(
        self, shell: Shell, base_url: str, options: Options, key: Key, max_connections: int, events: Events
    ) -> None:
        self._base_url = base_url
        self._caller = Caller(shell, options, RateLimiter(key, max_connections, events), events)
        self._operations = AsyncPetstoreWithRawResponse(self._caller)

    @property
    def base_url(self) -> str:
        """The base URL of the service."""
        return self._base_url

    @property
    def rate_limit(self) -> RateLimit | None:
        """The key's rate limit as of the last response, or None before the first response that contains it."""
        return self._caller.limiter.rate_limit

    def with_options(
        self,
        *,
        api_key: KeyT | None = None,
        timeout: "float | httpx2.Timeout | NotGiven | None" = NOT_GIVEN,
        total_timeout: float | NotGiven | None = NOT_GIVEN,
        headers: Mapping[str, str] | None = None,
        strict: bool | None = None,
    ) -> Self:
        """Returns a copy of this client with different options, to use for one call or for many.

        The copy shares this client's connections and callbacks and, unless it has another API key, its queue and
        pauses. Closing either client closes both. `headers` are added to the client's headers, and replace any with the
        same name. For `timeout` and `total_timeout`, None means no timeout. Omitted options keep their values.

        Raises:
            ValueError: An option is out of range, or a header or the API key cannot be sent.
        """
        from petstore_client._http import seconds_of, timeouts_of

        changes: dict[str, Any] = {}
        if not isinstance(timeout, NotGiven):
            changes["timeouts"] = timeouts_of(timeout)
        if not isinstance(total_timeout, NotGiven):
            changes["total_timeout"] = seconds_of(total_timeout)
        if headers is not None:
            changes["headers"] = {**self._caller.options.headers, **checked_headers(headers)}
        if strict is not None:
            changes["strict"] = strict
        changed = copy.copy(self)
        changed._caller = self._caller.with_options(None if api_key is None else Key(api_key), **changes)
        changed._operations = AsyncPetstoreWithRawResponse(changed._caller)
        return changed

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed. It can then send no more requests."""
        return self._caller.shell.is_closed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.base_url}>"


def key_of(api_key: str | Callable[[], str | Awaitable[str]] | None) -> Key:
    """Returns the API key. Uses PETSTORE_API_KEY if it is None. Raises ValueError if it is missing or not valid."""
    return Key(os.environ.get("PETSTORE_API_KEY", "") if api_key is None else api_key)


def options_of(
    timeout: "float | httpx2.Timeout | None",
    total_timeout: float | None,
    headers: Mapping[str, str] | None,
    strict: bool,
) -> Options:
    """Returns a client's options. Raises ValueError or TypeError if one of them is not valid."""
    from petstore_client._http import seconds_of, timeouts_of

    return Options(timeouts_of(timeout), seconds_of(total_timeout), checked_headers(headers or {}), strict)


def endpoint_of(base_url: str | None, allow_http: bool) -> "Endpoint":
    """Returns the service's endpoint. Uses PETSTORE_BASE_URL if the URL is None. Raises ValueError if it is invalid."""
    from petstore_client._http import Endpoint

    url = base_url or os.environ.get("PETSTORE_BASE_URL") or DEFAULT_BASE_URL
    return Endpoint(url.rstrip("/"), allow_http=allow_http)
