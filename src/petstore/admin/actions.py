"""Implements all operator actions in one environment, for the command line and the console.

Each action writes an audit entry that names the operator. Changes take effect with the next request.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from petstore.admin.key_status import AfterBan, after_ban
from petstore.admin.pet_files import Checked, PetFile
from petstore.audit import AuditEntry
from petstore.edits import Conflict
from petstore.errors import InvalidBody, OperatorError, Unavailable
from petstore.gate import Gate
from petstore.keys import SCOPES, ApiKey, KeyChanges, Scope, digest_of, mint, new_key
from petstore.operators import Operator, Role, is_operator_name, mint_token, new_operator
from petstore.pets import (
    Import,
    Matching,
    NewPet,
    Pet,
    PetChanges,
    PetQuery,
    PetStatus,
    Removal,
    Removed,
    Undone,
    new_pet,
)
from petstore.plans import Limits, Plan
from petstore.rate_limits import SECOND
from petstore.store import Store
from petstore.wording import counted, when

PETS_MAX = 1_000  # animals per action


class Admin:
    """Performs an operator's actions in one environment.

    All methods raise OperatorError if the action is not possible, and Unavailable if the store does not respond.
    """

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
        contact: str = "",
        scopes: Iterable[Scope] = SCOPES,
        limits: Limits | None = None,
        life: float | None = None,
    ) -> tuple[ApiKey, str]:
        """Creates a key that expires after `life` seconds, or never if `life` is None.

        Returns the key and its secret. Only a hash of the secret is stored.
        """
        now = self._clock()
        expires = None if life is None else now + life
        environment = self._store.environment
        key = new_key(
            environment, plan, now=now, name=name, contact=contact, scopes=scopes, limits=limits, expires=expires
        )
        secret = mint(environment)
        await self._store.keys.add(key, digest_of(secret), self._entry("create key", key.id, plan))
        return key, secret

    async def update_key(self, key_id: str, changes: KeyChanges, base: ApiKey | None = None) -> ApiKey:
        """Changes a key and returns it. Does not reset the key's request counts for the current minute and day.

        `base` is the key as the operator saw it. Raises Conflict if someone else has since changed the same group of
        fields. See `petstore.edits`.
        """
        return await self._change_key(key_id, "update key", changes, base)

    async def suspend_key(self, key_id: str) -> ApiKey:
        """Suspends a key. The service refuses the key's requests until an operator resumes the key."""
        active = msgspec.structs.replace(await self.key(key_id), suspended=None)
        try:
            return await self._change_key(key_id, "suspend key", KeyChanges(suspended=self._clock()), active)
        except Conflict:
            raise OperatorError(f"{key_id} is already suspended") from None

    async def resume_key(self, key_id: str) -> ApiKey:
        key = await self._not_revoked(key_id)
        if key.suspended is None:
            raise OperatorError(f"{key_id} is not suspended, so there is nothing to resume")
        return await self._change_key(key_id, "resume key", KeyChanges(suspended=None))

    async def identify_key(self, secret: str) -> tuple[ApiKey, float | None] | None:
        """Returns the key that this secret belongs to, and the time when the secret expires.

        The time is None unless the secret expires earlier than the key. Returns None if the secret does not belong to
        any key in this environment.
        """
        found = await self._store.keys.find(digest_of(secret))
        if found is None:
            return None
        await self._store.audit.record(self._entry("identify key", found.id))
        key = await self.key(found.id)
        return key, found.expires if found.expires != key.expires else None

    async def rotate_key(self, key_id: str, overlap: float) -> tuple[ApiKey, str, float]:
        """Creates a new secret for a key.

        The old secret keeps working for `overlap` seconds, or until the key expires if that is sooner. Returns the key,
        its new secret, and the time when the old secret stops working.
        """
        key = await self._not_revoked(key_id)
        now = self._clock()
        if key.state(now) == "expired":
            raise OperatorError(f"{key_id} has expired; set a later expiry or create a new key")
        secret = mint(key.environment)
        until = min(now + overlap, key.expires or math.inf)
        detail = f"old secret works until {when(until)}" if overlap else "old secret expired immediately"
        entry = self._entry("rotate key", key_id, detail)
        # Set the expiry to 0 rather than `now`, because a node whose clock is behind would still accept the old secret.
        await self._store.keys.rotate(key_id, digest_of(secret), until if overlap else 0.0, entry)
        return key, secret, until

    async def end_old_secret(self, key_id: str) -> ApiKey:
        """Ends the overlap period after a rotation, so that only the new secret works."""
        key = await self._not_revoked(key_id)
        until = await self._store.keys.old_secret_until(key_id, self._clock())
        if until is None:
            raise OperatorError(f"{key_id} has no old secret that still works, so there is no overlap to end")
        entry = self._entry("end old secret", key_id, f"old secret would have worked until {when(until)}")
        await self._store.keys.end_old_secrets(key_id, entry)
        return key

    async def key_history(self, key_id: str) -> list[tuple[int, AuditEntry]]:
        """Returns the key's audit entries with their numbers, newest first."""
        history: list[tuple[int, AuditEntry]] = []
        before, more = None, True
        while more:
            found, before, more = await self._store.audit.find(before=before, subject=key_id)
            history += found
        return history

    async def revoke_key(self, key_id: str) -> ApiKey:
        key = await self.key(key_id)
        if key.revoked is not None:
            raise OperatorError(f"{key_id} is already revoked")
        await self._store.keys.revoke(key_id, self._entry("revoke key", key_id))
        return await self.key(key_id)

    async def lift_ban(self, key_id: str) -> AfterBan:
        """Lifts a ban and returns whether the key's next request will be admitted.

        Writes the audit entry first, so that a crash cannot leave a lifted ban without an entry.
        """
        key = await self.key(key_id)
        (windows,) = await self._gate.windows([key.id])
        if not windows.bans:
            raise OperatorError(f"{key_id} is not banned, so there is nothing to lift")
        await self._store.audit.record(self._entry("lift ban", key_id, f"until {when(windows.ban_end / SECOND)}"))
        await self._gate.lift(key_id)
        return after_ban(key, windows, self._clock())

    async def key(self, key_id: str) -> ApiKey:
        key = await self._store.keys.get(key_id)
        if key is None:
            raise OperatorError(f"no key has the id {key_id}")
        return key

    # Animals

    async def add_pet(self, new: NewPet) -> Pet:
        return await self._store.pets.add_by_hand(new, self._entry("add animal", ""))

    async def update_pet(self, pet_id: int, changes: PetChanges, base: Pet | None = None) -> Pet:
        """Changes an animal and returns it.

        `base` is the animal as the operator saw it. Raises Conflict if someone else has since changed the same field.
        """
        try:
            changed = await self._store.pets.update(pet_id, changes, self._entry("update animal", ""), base)
        except InvalidBody as error:
            raise OperatorError(error.message) from None
        if changed is None:
            raise self._no_pet(pet_id)
        return changed

    async def set_status(self, pet_ids: Sequence[int], status: PetStatus) -> list[Pet]:
        """Sets the status of the animals that exist, and returns them. Writes an audit entry for each change."""
        _check_count(pet_ids)
        return await self._store.pets.set_status(pet_ids, status, self._entry("set status", ""))

    async def remove_pets(self, pet_ids: Sequence[int]) -> Removed:
        """Removes animals. Ignores ids that do not exist.

        Raises OperatorError if only one id is given and it does not exist.
        """
        _check_count(pet_ids)
        if len(pet_ids) == 1:
            await self._pet(pet_ids[0])
        return await self._store.removals.remove(pet_ids, self._entry("remove animal", ""))

    async def count_added(self, query: PetQuery) -> Matching:
        """Counts the animals that match a query. The query must include `added_by`."""
        await check_adder(self._store, query.added_by)
        return await self._store.pets.matching(query)

    async def remove_added(
        self, query: PetQuery, counted_before: Matching, removing: Callable[[int], None] = lambda removed: None
    ) -> Removal:
        """Removes the animals that `count_added` counted and that still match the query.

        Keeps animals that were added later.

        Calls `removing` with the number of animals removed so far.
        """
        entry = self._entry("remove animal", "", f"{counted(counted_before.total, 'animal')} {added_in_words(query)}")
        return await self._store.removals.remove_matching(query, counted_before.last_id, entry, removing)

    async def restore_pets(self, pet_ids: Sequence[int]) -> list[Pet]:
        """Restores removed animals with their old values. If any animal cannot be restored, does not restore any."""
        _check_count(pet_ids)
        removed = await self._store.removals.of_pets(pet_ids)
        for pet_id in pet_ids:
            if pet_id not in removed:
                raise OperatorError(await self._not_restorable(pet_id))
        return await self._store.removals.restore(pet_ids, self._entry("restore animal", ""))

    async def restore_removal(self, removal_id: str, restoring: Callable[[int], None] = lambda restored: None) -> int:
        """Restores all animals from one removal, except animals that have already been restored.

        Returns the number of restored animals. Calls `restoring` with the number of animals restored so far.
        """
        removal = (await self._store.removals.find([removal_id])).get(removal_id)
        if removal is None:
            raise OperatorError(f"there is no removal {removal_id} in {self._store.environment}")
        entry = self._entry("restore animal", removal_id)
        restored = await self._store.removals.restore_all(removal_id, entry, restoring)
        if not restored:
            raise OperatorError(f"all animals from {removal_id} have already been restored")
        return restored

    async def _not_restorable(self, pet_id: int) -> str:
        if await self._store.pets.get(pet_id) is not None:
            return f"animal {pet_id} has not been removed from {self._store.environment}"
        by = await self._store.imports.of_pet(pet_id, self._clock())
        if by is not None and by.state in ("undoing", "undone"):
            return f"animal {pet_id} was removed when {by.id} was undone; to get it back, import {by.name} again"
        return f"there is no removed animal {pet_id} in {self._store.environment}"

    async def begin_import(self, name: str, checked: Checked, repeats: str = "") -> Import:
        """Begins to import a checked file. If the same content is already being imported, returns the running import.

        If the content has already been imported, returns the earlier import, whose state is `done`. The caller can then
        ask the operator whether to import the content again, and pass the earlier import's id as `repeats` to do so.
        """
        shown = name.encode(errors="replace").decode()  # file names are not always valid UTF-8
        begun = await self._store.imports.begin(checked.sha256, checked.animals, self._entry("import", shown), repeats)
        if begun.total != checked.animals:  # the earlier import used a different format
            raise OperatorError(
                f"{begun.id} is an import of the same content, but it found {counted(begun.total, 'animal')}"
                f" instead of {checked.animals:,}; use the same --format as that import"
            )
        return begun

    async def import_pets(
        self, begun: Import, file: PetFile, checked: Checked, adding: Callable[[int], None] = lambda count: None
    ) -> Import:
        """Adds a file's remaining animals to an import. Several processes can add to an import at the same time.

        Calls `adding` with the number of animals added so far. Raises OperatorError if another operator
        undoes the import. If this call fails or is cancelled, importing the same file again resumes the import.
        """
        try:
            await self._add_rest(begun, file, checked, adding)
        except (OperatorError, Unavailable) as error:
            raise OperatorError(
                f"{error}; import the same file again to resume {begun.id},"
                f" or remove its animals with `petstore pets undo-import {begun.id}`"
            ) from error
        found = await self._import(begun.id)
        if found.state != "done":
            raise OperatorError(f"{begun.id} was undone, so no more animals were added")
        return found

    async def _add_rest(self, begun: Import, file: PetFile, checked: Checked, adding: Callable[[int], None]) -> None:
        """Adds animals in chunks until the import is complete or another operator undoes it."""
        imports, size = self._store.imports, self._store.database.bounds.import_chunk
        place = begun.added
        adding(place)
        while place < begun.total:
            async for first, pets in file.batches(checked):
                while first <= place < first + len(pets):
                    chunk = pets[place - first :][:size]
                    if await imports.add_chunk(begun.id, place, chunk, self._clock()):
                        place += len(chunk)
                    else:
                        found = await self._import(begun.id)
                        if found.state in ("undoing", "undone"):
                            return
                        place = found.added
                    adding(place)

    async def earlier_import(self, sha256: str) -> Import | None:
        """Returns the running import of the file with this hash, or the newest finished one if none is running.

        Returns None if there is no such import. Raises OperatorError if the disk is nearly full.
        """
        self._store.database.check_space()
        return await self._store.imports.of_file(sha256, self._clock())

    async def undo_import(self, import_id: str, removing: Callable[[int], None] = lambda searched: None) -> Undone:
        """Removes an import's animals, except animals that an operator has changed. Resumes an interrupted undo.

        The result's `removed` does not count animals that an operator removed before the undo.
        Calls `removing` with the number of animals removed or kept so far.
        """
        found = await self._import(import_id)
        before = await self._store.imports.undone(import_id)
        gone = 0 if found.state == "undoing" else before.removed
        kept = f", {before.kept:,} kept" if before.kept else ""
        entry = self._entry("undo import", import_id, f"{found.name}, {counted(before.left, 'animal')}{kept}")
        is_undone = found.state != "undone" and await self._store.imports.undo(import_id, entry, removing)
        counts = await self._store.imports.undone(import_id)
        if not is_undone:
            raise OperatorError(
                f"{import_id} has already been undone: {counts.removed:,} removed, {counts.kept:,} kept"
            )
        return counts._replace(removed=counts.removed - gone)

    async def _import(self, import_id: str) -> Import:
        found = await self._store.imports.get(import_id, self._clock())
        if found is None:
            raise OperatorError(f"no import has the id {import_id} in {self._store.environment}")
        return found

    # Operators

    async def identify_operator(self, token: str) -> Operator:
        """Returns the active operator to whom this token belongs."""
        operator = await self._store.operators.find(digest_of(token))
        if operator is None:
            raise OperatorError("this is an operator token, but it does not belong to an active operator")
        return operator

    async def add_operator(self, name: str, role: Role = "operator") -> tuple[Operator, str]:
        """Adds an operator. Returns the operator and their token. Only a hash of the token is stored."""
        operator, token = new_operator(name, self._clock(), role), mint_token()
        if not await self._store.operators.add(operator, digest_of(token), self._entry("add operator", name, role)):
            raise OperatorError(f"operator {name} already exists; revoke that operator first")
        return operator, token

    async def set_role(self, name: str, role: Role) -> None:
        entry = self._entry("set role", name)
        if not is_operator_name(name) or not await self._store.operators.set_role(name, role, entry):
            raise OperatorError(f"there is no active operator {name}")

    async def revoke_operator(self, name: str) -> None:
        entry = self._entry("revoke operator", name)
        if not is_operator_name(name) or not await self._store.operators.revoke(name, entry):
            raise OperatorError(f"there is no active operator {name}; list the names with `petstore operators list`")

    async def _pet(self, pet_id: int) -> Pet:
        pet = await self._store.pets.get(pet_id)
        if pet is None:
            raise self._no_pet(pet_id)
        return pet

    def _no_pet(self, pet_id: int) -> OperatorError:
        return OperatorError(f"no animal has the id {pet_id} in {self._store.environment}")

    async def _change_key(self, key_id: str, action: str, changes: KeyChanges, base: ApiKey | None = None) -> ApiKey:
        changed = await self._store.keys.update(key_id, changes, self._entry(action, key_id), base)
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


