"""Operators in PostgreSQL."""

from petstore.audit import AuditEntry
from petstore.operators import Operator
from petstore.store.postgres.base import PostgresBase
from petstore.store.postgres.pool import Connection


class PostgresOperators(PostgresBase):
    """See `Operators` for what each method promises."""

    async def find_operator(self, digest: bytes) -> Operator | None:
        rows = await self._rows(f"{self._operator_sql} WHERE digest = $1 AND revoked IS NULL", digest)
        return Operator(*rows[0]) if rows else None

    async def operator(self, name: str) -> Operator | None:
        rows = await self._rows(f"{self._operator_sql} WHERE name = $1", name)
        return Operator(*rows[0]) if rows else None

    async def operators(self) -> list[Operator]:
        return [Operator(*row) for row in await self._rows(f"{self._operator_sql} ORDER BY name")]

    async def add_operator(self, operator: Operator, digest: bytes, entry: AuditEntry) -> bool:
        return await self._do(
            f"INSERT INTO {self._schema}.operators AS o VALUES ($1, $2, $3, NULL) ON CONFLICT (name) DO UPDATE"
            " SET digest = $2, created = $3, revoked = NULL WHERE o.revoked IS NOT NULL RETURNING name",
            (operator.name, digest, operator.created),
            entry,
        )

    async def revoke_operator(self, name: str, entry: AuditEntry) -> bool:
        return await self._do(
            f"UPDATE {self._schema}.operators SET revoked = $1 WHERE name = $2 AND revoked IS NULL RETURNING name",
            (entry.at, name),
            entry,
        )

    async def _do(self, sql: str, values: tuple[object, ...], entry: AuditEntry) -> bool:
        """Whether a row was changed; then the entry is recorded with it."""

        async def work(connection: Connection) -> bool:
            async with connection.transaction():
                changed = await connection.fetchval(sql, *values) is not None
                if changed:
                    await self._record(connection, entry)
                return changed

        return await self._pool.run(work)

    @property
    def _operator_sql(self) -> str:
        return f"SELECT name, created, revoked FROM {self._schema}.operators"
