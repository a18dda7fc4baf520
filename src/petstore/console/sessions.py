"""Sessions and the one-time link. Both are in memory: a restart of the console ends every session."""

import hashlib
import secrets
from collections.abc import Callable, Sequence

import msgspec

from petstore.operators import Operator, Role

SESSION_SECONDS = 12 * 3600
IDLE_SECONDS = 30 * 60
LINK_SECONDS = 3600
SESSIONS_MAX = 100  # of each operator: no operator can end the sessions of others by signing in
UNCERTAIN = "The store did not respond. Check whether the change was made, then try again."
LINK_ACTOR = "console"  # the name in the audit log of an operator who signed in by the one-time link


class FlashMessage(msgspec.Struct, frozen=True):
    """A message that the next page shows once."""

    text: str
    ok: bool = True
    link: str = ""
    removed: Sequence[int] = ()  # ids of animals that can be restored


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
