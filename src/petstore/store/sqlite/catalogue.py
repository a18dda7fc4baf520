"""The requests of clients on SQLite: reads of some microseconds in the event loop's thread, and new animals."""

import shutil
from asyncio import Future
from typing import Any

from petstore.errors import OperatorError
from petstore.pets import Added, IdempotencyKey, NewPet, Page, Pet, PetStatus
from petstore.store.schema import Row, pets_of
from petstore.store.sql import Statement, Transaction
from petstore.store.sql.imports import CHUNK, SqlImports
from petstore.store.sql.pets import page_sql, pet_sql
from petstore.store.sqlite.database import SqliteDatabase, translated

PAGE, PAGE_WHILE_MOVING = (translated(page_sql("main", moving=moving)) for moving in (False, True))
PAGE_BY_STATUS, PAGE_BY_STATUS_WHILE_MOVING = (
    translated(page_sql("main", by_status=True, moving=moving)) for moving in (False, True)
)
PET, PET_WHILE_MOVING = (translated(pet_sql("main", moving=moving)) for moving in (False, True))
_STATE = "SELECT number, moving FROM catalogue_changes"


class SqliteCatalogue(SqliteDatabase, SqlImports):
    """See `Catalogue` for what each method does."""

    immediate = True
    # The state of the catalogue: the number of its latest change, and whether an import is being moved.
    _latest_change = 0
    _moving: bool | int = False
    _state_version = -1  # the version of the file that the state was read from

    async def page(self, *, after: int, limit: int, status: PetStatus | None) -> Page:
        if status is None:
            rows = self._pets(PAGE, PAGE_WHILE_MOVING, (after, limit + 1))
        else:
            rows = self._pets(PAGE_BY_STATUS, PAGE_BY_STATUS_WHILE_MOVING, (after, limit + 1, status))
        # The last row is read even when it is not shown: it tells whether there is a next page.
        if self._latest_change > self._announced_change or (rows and rows[-1][0] > self._announced_pet):
            await self._announce()
        return Page(pets_of(rows[:limit]), len(rows) > limit)

    async def pet(self, pet_id: int) -> Pet | None:
        rows = self._pets(PET, PET_WHILE_MOVING, (pet_id,))
        if self._latest_change > self._announced_change or (rows and pet_id > self._announced_pet):
            await self._announce()
        return Pet(*rows[0]) if rows else None

    def _pets(self, sql: str, while_moving: str, bindings: tuple[Any, ...]) -> list[Row]:
        """The rows, and in `_latest_change` the number of the latest change that they show.

        The version of the file, which SQLite tells in a fraction of a microsecond, says whether anything was committed
        since the state was read. So the usual read is the one statement.
        """
        while True:
            moving = self._moving
            rows = self._rows(while_moving if moving else sql, bindings)
            version = self._reader.data_version()
            if version == self._state_version:
                return rows
            ((self._latest_change, self._moving),) = self._rows(_STATE, ())
            self._state_version = self._reader.data_version()
            # Otherwise the rows are of another moment than the state, or an import's are missing.
            if version == self._state_version and (moving or not self._moving):
                return rows

    def _submit(self, new: NewPet, now: float, idempotency_key: IdempotencyKey | None) -> "Future[Added]":
        return self._writer.add(new, now, idempotency_key)

    def _check_space(self) -> None:
        directory = self._path.parent
        free, least = shutil.disk_usage(directory).free, self.limits.import_free_bytes
        if free < least:
            raise OperatorError(
                f"{directory}: only {free // 2**20:,} MiB are free, and an import leaves {least // 2**20:,} MiB,"
                " so nothing was added; free some space, then import again"
            )

    def _move_rows(self, import_id: str, first_id: int, start: int, stop: int) -> Transaction[None]:
        yield Statement(
            "INSERT INTO pets (id, name, category_id, status)"
            f" SELECT $4 + place, name, category_id, status FROM import_rows WHERE {CHUNK} ORDER BY place",
            (import_id, start, stop, first_id),
        )
        yield self._delete_rows(import_id, start, stop)
