"""API keys in SQLite."""

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from petstore.keys import ApiKey
from petstore.ledger import Deed
from petstore.plans import Limits
from petstore.search import spellings
from petstore.store.sqlite.base import SqliteBase, any_in, write_deed

_KEY = "k.id, k.name, k.plan, k.per_minute, k.per_day, k.scopes, k.created, k.expires, k.revoked, k.last_used"


class SqliteKeys(SqliteBase):
    """See `KeyStore` for what each method promises."""

    async def find_key(self, digest: bytes) -> ApiKey | None:
        rows = self._rows(
            f"SELECT {_KEY}, s.expires FROM secrets AS s JOIN keys AS k ON k.id = s.key_id WHERE s.digest = ?",
            (digest,),
        )
        if not rows:
            return None
        *row, until = rows[0]
        key = self._key(row)
        if until is None or (key.expires is not None and key.expires <= until):
            return key
        return msgspec.structs.replace(key, expires=until)

    async def key(self, key_id: str) -> ApiKey | None:
        rows = self._rows(f"SELECT {_KEY} FROM keys AS k WHERE k.id = ?", (key_id,))
        return self._key(rows[0]) if rows else None

    async def keys(self, *, after: str = "", limit: int = 1000) -> list[ApiKey]:
        rows = self._rows(f"SELECT {_KEY} FROM keys AS k WHERE k.id > ? ORDER BY k.id LIMIT ?", (after, limit))
        return [self._key(row) for row in rows]

    async def newest_keys(
        self, *, before: tuple[float, str] | None = None, limit: int = 100, text: str = ""
    ) -> list[ApiKey]:
        forms = spellings(text)
        fits = any_in(["k.name", "k.id"], forms) if text else "true"
        older = "(k.created, k.id) < (?, ?)" if before else "true"
        rows = await self._rows_aside(
            f"SELECT {_KEY} FROM keys AS k WHERE ({fits}) AND {older} ORDER BY k.created DESC, k.id DESC LIMIT ?",
            (*forms, *forms, *(before or ()), limit),
        )
        return [self._key(row) for row in rows]

    async def keys_by_id(self, key_ids: Sequence[str]) -> dict[str, ApiKey]:
        ids = msgspec.json.encode(key_ids).decode()
        rows = self._rows(f"SELECT {_KEY} FROM keys AS k WHERE k.id IN (SELECT value FROM json_each(?))", (ids,))
        return {row[0]: self._key(row) for row in rows}

    async def add_key(self, key: ApiKey, digest: bytes, deed: Deed) -> None:
        def work(connection: apsw.Connection) -> None:
            connection.execute(
                "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    key.id, key.name, key.plan, key.per_minute, key.per_day, " ".join(key.scopes),
                    key.created, key.expires, key.revoked, key.last_used,
                ),
            )  # fmt: skip
            connection.execute("INSERT INTO secrets VALUES (?, ?, NULL)", (digest, key.id))
            write_deed(connection, deed)

        await self._writer.call(work, "keys")

    async def rotate_key(self, key_id: str, digest: bytes, old_until: float, deed: Deed) -> None:
        def work(connection: apsw.Connection) -> None:
            connection.execute(
                "UPDATE secrets SET expires = min(coalesce(expires, ?1), ?1) WHERE key_id = ?2", (old_until, key_id)
            )
            connection.execute("INSERT INTO secrets VALUES (?, ?, NULL)", (digest, key_id))
            write_deed(connection, deed)

        await self._writer.call(work, "keys")

    async def revoke_key(self, key_id: str, deed: Deed) -> None:
        def work(connection: apsw.Connection) -> None:
            connection.execute("UPDATE keys SET revoked = ? WHERE id = ?", (deed.at, key_id))
            write_deed(connection, deed)

        await self._writer.call(work, "keys")

    async def set_limits(self, key_id: str, limits: Limits, deed: Deed) -> None:
        def work(connection: apsw.Connection) -> None:
            connection.execute("UPDATE keys SET per_minute = ?, per_day = ? WHERE id = ?", (*limits, key_id))
            write_deed(connection, deed)

        await self._writer.call(work, "keys")

    def _key(self, row: Sequence[Any]) -> ApiKey:
        key_id, name, plan, per_minute, per_day, scopes, created, expires, revoked, last_used = row
        return ApiKey(
            id=key_id, name=name, environment=self.environment, plan=plan, per_minute=per_minute, per_day=per_day,
            scopes=tuple(scopes.split()), created=created, expires=expires, revoked=revoked, last_used=last_used,
        )  # fmt: skip
