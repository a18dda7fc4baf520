"""API keys."""

from collections.abc import Sequence
from typing import Any

import msgspec

from petstore.audit import AuditEntry
from petstore.keys import ApiKey, KeyChanges, KeyQuery, KeySort
from petstore.store.schema import KEY_COLUMNS, KEYS, SUSPENSIONS, key_of, key_of_secret, row_of
from petstore.store.sql import Database, PutRows, Statement, Transaction, steps

# By what to sort: the column, the comparison with the last row of the previous page, and the order.
_SORTS: dict[KeySort, tuple[str, str, str]] = {
    "created": ("k.created", "<", "DESC"),
    "name": ("k.name", ">", "ASC"),
    "last-used": ("coalesce(k.last_used, 0)", "<", "DESC"),
}
# The conditions of `ApiKey.state`.
_STATES = {
    "active": "k.revoked IS NULL AND (k.expires IS NULL OR k.expires > {now}) AND s.since IS NULL",
    "suspended": "k.revoked IS NULL AND (k.expires IS NULL OR k.expires > {now}) AND s.since IS NOT NULL",
    "expired": "k.revoked IS NULL AND k.expires <= {now}",
    "revoked": "k.revoked IS NOT NULL",
}


class SqlKeys(Database):
    """See `KeyStore` for what each method does."""

    async def find_key(self, digest: bytes) -> ApiKey | None:
        rows = await self._fetch(
            f"SELECT {KEY_COLUMNS}, secrets.expires FROM {self._keys} JOIN {self.schema}.secrets"
            " ON secrets.key_id = k.id WHERE secrets.digest = $1",
            digest,
        )
        return key_of_secret(self.environment, rows[0]) if rows else None

    async def latest_key_change(self) -> int:
        number: int = (await self._fetch(f"SELECT number FROM {self.schema}.key_changes"))[0][0]
        return number

    async def key(self, key_id: str) -> ApiKey | None:
        rows = await self._fetch(self._key_sql, key_id)
        return key_of(self.environment, rows[0]) if rows else None

    async def keys(self, *, after: str = "", limit: int = 1000) -> list[ApiKey]:
        rows = await self._fetch(
            f"SELECT {KEY_COLUMNS} FROM {self._keys} WHERE k.id > $1 ORDER BY k.id LIMIT $2", after, limit
        )
        return [key_of(self.environment, row) for row in rows]

    async def find_keys(
        self, query: KeyQuery, *, now: float, sort: KeySort = "created", after: ApiKey | None = None, limit: int = 100
    ) -> list[ApiKey]:
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
        if query.ids is not None:
            conditions.append(f"k.id = ANY({bind(list(query.ids))})")
        if query.except_ids:
            conditions.append(f"NOT k.id = ANY({bind(list(query.except_ids))})")
        if after is not None:
            last = {"created": after.created, "name": after.name, "last-used": after.last_used or 0.0}[sort]
            conditions.append(f"({column}, k.id) {beyond} ({bind(last)}, {bind(after.id)})")
        count = bind(limit)
        conditions.append(self._contains_text(["k.name", "k.id"], query.text, values))
        rows = await self._fetch_long(
            f"SELECT {KEY_COLUMNS} FROM {self._keys} WHERE {' AND '.join(conditions)}"
            f" ORDER BY {column} {order}, k.id {order} LIMIT {count}",
            *values,
        )
        return [key_of(self.environment, row) for row in rows]

    async def keys_by_id(self, key_ids: Sequence[str]) -> dict[str, ApiKey]:
        rows = await self._fetch(f"SELECT {KEY_COLUMNS} FROM {self._keys} WHERE k.id = ANY($1)", list(key_ids))
        return {row[0]: key_of(self.environment, row) for row in rows}

    async def add_key(self, key: ApiKey, digest: bytes, entry: AuditEntry, *, only_first: bool = False) -> bool:
        def transaction() -> Transaction[bool]:
            if only_first:
                yield from self._lock_tables("keys")
                if (yield Statement(f"SELECT 1 FROM {self.schema}.keys LIMIT 1")):
                    return False
            yield PutRows(self.schema, KEYS, [row_of(key)])
            yield self._new_secret(digest, key.id)
            yield self._record(entry)
            return True

        return await self._run(transaction(), "keys")

    async def update_key(self, key_id: str, changes: KeyChanges, entry: AuditEntry) -> ApiKey | None:
        changed = {name: value for name, value in msgspec.structs.asdict(changes).items() if value is not msgspec.UNSET}
        if "scopes" in changed:
            changed["scopes"] = " ".join(changed["scopes"])

        def transaction() -> Transaction[ApiKey | None]:
            if not (yield self._lock_key(key_id)):
                return None
            if "suspended" in changed:
                since = changed.pop("suspended")
                yield Statement(f"DELETE FROM {self.schema}.suspensions WHERE key_id = $1", (key_id,))
                yield PutRows(self.schema, SUSPENSIONS, [] if since is None else [(key_id, since)])
            if changed:
                assignments = ", ".join(f"{column} = ${place}" for place, column in enumerate(changed, 2))
                yield Statement(
                    f"UPDATE {self.schema}.keys SET {assignments} WHERE id = $1", (key_id, *changed.values())
                )
            yield self._record(entry)
            rows = yield Statement(self._key_sql, (key_id,))
            return key_of(self.environment, rows[0])

        return await self._run(transaction(), "keys")

    async def rotate_key(self, key_id: str, digest: bytes, old_until: float, entry: AuditEntry) -> None:
        end = Statement(
            f"UPDATE {self.schema}.secrets SET expires = $1 WHERE key_id = $2 AND (expires IS NULL OR expires > $1)",
            (old_until, key_id),
        )
        # Of two rotations at once, the second waits for the lock: then it sees the first one's secret, and ends it.
        rotation = steps(self._lock_key(key_id), end, self._new_secret(digest, key_id), self._record(entry))
        await self._run(rotation, "keys")

    async def revoke_key(self, key_id: str, entry: AuditEntry) -> None:
        revoke = Statement(f"UPDATE {self.schema}.keys SET revoked = $1 WHERE id = $2", (entry.at, key_id))
        await self._run(steps(revoke, self._record(entry)), "keys")

    def _lock_key(self, key_id: str) -> Statement:
        return Statement(f"SELECT id FROM {self.schema}.keys WHERE id = $1 {self.for_update}", (key_id,))

    def _new_secret(self, digest: bytes, key_id: str) -> Statement:
        return Statement(f"INSERT INTO {self.schema}.secrets (digest, key_id) VALUES ($1, $2)", (digest, key_id))

    @property
    def _keys(self) -> str:
        return f"{self.schema}.keys AS k LEFT JOIN {self.schema}.suspensions AS s ON s.key_id = k.id"

    @property
    def _key_sql(self) -> str:
        return f"SELECT {KEY_COLUMNS} FROM {self._keys} WHERE k.id = $1"
