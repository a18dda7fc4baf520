"""Sessions, the one-time link, and limits on failed sign-ins.

Everything is kept in memory, so restarting the console ends all sessions.
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
SESSIONS_MAX = 100  # per operator, so that one operator's sign-ins cannot end another operator's sessions
FAILURES_PER_MINUTE = 10
ENTRIES_PER_MINUTE = 10
COUNTERS_MAX = 10_000
PREFIX_LENGTH = 12  # "pets_op_" and four more characters


class FlashMessage(msgspec.Struct, frozen=True):
    """A message that the next page shows once."""

    text: str
    ok: bool = True
    link: str = ""
    removal: str = ""  # the id of the removal that the operator can undo


class Session(msgspec.Struct):
    """An operator's session. `name` is None if the session was started with the one-time link.

    `operator_created` distinguishes a new operator from a revoked operator with the same name.
    """

    name: str | None
    operator_created: float
    role: Role
    ends: float
    last_active: float
    messages: list[FlashMessage] = []
    new_secrets: dict[str, str] = {}  # maps a key id or "operator NAME" to a secret that is shown once

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
        """Redeems the one-time link. Returns whether the token is valid. A token can be redeemed only once."""
        if self._link_digest is None or not secrets.compare_digest(self._link_digest, _digest(token)):
            return False
        self._link_digest = None
        return self._clock() < self._link_ends

    def restore_link(self, token: str) -> None:
        """Makes the link valid again. Call this if the sign-in fails after `redeem_link`."""
        self._link_digest = _digest(token)

    def begin(self, operator: Operator | None) -> str:
        """Starts a session and returns its cookie value. `operator` is None for the one-time link.

        A session that was started with the one-time link has the role `operator`.
        """
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
        """Returns the session that the cookie identifies, or None if there is no such session or it has ended.

        If `automatic` is true, the request is an automatic refresh and does not count as activity.
        """
        session, now = self._sessions.get(_digest(cookie)), self._clock()
        if session is None or not session.is_open(now):
            return None
        if not automatic:
            session.last_active = now
        return session

    def end(self, cookie: str) -> None:
        self._sessions.pop(_digest(cookie), None)

    def end_all_of(self, session: Session) -> int:
        """Ends all of the operator's sessions, including this one. Returns how many sessions were ended."""
        ended = self._cookies_of(session.name, session.operator_created)
        for cookie in ended:
            del self._sessions[cookie]
        return len(ended)

    def _cookies_of(self, name: str | None, created: float) -> list[bytes]:
        """Returns the hashed cookies of an operator's sessions, oldest first."""
        owner = (name, created)
        return [cookie for cookie, each in self._sessions.items() if (each.name, each.operator_created) == owner]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class SignInLimits:
    """Limits failed sign-ins per client address and token prefix.

    A client that guesses tokens cannot lock out an operator at the same address, because the guessed tokens have
    different prefixes. A client that tries many prefixes has no realistic chance of success, because a token has 178
    random bits.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[tuple[bytes, str], tuple[int, int]] = {}

    def retry_after(self, address: str, token: str) -> int:
        """Returns how many seconds the client must wait before it can try a token with this prefix again."""
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
    """Decides which failed sign-ins to record, so that clients without a token cannot fill the audit log.

    Records at most one failure per minute for each address, and at most ENTRIES_PER_MINUTE in total.
    Counts the failures that it does not record.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._minute_start = float("-inf")
        self._recorded: set[bytes] = set()
        self._others = 0

    def add(self, address: str) -> int | None:
        """Returns how many failures were skipped since the last recorded one, or None if this one is skipped too."""
        now, bucket = self._clock(), bucket_of(address)
        if not 0 <= now - self._minute_start < 60:
            self._minute_start, self._recorded = now, set()
        if bucket in self._recorded or len(self._recorded) >= ENTRIES_PER_MINUTE:
            self._others += 1
            return None
        self._recorded.add(bucket)
        return self.take_others()

    def take_others(self) -> int:
        """Returns the number of failures skipped since the last recorded failure, and resets the count."""
        others, self._others = self._others, 0
        return others


def _counter(address: str, token: str) -> tuple[bytes, str]:
    return bucket_of(address), token[:PREFIX_LENGTH]
