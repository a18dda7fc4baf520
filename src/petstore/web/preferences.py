"""Preferences in the `Prefer` header (RFC 7240): strict handling and, on staging, simulated errors and delays."""

import asyncio
import re
from functools import lru_cache
from time import perf_counter
from typing import NamedTuple

from petstore.errors import REQUEST_ERRORS, STATUS_OF_CODE, Gone
from petstore.keys import Environment
from petstore.rate_limits import BANNED, LIMITED, SECOND, Decision
from petstore.web.admission import insufficient_scope, unauthorized
from petstore.web.replies import Lines, internal_error, line, unavailable
from petstore.web.requests import Request
from petstore.web.routes import Route, wrong_address

PREFER_MAX = 500  # maximum characters in a Prefer header; a longer one is ignored
DELAYS_MAX = 100  # concurrent delays
RETRY_AFTER = 2  # seconds, by default
CODES = [code for code in STATUS_OF_CODE if code != "malformed_request"]
REFUSALS = {"rate_limit_exceeded": LIMITED, "key_banned": BANNED}
RETRIED = (*REFUSALS, "unavailable")  # errors with a Retry-After header

# Matches a preference and its value. Parameters after a semicolon are ignored.
_ITEM = re.compile(r'[ \t]*([a-zA-Z-]+)[ \t]*=[ \t]*(?:"([a-zA-Z_0-9]+)"|([a-zA-Z_0-9]+))[ \t]*(?:;.*)?').fullmatch
# Splits a header at commas outside quotes. An unclosed quote extends to the end of the header.
_ITEMS = re.compile(r'(?:[^",]+|"(?:[^"\\]|\\.)*"?)+').findall


class Preferences(NamedTuple):
    """A client's preferences. `delay` and `retry_after` are in seconds, or None if the client did not send them."""

    error: str | None = None
    retry_after: int | None = None
    delay: int | None = None
    strict: bool = False  # whether to reject unknown parameters and members

    def on(self, environment: Environment) -> "Preferences":
        """Returns the preferences that have an effect in this environment."""
        return self if environment == "staging" else Preferences(strict=self.strict)

    @property
    def applied(self) -> Lines:
        """Returns the headers that list the applied preferences."""
        # A simulated error takes precedence over strict handling.
        handling = "strict" if self.strict and self.error is None else None
        done = {"error": self.error, "retry-after": self.retry_after, "delay": self.delay, "handling": handling}
        if self.error not in RETRIED:
            del done["retry-after"]
        named = ", ".join(f"{name}={value}" for name, value in done.items() if value is not None)
        return line("preference-applied", named) + line("vary", "Prefer") if named else ""


NONE = Preferences()


@lru_cache(maxsize=256)
def parse_preferences(field: str) -> Preferences:
    """Parses a `Prefer` header. Ignores unknown and invalid preferences.

    If a preference is repeated, only the first one applies.
    """
    if len(field) > PREFER_MAX:
        return NONE
    found: dict[str, str] = {}
    for item in _ITEMS(field):
        if match := _ITEM(item):
            found.setdefault(match[1].lower(), match[2] or match[3])
    error = found.get("error")
    if error not in CODES:
        error = next((code for code in CODES if str(STATUS_OF_CODE[code]) == found.get("code")), None)
    strict = found.get("handling", "").lower() == "strict"
    return Preferences(error, _seconds(found.get("retry-after"), 60), _seconds(found.get("delay"), 10), strict)


def _seconds(text: str | None, most: int) -> int | None:
    """Parses a whole number from 1 to `most`. Returns None for anything else."""
    if text is None or not re.fullmatch("[1-9][0-9]?", text) or int(text) > most:
        return None
    return int(text)


def simulated_decision(decision: Decision, preferences: Preferences, now: float) -> Decision:
    """Returns the decision to describe in the response headers: a refusal for a simulated 429, otherwise `decision`."""
    if preferences.error not in REFUSALS:
        return decision
    wait = (preferences.retry_after or RETRY_AFTER) * SECOND
    return Decision(REFUSALS[preferences.error], decision.window, decision.limit, 0, int(now * SECOND) + wait, wait)


def simulate(preferences: Preferences, request: Request, route: Route, request_id: str) -> None:
    """Raises the error that the client asked for, if any, with the same headers as a real error."""
    code = preferences.error
    if code is None:
        return
    if code in REFUSALS:
        raise REQUEST_ERRORS[code](headers=(("retry-after", str(preferences.retry_after or RETRY_AFTER)),))
    if code == "unauthorized":
        raise unauthorized(request, route.api.environment)
    if code == "insufficient_scope":
        raise insufficient_scope(route.operation.scope if route.operation else "read")
    if code == "method_not_allowed" and route.allow:
        raise wrong_address(request.path, route.allow)
    if code == "gone":
        raise Gone(route.gone)
    if code == "internal_error":
        raise internal_error(request_id)
    if code == "unavailable":
        raise unavailable(preferences.retry_after or RETRY_AFTER)
    raise REQUEST_ERRORS[code]


class Delays:
    """Delays responses at the client's request. Each worker has one instance."""

    def __init__(self, *, most: int = DELAYS_MAX) -> None:
        self._most = most
        self._waiting = 0
        self._ended = asyncio.Event()

    def granted(self, preferences: Preferences) -> Preferences:
        """Returns the preferences, without the delay if too many responses are already being delayed."""
        return preferences._replace(delay=None) if self._waiting >= self._most else preferences

    async def wait(self, seconds: int | None) -> float:
        """Waits for this many seconds, or until shutdown if that comes first. Returns the time spent waiting."""
        if seconds is None:
            return 0.0
        began = perf_counter()
        self._waiting += 1
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1
        return perf_counter() - began

    def end(self) -> None:
        """Sends all delayed responses immediately. Called on shutdown."""
        self._ended.set()
