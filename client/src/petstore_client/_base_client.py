"""What both clients share: the API key, the base URL, the options of a call."""

import copy
import itertools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from petstore_client._events import Events
from petstore_client._messages import Sender
from petstore_client._models import RateLimit
from petstore_client._operations import Operations, Options, is_visible_ascii
from petstore_client._rate_limiter import RateLimiter
from petstore_client._retries import slot_of

if TYPE_CHECKING:
    from petstore_client._http import Endpoint

LIVE = "http://127.0.0.1:8080/v1"
"""The live environment of a local server."""
STAGING = "http://127.0.0.1:8080/staging/v1"
"""The staging environment of a local server: its own animals, keys and limits."""

_client_numbers = itertools.count()


class BaseClient:
    """The part of a client that neither sends nor sleeps."""

    def __init__(
        self,
        sender: Sender,
        base_url: str,
        options: Options,
        events: Events,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._base_url = base_url
        limiter = RateLimiter(slot_of(os.getpid(), next(_client_numbers)))
        self._operations = Operations(
            sender, options, limiter, events, clock=clock, wall_clock=time.time, random=random, random_key=_random_key
        )

    @property
    def base_url(self) -> str:
        """Where requests go."""
        return self._base_url

    @property
    def rate_limit(self) -> RateLimit | None:
        """The state of the key's rate limit in the last response, or None before the first."""
        return self._operations.limiter.rate_limit

    def with_options(
        self, *, max_retries: int | None = None, timeout: float | None = None, max_wait: float | None = None
    ) -> Self:
        """This client with other options, for one call or for many.

        Both share their connections, callbacks and pauses. Closing one closes both.

        Raises:
            ValueError: An option is out of range.
        """
        given = {"max_retries": max_retries, "timeout": timeout, "max_wait": max_wait}
        changes = {name: value for name, value in given.items() if value is not None}
        changed = copy.copy(self)
        changed._operations = self._operations.with_options(**changes)
        return changed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.base_url}>"


def endpoint(api_key: str | None, base_url: str | None, connect_timeout: float) -> "Endpoint":
    """Where requests go; the environment variables count if an argument is None. Raises ValueError."""
    from petstore_client._http import Endpoint

    key = (os.environ.get("PETSTORE_API_KEY", "") if api_key is None else api_key).strip()
    if not key:
        raise ValueError("there is no API key: pass api_key, or set PETSTORE_API_KEY")
    if not is_visible_ascii(key):
        # httpx would raise too, but its message would show the key.
        raise ValueError("the API key has characters that no key has")
    if not connect_timeout > 0:
        raise ValueError("connect_timeout must be more than 0")
    return Endpoint((base_url or os.environ.get("PETSTORE_BASE_URL") or LIVE).rstrip("/"), key, connect_timeout)


def _random_key() -> str:
    return os.urandom(16).hex()
