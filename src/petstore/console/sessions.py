"""Sessions, the one-time link, and the limit of failed sign-ins. All are in memory: a restart ends every session."""

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
FAILURES_PER_MINUTE = 10
ADDRESSES_MAX = 10_000
LINK_ACTOR = "console"  # the name in the audit log of an operator who signed in by the one-time link
_LINK_TOKEN = re.compile(r"[\w-]{43}", re.ASCII).fullmatch  # the form of secrets.token_urlsafe(32)


class FlashMessage(msgspec.Struct, frozen=True):
    """A message that the next page shows once."""

    text: str
    ok: bool = True
    link: str = ""


class Session(msgspec.Struct):
    """`name` is the operator's, or None after the one-time link; `operator_created` distinguishes operators of one name."""

    name: str | None
    operator_created: float
    ends: float
    messages: list[FlashMessage] = msgspec.field(default_factory=list)
    new_secrets: dict[str, str] = msgspec.field(default_factory=dict)  # by key id; each is shown once

    @property
    def actor(self) -> str:
        return self.name or LINK_ACTOR


class Sessions:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sessions: dict[bytes, Session] = {}
        self._link_digest: bytes | None = None
        self._link_ends = 0.0

    def new_link_token(self) -> str:
        token = secrets.token_urlsafe(32)
        self._link_digest, self._link_ends = _digest(token), self._clock() + LINK_SECONDS
        return token

    def redeem_link(self, token: str) -> bool:
        """Whether the token is the link's. A redeemed token works no second time."""
        if self._link_digest is None or not secrets.compare_digest(self._link_digest, _digest(token)):
            return False
        self._link_digest = None
        return self._clock() < self._link_ends

    def restore_link(self, token: str) -> None:
        """The sign-in failed after `redeem_link`: make the link work again."""
        self._link_digest = _digest(token)

    def begin(self, operator: Operator | None) -> str:
        """A new session; returns the value of its cookie."""
        now = self._clock()
        self._sessions = {cookie: each for cookie, each in self._sessions.items() if now < each.ends}
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        cookie = secrets.token_urlsafe(32)
        name, created = (operator.name, operator.created) if operator else (None, 0.0)
        self._sessions[_digest(cookie)] = Session(name, created, now + SESSION_SECONDS)
        return cookie

    def find(self, cookie: str) -> Session | None:
        session = self._sessions.get(_digest(cookie))
        return session if session is not None and self._clock() < session.ends else None

    def end(self, cookie: str) -> None:
        self._sessions.pop(_digest(cookie), None)


class SignInLimits:
    """Counts failed sign-ins per client address and minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[str, tuple[int, int]] = {}

    def retry_after(self, address: str) -> int:
        """Seconds until the address may try again; 0 when it may now."""
        start, used = self._failures.get(address, (0, 0))
        decision = admit_address(start, used, FAILURES_PER_MINUTE, self._now)[2]
        return 0 if decision.outcome is ADMITTED else -(-decision.wait // SECOND)

    def add_failure(self, address: str) -> None:
        start, used = self._failures.pop(address, (0, 0))
        if len(self._failures) >= ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = admit_address(start, used, FAILURES_PER_MINUTE, self._now)[:2]

    @property
    def _now(self) -> int:
        return int(self._clock() * SECOND)


def could_be_link_token(text: str) -> bool:
    """Whether the text has the form of a link's token. An operator's token has another form."""
    return _LINK_TOKEN(text) is not None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
