"""Stores API keys."""

from collections.abc import Sequence
from typing import Any

import msgspec

from petstore.audit import AuditEntry
from petstore.edits import differences
from petstore.keys import ApiKey, KeyChanges, KeyQuery, KeySort, changed_key, key_difference_in_words
from petstore.pets import Adder
from petstore.store.adders import enroll
from petstore.store.audit import add_entries
from petstore.store.database import Database, Tx, Unchanged, contains_text, lock_tables
from petstore.store.freshness import KEYS as KEYS_CHANGED
from petstore.store.freshness import NOTHING
from petstore.store.schema import KEY_COLUMNS, KEYS, key_from_row, key_from_secret_row, key_row

# For each sort order, the column to sort by, the SQL comparison that selects the rows after the previous page, and the
# direction.
_SORTS: dict[KeySort, tuple[str, str, str]] = {
    "created": ("k.created", "<", "DESC"),
    "name": ("k.name", ">", "ASC"),
    "last-used": ("coalesce(k.last_used, 0)", "<", "DESC"),
}
# These conditions must match `ApiKey.state`.
_STATES = {
    "active": "k.revoked IS NULL AND (k.expires IS NULL OR k.expires > {now}) AND k.suspended IS NULL",
    "suspended": "k.revoked IS NULL AND (k.expires IS NULL OR k.expires > {now}) AND k.suspended IS NOT NULL",
    "expired": "k.revoked IS NULL AND k.expires <= {now}",
    "revoked": "k.revoked IS NOT NULL",
}