async def check_adder(store: Store, name: str) -> None:
    """Raises OperatorError unless `name` identifies a key, an import or an operator who has added animals.

    Raises Unavailable if the store does not respond.
    """
    if not await store.pets.is_adder(name):
        raise OperatorError(
            f"{name} is not the id of a key or an import, or the name of an operator who has added animals to"
            f" {store.environment}"
        )


def added_in_words(query: PetQuery) -> str:
    since = "" if query.since is None else f" since {when(query.since)}"
    until = "" if query.until is None else f" before {when(query.until)}"
    return f"added by {query.added_by}{since}{until}"


def checked_pet(pet: NewPet) -> NewPet:
    """Returns the animal if it is valid, and raises OperatorError otherwise."""
    try:
        return new_pet(msgspec.to_builtins(pet))
    except InvalidBody as error:
        raise OperatorError(error.message) from None


def described_import(found: Import) -> str:
    return f"{found.id}, {counted(found.added, 'animal')}, {when(found.at)}"


async def newest_entry(store: Store, **wanted: str) -> AuditEntry | None:
    """Returns the newest matching audit entry, or None if there is none. Raises Unavailable.

    See `Audit.find` for the arguments.
    """
    before, more = None, True
    while more:
        found, before, more = await store.audit.find(before=before, limit=1, **wanted)
        if found:
            return found[0][1]
    return None


def _check_count(pet_ids: Sequence[int]) -> None:
    if len(pet_ids) > PETS_MAX:
        raise OperatorError(f"choose at most {PETS_MAX:,} animals at a time")
