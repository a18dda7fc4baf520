"""Stores operators."""

from collections.abc import Sequence

import msgspec

from petstore.audit import AuditEntry
from petstore.operators import Operator, Role
from petstore.store.audit import add_entries
from petstore.store.database import Database, Tx
from petstore.store.freshness import NOTHING

_COLUMNS = ", ".join(Operator.__struct_fields__)


class Operators:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._table = f"{db.schema}.operators"

    async def find(self, digest: bytes) -> Operator | None:
        """Returns the operator whose token has this hash, or None if there is none or the operator is revoked."""
        return await self._one("digest = $1 AND revoked IS NULL", digest)

    async def get(self, name: str) -> Operator | None:
        return await self._one("name = $1", name)

    async def all(self) -> list[Operator]:
        """Returns all operators ordered by name, including revoked ones."""
        rows = await self._db.read(f"SELECT {_COLUMNS} FROM {self._table} ORDER BY name")
        return [Operator(*row) for row in rows]

    async def add(self, operator: Operator, digest: bytes, entry: AuditEntry) -> bool:
        """Adds an operator. Returns False if an operator with this name exists and is not revoked."""
        insert = (
            f"INSERT INTO {self._table} AS o (name, digest, created, role) VALUES ($1, $2, $3, $4)"
            " ON CONFLICT (name) DO UPDATE SET digest = excluded.digest, created = excluded.created,"
            " role = excluded.role, revoked = NULL WHERE o.revoked IS NOT NULL RETURNING name"
        )
        return await self._change(insert, (operator.name, digest, operator.created, operator.role), entry)

    async def set_role(self, name: str, role: Role, entry: AuditEntry) -> bool:
        """Changes an operator's role. Returns False if the operator does not exist or is revoked.

        The audit entry records the old role and the new one.
        """

        async def transaction(tx: Tx) -> bool:
            valid = f"FROM {self._table} WHERE name = $1 AND revoked IS NULL"
            rows = await tx.execute(f"SELECT role {valid} {self._db.for_update}", name)
            if not rows:
                return False
            await tx.execute(f"UPDATE {self._table} SET role = $2 WHERE name = $1", name, role)
            detail = f"{rows[0][0]} → {role}"
            await add_entries(tx, self._db.schema, msgspec.structs.replace(entry, detail=detail))
            return True

        return await self._db.write(transaction, NOTHING)

    async def revoke(self, name: str, entry: AuditEntry) -> bool:
        """Revokes an operator. Returns False if the operator does not exist or is already revoked."""
        update = f"UPDATE {self._table} SET revoked = $2 WHERE name = $1 AND revoked IS NULL RETURNING name"
        return await self._change(update, (name, entry.at), entry)

    async def _one(self, condition: str, value: object) -> Operator | None:
        rows = await self._db.read(f"SELECT {_COLUMNS} FROM {self._table} WHERE {condition}", value)
        return Operator(*rows[0]) if rows else None

    async def _change(self, statement: str, values: Sequence[object], entry: AuditEntry) -> bool:
        """Executes the statement and, if it returns a row, adds the audit entry. Returns whether it returned a row."""

        async def transaction(tx: Tx) -> bool:
            if not await tx.execute(statement, *values):
                return False
            await add_entries(tx, self._db.schema, entry)
            return True

        return await self._db.write(transaction, NOTHING)
