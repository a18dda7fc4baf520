"""Animals in SQLite: reads of some microseconds in the event loop's thread, writes through the writer."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import msgspec

from petstore.errors import IdempotencyConflict
from petstore.keys import Environment
from petstore.ledger import Deed
from petstore.pets import Added, NewPet, Once, Page, Pet, PetStatus
from petstore.store import OnCommit
from petstore.store.sqlite.base import SqliteBase, write_deed

_STATUS = {status.value: status for status in PetStatus}
_PAGE = "SELECT id, name, category_id, status FROM pets WHERE id > ? ORDER BY id LIMIT ?"
_PAGE_BY_STATUS = "SELECT id, name, category_id, status FROM pets WHERE status = ? AND id > ? ORDER BY id LIMIT ?"
_PET = "SELECT id, name, category_id, status FROM pets WHERE id = ?"


class SqliteCatalogue(SqliteBase):
    """See `Catalogue` for what each method promises."""

    immediate = True

    def __init__(self, path: Path, environment: Environment, on_commit: OnCommit) -> None:
        super().__init__(path, environment, on_commit)
        self._running: set[tuple[str, str]] = set()

    async def page(self, *, after: int, limit: int, status: PetStatus | None) -> Page:
        if status is None:
            rows = self._rows(_PAGE, (after, limit + 1))
        else:
            rows = self._rows(_PAGE_BY_STATUS, (status.value, after, limit + 1))
        pets = [Pet(pet_id, name, category, _STATUS[value]) for pet_id, name, category, value in rows[:limit]]
        return Page(pets, len(rows) > limit)

    async def pet(self, pet_id: int) -> Pet | None:
        return _pet(self._rows(_PET, (pet_id,)))

    async def newest(self) -> int:
        return self._rows("SELECT max(id) FROM pets", ())[0][0] or 0

    async def stamp(self) -> object:
        return self._rows("PRAGMA data_version", ())[0][0]  # changes with every commit of another connection

    async def add(self, new: NewPet, now: float, once: Once | None = None) -> Added:
        if once is None:
            return await self._writer.add(new, now, None)
        name = (once.key_id, once.token)
        if name in self._running:
            raise IdempotencyConflict("The first request with this Idempotency-Key is still running; retry shortly.")
        self._running.add(name)
        try:
            return await self._writer.add(new, now, once)
        finally:
            self._running.discard(name)

    async def set_status(self, pet_id: int, status: PetStatus, deed: Deed) -> Pet | None:
        def work(connection: apsw.Connection) -> Pet | None:
            connection.execute("UPDATE pets SET status = ? WHERE id = ?", (status.value, pet_id))
            pet = _pet(connection.execute(_PET, (pet_id,)).fetchall())
            if pet:
                write_deed(connection, deed)
            return pet

        return await self._writer.call(work, "catalogue")

    async def import_pets(self, batches: AsyncIterator[list[NewPet]], deed: Deed) -> int:
        # The rows wait in a temporary file of SQLite's, so that the write lock is held only for one fast copy.
        staging = await asyncio.to_thread(apsw.Connection, "")
        staging.execute("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF; BEGIN")
        staging.execute("CREATE TABLE new (name TEXT, category_id INTEGER, status TEXT)")
        async for batch in batches:
            staging.executemany(
                "INSERT INTO new VALUES (?, ?, ?)", [(p.name, p.category_id, p.status.value) for p in batch]
            )

        def work(connection: apsw.Connection) -> int:
            rows = staging.execute("SELECT name, category_id, status FROM new ORDER BY rowid")
            connection.executemany("INSERT INTO pets (name, category_id, status) VALUES (?, ?, ?)", rows)
            count: int = staging.execute("SELECT count(*) FROM new").get
            write_deed(connection, msgspec.structs.replace(deed, detail=f"{count} animals"))
            return count

        try:
            return await self._writer.call(work, "catalogue", patience=3600)
        finally:
            staging.close()

    async def count(self) -> dict[PetStatus, int]:
        found = dict(self._rows("SELECT status, count(*) FROM pets GROUP BY status", ()))
        return {status: found.get(status.value, 0) for status in PetStatus}


def _pet(rows: list[tuple[Any, ...]]) -> Pet | None:
    if not rows:
        return None
    pet_id, name, category_id, status = rows[0]
    return Pet(pet_id, name, category_id, _STATUS[status])
