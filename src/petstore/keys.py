"""API keys: secrets, hashes and states.

A secret consists of the prefix `pets_live_` or `pets_test_`, 30 random base62 characters, and a checksum. The checksum
is the CRC-32 of all preceding characters, encoded as 6 base62 characters. It lets scanners recognise a leaked key
offline, and lets the service reject a mistyped key without looking it up.
"""

import hashlib
import re
import secrets
import zlib
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from petstore.edits import difference_in_words, edited, given
from petstore.errors import OperatorError
from petstore.plans import PLANS, Limits, Plan

Environment = Literal["live", "staging"]
Scope = Literal["read", "write"]
KeySort = Literal["created", "name", "last-used"]
StoredState = Literal["active", "suspended", "expired", "revoked"]  # does not consider bans, which only the gate knows

ENVIRONMENTS: tuple[Environment, ...] = ("live", "staging")
SCOPES: tuple[Scope, ...] = ("read", "write")
KEY_SORTS: tuple[KeySort, ...] = get_args(KeySort)
PREFIXES: dict[Environment, str] = {"live": "pets_live_", "staging": "pets_test_"}

BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
RANDOM_LENGTH = 30
CHECKSUM_LENGTH = 6
SECRET_LENGTH = len(PREFIXES["live"]) + RANDOM_LENGTH + CHECKSUM_LENGTH  # both prefixes have the same length
TEXT_MAX = 255  # the maximum number of characters in a key's name or contact
LIMIT_MAX = 10**12  # fits in the gate's 64-bit counters, and is more than any machine can serve

_TEXT_FAULT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]").search
_KEY = re.compile("(pets_(?:live|test|op)_)[0-9A-Za-z]+")  # matches API keys and operators' tokens
_DURATION = re.compile("([0-9]{1,9})([smhdw])").fullmatch
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_CENTURY = 100 * 365.25 * 86_400


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key, without its secret. Only a hash of the secret is stored. Times are in Unix seconds."""

    id: str
    name: str
    contact: str = ""  # whom to contact about this key
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

    def state(self, now: float) -> StoredState:
        if self.revoked is not None:
            return "revoked"
        if self.expires is not None and now >= self.expires:
            return "expired"
        return "active" if self.suspended is None else "suspended"


class KeyChanges(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's changes to a key. UNSET leaves a field unchanged."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    contact: str | msgspec.UnsetType = msgspec.UNSET
    plan: Plan | msgspec.UnsetType = msgspec.UNSET
    per_minute: int | msgspec.UnsetType = msgspec.UNSET
    per_day: int | msgspec.UnsetType = msgspec.UNSET
    scopes: tuple[Scope, ...] | msgspec.UnsetType = msgspec.UNSET
    expires: float | msgspec.UnsetType | None = msgspec.UNSET


PLAN_UNIT = ("plan", "per_minute", "per_day")
KEY_UNITS = (("name",), ("contact",), PLAN_UNIT, ("scopes",), ("expires",))


class Secret(NamedTuple):
    """One of a key's secrets, without the secret itself.

    Each rotation adds a secret with the next number, and gives the other secrets an expiry. The newest secret expires
    only with its key.
    """

    number: int
    expires: float | None


class KeyQuery(NamedTuple):
    """A search for keys. `text` is a substring of the name, the contact or the id.

    `ids` limits the search to keys with these ids. `except_ids` excludes keys with these ids. `expires_by` limits the
    search to keys that expire at or before this time, in Unix seconds.
    """

    text: str = ""
    plan: Plan | None = None
    state: StoredState | None = None
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
    """Returns a key with a new id.

    Raises OperatorError if the name or the contact is not valid, if `scopes` is empty, or if the plan does not allow
    the limits.
    """
    check_text("name", name)
    check_text("contact", contact)
    allowed = limits_of(plan, *(limits or (None, None)))
    chosen = set(scopes)
    if not chosen:
        raise OperatorError("a key must have at least one scope: read or write")
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


def changed_key(key: ApiKey, changes: KeyChanges, base: ApiKey | None = None) -> ApiKey:
    """Returns the key with the changes applied. `base` is the key as the operator saw it.

    Raises Conflict if someone else has changed the same values, and OperatorError if the key is revoked or a new value
    is not valid.
    """
    check_not_revoked(key)
    new = given(changes)
    for field in ("name", "contact"):
        if field in new:
            check_text(field, new[field])
    if "scopes" in new:
        new["scopes"] = tuple(scope for scope in SCOPES if scope in new["scopes"])
    if any(field in new for field in PLAN_UNIT):
        plan: Plan = new.setdefault("plan", key.plan)
        own = key.limits if plan == key.plan == "enterprise" else (None, None)
        limits = limits_of(plan, new.get("per_minute", own[0]), new.get("per_day", own[1]))
        new |= limits._asdict()
    return edited(key, new, base, KEY_UNITS)


def suspended_key(key: ApiKey, now: float) -> ApiKey:
    """Returns the key as suspended. Raises OperatorError if it is revoked or already suspended."""
    check_not_revoked(key)
    if key.suspended is not None:
        raise OperatorError(f"{key.id} is already suspended")
    return msgspec.structs.replace(key, suspended=now)


def resumed_key(key: ApiKey) -> ApiKey:
    """Returns the key as no longer suspended. Raises OperatorError if it is revoked or not suspended."""
    check_not_revoked(key)
    if key.suspended is None:
        raise OperatorError(f"{key.id} is not suspended, so there is nothing to resume")
    return msgspec.structs.replace(key, suspended=None)


def revoked_key(key: ApiKey, now: float) -> ApiKey:
    """Returns the key as revoked. Raises OperatorError if it is already revoked."""
    if key.revoked is not None:
        raise OperatorError(f"{key.id} is already revoked")
    return msgspec.structs.replace(key, revoked=now)


def check_rotation(key: ApiKey, newest: int, seen: int, now: float) -> None:
    """Raises OperatorError if the key is revoked or has expired, or if it has been rotated in the meantime.

    `newest` is the number of the key's newest secret, and `seen` is the number of the newest one that the operator saw.
    """
    check_not_revoked(key)
    if key.state(now) == "expired":
        raise OperatorError(f"{key.id} has expired; set a later expiry or create a new key")
    if newest != seen:
        raise OperatorError(
            f"someone else has just rotated {key.id}, so it was not rotated again; use the new secret, or repeat the"
            " rotation to replace it"
        )


def end_of_old_secrets(key: ApiKey, secrets: Iterable[Secret], now: float) -> float:
    """Returns the time when the last of the key's old secrets would expire.

    Raises OperatorError if the key is revoked, or if no old secret still works.
    """
    check_not_revoked(key)
    until = old_secret_until(secrets, now)
    if until is None:
        raise OperatorError(f"{key.id} has no old secret that still works, so there is no overlap to end")
    return until


def newest_number(secrets: Iterable[Secret]) -> int:
    """Returns the number of the newest secret, or 0 if there are no secrets."""
    return max((each.number for each in secrets), default=0)


def old_secret_until(secrets: Iterable[Secret], now: float) -> float | None:
    """Returns the time when the last of a key's old secrets expires, or None if only the newest secret works."""
    return max((each.expires for each in secrets if each.expires is not None and each.expires > now), default=None)


