"""Operators in SQLite."""

import apsw

from petstore.audit import AuditEntry
from petstore.operators import Operator
from petstore.store.sqlite.base import SqliteBase, write_entry

_OPERATOR = "SELECT name, created, revoked FROM operators"


class SqliteOperators(SqliteBase):
    """See `Operators` for what each method promises."""

    async def find_operator(self, digest: bytes) -> Operator | None:
        rows = self._rows(f"{_OPERATOR} WHERE digest = ? AND revoked IS NULL", (digest,))
        return Operator(*rows[0]) if rows else None

    async def operator(self, name: str) -> Operator | None:
        rows = self._rows(f"{_OPERATOR} WHERE name = ?", (name,))
        return Operator(*rows[0]) if rows else None

    async def operators(self) -> list[Operator]:
        return [Operator(*row) for row in self._rows(f"{_OPERATOR} ORDER BY name", ())]

    async def add_operator(self, operator: Operator, digest: bytes, entry: AuditEntry) -> bool:
        def work(connection: apsw.Connection) -> bool:
            connection.execute(
                "INSERT INTO operators VALUES (?1, ?2, ?3, NULL) ON CONFLICT (name) DO UPDATE"
                " SET digest = ?2, created = ?3, revoked = NULL WHERE revoked IS NOT NULL",
                (operator.name, digest, operator.created),
            )
            added = connection.changes() > 0
            if added:
                write_entry(connection, entry)
            return added

        return await self._writer.call(work)

    async def revoke_operator(self, name: str, entry: AuditEntry) -> bool:
        def work(connection: apsw.Connection) -> bool:
            connection.execute("UPDATE operators SET revoked = ? WHERE name = ? AND revoked IS NULL", (entry.at, name))
            revoked = connection.changes() > 0
            if revoked:
                write_entry(connection, entry)
            return revoked

        return await self._writer.call(work)
