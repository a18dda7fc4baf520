"""Operators."""

from petstore.audit import AuditEntry
from petstore.operators import Operator, Role
from petstore.store.sql import Database, Statement, steps_if


class SqlOperators(Database):
    """See `Operators` for what each method does."""

    async def find_operator(self, digest: bytes) -> Operator | None:
        rows = await self._fetch(f"{self._operator_sql} WHERE o.digest = $1 AND o.revoked IS NULL", digest)
        return Operator(*rows[0]) if rows else None

    async def operator(self, name: str) -> Operator | None:
        rows = await self._fetch(f"{self._operator_sql} WHERE o.name = $1", name)
        return Operator(*rows[0]) if rows else None

    async def operators(self) -> list[Operator]:
        return [Operator(*row) for row in await self._fetch(f"{self._operator_sql} ORDER BY o.name")]

    async def add_operator(self, operator: Operator, digest: bytes, entry: AuditEntry) -> bool:
        insert = Statement(
            f"INSERT INTO {self.schema}.operators AS o (name, digest, created) VALUES ($1, $2, $3)"
            " ON CONFLICT (name) DO UPDATE SET digest = excluded.digest, created = excluded.created, revoked = NULL"
            " WHERE o.revoked IS NOT NULL RETURNING name",
            (operator.name, digest, operator.created),
        )
        role = self._write_role(operator.name, operator.role)
        return await self._run(steps_if(insert, role, self._record(entry)))

    async def set_role(self, name: str, role: Role, entry: AuditEntry) -> bool:
        lock = Statement(
            f"SELECT name FROM {self.schema}.operators WHERE name = $1 AND revoked IS NULL {self.for_update}", (name,)
        )
        return await self._run(steps_if(lock, self._write_role(name, role), self._record(entry)))

    async def revoke_operator(self, name: str, entry: AuditEntry) -> bool:
        revoke = Statement(
            f"UPDATE {self.schema}.operators SET revoked = $1 WHERE name = $2 AND revoked IS NULL RETURNING name",
            (entry.at, name),
        )
        return await self._run(steps_if(revoke, self._record(entry)))

    def _write_role(self, name: str, role: Role) -> Statement:
        return Statement(
            f"INSERT INTO {self.schema}.operator_roles (name, role) VALUES ($1, $2)"
            " ON CONFLICT (name) DO UPDATE SET role = excluded.role",
            (name, role),
        )

    @property
    def _operator_sql(self) -> str:
        return (
            f"SELECT o.name, o.created, o.revoked, coalesce(r.role, 'operator') FROM {self.schema}.operators AS o"
            f" LEFT JOIN {self.schema}.operator_roles AS r ON r.name = o.name"
        )
