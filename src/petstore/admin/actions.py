"""Everything that an operator can do to one environment, for the command line and for the console.

Each action writes an audit entry with its actor. A running service obeys from the next request on.
"""

import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from petstore.audit import AuditEntry
from petstore.errors import OperatorError
from petstore.gate import Gate
from petstore.keys import SCOPES, ApiKey, Scope, checked_limits, digest_of, mint, new_key
from petstore.operators import Operator, mint_token, new_operator
from petstore.pets import NewPet, Pet, PetStatus
from petstore.plans import Limits, Plan
from petstore.store import Store

PETS_MAX = 1_000  # in one action


class Admin:
    """Every method raises OperatorError for an action that is not possible, and Unavailable when the store is away."""

    def __init__(self, store: Store, gate: Gate, actor: str, clock: Callable[[], float]) -> None:
        self._store = store
        self._gate = gate
        self._actor = actor
        self._clock = clock

    async def create_key(
        self,
        plan: Plan,
        *,
        name: str = "",
        scopes: Iterable[Scope] = SCOPES,
        limits: Limits | None = None,
        life: float | None = None,
    ) -> tuple[ApiKey, str]:
        """The key and its secret, of which only the hash is stored. `life` is in seconds."""
        now = self._clock()
        expires = None if life is None else now + life
        environment = self._store.environment
        key = new_key(environment, plan, now=now, name=name, scopes=scopes, limits=limits, expires=expires)
        secret = mint(environment)
        await self._store.add_key(key, digest_of(secret), self._entry("create key", key.id, plan))
        return key, secret

    async def rotate_key(self, key_id: str, overlap: float) -> tuple[ApiKey, str]:
        """The key and its new secret. The old secret is valid for `overlap` more seconds."""
        key = await self._usable(key_id)
        secret = mint(key.environment)
        now = self._clock()
        until = min(now + overlap, key.expires or math.inf)
        shown = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(until))
        entry = AuditEntry(now, self._actor, "rotate key", key_id, f"old secret until {shown}")
        # Without an overlap 0, not `now`: a node whose clock is behind would accept the old secret for a while.
        await self._store.rotate_key(key_id, digest_of(secret), until if overlap else 0.0, entry)
        return key, secret

    async def last_rotation(self, key_id: str) -> AuditEntry | None:
        """The audit entry of the key's last rotation."""
        start, more = None, True
        while more:
            found, start, more = await self._store.find_entries(before=start, limit=1, action="rotate key", text=key_id)
            if found:
                return found[0][1]
        return None

    async def revoke_key(self, key_id: str) -> ApiKey:
        key = await self.key(key_id)
        if key.revoked is not None:
            raise OperatorError(f"{key_id} is revoked already")
        await self._store.revoke_key(key_id, self._entry("revoke key", key_id))
        return await self.key(key_id)

    async def set_limits(self, key_id: str, limits: Limits) -> ApiKey:
        key = await self._usable(key_id)
        if key.plan != "enterprise":
            raise OperatorError(f"{key_id}: the {key.plan} plan has fixed limits; only enterprise keys have their own")
        checked_limits(limits)
        detail = f"{limits.per_minute} a minute, {limits.per_day} a day"
        await self._store.set_limits(key_id, limits, self._entry("set limits", key_id, detail))
        return await self.key(key_id)

    async def lift_ban(self, key_id: str) -> None:
        """Writes the audit entry first: a crash in between must not leave a lifted ban without an entry."""
        key = await self.key(key_id)
        (windows,) = await self._gate.windows([key.id])
        if not windows.bans:
            raise OperatorError(f"{key_id} is not banned")
        await self._store.record(self._entry("lift ban", key_id))
        await self._gate.lift(key_id)

    async def add_pet(self, new: NewPet) -> Pet:
        return await self._store.add_by_hand(new, self._entry("add animal", ""))

    async def set_status(self, pet_ids: Sequence[int], status: PetStatus) -> list[Pet]:
        """The changed animals: the ones of these ids that exist."""
        if len(pet_ids) > PETS_MAX:
            raise OperatorError(f"at most {PETS_MAX:,} animals at once")
        return await self._store.set_status(pet_ids, status, self._entry("set status", "", status))

    async def import_pets(self, name: str, batches: AsyncIterator[list[NewPet]]) -> int:
        """The number of animals that were added. `name` is the file's, for the audit log."""
        shown = name.encode(errors="replace").decode()  # a file's name need not be UTF-8
        return await self._store.import_pets(batches, self._entry("import", shown))

    async def add_operator(self, name: str) -> tuple[Operator, str]:
        """The operator and the token, of which only the hash is stored."""
        operator, token = new_operator(name, self._clock()), mint_token()
        if not await self._store.add_operator(operator, digest_of(token), self._entry("add operator", name)):
            raise OperatorError(f"the operator {name} exists already; revoke that one first")
        return operator, token

    async def revoke_operator(self, name: str) -> None:
        if not await self._store.revoke_operator(name, self._entry("revoke operator", name)):
            raise OperatorError(f"no operator {name} can be revoked")

    async def signed_in(self, way: str) -> None:
        await self._store.record(self._entry("sign in", self._actor, way))

    async def key(self, key_id: str) -> ApiKey:
        key = await self._store.key(key_id)
        if key is None:
            raise OperatorError(f"no key has the id {key_id}")
        return key

    async def _usable(self, key_id: str) -> ApiKey:
        key = await self.key(key_id)
        if not key.usable(self._clock()):
            raise OperatorError(f"{key_id} is {key.state(self._clock())}: create a new key instead")
        return key

    def _entry(self, action: str, subject: str, detail: str = "") -> AuditEntry:
        return AuditEntry(self._clock(), self._actor, action, subject, detail)
