"""Creates, changes and revokes keys, and lifts bans."""

import math
from collections.abc import Iterable

import msgspec

from petstore.admin.actor import Actor
from petstore.audit import AuditEntry
from petstore.edits import Conflict
from petstore.errors import OperatorError
from petstore.gate import Gate
from petstore.keys import SCOPES, ApiKey, KeyChanges, Scope, digest_of, mint, new_key
from petstore.plans import Limits, Plan
from petstore.rate_limits import SECOND
from petstore.reports.key_status import AfterBan, after_ban
from petstore.store import Store
from petstore.wording import when


class KeyActions:
    def __init__(self, store: Store, gate: Gate, actor: Actor) -> None:
        self._store = store
        self._gate = gate
        self._actor = actor

    async def create(
        self,
        plan: Plan,
        *,
        name: str = "",
        contact: str = "",
        scopes: Iterable[Scope] = SCOPES,
        limits: Limits | None = None,
        life: float | None = None,
    ) -> tuple[ApiKey, str]:
        """Creates a key that expires after `life` seconds. If `life` is None, the key never expires.

        Returns the key and its secret. Only a hash of the secret is stored.
        """
        now = self._actor.clock()
        expires = None if life is None else now + life
        environment = self._store.environment
        key = new_key(
            environment, plan, now=now, name=name, contact=contact, scopes=scopes, limits=limits, expires=expires
        )
        secret = mint(environment)
        await self._store.keys.add(key, digest_of(secret), self._actor.new_entry("create key", key.id, plan))
        return key, secret

    async def update(self, key_id: str, changes: KeyChanges, base: ApiKey | None = None) -> ApiKey:
        """Changes a key and returns it. Does not reset the key's request counts for the current minute and day.

        `base` is the key as the operator saw it. Raises Conflict if someone else has since changed the same group of
        fields (see `petstore.edits`).
        """
        return await self._change_key(key_id, "update key", changes, base)

    async def suspend(self, key_id: str) -> ApiKey:
        """Suspends a key. The service refuses the key's requests until an operator resumes the key."""
        active = msgspec.structs.replace(await self._key(key_id), suspended=None)
        try:
            return await self._change_key(key_id, "suspend key", KeyChanges(suspended=self._actor.clock()), active)
        except Conflict:
            raise OperatorError(f"{key_id} is already suspended") from None

    async def resume(self, key_id: str) -> ApiKey:
        key = await self._not_revoked(key_id)
        if key.suspended is None:
            raise OperatorError(f"{key_id} is not suspended, so there is nothing to resume")
        return await self._change_key(key_id, "resume key", KeyChanges(suspended=None))

    async def identify(self, secret: str) -> tuple[ApiKey, float | None] | None:
        """Returns the key that this secret belongs to, and the time when the secret expires.

        The time is None unless the secret expires before the key. Returns None if the secret does not belong to
        any key in this environment.
        """
        found = await self._store.keys.find(digest_of(secret))
        if found is None:
            return None
        await self._store.audit.record(self._actor.new_entry("identify key", found.id))
        key = await self._key(found.id)
        return key, found.expires if found.expires != key.expires else None

    async def rotate(self, key_id: str, overlap: float) -> tuple[ApiKey, str, float]:
        """Creates a new secret for a key.

        The old secret keeps working for `overlap` seconds, or until the key expires if that is sooner. Returns the key,
        its new secret, and the time when the old secret stops working.
        """
        key = await self._not_revoked(key_id)
        now = self._actor.clock()
        if key.state(now) == "expired":
            raise OperatorError(f"{key_id} has expired; set a later expiry or create a new key")
        secret = mint(key.environment)
        until = min(now + overlap, key.expires or math.inf)
        detail = f"old secret works until {when(until)}" if overlap else "old secret expired immediately"
        entry = self._actor.new_entry("rotate key", key_id, detail)
        # Without an overlap, use 0. With `now`, a node whose clock is behind would still accept the old secret.
        await self._store.keys.rotate(key_id, digest_of(secret), until if overlap else 0.0, entry)
        return key, secret, until

    async def end_old_secret(self, key_id: str) -> ApiKey:
        """Ends the overlap period after a rotation, so that only the new secret works."""
        key = await self._not_revoked(key_id)
        until = await self._store.keys.old_secret_until(key_id, self._actor.clock())
        if until is None:
            raise OperatorError(f"{key_id} has no old secret that still works, so there is no overlap to end")
        entry = self._actor.new_entry("end old secret", key_id, f"old secret would have worked until {when(until)}")
        await self._store.keys.end_old_secrets(key_id, entry)
        return key

    async def history(self, key_id: str) -> list[tuple[int, AuditEntry]]:
        """Returns the key's audit entries with their numbers, newest first."""
        history: list[tuple[int, AuditEntry]] = []
        before, more = None, True
        while more:
            found, before, more = await self._store.audit.find(before=before, subject=key_id)
            history += found
        return history

    async def revoke(self, key_id: str) -> ApiKey:
        key = await self._key(key_id)
        if key.revoked is not None:
            raise OperatorError(f"{key_id} is already revoked")
        await self._store.keys.revoke(key_id, self._actor.new_entry("revoke key", key_id))
        return await self._key(key_id)

    async def lift_ban(self, key_id: str) -> AfterBan:
        """Lifts a ban and returns whether the key's next request will be admitted.

        Writes the audit entry first, so that a crash cannot leave a lifted ban without an entry.
        """
        key = await self._key(key_id)
        (windows,) = await self._gate.windows([key.id])
        if not windows.bans:
            raise OperatorError(f"{key_id} is not banned, so there is nothing to lift")
        entry = self._actor.new_entry("lift ban", key_id, f"until {when(windows.ban_end / SECOND)}")
        await self._store.audit.record(entry)
        await self._gate.lift(key_id)
        return after_ban(key, windows, self._actor.clock())

    async def _key(self, key_id: str) -> ApiKey:
        key = await self._store.keys.get(key_id)
        if key is None:
            raise OperatorError(f"no key has the id {key_id}")
        return key

    async def _change_key(self, key_id: str, action: str, changes: KeyChanges, base: ApiKey | None = None) -> ApiKey:
        changed = await self._store.keys.update(key_id, changes, self._actor.new_entry(action, key_id), base)
        if changed is None:
            raise OperatorError(f"no key has the id {key_id}")
        return changed

    async def _not_revoked(self, key_id: str) -> ApiKey:
        key = await self._key(key_id)
        if key.revoked is not None:
            raise OperatorError(f"{key_id} is revoked: create a new key instead")
        return key
