"""Stores API keys."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from petstore.audit import Actor, KeyAction
from petstore.edits import differences
from petstore.errors import OperatorError
from petstore.keys import (
    ApiKey,
    KeyChanges,
    KeyQuery,
    KeySort,
    Secret,
    changed_key,
    check_rotation,
    digest_of,
    end_of_old_secrets,
    key_difference_in_words,
    newest_number,
    resumed_key,
    revoked_key,
    suspended_key,
)
from petstore.pets import Adder
from petstore.store.adders import enroll
from petstore.store.audit import add_entries
from petstore.store.database import Database, Tx, Unchanged, contains_text, lock_tables
from petstore.store.freshness import KEYS as KEYS_CHANGED
from petstore.store.freshness import NOTHING
from petstore.store.schema import KEY_COLUMNS, KEYS, SECRETS, key_from_row, key_from_secret_row, key_row
from petstore.wording import when

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
        self._secrets = f"{db.schema}.secrets"
        self._secrets_sql = f"SELECT number, expires FROM {self._secrets} WHERE key_id = $1 ORDER BY number DESC"
        self._select = f"SELECT {KEY_COLUMNS} FROM {db.schema}.keys AS k"
        # This query returns one row even if no key is found. The first column is the number of the latest key change.
        self._of_secret = (
            f"SELECT c.keys, secrets.expires, {KEY_COLUMNS} FROM {db.schema}.changes AS c"
            f" LEFT JOIN {self._secrets} ON secrets.digest = $1 LEFT JOIN {db.schema}.keys AS k"
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

    async def secrets(self, key_id: str) -> list[Secret]:
        """Returns a key's secrets, newest first."""
        return [Secret(*row) for row in await self._db.read(self._secrets_sql, key_id)]

    async def expiring(self, now: float, by: float) -> int:
        """Returns how many keys expire after `now` and no later than `by`. Does not count revoked keys."""
        soon = f"SELECT count(*) FROM {self._db.schema}.keys WHERE expires > $1 AND expires <= $2 AND revoked IS NULL"
        ((count,),) = await self._db.read(soon, now, by)
        return int(count)

    # Acts. Each one is a single transaction. All raise OperatorError if no key has this id.

    async def create(self, key: ApiKey, secret: str, by: Actor) -> None:
        # There is nothing to announce, because workers do not cache unknown keys.
        await self._db.write(lambda tx: self._insert(tx, key, secret, by), NOTHING)

    async def create_first(self, key: ApiKey, secret: str, by: Actor) -> bool:
        """Adds a key, unless the store already contains one. Returns whether it was added."""

        async def transaction(tx: Tx) -> bool:
            await lock_tables(tx, self._db, "keys")
            if await tx.execute(f"SELECT 1 FROM {self._db.schema}.keys LIMIT 1"):
                return False
            await self._insert(tx, key, secret, by)
            return True

        return await self._db.write(transaction, NOTHING)

    async def identify(self, secret: str, by: Actor) -> tuple[ApiKey, float | None] | None:
        """Returns the key that this secret belongs to, and the time when the secret expires.

        The time is None unless the secret expires before the key. Returns None if the secret belongs to no key here.
        """

        async def transaction(tx: Tx) -> tuple[ApiKey, float | None]:
            ((_, until, *row),) = await tx.execute(self._of_secret, digest_of(secret))
            if row[0] is None:
                raise Unchanged(None)
            key = key_from_row(self._db.environment, row)
            await add_entries(tx, self._db.schema, by.entry("identify key", key.id))
            ends = key_from_secret_row(self._db.environment, row, until).expires
            return key, ends if ends != key.expires else None

        return await self._db.write(transaction, NOTHING)

    async def update(self, key_id: str, changes: KeyChanges, by: Actor, base: ApiKey | None = None) -> ApiKey:
        """Changes a key and returns it. Does not reset the key's request counts for the current minute and day.

        `base` is the key as the operator saw it. Raises Conflict if someone has changed the same unit since then (see
        `petstore.edits`), and OperatorError if the change is not allowed.
        """
        return await self._change(key_id, "update key", by, lambda key: changed_key(key, changes, base))

    async def suspend(self, key_id: str, by: Actor) -> ApiKey:
        """Suspends a key. The service refuses the key's requests until an operator resumes the key."""
        return await self._change(key_id, "suspend key", by, lambda key: suspended_key(key, by.at))

    async def resume(self, key_id: str, by: Actor) -> ApiKey:
        return await self._change(key_id, "resume key", by, resumed_key)

    async def revoke(self, key_id: str, by: Actor) -> ApiKey:
        return await self._change(key_id, "revoke key", by, lambda key: revoked_key(key, by.at))

    async def rotate(self, key_id: str, secret: str, seen: int, overlap: float, by: Actor) -> tuple[ApiKey, float]:
        """Gives a key a new secret. `seen` is the number of the newest secret that the operator saw.

        The old secrets keep working for `overlap` seconds, or until the key expires if that is sooner. Returns the key
        and the time when they stop working. Raises OperatorError if someone else has rotated the key in the meantime.
        """

        async def transaction(tx: Tx) -> tuple[ApiKey, float]:
            key = await self._lock(tx, key_id)
            newest = newest_number(await self._secrets_of(tx, key_id))
            check_rotation(key, newest, seen, by.at)
            until = min(by.at + overlap, key.expires or math.inf)
            # Without an overlap, use 0. With the current time, a node whose clock is behind would still accept the old
            # secret.
            await tx.execute(
                f"UPDATE {self._secrets} SET expires = $1 WHERE key_id = $2 AND (expires IS NULL OR expires > $1)",
                until if overlap else 0.0, key_id,
            )  # fmt: skip
            await tx.put(SECRETS, [(digest_of(secret), key_id, newest + 1, None)])
            detail = f"old secret works until {when(until)}" if overlap else "old secret expired immediately"
            await add_entries(tx, self._db.schema, by.entry("rotate key", key_id, detail))
            return key, until

        return await self._db.write(transaction, KEYS_CHANGED)

    async def end_old_secret(self, key_id: str, by: Actor) -> ApiKey:
        """Ends the overlap period after a rotation, so that only the newest secret works."""

        async def transaction(tx: Tx) -> ApiKey:
            key = await self._lock(tx, key_id)
            until = end_of_old_secrets(key, await self._secrets_of(tx, key_id), by.at)
            # Use 0 for the same reason as in a rotation without an overlap.
            end = f"UPDATE {self._secrets} SET expires = 0 WHERE key_id = $1 AND expires IS NOT NULL"
            await tx.execute(end, key_id)
            detail = f"old secret would have worked until {when(until)}"
            await add_entries(tx, self._db.schema, by.entry("end old secret", key_id, detail))
            return key

        return await self._db.write(transaction, KEYS_CHANGED)

    async def _insert(self, tx: Tx, key: ApiKey, secret: str, by: Actor) -> None:
        await tx.put(KEYS, [key_row(key)])
        await tx.put(SECRETS, [(digest_of(secret), key.id, 1, None)])
        await enroll(tx, self._db.schema, Adder("key", key.id))  # animals added with this key refer to this row
        await add_entries(tx, self._db.schema, by.entry("create key", key.id, key.plan))

    async def _lock(self, tx: Tx, key_id: str) -> ApiKey:
        """Locks and returns a key. Raises OperatorError if it does not exist."""
        rows = await tx.execute(f"{self._select} WHERE k.id = $1 {self._db.for_update}", key_id)
        if not rows:
            raise OperatorError(f"no key has the id {key_id}")
        return key_from_row(self._db.environment, rows[0])

    async def _secrets_of(self, tx: Tx, key_id: str) -> list[Secret]:
        return [Secret(*row) for row in await tx.execute(self._secrets_sql, key_id)]

    async def _change(self, key_id: str, action: KeyAction, by: Actor, rule: Callable[[ApiKey], ApiKey]) -> ApiKey:
        """Writes the columns in which the rule changes the key, and an audit entry. Returns the changed key."""

        async def transaction(tx: Tx) -> ApiKey:
            key = await self._lock(tx, key_id)
            changed = rule(key)
            new = differences(key, changed)
            if not new:
                raise Unchanged(key)
            if "scopes" in new:
                new["scopes"] = " ".join(new["scopes"])
            assignments = ", ".join(f"{column} = ${place}" for place, column in enumerate(new, 2))
            await tx.execute(f"UPDATE {self._db.schema}.keys SET {assignments} WHERE id = $1", key_id, *new.values())
            detail = key_difference_in_words(key, changed, by.at)
            await add_entries(tx, self._db.schema, by.entry(action, key_id, detail))
            return changed

        return await self._db.write(transaction, KEYS_CHANGED)
