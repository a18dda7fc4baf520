"""API keys: their secrets, their hash and their state.

A secret is `pets_live_` or `pets_test_`, 30 random base62 characters, and 6 base62 characters of the CRC-32 of all
that precedes. A scanner can therefore recognise a leaked key offline, and a mistyped key costs no look-up.
"""

import hashlib
import re
import secrets
import zlib
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from petstore.errors import OperatorError
from petstore.plans import PLANS, Limits, Plan

Environment = Literal["live", "staging"]
Scope = Literal["read", "write"]
KeySort = Literal["created", "name", "last-used"]

ENVIRONMENTS: tuple[Environment, ...] = ("live", "staging")
SCOPES: tuple[Scope, ...] = ("read", "write")
KEY_SORTS: tuple[KeySort, ...] = get_args(KeySort)
PREFIXES: dict[Environment, str] = {"live": "pets_live_", "staging": "pets_test_"}

BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
RANDOM_LENGTH = 30
CHECKSUM_LENGTH = 6
SECRET_LENGTH = len(PREFIXES["live"]) + RANDOM_LENGTH + CHECKSUM_LENGTH  # in staging too
TEXT_MAX = 255  # characters of a name or a contact
LIMIT_MAX = 10**12  # the gate counts in 64 bits; no machine answers this many requests