class Keys:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._select = f"SELECT {KEY_COLUMNS} FROM {db.schema}.keys AS k"
        # This query returns one row even if no key is found. The first column is the number of the latest key change.
        self._of_secret = (
            f"SELECT c.keys, secrets.expires, {KEY_COLUMNS} FROM {db.schema}.changes AS c"
            f" LEFT JOIN {db.schema}.secrets ON secrets.digest = $1 LEFT JOIN {db.schema}.keys AS k"
            " ON k.id = secrets.key_id"
        )

    async def find(self, digest: bytes) -> ApiKey | None:
        """Returns the key whose secret has this hash, whatever the key's state, or None if there is no such key.

        If the secret expires before the key does, the returned key has the secret's expiry time. If the store contains
        a key change that has not been announced, announces it before returning, even if the result is None.
        """
        ((number, until, *row),) = await self._db.read(self._of_secret, digest)
        if number > self._db.freshness.announced.keys:
            await self._db.freshness.check()
        return None if row[0] is None else key_from_secret_row(self._db.environment, row, until)

    async def get(self, key_id: str) -> ApiKey | None:
        rows = await self._db.read(f"{self._select} WHERE k.id = $1", key_id)
        return key_from_row(self._db.environment, rows[0]) if rows else None

    async def page(self, *, after: str = "", limit: int = 1000) -> list[ApiKey]:
        """Returns up to `limit` keys with an id above `after`, ordered by id."""
        rows = await self._db.read(f"{self._select} WHERE k.id > $1 ORDER BY k.id LIMIT $2", after, limit)
        return [key_from_row(self._db.environment, row) for row in rows]

    async def search(
        self, query: KeyQuery, *, now: float, sort: KeySort = "created", after: ApiKey | None = None, limit: int = 100
    ) -> list[ApiKey]:
        """Returns matching keys, sorted by creation time (newest first), name, or last use (most recent first).

        `after` is the last key on the previous page.
        """
        column, beyond, order = _SORTS[sort]
        values: list[Any] = []

        def bind(value: object) -> str:
            values.append(value)
            return f"${len(values)}"

        conditions = []
        if query.plan is not None:
            conditions.append(f"k.plan = {bind(query.plan)}")
        if query.state is not None:
            condition = _STATES[query.state]
            conditions.append(condition.format(now=bind(now)) if "{now}" in condition else condition)
        if query.expires_by is not None:
            conditions.append(
                f"k.revoked IS NULL AND k.expires > {bind(now)} AND k.expires <= {bind(query.expires_by)}"
            )
        if query.ids is not None:
            conditions.append(f"k.id = ANY({bind(list(query.ids))})")
        if query.except_ids:
            conditions.append(f"NOT k.id = ANY({bind(list(query.except_ids))})")
        if after is not None:
            last = {"created": after.created, "name": after.name, "last-used": after.last_used or 0.0}[sort]
            conditions.append(f"({column}, k.id) {beyond} ({bind(last)}, {bind(after.id)})")
        count = bind(limit)
        conditions.append(contains_text(self._db, ["k.name", "k.contact", "k.id"], query.text, values))
        rows = await self._db.read_long(
            f"{self._select} WHERE {' AND '.join(conditions)} ORDER BY {column} {order}, k.id {order} LIMIT {count}",
            *values,
        )
        return [key_from_row(self._db.environment, row) for row in rows]

    async def by_id(self, key_ids: Sequence[str]) -> dict[str, ApiKey]:
        """Returns a dictionary that maps each of these ids to its key. Skips unknown ids."""
        rows = await self._db.read(f"{self._select} WHERE k.id = ANY($1)", list(key_ids))
        return {row[0]: key_from_row(self._db.environment, row) for row in rows}

    async def add(self, key: ApiKey, digest: bytes, entry: AuditEntry, *, only_first: bool = False) -> bool:
        """Adds a key. If `only_first` is true and the store already contains a key, adds nothing and returns False."""

        async def transaction(tx: Tx) -> bool:
            if only_first:
                await lock_tables(tx, self._db, "keys")
                if await tx.execute(f"SELECT 1 FROM {self._db.schema}.keys LIMIT 1"):
                    return False
            await tx.put(KEYS, [key_row(key)])
            await self._add_secret(tx, digest, key.id)
            await enroll(tx, self._db.schema, Adder("key", key.id))  # animals added with this key refer to this row
            await add_entries(tx, self._db.schema, entry)
            return True

        # There is nothing to announce, because workers do not cache unknown keys.
        return await self._db.write(transaction, NOTHING)

    async def update(
        self, key_id: str, changes: KeyChanges, entry: AuditEntry, base: ApiKey | None = None
    ) -> ApiKey | None:
        """Changes a key and returns it, or returns None if no key has this id.

        `base` is the key as the operator saw it. Raises Conflict if someone has changed the same fields since then, and
        OperatorError if the change is not allowed. In both cases, writes nothing. The audit entry records the change.
        """

        async def transaction(tx: Tx) -> ApiKey | None:
            rows = await tx.execute(f"{self._select} WHERE k.id = $1 {self._db.for_update}", key_id)
            if not rows:
                raise Unchanged(None)
            key = key_from_row(self._db.environment, rows[0])
            changed = changed_key(key, changes, base)
            new = differences(key, changed)
            if not new:
                raise Unchanged(key)
            if "scopes" in new:
                new["scopes"] = " ".join(new["scopes"])
            assignments = ", ".join(f"{column} = ${place}" for place, column in enumerate(new, 2))
            update = f"UPDATE {self._db.schema}.keys SET {assignments} WHERE id = $1"
            await tx.execute(update, key_id, *new.values())
            detail = key_difference_in_words(key, changed, entry.at)
            await add_entries(tx, self._db.schema, msgspec.structs.replace(entry, detail=detail))
            return changed

        return await self._db.write(transaction, KEYS_CHANGED)

    async def rotate(self, key_id: str, digest: bytes, old_until: float, entry: AuditEntry) -> None:
        """Gives the key a new secret. The old secrets keep working until `old_until`."""
        schema = self._db.schema

        async def transaction(tx: Tx) -> None:
            # If two rotations run concurrently, the second waits for the lock, and then sets the expiry time of the
            # secret that the first one added.
            await tx.execute(f"SELECT id FROM {schema}.keys WHERE id = $1 {self._db.for_update}", key_id)
            end = f"UPDATE {schema}.secrets SET expires = $1 WHERE key_id = $2 AND (expires IS NULL OR expires > $1)"
            await tx.execute(end, old_until, key_id)
            await self._add_secret(tx, digest, key_id)
            await add_entries(tx, schema, entry)

        await self._db.write(transaction, KEYS_CHANGED)

    async def old_secret_until(self, key_id: str, now: float) -> float | None:
        """Returns the time when the last of a key's old secrets expires, or None if only the newest secret works."""
        working = f"SELECT max(expires) FROM {self._db.schema}.secrets WHERE key_id = $1 AND expires > $2"
        ((until,),) = await self._db.read(working, key_id, now)
        return None if until is None else float(until)

    async def end_old_secrets(self, key_id: str, entry: AuditEntry) -> None:
        """Invalidates all of the key's secrets except the newest."""
        schema = self._db.schema

        async def transaction(tx: Tx) -> None:
            # Use 0 instead of the current time, because a node whose clock is behind would still accept the secret.
            end = f"UPDATE {schema}.secrets SET expires = 0 WHERE key_id = $1 AND expires IS NOT NULL"
            await tx.execute(end, key_id)
            await add_entries(tx, schema, entry)

        await self._db.write(transaction, KEYS_CHANGED)

    async def expiring(self, now: float, by: float) -> int:
        """Returns how many keys expire after `now` and no later than `by`. Does not count revoked keys."""
        soon = f"SELECT count(*) FROM {self._db.schema}.keys WHERE expires > $1 AND expires <= $2 AND revoked IS NULL"
        ((count,),) = await self._db.read(soon, now, by)
        return int(count)

    async def revoke(self, key_id: str, entry: AuditEntry) -> None:
        await self.update(key_id, KeyChanges(revoked=entry.at), entry)

    async def _add_secret(self, tx: Tx, digest: bytes, key_id: str) -> None:
        await tx.execute(f"INSERT INTO {self._db.schema}.secrets (digest, key_id) VALUES ($1, $2)", digest, key_id)
