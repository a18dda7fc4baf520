"""Animals in SQLite: reads of some microseconds in the event loop's thread, writes through the writer."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import apsw
import msgspec

from petstore.audit import AuditEntry
from petstore.keys import Environment
from petstore.pets import STATUSES, Added, Found, IdempotencyKey, NewPet, Page, Pet, PetStatus
from petstore.store import OnCommit
from petstore.store.schema import SEARCH_STEP, InFlight, pets_of, spellings
from petstore.store.sqlite.base import SqliteBase, any_in, write_entry
from petstore.store.sqlite.file import translated

_PAGE = "SELECT id, name, category_id, status FROM pets WHERE id > ? ORDER BY id LIMIT ?"
_PAGE_BY_STATUS = "SELECT id, name, category_id, status FROM pets WHERE status = ? AND id > ? ORDER BY id LIMIT ?"
_PET = "SELECT id, name, category_id, status FROM pets WHERE id = ?"
_ADD = "INSERT INTO pets (name, category_id, status) VALUES (?, ?, ?)"


class SqliteCatalogue(SqliteBase):
    """See `Catalogue` for what each method promises."""

    immediate = True

    def __init__(self, path: Path, environment: Environment, on_commit: OnCommit) -> None:
        super().__init__(path, environment, on_commit)
        self._in_flight = InFlight()

    async def page(self, *, after: int, limit: int, status: PetStatus | None) -> Page:
        if status is None:
            rows = self._rows(_PAGE, (after, limit + 1))
        else:
            rows = self._rows(_PAGE_BY_STATUS, (status, after, limit + 1))
        return Page(pets_of(rows[:limit]), len(rows) > limit)

    async def search(self, text: str, *, after: int, limit: int, status: PetStatus | None) -> Found:
        forms = spellings(text)
        if not forms:
            return Found([], after, more=False)
        # All statuses are looked at, whichever is wanted: rows in the order of their ids are the cheapest to read.
        rows = await self._rows_aside(
            f"SELECT * FROM ({_PAGE}) WHERE {any_in(['name'], forms)} AND status = coalesce(?, status) LIMIT ?",
            (after, SEARCH_STEP, *forms, status, limit + 1),
        )
        if len(rows) > limit:
            return Found(pets_of(rows[:limit]), rows[limit - 1][0], more=True)
        last = await self._rows_aside(f"{_PAGE} OFFSET {SEARCH_STEP - 1}", (after, 1))
        return Found(pets_of(rows), last[0][0] if last else after, more=bool(last))

    async def pet(self, pet_id: int) -> Pet | None:
        pets = pets_of(self._rows(_PET, (pet_id,)))
        return pets[0] if pets else None

    async def newest(self) -> int:
        return self._rows("SELECT max(id) FROM pets", ())[0][0] or 0

    async def stamp(self) -> object:
        return self._rows("PRAGMA data_version", ())[0][0]  # changes with every commit of another connection

    async def add(self, new: NewPet, now: float, idempotency_key: IdempotencyKey | None = None) -> Added:
        if idempotency_key is None:
            return await self._writer.add(new, now, None)
        with self._in_flight.only(idempotency_key):
            return await self._writer.add(new, now, idempotency_key)

    async def add_by_hand(self, new: NewPet, entry: AuditEntry) -> Pet:
        def work(connection: apsw.Connection) -> Pet:
            connection.execute(_ADD, (new.name, new.category_id, new.status))
            pet = Pet(connection.last_insert_rowid(), new.name, new.category_id, new.status)
            write_entry(connection, msgspec.structs.replace(entry, subject=str(pet.id)))
            return pet

        return await self._writer.call(work, "catalogue")

    async def set_status(self, pet_ids: Sequence[int], status: PetStatus, entry: AuditEntry) -> list[Pet]:
        def work(connection: apsw.Connection) -> list[Pet]:
            changed = []
            for pet_id in pet_ids:
                connection.execute("UPDATE pets SET status = ? WHERE id = ?", (status, pet_id))
                if found := connection.execute(_PET, (pet_id,)).fetchall():
                    write_entry(connection, msgspec.structs.replace(entry, subject=str(pet_id)))
                    changed += pets_of(found)
            return changed

        return await self._writer.call(work, "catalogue")

    async def import_pets(self, batches: AsyncIterator[list[NewPet]], entry: AuditEntry) -> int:
        # The rows wait in a temporary file of SQLite's, so that the write lock is held only for one fast copy.
        staging = await asyncio.to_thread(apsw.Connection, "")
        given_up = False

        def work(connection: apsw.Connection) -> int:
            rows = staging.execute("SELECT name, category_id, status FROM new ORDER BY rowid")
            connection.executemany(_ADD, rows)
            count: int = staging.execute("SELECT count(*) FROM new").get
            write_entry(connection, msgspec.structs.replace(entry, detail=f"{count} animals"))
            return count

        try:
            staging.pragma("journal_mode", "OFF")
            staging.execute("BEGIN")
            staging.execute("CREATE TABLE new (name TEXT, category_id INTEGER, status TEXT)")
            async for batch in batches:
                rows = [(p.name, p.category_id, p.status) for p in batch]
                staging.executemany("INSERT INTO new VALUES (?, ?, ?)", rows)
            staging.set_progress_handler(lambda: given_up, 1_000)
            writing = self._writer.call(work, "catalogue", patience=3600)
            try:
                return await asyncio.shield(writing)
            except asyncio.CancelledError:
                given_up = True  # the writer's thread may be reading: it has to stop before the file is closed
                await asyncio.wait([writing])
                raise
        except apsw.Error as error:
            raise translated(error) from error
        finally:
            staging.close()

    async def count(self) -> dict[PetStatus, int]:
        found = dict(await self._rows_aside("SELECT status, count(*) FROM pets GROUP BY status", ()))
        return {status: found.get(status, 0) for status in STATUSES}
