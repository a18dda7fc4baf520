"""API keys in SQLite."""

from collections.abc import Sequence

import apsw
import msgspec

from petstore.audit import AuditEntry
from petstore.keys import ApiKey
from petstore.plans import Limits
from petstore.store.schema import KEY_COLUMNS, key_of, key_of_secret, row_of, spellings
from petstore.store.sqlite.base import SqliteBase, any_in, write_entry


class SqliteKeys(SqliteBase):
    """See `KeyStore` for what each method promises."""

    async def find_key(self, digest: bytes) -> ApiKey | None:
        rows = self._rows(
            f"SELECT {KEY_COLUMNS}, s.expires FROM secrets AS s JOIN keys AS k ON k.id = s.key_id WHERE s.digest = ?",
            (digest,),
        )
        return key_of_secret(self.environment, rows[0]) if rows else None

    async def key(self, key_id: str) -> ApiKey | None:
        rows = self._rows(f"SELECT {KEY_COLUMNS} FROM keys AS k WHERE k.id = ?", (key_id,))
        return key_of(self.environment, rows[0]) if rows else None

    async def keys(self, *, after: str = "", limit: int = 1000) -> list[ApiKey]:
        rows = self._rows(f"SELECT {KEY_COLUMNS} FROM keys AS k WHERE k.id > ? ORDER BY k.id LIMIT ?", (after, limit))
        return [key_of(self.environment, row) for row in rows]

    async def newest_keys(
        self, *, before: tuple[float, str] | None = None, limit: int = 100, text: str = ""
    ) -> list[ApiKey]:
        forms = spellings(text)
        fits = any_in(["k.name", "k.id"], forms) if text else "true"
        older = "(k.created, k.id) < (?, ?)" if before else "true"
        rows = await self._rows_aside(
            f"SELECT {KEY_COLUMNS} FROM keys AS k WHERE ({fits}) AND {older}"
            " ORDER BY k.created DESC, k.id DESC LIMIT ?",
            (*forms, *forms, *(before or ()), limit),
        )
        return [key_of(self.environment, row) for row in rows]

    async def keys_by_id(self, key_ids: Sequence[str]) -> dict[str, ApiKey]:
        ids = msgspec.json.encode(key_ids).decode()
        rows = self._rows(f"SELECT {KEY_COLUMNS} FROM keys AS k WHERE k.id IN (SELECT value FROM json_each(?))", (ids,))
        return {row[0]: key_of(self.environment, row) for row in rows}

    async def add_key(self, key: ApiKey, digest: bytes, entry: AuditEntry, *, only_first: bool = False) -> bool:
        def work(connection: apsw.Connection) -> bool:
            if only_first and connection.execute("SELECT 1 FROM keys LIMIT 1").fetchall():
                return False
            connection.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row_of(key))
            connection.execute("INSERT INTO secrets VALUES (?, ?, NULL)", (digest, key.id))
            write_entry(connection, entry)
            return True

        return await self._writer.call(work, "keys")

    async def rotate_key(self, key_id: str, digest: bytes, old_until: float, entry: AuditEntry) -> None:
        def work(connection: apsw.Connection) -> None:
            connection.execute(
                "UPDATE secrets SET expires = min(coalesce(expires, ?1), ?1) WHERE key_id = ?2", (old_until, key_id)
            )
            connection.execute("INSERT INTO secrets VALUES (?, ?, NULL)", (digest, key_id))
            write_entry(connection, entry)

        await self._writer.call(work, "keys")

    async def revoke_key(self, key_id: str, entry: AuditEntry) -> None:
        def work(connection: apsw.Connection) -> None:
            connection.execute("UPDATE keys SET revoked = ? WHERE id = ?", (entry.at, key_id))
            write_entry(connection, entry)

        await self._writer.call(work, "keys")

    async def set_limits(self, key_id: str, limits: Limits, entry: AuditEntry) -> None:
        def work(connection: apsw.Connection) -> None:
            connection.execute("UPDATE keys SET per_minute = ?, per_day = ? WHERE id = ?", (*limits, key_id))
            write_entry(connection, entry)

        await self._writer.call(work, "keys")