def check_not_revoked(key: ApiKey) -> None:
    """Raises OperatorError if the key is revoked."""
    if key.revoked is not None:
        raise OperatorError(f"{key.id} is revoked: create a new key instead")


def key_difference_in_words(before: ApiKey, after: ApiKey, now: float) -> str:
    """Describes a change for an audit entry. If the key was suspended, resumed or revoked, mentions only that."""
    if (before.suspended, before.revoked) == (after.suspended, after.revoked):
        return difference_in_words(before, after)
    resumed = before.suspended is not None and after.suspended is None
    suspended = before.suspended is None and after.suspended is not None
    old = "suspended" if resumed else before.state(now)
    new = "suspended" if suspended else after.state(now)
    return f"{old} → {new}"


def check_text(field: str, text: str) -> None:
    """Raises OperatorError if a key's name or contact is too long or contains control characters."""
    if len(text) > TEXT_MAX or _TEXT_FAULT(text):
        raise OperatorError(f"a key's {field} must have at most {TEXT_MAX} characters and no control characters")


def limits_of(plan: Plan, per_minute: int | None, per_day: int | None) -> Limits:
    """Returns a key's limits. Only enterprise keys have individual limits.

    Raises OperatorError if the plan does not allow these limits.
    """
    fixed = PLANS[plan]
    if fixed is not None:
        if per_minute is not None or per_day is not None:
            raise OperatorError(f"the {plan} plan has fixed limits; limits can be set only for enterprise keys")
        return fixed
    if per_minute is None or per_day is None:
        raise OperatorError("an enterprise key needs its own limits: per minute and per day")
    if not all(1 <= limit <= LIMIT_MAX for limit in (per_minute, per_day)):
        raise OperatorError(f"limits must be whole numbers from 1 to {LIMIT_MAX:,}")
    return Limits(per_minute, per_day)


def mint(environment: Environment) -> str:
    """Returns a new secret for an API key."""
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
    """Whether a string has a valid prefix, length and checksum. Does not check whether the key exists."""
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
    """Returns the first API key in a text, such as a leaked file, or the whole text (stripped) if it contains none."""
    found = (match[0] for match in _KEY.finditer(text) if any(well_formed(match[0], each) for each in ENVIRONMENTS))
    return next(found, text.strip())


def without_keys(text: str) -> str:
    """Removes secrets from a text that will be logged or displayed. For example, a path may contain a client's key."""
    return _KEY.sub(r"\1…", text)


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def parse_duration(text: str, *, least: float = 0) -> float:
    """Converts a duration such as `90d`, `24h`, `30m` or `10s` to seconds.

    Raises OperatorError if the duration is not valid, shorter than `least` seconds, or longer than a century.
    """
    match = _DURATION(text.strip())
    if match is None:
        raise OperatorError(f"{text!r} is not a duration; write it like 90d, 24h, 30m or 10s")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds < least:
        raise OperatorError(f"{text!r} is too short; the minimum is {least:g}s")
    if seconds > _CENTURY:
        raise OperatorError(f"{text!r} is longer than a hundred years")
    return seconds