_TEXT_FAULT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]").search
_KEY = re.compile("(pets_(?:live|test|op)_)[0-9A-Za-z]+")  # of API keys, and tokens of operators
_DURATION = re.compile("([0-9]{1,9})([smhdw])").fullmatch
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_CENTURY = 100 * 365.25 * 86_400


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret, of which only a hash is stored. Times are Unix seconds."""

    id: str
    name: str
    contact: str = ""  # the operator's note of whom to write to
    environment: Environment
    plan: Plan
    per_minute: int
    per_day: int
    scopes: tuple[Scope, ...]
    created: float
    expires: float | None = None
    revoked: float | None = None
    last_used: float | None = None
    suspended: float | None = None

    @property
    def limits(self) -> Limits:
        return Limits(self.per_minute, self.per_day)

    def usable(self, now: float) -> bool:
        return self.revoked is None and self.suspended is None and (self.expires is None or now < self.expires)

    def state(self, now: float) -> Literal["active", "suspended", "expired", "revoked"]:
        """The state without regard to a ban, which only the gate knows."""
        if self.revoked is not None:
            return "revoked"
        if self.expires is not None and now >= self.expires:
            return "expired"
        return "active" if self.suspended is None else "suspended"


class KeyChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator changes in a key; UNSET leaves a field as it is. `suspended` is a time, or None to resume."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    contact: str | msgspec.UnsetType = msgspec.UNSET
    plan: Plan | msgspec.UnsetType = msgspec.UNSET
    per_minute: int | msgspec.UnsetType = msgspec.UNSET
    per_day: int | msgspec.UnsetType = msgspec.UNSET
    scopes: tuple[Scope, ...] | msgspec.UnsetType = msgspec.UNSET
    expires: float | msgspec.UnsetType | None = msgspec.UNSET
    suspended: float | msgspec.UnsetType | None = msgspec.UNSET


class KeyQuery(NamedTuple):
    """Which keys to find. `text` is a part of the name, the contact or the id. `ids` and `except_ids` select by id.

    `expires_by` selects keys that will expire by this time, in Unix seconds.
    """

    text: str = ""
    plan: Plan | None = None
    state: Literal["active", "suspended", "expired", "revoked"] | None = None
    ids: Sequence[str] | None = None
    except_ids: Sequence[str] = ()
    expires_by: float | None = None


def new_key(
    environment: Environment,
    plan: Plan,
    *,
    now: float,
    name: str = "",
    contact: str = "",
    scopes: Iterable[Scope] = SCOPES,
    limits: Limits | None = None,
    expires: float | None = None,
) -> ApiKey:
    """A key with a new id.

    Raises OperatorError for an invalid name or contact, and for limits that the plan does not allow.
    """
    check_text("name", name)
    check_text("contact", contact)
    allowed = limits_of(plan, *(limits or (None, None)))
    chosen = set(scopes)
    if not chosen:
        raise OperatorError("a key needs at least one scope: read or write")
    return ApiKey(
        id="key_" + "".join(secrets.choice(BASE62) for _ in range(12)),
        name=name,
        contact=contact,
        environment=environment,
        plan=plan,
        per_minute=allowed.per_minute,
        per_day=allowed.per_day,
        scopes=tuple(scope for scope in SCOPES if scope in chosen),
        created=now,
        expires=expires,
    )


def check_text(field: str, text: str) -> None:
    """Raises OperatorError if the audit log or a terminal could not show the name or the contact of a key."""
    if len(text) > TEXT_MAX or _TEXT_FAULT(text):
        raise OperatorError(f"a key's {field} has at most {TEXT_MAX} characters and no control characters")


def limits_of(plan: Plan, per_minute: int | None, per_day: int | None) -> Limits:
    """The limits of a key; only an enterprise key has its own. Raises OperatorError."""
    fixed = PLANS[plan]
    if fixed is not None:
        if per_minute is not None or per_day is not None:
            raise OperatorError(f"the {plan} plan has fixed limits: only enterprise keys have their own")
        return fixed
    if per_minute is None or per_day is None:
        raise OperatorError("an enterprise key needs its own limits: per minute and per day")
    if not all(1 <= limit <= LIMIT_MAX for limit in (per_minute, per_day)):
        raise OperatorError(f"limits are whole numbers from 1 to {LIMIT_MAX:,}")
    return Limits(per_minute, per_day)


def mint(environment: Environment) -> str:
    """A new secret of an API key."""
    return new_secret(PREFIXES[environment])


def new_secret(prefix: str) -> str:
    body = prefix + "".join(secrets.choice(BASE62) for _ in range(RANDOM_LENGTH))
    return body + checksum(body)


def checksum(body: str) -> str:
    value = zlib.crc32(body.encode())
    digits = []
    for _ in range(CHECKSUM_LENGTH):
        value, digit = divmod(value, 62)
        digits.append(BASE62[digit])
    return "".join(reversed(digits))


def well_formed(secret: str, environment: Environment) -> bool:
    """Whether a text has the prefix, the length and the checksum of a secret. Needs no look-up."""
    return has_form(secret, PREFIXES[environment])


def has_form(secret: str, prefix: str) -> bool:
    return (
        len(secret) == len(prefix) + RANDOM_LENGTH + CHECKSUM_LENGTH
        and secret.startswith(prefix)
        and secret.isascii()
        and secret[len(prefix) :].isalnum()
        and checksum(secret[:-CHECKSUM_LENGTH]) == secret[-CHECKSUM_LENGTH:]
    )


def secret_in(text: str) -> str:
    """The first secret in a text, such as a leaked file with quotes around it; without one, the text itself."""
    found = (match[0] for match in _KEY.finditer(text) if any(well_formed(match[0], each) for each in ENVIRONMENTS))
    return next(found, text.strip())


def without_keys(text: str) -> str:
    """Returns the text without secrets, for logs and messages: a client may have put its key into the path."""
    return _KEY.sub(r"\1…", text)


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def parse_duration(text: str, *, least: float = 0) -> float:
    """The seconds of an expiry or an overlap as an operator writes it: `90d`, `24h`, `30m`, `10s`.

    Raises OperatorError, also for less than `least` seconds.
    """
    match = _DURATION(text.strip())
    if match is None:
        raise OperatorError(f"{text!r} is not a duration; write 90d, 24h, 30m or 10s")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds < least:
        raise OperatorError(f"{text!r} is too short; the least is {least:g}s")
    if seconds > _CENTURY:
        raise OperatorError(f"{text!r} is more than a hundred years")
    return seconds
