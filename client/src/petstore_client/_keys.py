"""The API key, which is fixed or returned by a function of the caller. Does no I/O itself."""

import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

RENEWED_EVERY = 60.0  # seconds; the shortest time between two renewals
DAY = 86_400.0  # seconds
WARNED_BEFORE = 14  # days


class Secret:
    """The text of an API key. Its repr does not show it, not even in a debugger.

    Raises ValueError if the text is not an API key, or TypeError if it is not a string. Neither message contains it.
    """

    __slots__ = ("value",)

    def __init__(self, text: object) -> None:
        if not isinstance(text, str):
            raise TypeError(f"the API key must be a str, not {type(text).__name__}")
        self.value: str = text.strip()
        if not self.value:
            raise ValueError("the API key is missing: pass api_key, or set PETSTORE_API_KEY")
        if not is_visible_ascii(self.value):
            raise ValueError("the API key contains invalid characters")

    def __repr__(self) -> str:
        return "[secure]"


class Key:
    """The key that a client sends. A function that returns it is called on first use, and again after a 401."""

    def __init__(self, source: str | Callable[[], str | Awaitable[str]]) -> None:
        self._load = source if callable(source) else None
        self.secret: Secret | None = None if callable(source) else Secret(source)
        """The secret in use, or None before the first use."""
        self.must_load: bool = self.secret is None
        """Whether the secret must be loaded before the next request."""
        self._renewed = -math.inf
        self._warned = -math.inf

    async def load(self) -> Secret:
        """Calls the function. Raises what it raises, and ValueError or TypeError if it does not return an API key."""
        assert self._load is not None
        loaded = self._load()
        return Secret(await loaded if isinstance(loaded, Awaitable) else loaded)

    def use(self, secret: Secret, now: float) -> bool:
        """Uses a secret that has been loaded. Returns whether it is a new one."""
        self.must_load = False
        if self.secret is not None:
            self._renewed = now
            if secret.value == self.secret.value:
                return False
        self.secret = secret
        return True

    def can_renew(self, refused: Secret | None, now: float) -> bool:
        """Returns whether a request that was refused with this secret can be repeated with a newer one."""
        if refused is not self.secret or self.must_load:
            return True
        if self._load is None or now - self._renewed < RENEWED_EVERY:
            return False
        self.must_load = True
        return True

    def warning(self, expires: str, unix: float) -> str | None:
        """Returns a warning about the key's expiry, or None if it is far away or if there has been one today."""
        if not (expires.isascii() and expires.isdigit() and len(expires) <= 11):  # the year 5138
            return None
        days = (int(expires) - unix) / DAY
        if days >= WARNED_BEFORE or unix - self._warned < DAY:
            return None
        self._warned = unix
        return (
            f"the API key expires in {days:.1f} days, on {datetime.fromtimestamp(int(expires), UTC):%Y-%m-%d %H:%M} UTC"
        )

    def expire(self) -> None:
        """Makes the next request load the secret, if there is a function that returns it."""
        self.must_load = self._load is not None


def is_visible_ascii(text: str) -> bool:
    """Returns whether the string contains only visible ASCII characters and can therefore be sent in a header."""
    return text.isascii() and text.isprintable() and " " not in text
