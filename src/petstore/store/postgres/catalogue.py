"""The requests of clients on PostgreSQL: a read takes a connection, new animals go to the writer."""

from asyncio import Future
from typing import Any

from petstore.keys import Environment
from petstore.pets import Added, IdempotencyKey, NewPet, Page, Pet, PetStatus
from petstore.store import OnCommit
from petstore.store.limits import StoreLimits
from petstore.store.postgres.database import PostgresDatabase
from petstore.store.postgres.pool import PostgresPool
from petstore.store.postgres.writer import PostgresWriter
from petstore.store.schema import PET_COLUMNS, Row
from petstore.store.sql import Statement, Transaction
from petstore.store.sql.imports import CHUNK, SqlImports
from petstore.store.sql.pets import page_sql, pet_sql

MOVING = -1  # instead of the number of the latest change: an import is being moved


# The usual statement, and the one that also finds the animals of an import that is being moved. Each row ends with the
# number of the latest change. A row whose first column is null says that there is no animal.
Read = tuple[str, str]


def _with_change(schema: str, sql: str) -> str:
    """The statement, with the number of the latest change in each row, and a row even when it finds nothing."""
    return (
        f"SELECT p.id, p.name, p.category_id, p.status, c.number FROM {schema}.catalogue_changes AS c"
        f" LEFT JOIN ({sql}) AS p ON true ORDER BY p.id"
    )


def _page_read(schema: str, *, by_status: bool) -> Read:
    # The usual one is the fastest, but returns no row when it finds nothing: then the complete one is needed, too.
    change = f"(SELECT CASE WHEN moving THEN {MOVING} ELSE number END FROM {schema}.catalogue_changes)"
    usual = page_sql(schema, by_status=by_status, columns=f"{PET_COLUMNS}, {change}")
    return usual, _with_change(schema, page_sql(schema, by_status=by_status, moving=True))


def _pet_read(schema: str) -> Read:
    usual = (
        f"SELECT p.id, p.name, p.category_id, p.status, CASE WHEN c.moving THEN {MOVING} ELSE c.number END"
        f" FROM {schema}.catalogue_changes AS c LEFT JOIN {schema}.pets AS p ON p.id = $1"
    )
    return usual, _with_change(schema, pet_sql(schema, moving=True))


class PostgresCatalogue(PostgresDatabase, SqlImports):
    """See `Catalogue` for what each method does."""

    immediate = False

    def __init__(self, pool: PostgresPool, environment: Environment, on_commit: OnCommit, limits: StoreLimits) -> None:
        super().__init__(pool, environment, on_commit, limits)
        self._writer = PostgresWriter(pool, self.schema, environment, self._write_health, on_commit, limits)
        self._page = _page_read(self.schema, by_status=False)
        self._page_by_status = _page_read(self.schema, by_status=True)
        self._pet = _pet_read(self.schema)

    async def page(self, *, after: int, limit: int, status: PetStatus | None) -> Page:
        if status is None:
            rows = await self._pets(self._page, after, limit + 1)
        else:
            rows = await self._pets(self._page_by_status, after, limit + 1, status)
        return Page([Pet(*row[:4]) for row in rows[:limit]], len(rows) > limit)

    async def pet(self, pet_id: int) -> Pet | None:
        rows = await self._pets(self._pet, pet_id)
        return Pet(*rows[0][:4]) if rows else None

    async def _pets(self, read: Read, *values: Any) -> list[Row]:
        """The rows, after the changes that they show were announced."""
        usual, complete = read
        rows = await self._fetch(usual, *values)
        if not rows or rows[0][4] == MOVING:
            rows = await self._fetch(complete, *values)
        change = rows[0][4]
        if rows[0][0] is None:
            rows = []
        # The last row of a page is read even when it is not shown: it tells whether there is a next page.
        if change > self._announced_change or (rows and rows[-1][0] > self._announced_pet):
            await self._announce()
        return rows

    def _submit(self, new: NewPet, now: float, idempotency_key: IdempotencyKey | None) -> "Future[Added]":
        return self._writer.add(new, now, idempotency_key)

    def _move_rows(self, import_id: str, first_id: int, start: int, stop: int) -> Transaction[None]:
        yield Statement(
            f"WITH moved AS (DELETE FROM {self.schema}.import_rows WHERE {CHUNK} RETURNING *)"
            f" INSERT INTO {self.schema}.pets (id, name, category_id, status)"
            " SELECT $4 + place, name, category_id, status FROM moved ORDER BY place",
            (import_id, start, stop, first_id),
        )
