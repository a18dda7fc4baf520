"""Everything that an operator can do to one environment, for the command line and for the console.

Each action writes an audit entry with its actor. A running service obeys from the next request on.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import msgspec

from petstore.audit import AuditEntry
from petstore.errors import InvalidBody, OperatorError
from petstore.gate import Gate
from petstore.keys import SCOPES, ApiKey, KeyChanges, Scope, checked_name, digest_of, limits_of, mint, new_key
from petstore.operators import Operator, Role, is_operator_name, mint_token, new_operator
from petstore.pets import Import, NewPet, Pet, PetChanges, PetStatus, Undone, new_pet
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

    # Keys

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

    async def update_key(self, key_id: str, changes: KeyChanges) -> ApiKey:
        """The changed key. What it has used of its open windows stays used."""
        key = await self._not_revoked(key_id)
        differences = _differences(key, _new_values(key, changes))
        if not differences:
            return key
        new_values = KeyChanges(**{name: new for name, (_, new) in differences.items()})
        return await self._change_key(key_id, new_values, "update key", _before_and_after(differences))

    async def suspend_key(self, key_id: str) -> ApiKey:
        """Refuse the key until it is resumed."""
        key = await self._not_revoked(key_id)
        if key.suspended is not None:
            raise OperatorError(f"{key_id} is suspended already")
        before = key.state(self._clock())
        return await self._change_key(
            key_id, KeyChanges(suspended=self._clock()), "suspend key", f"{before} → suspended"
        )

    async def resume_key(self, key_id: str) -> ApiKey:
        key = await self._not_revoked(key_id)
        if key.suspended is None:
            raise OperatorError(f"{key_id} is not suspended")
        after = msgspec.structs.replace(key, suspended=None).state(self._clock())
        return await self._change_key(key_id, KeyChanges(suspended=None), "resume key", f"suspended → {after}")

    async def identify_key(self, secret: str) -> tuple[ApiKey, float | None] | None:
        """The key with this secret, and the end of the secret itself. None when no key of this environment has it."""
        found = await self._store.find_key(digest_of(secret))
        if found is None:
            return None
        await self._store.record(self._entry("identify key", found.id))
        key = await self.key(found.id)
        return key, found.expires if found.expires != key.expires else None

    async def rotate_key(self, key_id: str, overlap: float) -> tuple[ApiKey, str, float]:
        """The key, its new secret, and when the old secret ends: after `overlap` seconds, or with the key."""
        key = await self._not_revoked(key_id)
        now = self._clock()
        if key.state(now) == "expired":
            raise OperatorError(f"{key_id} is expired: give it a later end, or create a new key")
        secret = mint(key.environment)
        until = min(now + overlap, key.expires or math.inf)
        entry = self._entry(
            "rotate key", key_id, f"old secret until {_moment(until)}" if overlap else "old secret ended at once"
        )
        # Without an overlap 0, not `now`: a node whose clock is behind would accept the old secret for a while.
        await self._store.rotate_key(key_id, digest_of(secret), until if overlap else 0.0, entry)
        return key, secret, until

    async def last_rotation(self, key_id: str) -> AuditEntry | None:
        """The audit entry of the key's last rotation."""
        return await newest_entry(self._store, action="rotate key", text=key_id)

    async def revoke_key(self, key_id: str) -> ApiKey:
        key = await self.key(key_id)
        if key.revoked is not None:
            raise OperatorError(f"{key_id} is revoked already")
        before = key.state(self._clock())
        await self._store.revoke_key(key_id, self._entry("revoke key", key_id, f"{before} → revoked"))
        return await self.key(key_id)

    async def lift_ban(self, key_id: str) -> None:
        """Writes the audit entry first: a crash in between must not leave a lifted ban without an entry."""
        key = await self.key(key_id)
        (windows,) = await self._gate.windows([key.id])
        if not windows.bans:
            raise OperatorError(f"{key_id} is not banned")
        await self._store.record(self._entry("lift ban", key_id))
        await self._gate.lift(key_id)

    async def key(self, key_id: str) -> ApiKey:
        key = await self._store.key(key_id)
        if key is None:
            raise OperatorError(f"no key has the id {key_id}")
        return key

    # Animals

    async def add_pet(self, new: NewPet) -> Pet:
        return await self._store.add_by_hand(new, self._entry("add animal", ""))

    async def update_pet(self, pet_id: int, changes: PetChanges) -> Pet:
        pet = await self._pet(pet_id)
        given = {name: value for name, value in msgspec.structs.asdict(changes).items() if value is not None}
        after = {**msgspec.structs.asdict(pet), **given}
        try:
            new_pet({"name": after["name"], "categoryId": after["category_id"], "status": after["status"]})
        except InvalidBody as error:
            raise OperatorError(error.message) from None
        differences = _differences(pet, given)
        if not differences:
            return pet
        entry = self._entry("update animal", str(pet_id), _before_and_after(differences))
        changed = await self._store.update_pet(pet_id, changes, entry)
        if changed is None:  # another operator has removed it since
            raise OperatorError(f"no animal has the id {pet_id} in {self._store.environment}")
        return changed

    async def set_status(self, pet_ids: Sequence[int], status: PetStatus) -> list[Pet]:
        """Those of the animals that exist, with this status. Each that had another status gets an audit entry."""
        _check_count(pet_ids)
        return await self._store.set_status(pet_ids, status, self._entry("set status", ""))

    async def remove_pets(self, pet_ids: Sequence[int]) -> list[Pet]:
        """The removed animals: the ones of these ids that existed."""
        _check_count(pet_ids)
        if len(pet_ids) == 1:
            await self._pet(pet_ids[0])
        return await self._store.remove_pets(pet_ids, self._entry("remove animal", ""))

    async def restore_pets(self, pets: Sequence[Pet]) -> list[Pet]:
        """Undo a removal: the restored animals have their ids and values again."""
        return await self._store.restore_pets(pets, self._entry("restore animal", ""))

    async def import_pets(
        self, name: str, batches: AsyncIterator[list[NewPet]], sha256: Callable[[], str] = lambda: ""
    ) -> Import:
        """The import, which has added all animals. `name` is the file's, `sha256` that of its bytes after the last.

        When the task is cancelled, either nothing was added and CancelledError is raised, or the import is returned.
        """
        shown = name.encode(errors="replace").decode()  # a file's name need not be UTF-8
        entry = self._entry("import", shown)
        try:
            return await self._store.import_pets(batches, entry, sha256)
        except asyncio.CancelledError:
            for added in await self._store.imports(limit=10):
                if (added.at, added.actor, added.name) == (entry.at, entry.actor, shown):
                    return added
            raise

    async def earlier_import(self, sha256: str) -> Import | None:
        """The last import of a file with this digest, unless it was undone."""
        before: tuple[float, str] | None = None
        while page := await self._store.imports(before=before):
            for found in page:
                if found.sha256 == sha256 and found.state in ("moving", "done"):
                    return found
            before = (page[-1].at, page[-1].id)
        return None

    async def undo_import(self, import_id: str) -> Undone:
        """Remove the animals of an import that no operator has changed since; go on if that was interrupted."""
        found = await self._store.find_import(import_id)
        if found is None or found.state in ("loading", "discarded"):
            raise OperatorError(f"no import has the id {import_id} in {self._store.environment}")
        if found.state != "undone":
            undone = await self._store.undo_import(import_id, self._entry("undo import", import_id, found.name))
            if undone is not None:
                return undone  # otherwise another operator, or the service, was faster
        done = await self._store.undo_progress(import_id)
        counts = f": {done.removed:,} removed, {done.kept:,} kept" if done else ""
        raise OperatorError(f"{import_id} is undone already{counts}")

    # Operators

    async def add_operator(self, name: str, role: Role = "operator") -> tuple[Operator, str]:
        """The operator and the token, of which only the hash is stored."""
        operator, token = new_operator(name, self._clock(), role), mint_token()
        if not await self._store.add_operator(operator, digest_of(token), self._entry("add operator", name, role)):
            raise OperatorError(f"the operator {name} exists already; revoke that one first")
        return operator, token

    async def set_role(self, name: str, role: Role) -> None:
        operator = await self._store.operator(name) if is_operator_name(name) else None
        if operator is None:
            raise OperatorError(f"there is no operator {name}")
        entry = self._entry("set role", name, f"{operator.role} → {role}")
        if not await self._store.set_role(name, role, entry):
            raise OperatorError(f"there is no operator {name}")

    async def revoke_operator(self, name: str) -> None:
        entry = self._entry("revoke operator", name)
        if not is_operator_name(name) or not await self._store.revoke_operator(name, entry):
            raise OperatorError(f"no operator {name} can be revoked")

    async def _pet(self, pet_id: int) -> Pet:
        pet = await self._store.pet(pet_id)
        if pet is None:
            raise OperatorError(f"no animal has the id {pet_id} in {self._store.environment}")
        return pet

    async def _change_key(self, key_id: str, changes: KeyChanges, action: str, detail: str) -> ApiKey:
        changed = await self._store.update_key(key_id, changes, self._entry(action, key_id, detail))
        if changed is None:
            raise OperatorError(f"no key has the id {key_id}")
        return changed

    async def _not_revoked(self, key_id: str) -> ApiKey:
        key = await self.key(key_id)
        if key.revoked is not None:
            raise OperatorError(f"{key_id} is revoked: create a new key instead")
        return key

    def _entry(self, action: str, subject: str, detail: str = "") -> AuditEntry:
        return AuditEntry(self._clock(), self._actor, action, subject, detail)


