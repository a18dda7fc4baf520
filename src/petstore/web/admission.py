"""Who may come in: the key behind a request and the gate's verdict on it, in one shared step."""

import math
from collections.abc import Callable

import msgspec

from petstore.gate import Gate
from petstore.keys import ApiKey, Environment, KeyStore, digest_of, well_formed
from petstore.plans import Limits
from petstore.rate_limits import Decision
from petstore.web.requests import Request, bearer

REMEMBERED_KEYS = 20_000
FRESH_SECONDS = 1.0


class Remembered(msgspec.Struct, frozen=True, gc=False):
    """A usable key as the store had it when the gate's version of the keys was `version`."""

    key: ApiKey
    limits: Limits
    version: int
    since: float  # a clock that was set back makes it as old as one that has moved on
    fresh_until: float


class Admission:
    """The door of one environment."""

    def __init__(
        self, environment: Environment, store: KeyStore, gate: Gate, address_of: Callable[[Request], str]
    ) -> None:
        self._environment: Environment = environment
        self._store = store
        self._gate = gate
        self._address_of = address_of
        self._remembered: dict[bytes, Remembered] = {}

    async def admit(self, request: Request, now: float) -> tuple[ApiKey | None, Decision, int]:
        """The key, the decision on it, and the catalogue's version of that instant.

        Without a valid key: None, the decision on the client's address, and no version. Raises Unavailable.
        """
        memo = request.memo
        if memo.credential is None:
            secret = bearer(request.headers("authorization"))
            memo.credential = (secret, digest_of(secret) if secret else b"")
        secret, digest = memo.credential
        if secret is not None:
            known = self._remembered.get(digest)
            if known is None or not known.since <= now < known.fresh_until:
                known = await self._look_up(secret, digest, now)
            while known is not None:
                passed = await self._gate.admit(self._environment, known.key.id, known.limits, known.version, now)
                if passed is not None:
                    return known.key, *passed
                # Some key has changed since; nothing was counted under the outdated one.
                known = await self._look_up(secret, digest, now)
        return None, await self._gate.admit_address(self._environment, self._address_of(request), now), -1

    async def _look_up(self, secret: str, digest: bytes, now: float) -> Remembered | None:
        if not well_formed(secret, self._environment):
            return None
        # First the version, then the key: a change in between makes this look-up outdated, never wrong.
        version = await self._gate.keys_version(self._environment)
        key = await self._store.find_key(digest)
        if key is None or not key.usable(now):
            self._remembered.pop(digest, None)
            return None
        known = Remembered(key, key.limits, version, now, min(now + FRESH_SECONDS, key.expires or math.inf))
        if len(self._remembered) >= REMEMBERED_KEYS:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[digest] = known
        return known
