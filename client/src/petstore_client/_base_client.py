"""Code shared by both clients: the API key, the base URL and the options."""

import copy
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from petstore_client._events import Events
from petstore_client._messages import Sender
from petstore_client._models import RateLimit
from petstore_client._operations import Operations, Options, checked_headers, is_visible_ascii
from petstore_client._rate_limiter import RateLimiter

if TYPE_CHECKING:
    import httpx2

    from petstore_client._http import Endpoint

LIVE = "http://127.0.0.1:8080/v1"
"""The live environment of a local server."""
STAGING = "http://127.0.0.1:8080/staging/v1"
"""The staging environment of a local server, which has its own animals, keys and limits."""


class NotGiven:
    """The type of `NOT_GIVEN`."""

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN: Final = NotGiven()
"""The default for timeout arguments. None cannot be the default, because it means no timeout."""


class BaseClient:
    """The base class of both clients. Does no I/O itself."""

    def __init__(
        self,
        sender: Sender,
        base_url: str,
        events: Events,
        clock: Callable[[], float],
        random: Callable[[], float],
        *,
        max_retries: int,
        timeout: "float | httpx2.Timeout | None",
        connect_timeout: float | None,
        total_timeout: float | None,
        headers: Mapping[str, str] | None,
        strict: bool,
    ) -> None:
        from petstore_client._http import seconds_of, timeouts_of

        self._base_url = base_url
        self._connect_timeout = connect_timeout
        timeouts = timeouts_of(timeout, connect_timeout)
        options = Options(max_retries, timeouts, seconds_of(total_timeout), checked_headers(headers or {}), strict)
        self._operations = Operations(
            sender,
            options,
            RateLimiter(),
            events,
            clock=clock,
            wall_clock=time.time,
            random=random,
            random_key=_random_key,
        )

    @property
    def base_url(self) -> str:
        """The base URL of the service."""
        return self._base_url

    @property
    def rate_limit(self) -> RateLimit | None:
        """The key's rate limit as of the last response, or None before the first response."""
        return self._operations.limiter.rate_limit

    def with_options(
        self,
        *,
        max_retries: int | None = None,
        timeout: "float | httpx2.Timeout | NotGiven | None" = NOT_GIVEN,
        total_timeout: float | NotGiven | None = NOT_GIVEN,
        headers: Mapping[str, str] | None = None,
        strict: bool | None = None,
    ) -> Self:
        """Returns a copy of this client with different options, to use for one call or for many.

        The copy shares this client's connections, callbacks and rate-limit pauses. Closing either client closes both.
        `headers` are added to the client's headers, and replace any with the same name. For `timeout` and
        `total_timeout`, None means no timeout. Omitted options keep their values.

        Raises:
            ValueError: An option is out of range, or a header cannot be sent.
        """
        from petstore_client._http import seconds_of, timeouts_of

        changes: dict[str, Any] = {}
        if max_retries is not None:
            changes["max_retries"] = max_retries
        if not isinstance(timeout, NotGiven):
            changes["timeouts"] = timeouts_of(timeout, self._connect_timeout)
        if not isinstance(total_timeout, NotGiven):
            changes["total_timeout"] = seconds_of(total_timeout)
        if headers is not None:
            changes["headers"] = {**self._operations.options.headers, **checked_headers(headers)}
        if strict is not None:
            changes["strict"] = strict
        changed = copy.copy(self)
        changed._operations = self._operations.with_options(**changes)
        return changed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.base_url}>"


def endpoint(api_key: str | None, base_url: str | None) -> "Endpoint":
    """Returns the base URL and the API key. Uses the environment variable for any argument that is None.

    Raises ValueError if the API key is missing, or if either value is not valid.
    """
    from petstore_client._http import Endpoint

    key = (os.environ.get("PETSTORE_API_KEY", "") if api_key is None else api_key).strip()
    if not key:
        raise ValueError("the API key is missing: pass api_key, or set PETSTORE_API_KEY")
    if not is_visible_ascii(key):
        # Check the key here, because httpx2 would show it in an error message.
        raise ValueError("the API key contains invalid characters")
    return Endpoint((base_url or os.environ.get("PETSTORE_BASE_URL") or LIVE).rstrip("/"), key)


def _random_key() -> str:
    return os.urandom(16).hex()
