"""API keys: their format, their checksum, their hash, and the contract of the place that keeps them.

A key is `pets_live_` or `pets_test_`, 30 random base62 characters, and 6 base62 characters of the CRC-32 of all
that precedes. The checksum lets a scanner recognise a leaked key offline, and costs a guesser no look-up of ours.
"""

import hashlib
import re
import secrets
import zlib
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import msgspec

from petstore.audit import AuditEntry
from petstore.errors import OperatorError
from petstore.plans import PLANS, Limits, Plan

Environment = Literal["live", "staging"]
Scope = Literal["read", "write"]

ENVIRONMENTS: tuple[Environment, ...] = ("live", "staging")
SCOPES: tuple[Scope, ...] = ("read", "write")
PREFIXES: dict[Environment, str] = {"live": "pets_live_", "staging": "pets_test_"}

BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
RANDOM_LENGTH = 30
CHECKSUM_LENGTH = 6
NAME_MAX = 255
LIMIT_MAX = 10**12  # more than any machine answers; the gate counts in 64 bits

_NAME_FAULT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]").search
_KEY = re.compile("(pets_(?:live|test)_)[0-9A-Za-z]+")
_DURATION = re.compile("([0-9]{1,9})([smhdw])").fullmatch
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a key. The secret itself is shown once and kept only as a hash. Times are Unix seconds."""

    id: str
    name: str
    environment: Environment
    plan: Plan
    per_minute: int
    per_day: int
    scopes: tuple[Scope, ...]
    created: float
    expires: float | None = None
    revoked: float | None = None
    last_used: float | None = None

    @property
    def limits(self) -> Limits:
        return Limits(self.per_minute, self.per_day)

    def usable(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)

    def state(self, now: float) -> str:
        if self.revoked is not None:
            return "revoked"
        return "active" if self.usable(now) else "expired"


class KeyStore(Protocol):
    """Where the keys of one environment live. Every method raises Unavailable when the store cannot answer."""

    async def find_key(self, digest: bytes) -> ApiKey | None:
        """The key one of whose secrets has this hash; `expires` is the sooner of the key's and the secret's."""

    async def key(self, key_id: str) -> ApiKey | None: ...

    async def keys(self, *, after: str = "", limit: int = 1000) -> list[ApiKey]:
        """Keys in the order of their ids."""

    async def newest_keys(
        self, *, before: tuple[float, str] | None = None, limit: int = 100, text: str = ""
    ) -> list[ApiKey]:
        """Keys whose name or id has `text` in it, the newest first; `before` is the age and id of the last one seen."""

    async def keys_by_id(self, key_ids: Sequence[str]) -> dict[str, ApiKey]:
        """Those that exist."""

    async def add_key(self, key: ApiKey, digest: bytes, entry: AuditEntry, *, only_first: bool = False) -> bool:
        """Whether it was added: with `only_first`, not when there is one already."""

    async def rotate_key(self, key_id: str, digest: bytes, old_until: float, entry: AuditEntry) -> None:
        """Give the key a new secret; the old ones work until `old_until`."""

    async def revoke_key(self, key_id: str, entry: AuditEntry) -> None: ...

    async def set_limits(self, key_id: str, limits: Limits, entry: AuditEntry) -> None: ...


def new_key(
    environment: Environment,
    plan: Plan,
    *,
    now: float,
    name: str = "",
    scopes: Iterable[Scope] = SCOPES,
    limits: Limits | None = None,
    expires: float | None = None,
) -> ApiKey:
    """Raises OperatorError when the name cannot be kept, or when limits and plan do not fit each other."""
    if len(name) > NAME_MAX or _NAME_FAULT(name):
        raise OperatorError(f"a key's name has at most {NAME_MAX} characters and no control characters")
    fixed = PLANS[plan]
    if fixed is None and limits is None:
        raise OperatorError("an enterprise key needs its own limits: per minute and per day")
    if fixed is not None and limits is not None:
        raise OperatorError(f"the {plan} plan has fixed limits: only enterprise keys have their own")
    allowed = checked_limits(fixed or limits)
    return ApiKey(
        id="key_" + "".join(secrets.choice(BASE62) for _ in range(12)),
        name=name,
        environment=environment,
        plan=plan,
        per_minute=allowed.per_minute,
        per_day=allowed.per_day,
        scopes=tuple(scope for scope in SCOPES if scope in set(scopes)) or SCOPES,
        created=now,
        expires=expires,
    )


def checked_limits(limits: Limits | None) -> Limits:
    """Raises OperatorError when a key could not be held to them."""
    if limits is None or not all(1 <= limit <= LIMIT_MAX for limit in limits):
        raise OperatorError(f"limits are whole numbers from 1 to {LIMIT_MAX:,}")
    return limits


_CENTURY = 100 * 365.25 * 86_400


def duration(text: str) -> float:
    """Seconds, from a number with a unit. Raises OperatorError."""
    match = _DURATION(text.strip())
    if match is None:
        raise OperatorError(f"{text!r} is not a duration; write 90d, 24h, 30m or 10s")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > _CENTURY:
        raise OperatorError(f"{text!r} is more than a hundred years")
    return seconds


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
    """Whether a secret could be a key of ours, told without any look-up."""
    return has_form(secret, PREFIXES[environment])


def has_form(secret: str, prefix: str) -> bool:
    return (
        len(secret) == len(prefix) + RANDOM_LENGTH + CHECKSUM_LENGTH
        and secret.startswith(prefix)
        and secret.isascii()
        and secret[len(prefix) :].isalnum()
        and checksum(secret[:-CHECKSUM_LENGTH]) == secret[-CHECKSUM_LENGTH:]
    )


def without_keys(text: str) -> str:
    """For the log: some put their key where it does not belong."""
    return _KEY.sub(r"\1…", text)


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
