"""Sessions, the one-time link, and limits for failed sign-ins.

All are in memory: a restart of the console ends every session.
"""

import hashlib
import secrets
from collections.abc import Callable

import msgspec

from petstore.gate import bucket_of
from petstore.operators import LINK_ACTOR, Operator, Role
from petstore.rate_limits import ADMITTED, SECOND, admit_address

SESSION_SECONDS = 12 * 3600
IDLE_SECONDS = 30 * 60
LINK_SECONDS = 3600
SESSIONS_MAX = 100  # of each operator: no operator can end the sessions of others by signing in
FAILURES_PER_MINUTE = 10
ENTRIES_PER_MINUTE = 10
COUNTERS_MAX = 10_000
PREFIX_LENGTH = 12  # "pets_op_" and four characters more


class FlashMessage(msgspec.Struct, frozen=True):
    """A message that the next page shows once."""

    text: str
    ok: bool = True
    link: str = ""
    removal: str = ""  # the id of a removal that can be restored


class Session(msgspec.Struct):
    """`name` is the operator's, or None after the link. `operator_created` distinguishes operators of one name."""

    name: str | None
    operator_created: float
    role: Role
    ends: float
    last_active: float
    messages: list[FlashMessage] = []
    new_secrets: dict[str, str] = {}  # by key id or "operator NAME"; each is shown once

    @property
    def actor(self) -> str:
        return self.name or LINK_ACTOR

    def is_open(self, now: float) -> bool:
        return now < self.ends and now < self.last_active + IDLE_SECONDS


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
        """A new session; returns the value of its cookie. The session of the link has the role operator."""
        now = self._clock()
        self._sessions = {cookie: each for cookie, each in self._sessions.items() if each.is_open(now)}
        owner: tuple[str | None, float, Role] = (None, 0.0, "operator")
        if operator is not None:
            owner = (operator.name, operator.created, operator.role)
        own = self._cookies_of(*owner[:2])
        if len(own) >= SESSIONS_MAX:
            del self._sessions[own[0]]
        cookie = secrets.token_urlsafe(32)
        self._sessions[_digest(cookie)] = Session(*owner, now + SESSION_SECONDS, now)
        return cookie

    def find(self, cookie: str, *, automatic: bool = False) -> Session | None:
        """The open session of a cookie. An `automatic` request of a page does not end its idle time."""
        session, now = self._sessions.get(_digest(cookie)), self._clock()
        if session is None or not session.is_open(now):
            return None
        if not automatic:
            session.last_active = now
        return session

    def end(self, cookie: str) -> None:
        self._sessions.pop(_digest(cookie), None)

    def end_all_of(self, session: Session) -> int:
        """End every session of the same operator, this one included. Returns their number."""
        ended = self._cookies_of(session.name, session.operator_created)
        for cookie in ended:
            del self._sessions[cookie]
        return len(ended)

    def _cookies_of(self, name: str | None, created: float) -> list[bytes]:
        """The oldest session first."""
        owner = (name, created)
        return [cookie for cookie, each in self._sessions.items() if (each.name, each.operator_created) == owner]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class SignInLimits:
    """Counts failures per client address and token prefix.

    A client that guesses cannot lock out an operator, not even one with the same address: their tokens have different
    prefixes. Guessing with ever new prefixes is hopeless, since a token has 178 random bits.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[tuple[bytes, str], tuple[int, int]] = {}

    def retry_after(self, address: str, token: str) -> int:
        """Seconds until the client may try such a token again; 0 when it may now."""
        start, used = self._failures.get(_counter(address, token), (0, 0))
        decision = admit_address(start, used, FAILURES_PER_MINUTE, self._now)[2]
        return 0 if decision.outcome is ADMITTED else -(-decision.wait // SECOND)

    def add_failure(self, address: str, token: str) -> None:
        counter = _counter(address, token)
        start, used = self._failures.pop(counter, (0, 0))
        if len(self._failures) >= COUNTERS_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[counter] = admit_address(start, used, FAILURES_PER_MINUTE, self._now)[:2]

    @property
    def _now(self) -> int:
        return int(self._clock() * SECOND)


class FailureThrottle:
    """Selects the failures to record, so that a client without a token cannot fill the audit log.

    Per minute, at most one for each address and ENTRIES_PER_MINUTE in all. The others are counted.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._minute_start = float("-inf")
        self._recorded: set[bytes] = set()
        self._others = 0

    def add(self, address: str) -> int | None:
        """None: do not record this failure. Otherwise the number of failures since the last recorded one."""
        now, bucket = self._clock(), bucket_of(address)
        if not 0 <= now - self._minute_start < 60:
            self._minute_start, self._recorded = now, set()
        if bucket in self._recorded or len(self._recorded) >= ENTRIES_PER_MINUTE:
            self._others += 1
            return None
        self._recorded.add(bucket)
        return self.take_others()

    def take_others(self) -> int:
        """The number of failures since the last recorded one, which counts from 0 again."""
        others, self._others = self._others, 0
        return others


def _counter(address: str, token: str) -> tuple[bytes, str]:
    return bucket_of(address), token[:PREFIX_LENGTH]