async def newest_entry(store: Store, **wanted: str) -> AuditEntry | None:
    """The newest entry that `Store.find_entries` finds. Raises Unavailable."""
    before, more = None, True
    while more:
        found, before, more = await store.find_entries(before=before, limit=1, **wanted)
        if found:
            return found[0][1]
    return None


def _new_values(key: ApiKey, changes: KeyChanges) -> dict[str, Any]:
    """Of each field that is to change. Raises OperatorError for a combination that no key may have."""
    found = {name: value for name, value in msgspec.structs.asdict(changes).items() if value is not msgspec.UNSET}
    if "name" in found:
        checked_name(found["name"])
    if "scopes" in found:
        found["scopes"] = tuple(scope for scope in SCOPES if scope in found["scopes"])
    plan = found.setdefault("plan", key.plan)
    own = key.limits if plan == key.plan == "enterprise" else (None, None)
    limits = limits_of(plan, found.get("per_minute", own[0]), found.get("per_day", own[1]))
    return {**found, **limits._asdict()}


def _differences(record: ApiKey | Pet, changes: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The old and the new value of each field that changes."""
    return {name: (getattr(record, name), new) for name, new in changes.items() if getattr(record, name) != new}


def _before_and_after(differences: dict[str, tuple[Any, Any]]) -> str:
    """The detail of an audit entry."""
    return "; ".join(
        f"{name.replace('_', ' ')} {_shown(old)} → {_shown(new)}" for name, (old, new) in differences.items()
    )


def _shown(value: object) -> str:
    if value is None:
        return "never"
    if isinstance(value, float):
        return _moment(value)
    if isinstance(value, tuple):
        return "+".join(value)
    return f"{value:,}" if isinstance(value, int) else str(value) or '""'


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


def _check_count(pet_ids: Sequence[int]) -> None:
    if len(pet_ids) > PETS_MAX:
        raise OperatorError(f"at most {PETS_MAX:,} animals at once")
