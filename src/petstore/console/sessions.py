"""Who is signed in: sessions, the one-time link, and how often anyone may try. All in memory: a restart ends them."""

import hashlib
import re
import secrets
from collections.abc import Callable

import msgspec

from petstore.operators import Operator
from petstore.rate_limits import ADMITTED, SECOND, admit_address

SESSION_SECONDS = 12 * 3600
LINK_SECONDS = 3600
SESSIONS_MAX = 1_000
TRIES_PER_MINUTE = 10
ADDRESSES_MAX = 10_000
_LINK_TOKEN = re.compile(r"[\w-]{43}", re.ASCII).fullmatch  # as secrets.token_urlsafe(32) makes them
GUEST = "console"  # what the audit log calls whoever came by the one-time link


class Note(msgspec.Struct, frozen=True):
    """Something to tell the operator on the next page."""

    text: str
    good: bool = True
    address: str = ""  # where to look at it


class Session(msgspec.Struct):
    """`name` is the operator's, `named` when that was; without one, whoever came by the link."""

    name: str | None
    named: float
    ends: float
    notes: list[Note] = msgspec.field(default_factory=list)
    secrets: dict[str, str] = msgspec.field(default_factory=dict)  # of keys just made: each is shown once

    @property
    def actor(self) -> str:
        return self.name or GUEST


class Sessions:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sessions: dict[bytes, Session] = {}
        self._link: bytes | None = None
        self._link_ends = 0.0

    def new_link_token(self) -> str:
        token = secrets.token_urlsafe(32)
        self._link, self._link_ends = _hashed(token), self._clock() + LINK_SECONDS
        return token

    def redeem(self, token: str) -> bool:
        """Whether this is the token of the link; it is worth nothing afterwards."""
        if self._link is None or not secrets.compare_digest(self._link, _hashed(token)):
            return False
        self._link = None
        return self._clock() < self._link_ends

    def give_back(self, token: str) -> None:
        """Nothing came of it: the link works again."""
        self._link = _hashed(token)

    def begin(self, operator: Operator | None) -> str:
        """The cookie's value."""
        now = self._clock()
        self._sessions = {cookie: each for cookie, each in self._sessions.items() if now < each.ends}
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        value = secrets.token_urlsafe(32)
        name, named = (operator.name, operator.created) if operator else (None, 0.0)
        self._sessions[_hashed(value)] = Session(name, named, now + SESSION_SECONDS)
        return value

    def find(self, value: str) -> Session | None:
        session = self._sessions.get(_hashed(value))
        return session if session is not None and self._clock() < session.ends else None

    def end(self, value: str) -> None:
        self._sessions.pop(_hashed(value), None)


class Tries:
    """Failed sign-ins by address: beyond some a minute nobody from there is listened to."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed: dict[str, tuple[int, int]] = {}

    def wait(self, address: str) -> int:
        """Seconds until the next try is listened to; 0 for now."""
        start, used = self._failed.get(address, (0, 0))
        decision = admit_address(start, used, TRIES_PER_MINUTE, self._now)[2]
        return 0 if decision.outcome is ADMITTED else -(-decision.wait // SECOND)

    def failed(self, address: str) -> None:
        start, used = self._failed.pop(address, (0, 0))
        if len(self._failed) >= ADDRESSES_MAX:
            del self._failed[next(iter(self._failed))]
        self._failed[address] = admit_address(start, used, TRIES_PER_MINUTE, self._now)[:2]

    @property
    def _now(self) -> int:
        return int(self._clock() * SECOND)


def could_be_link_token(text: str) -> bool:
    """Told without any look-up; an operator's token could not."""
    return _LINK_TOKEN(text) is not None


def _hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
