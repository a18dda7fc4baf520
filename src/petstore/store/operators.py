"""Stores operators."""

from petstore.audit import Actor
from petstore.errors import OperatorError
from petstore.keys import digest_of
from petstore.operators import Operator, Role, is_operator_name
from petstore.store.audit import add_entries
from petstore.store.database import Database, Tx, Unchanged
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

    async def identify(self, token: str) -> Operator:
        """Returns the active operator to whom this token belongs. Raises OperatorError if there is none."""
        operator = await self.find(digest_of(token))
        if operator is None:
            raise OperatorError("this is an operator token, but it does not belong to an active operator")
        return operator

    # Acts. Each one is a single transaction.

    async def add(self, operator: Operator, token: str, by: Actor) -> None:
        """Adds an operator. Only a hash of the token is stored.

        Raises OperatorError if an operator with this name exists and is not revoked.
        """

        async def transaction(tx: Tx) -> None:
            added = await tx.execute(
                f"INSERT INTO {self._table} AS o (name, digest, created, role) VALUES ($1, $2, $3, $4)"
                " ON CONFLICT (name) DO UPDATE SET digest = excluded.digest, created = excluded.created,"
                " role = excluded.role, revoked = NULL WHERE o.revoked IS NOT NULL RETURNING name",
                operator.name, digest_of(token), operator.created, operator.role,
            )  # fmt: skip
            if not added:
                raise OperatorError(f"operator {operator.name} already exists; revoke that operator first")
            await add_entries(tx, self._db.schema, by.entry("add operator", operator.name, operator.role))

        await self._db.write(transaction, NOTHING)

    async def set_role(self, name: str, role: Role, by: Actor) -> None:
        """Changes an operator's role. Raises OperatorError if the operator does not exist or is revoked."""

        async def transaction(tx: Tx) -> None:
            operator = await self._lock_active(tx, name)
            if operator.role == role:
                raise Unchanged(None)
            await tx.execute(f"UPDATE {self._table} SET role = $2 WHERE name = $1", name, role)
            detail = f"{operator.role} → {role}"
            await add_entries(tx, self._db.schema, by.entry("set role", name, detail))

        await self._db.write(transaction, NOTHING)

    async def revoke(self, name: str, by: Actor) -> None:
        """Revokes an operator. Raises OperatorError if the operator does not exist or is already revoked."""

        async def transaction(tx: Tx) -> None:
            await self._lock_active(tx, name)
            await tx.execute(f"UPDATE {self._table} SET revoked = $2 WHERE name = $1", name, by.at)
            await add_entries(tx, self._db.schema, by.entry("revoke operator", name))

        await self._db.write(transaction, NOTHING)

    async def _lock_active(self, tx: Tx, name: str) -> Operator:
        """Locks and returns an operator. Raises OperatorError if the operator does not exist or is revoked."""
        active = f"SELECT {_COLUMNS} FROM {self._table} WHERE name = $1 AND revoked IS NULL {self._db.for_update}"
        rows = await tx.execute(active, name) if is_operator_name(name) else []
        if not rows:
            raise OperatorError(f"no active operator is named {name}; list the names with `petstore operators list`")
        return Operator(*rows[0])

    async def _one(self, condition: str, value: object) -> Operator | None:
        rows = await self._db.read(f"SELECT {_COLUMNS} FROM {self._table} WHERE {condition}", value)
        return Operator(*rows[0]) if rows else None
