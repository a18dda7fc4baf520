"""Authenticates requests and asks the gate whether to admit them. Also creates the 401 and 403 errors."""

import math
from collections.abc import Callable
from functools import lru_cache

import msgspec

from petstore.errors import InsufficientScope, Unauthorized
from petstore.gate import CatalogueVersion, Gate, bucket_of
from petstore.keys import PREFIXES, SECRET_LENGTH, ApiKey, Environment, Scope, digest_of, well_formed
from petstore.operations import OTHER, OperationName
from petstore.plans import Limits
from petstore.rate_limits import ADMITTED, Decision
from petstore.store.freshness import KEPT_SECONDS, Freshness
from petstore.store.keys import Keys
from petstore.web.requests import FIELD_PARSED_MAX, Request, bearer

CACHED_KEYS_MAX = MARKED_KEYS_MAX = 20_000
LOOKUPS_PER_SECOND = 10  # lookups of unknown keys that are still allowed for an address over its limit
ADDRESSES_MAX = 10_000

QUOTES_AND_LISTS = frozenset("\"',; ")  # these characters suggest a quoted key or a repeated header

digest_of_secret = lru_cache(maxsize=4096)(digest_of)


class CachedKey(msgspec.Struct, frozen=True, gc=False):
    """A usable key. `version` is the version of the environment's keys just before this key was read."""

    key: ApiKey
    limits: Limits
    version: int
    expires: float  # the time at which the key must be looked up again


# The key (None if it is not valid), the decision about the key or the client's address, and the catalogue version.
Admitted = tuple[ApiKey | None, Decision, CatalogueVersion]
NO_VERSION: CatalogueVersion = (-1, -1)  # the catalogue version for a request without a valid key


class Admission:
    """Admits or refuses requests to one environment."""

    def __init__(
        self,
        environment: Environment,
        keys: Keys,
        freshness: Freshness,
        gate: Gate,
        address_of: Callable[[Request], str],
        *,
        cached_keys_max: int = CACHED_KEYS_MAX,
    ) -> None:
        self._environment: Environment = environment
        self._keys = keys
        self._freshness = freshness
        self._gate = gate
        self._address_of = address_of
        self._cached: dict[bytes, CachedKey] = {}
        self._marked: dict[bytes, None] = {}  # keys that the gate is known to have marked as valid, oldest first
        self._cached_keys_max = cached_keys_max
        self._lookups_second = 0
        self._lookups: dict[bytes, int] = {}  # lookups by each address bucket during `_lookups_second`

    async def admit(self, request: Request, now: float, operation: OperationName = OTHER) -> Admitted:
        """Authenticates a request and asks the gate whether to admit it. Raises Unavailable."""
        authorization = request.fields.get("authorization")
        secret = bearer(authorization) if authorization else None
        if secret is not None and len(secret) == SECRET_LENGTH:  # all keys have this length
            freshness = self._freshness
            if not freshness.checked <= now < freshness.due:
                await freshness.check_at(now)
            digest = digest_of_secret(secret)
            known = self._cached.get(digest)
            if known is None or now >= known.expires:
                if digest not in self._marked:
                    over_limit = await self._over_limit(request, secret, digest, now)
                    if over_limit is not None:
                        return None, over_limit, NO_VERSION
                known = await self._look_up(secret, digest, now)
            while known is not None:
                passed = await self._gate.admit(
                    self._environment, known.key.id, known.limits, known.version, now, operation
                )
                if passed is not None:
                    decision, version = passed
                    return known.key, decision, version
                # A key has changed since the lookup, so look up this one again. The gate has not counted the request.
                known = await self._look_up(secret, digest, now)
        return None, await self._gate.admit_address(self._environment, self._address_of(request), now), NO_VERSION

    async def _look_up(self, secret: str, digest: bytes, now: float) -> CachedKey | None:
        if not well_formed(secret, self._environment):
            return None
        cache = self._cached
        # Read the version before the key. If the key changes in between, the gate notices the stale version.
        version = await self._gate.keys_version(self._environment)
        key = await self._keys.find(digest)
        if key is None or not key.usable(now):
            cache.pop(digest, None)
            if digest in self._marked:
                del self._marked[digest]
                await self._gate.mark_valid(digest, now, valid=False)
            return None
        if digest not in self._marked:
            await self._gate.mark_valid(digest, now, valid=True)
            self._remember(digest)
        known = CachedKey(key, key.limits, version, min(key.expires or math.inf, now + KEPT_SECONDS))
        if len(cache) >= self._cached_keys_max:
            del cache[next(iter(cache))]
        cache[digest] = known
        return known

    async def _over_limit(self, request: Request, secret: str, digest: bytes, now: float) -> Decision | None:
        """Returns a refusal if looking up this key would exceed the address's limits, or None if the lookup is allowed.

        An address that is over its limit can cause only a few lookups per second, no matter how many keys it makes up.
        Keys that any worker has already found to be valid are not affected.
        """
        if not well_formed(secret, self._environment):
            return None  # malformed keys are never looked up
        address = self._address_of(request)
        decision = await self._gate.peek_address(self._environment, address, now)
        if decision.outcome is ADMITTED:
            return None
        if await self._gate.was_valid(digest):
            self._remember(digest)
            return None
        return None if self._may_look_up(bucket_of(address), now) else decision

    def _may_look_up(self, address: bytes, now: float) -> bool:
        """Whether this address bucket is allowed one more lookup in the current second. If so, counts the lookup."""
        if int(now) != self._lookups_second:
            self._lookups_second, self._lookups = int(now), {}
        taken = self._lookups.get(address, 0)
        if taken >= LOOKUPS_PER_SECOND or (taken == 0 and len(self._lookups) >= ADDRESSES_MAX):
            return False
        self._lookups[address] = taken + 1
        return True

    def _remember(self, digest: bytes) -> None:
        if len(self._marked) >= MARKED_KEYS_MAX:
            del self._marked[next(iter(self._marked))]
        self._marked[digest] = None


def unauthorized(request: Request, environment: Environment) -> Unauthorized:
    authorization = request.fields.get("authorization")
    challenge = 'Bearer realm="petstore"'
    if authorization is not None:
        challenge += ', error="invalid_token"'
    secret = bearer(authorization) if authorization else None
    return Unauthorized(_hint(request, secret, environment), (("www-authenticate", challenge),))


def insufficient_scope(scope: Scope) -> InsufficientScope:
    challenge = f'Bearer error="insufficient_scope", scope="{scope}"'
    return InsufficientScope(f"This key does not have the {scope} scope.", (("www-authenticate", challenge),))


def _hint(request: Request, secret: str | None, environment: Environment) -> str:
    """Returns a message that depends only on the format of the credentials, not on stored data."""
    if secret is None:
        if "authorization" not in request.fields and "x-api-key" in request.fields:
            return "Send the API key as Authorization: Bearer <API_KEY>, not as X-API-Key."
        return "Send an API key as Authorization: Bearer <API_KEY>."
    if not QUOTES_AND_LISTS.isdisjoint(secret[:FIELD_PARSED_MAX]):
        return "Send one API key, without quotes, as Authorization: Bearer <API_KEY>."
    other: Environment = "staging" if environment == "live" else "live"
    if secret.startswith(PREFIXES[other]):
        return f"This API key belongs to the {other} environment, but this is {environment}."
    if not well_formed(secret, environment):
        return "The API key is mistyped or incomplete: its checksum does not match."
    return Unauthorized.usual
