"""API keys in PostgreSQL."""

from collections.abc import Sequence

from petstore.audit import AuditEntry
from petstore.keys import ApiKey
from petstore.plans import Limits
from petstore.store.postgres.base import PostgresBase, any_in
from petstore.store.postgres.pool import Connection
from petstore.store.schema import KEY_COLUMNS, key_of, key_of_secret, row_of, spellings


class PostgresKeys(PostgresBase):
    """See `KeyStore` for what each method promises."""

    async def find_key(self, digest: bytes) -> ApiKey | None:
        rows = await self._rows(
            f"SELECT {KEY_COLUMNS}, s.expires FROM {self._schema}.secrets AS s JOIN {self._schema}.keys AS k"
            " ON k.id = s.key_id WHERE s.digest = $1",
            digest,
        )
        return key_of_secret(self.environment, rows[0]) if rows else None

    async def key(self, key_id: str) -> ApiKey | None:
        rows = await self._rows(f"SELECT {KEY_COLUMNS} FROM {self._schema}.keys AS k WHERE k.id = $1", key_id)
        return key_of(self.environment, rows[0]) if rows else None

    async def keys(self, *, after: str = "", limit: int = 1000) -> list[ApiKey]:
        rows = await self._rows(
            f"SELECT {KEY_COLUMNS} FROM {self._schema}.keys AS k WHERE k.id > $1 ORDER BY k.id LIMIT $2", after, limit
        )
        return [key_of(self.environment, row) for row in rows]

    async def newest_keys(
        self, *, before: tuple[float, str] | None = None, limit: int = 100, text: str = ""
    ) -> list[ApiKey]:
        forms = spellings(text)
        fits = any_in(["k.name", "k.id"], forms, 4) if text else "true"
        at, key_id = before or (float("inf"), "")
        rows = await self._rows(
            f"SELECT {KEY_COLUMNS} FROM {self._schema}.keys AS k WHERE ({fits}) AND (k.created, k.id) < ($1, $2)"
            " ORDER BY k.created DESC, k.id DESC LIMIT $3",
            at, key_id, limit, *forms,
        )  # fmt: skip
        return [key_of(self.environment, row) for row in rows]

    async def keys_by_id(self, key_ids: Sequence[str]) -> dict[str, ApiKey]:
        rows = await self._rows(f"SELECT {KEY_COLUMNS} FROM {self._schema}.keys AS k WHERE k.id = ANY($1)", key_ids)
        return {row[0]: key_of(self.environment, row) for row in rows}

    async def add_key(self, key: ApiKey, digest: bytes, entry: AuditEntry, *, only_first: bool = False) -> bool:
        async def work(connection: Connection) -> bool:
            if only_first:
                # Whoever else is looking for a first key waits here, and then finds this one.
                await connection.execute(f"LOCK TABLE {self._schema}.keys IN SHARE ROW EXCLUSIVE MODE")
                if await connection.fetchrow(f"SELECT 1 FROM {self._schema}.keys LIMIT 1"):
                    return False
            await connection.execute(
                f"INSERT INTO {self._schema}.keys VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
                *row_of(key),
            )
            await connection.execute(f"INSERT INTO {self._schema}.secrets VALUES ($1, $2, NULL)", digest, key.id)
            await self._record(connection, entry)
            return True

        return await self._change(work, "keys")

    async def rotate_key(self, key_id: str, digest: bytes, old_until: float, entry: AuditEntry) -> None:
        async def work(connection: Connection) -> None:
            # Of two at once the second must see the first one's secret, to end it.
            await connection.execute(f"SELECT FROM {self._schema}.keys WHERE id = $1 FOR UPDATE", key_id)
            await connection.execute(
                f"UPDATE {self._schema}.secrets SET expires = least(coalesce(expires, $1), $1) WHERE key_id = $2",
                old_until,
                key_id,
            )
            await connection.execute(f"INSERT INTO {self._schema}.secrets VALUES ($1, $2, NULL)", digest, key_id)
            await self._record(connection, entry)

        await self._change(work, "keys")

    async def revoke_key(self, key_id: str, entry: AuditEntry) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute(f"UPDATE {self._schema}.keys SET revoked = $1 WHERE id = $2", entry.at, key_id)
            await self._record(connection, entry)

        await self._change(work, "keys")

    async def set_limits(self, key_id: str, limits: Limits, entry: AuditEntry) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute(
                f"UPDATE {self._schema}.keys SET per_minute = $1, per_day = $2 WHERE id = $3", *limits, key_id
            )
            await self._record(connection, entry)

        await self._change(work, "keys")
