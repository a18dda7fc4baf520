"""Stores imports. An import adds the animals in a file chunk by chunk, and each chunk is visible once it is committed.

Each import records how many animals it has added so far, so any number of processes can add chunks to it. See
docs/decisions/0014.
"""

import math
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import msgspec

from petstore.audit import Actor
from petstore.errors import OperatorError, Unavailable
from petstore.imports import Import, ImportState, Undone, check_same_file, new_import_id
from petstore.pets import Adder, NewPet
from petstore.store.audit import add_entries
from petstore.store.database import OPERATOR_TIMEOUT, Database, T, Transaction, Tx, Unchanged
from petstore.store.freshness import ADDED, EDITED, NOTHING
from petstore.store.pets import insert_pets
from petstore.store.schema import IMPORT_CHUNKS
from petstore.wording import counted

# Reads all animals from the beginning, in batches. Each batch has the number of animals that precede it.
Batches = Callable[[], AsyncIterator[tuple[int, Sequence[NewPet]]]]

INTERRUPTED_AFTER = 60.0  # a running import with no new chunk for this many seconds is shown as `interrupted`


class Imports:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._table = f"{db.schema}.imports"
        self._chunks = f"{db.schema}.{IMPORT_CHUNKS.name}"
        # Selects the animals that the import $1 added, except those that have been removed.
        self._its_pets = (
            f"FROM {self._chunks} AS c JOIN {db.schema}.pets AS p ON p.id >= c.first_id AND p.id < c.first_id + c.count"
            " WHERE c.import_id = $1"
        )

    # Reading. A running import is `interrupted` if it has added no chunk in the last INTERRUPTED_AFTER seconds.

    async def get(self, import_id: str, now: float) -> Import | None:
        found = await self._read("WHERE id = $2", now, import_id)
        return found[0] if found else None

    async def page(self, now: float, *, before: tuple[float, str] | None = None, limit: int = 100) -> list[Import]:
        """Returns imports, newest first. `before` is the time and id of the last import on the previous page."""
        last = before or (math.inf, "")
        return await self._read("WHERE (at, id) < ($2, $3) ORDER BY at DESC, id DESC LIMIT $4", now, *last, limit)

    async def of_file(self, sha256: str, now: float) -> Import | None:
        """Returns the running import of a file with this hash or, if none is running, the newest finished one."""
        order = "ORDER BY state = 'running' DESC, at DESC, id DESC LIMIT 1"
        found = await self._read(f"WHERE sha256 = $2 AND state IN ('running', 'done') {order}", now, sha256)
        return found[0] if found else None

    async def earlier(self, sha256: str, now: float) -> Import | None:
        """Like `of_file`, for an operator who wants to import the file.

        Raises OperatorError if the disk has too little free space for an import.
        """
        self._db.check_space()
        return await self.of_file(sha256, now)

    async def _read(self, which: str, now: float, *values: object) -> list[Import]:
        rows = await self._db.read(
            "SELECT id, at, actor, name, sha256, total, added, CASE WHEN state = 'running'"
            " AND last_chunk < CAST($1 AS double precision) THEN 'interrupted' ELSE state END"
            f" FROM {self._table} {which}",
            now - INTERRUPTED_AFTER, *values,
        )  # fmt: skip
        return [Import(*row) for row in rows]

    # Adding

    async def begin(self, name: str, sha256: str, total: int, by: Actor, repeats: str = "") -> Import:
        """Begins an import of a file with `total` animals.

        If a file with the same content is already being imported, returns the running import. If such a file has been
        imported before, returns the newest finished import, whose state is `done`. To import the file again, for
        example after asking the operator, pass that import's id as `repeats`. Raises OperatorError if the disk is
        nearly full, or if the earlier import found a different number of animals.
        """
        self._db.check_space()
        shown = name.encode(errors="replace").decode()  # file names are not always valid UTF-8
        new = Import(new_import_id(), by.at, by.name, shown, sha256, total, 0, "running" if total else "done")

        async def transaction(tx: Tx) -> bool:
            inserted = await tx.execute(
                f"INSERT INTO {self._table} (id, at, actor, name, sha256, total, added, state, last_chunk)"
                " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $2)"
                " ON CONFLICT (sha256) WHERE state = 'running' DO NOTHING RETURNING id",
                *msgspec.structs.astuple(new),
            )
            if not inserted:
                return False
            # Check only after the insert, because another process may have just finished importing the same content.
            done = await tx.execute(
                f"SELECT id FROM {self._table} WHERE sha256 = $1 AND state = 'done' AND id <> $2"
                " ORDER BY at DESC, id DESC LIMIT 1",
                sha256, new.id,
            )  # fmt: skip
            if done and done[0][0] != repeats:
                raise Unchanged(False)
            # Record how many animals the file contains, even though an interrupted import adds fewer.
            detail = f"file with {counted(total, 'animal')}, {new.id}"
            await add_entries(tx, self._db.schema, by.entry("import", shown, detail))
            return True

        while True:
            if await self._write(transaction):
                return new
            found = await self.of_file(sha256, by.at)
            if found is not None:  # None if another operator has just undone that import
                check_same_file(found, total)
                return found

    async def add_pets(
        self, begun: Import, batches: Batches, clock: Callable[[], float],
        adding: Callable[[int], None] = lambda count: None,
    ) -> Import:  # fmt: skip
        """Adds the rest of a file's animals to an import. Several processes can call this for the same import.

        `batches` reads the file from the beginning. Calls `adding` with the number of animals added so far. Raises
        OperatorError if another operator undoes the import. If this call fails or is cancelled, importing the same file
        again resumes the import.
        """
        try:
            await self._add_rest(begun, batches, clock, adding)
        except (OperatorError, Unavailable) as error:
            raise OperatorError(
                f"{error}; import the same file again to resume {begun.id},"
                f" or remove its animals with `petstore pets undo-import {begun.id}`"
            ) from error
        found = await self._existing(begun.id, clock())
        if found.state != "done":
            raise OperatorError(f"{begun.id} was undone, so no more animals were added")
        return found

    async def _add_rest(
        self, begun: Import, batches: Batches, clock: Callable[[], float], adding: Callable[[int], None]
    ) -> None:
        """Adds animals in chunks until the import is complete or another operator undoes it."""
        size, place = self._db.bounds.import_chunk, begun.added
        adding(place)
        while place < begun.total:
            async for first, pets in batches():
                while first <= place < first + len(pets):
                    chunk = pets[place - first :][:size]
                    if await self.add_chunk(begun.id, place, chunk, clock()):
                        place += len(chunk)
                    else:
                        found = await self._existing(begun.id, clock())
                        if found.state in ("undoing", "undone"):
                            return
                        place = found.added
                    adding(place)

    async def add_chunk(self, import_id: str, place: int, new: Sequence[NewPet], now: float) -> bool:
        """Adds a chunk of animals. `place` is the number of animals that precede the chunk in the file.

        Returns False and adds nothing if the import is not running or the number of animals added so far is not
        `place`. Raises OperatorError if the disk is nearly full.
        """
        self._db.check_space()
        advance = (
            f"UPDATE {self._table} SET added = added + $3, last_chunk = $4,"
            " state = CASE WHEN added + $3 = total THEN 'done' ELSE state END"
            " WHERE id = $1 AND state = 'running' AND added = $2 RETURNING id"
        )

        async def transaction(tx: Tx) -> bool:
            if not await tx.execute(advance, import_id, place, len(new), now):
                return False
            pets = await insert_pets(tx, self._db, new, Adder("import", import_id), now)
            await tx.put(IMPORT_CHUNKS, [(import_id, place, pets[0].id, len(pets))])
            return True

        return await self._db.write(transaction, ADDED, OPERATOR_TIMEOUT)

    # Undoing

    async def undo(self, import_id: str, by: Actor, removing: Callable[[int], None] = lambda searched: None) -> Undone:
        """Removes an import's animals, except those that an operator has changed. Resumes an interrupted undo.

        Several processes can undo the same import at the same time. In the result, `removed` does not count animals
        that an operator had already removed. Calls `removing` with the number of animals processed so far. Raises
        OperatorError if there is no such import, or if it has already been undone.
        """
        found, before = await self._existing(import_id, by.at), await self.undone(import_id)
        kept = f", {before.kept:,} kept" if before.kept else ""
        detail = f"{found.name}, {counted(before.left, 'animal')}{kept}"

        async def begin(tx: Tx) -> ImportState:
            """Returns the import's earlier state. After this transaction, no process can add chunks to the import."""
            rows = await tx.execute(f"SELECT state FROM {self._table} WHERE id = $1 {self._db.for_update}", import_id)
            state: ImportState = rows[0][0]
            if state in ("running", "done"):
                await tx.execute(f"UPDATE {self._table} SET state = 'undoing' WHERE id = $1", import_id)
                await add_entries(tx, self._db.schema, by.entry("undo import", import_id, detail))
            return state

        async def chunk(tx: Tx, start: int, end: int) -> None:
            pets = f"{self._db.schema}.pets"
            await tx.execute(f"DELETE FROM {pets} WHERE id >= $1 AND id < $2 AND edited = 0", start, end)

        async def finish(tx: Tx) -> None:
            await tx.execute(f"UPDATE {self._table} SET state = 'undone' WHERE id = $1", import_id)

        state = await self._write(begin)
        if state == "undone":
            removed, kept_pets, _ = await self.undone(import_id)
            raise OperatorError(f"{import_id} has already been undone: {removed:,} removed, {kept_pets:,} kept")
        step, searched = self._db.bounds.import_chunk, 0
        chunks = f"SELECT first_id, count FROM {self._chunks} WHERE import_id = $1 ORDER BY place"
        for first, count in await self._db.read_long(chunks, import_id):
            for start in range(first, first + count, step):
                end = min(start + step, first + count)
                await self._db.write(partial(chunk, start=start, end=end), EDITED, OPERATOR_TIMEOUT)
                searched += end - start
                removing(searched)
        await self._write(finish)
        counts = await self.undone(import_id)
        return counts if state == "undoing" else counts._replace(removed=counts.removed - before.removed)

    async def _existing(self, import_id: str, now: float) -> Import:
        found = await self.get(import_id, now)
        if found is None:
            raise OperatorError(f"no import has the id {import_id} in {self._db.environment}")
        return found

    async def undone(self, import_id: str) -> Undone:
        """Counts the import's animals that have been removed, kept, and not yet removed."""
        ((added, left, kept),) = await self._db.read_long(
            f"SELECT added, (SELECT count(*) {self._its_pets} AND p.edited = 0),"
            f" (SELECT count(*) {self._its_pets} AND p.edited = 1) FROM {self._table} WHERE id = $1",
            import_id,
        )
        return Undone(added - kept - left, kept, left)

    async def kept_ids(self, import_id: str, limit: int) -> list[int]:
        """Returns up to `limit` ids of animals that were changed by an operator, and are therefore kept by an undo."""
        rows = await self._db.read_long(
            f"SELECT p.id {self._its_pets} AND p.edited = 1 ORDER BY p.id LIMIT $2", import_id, limit
        )
        return [row[0] for row in rows]

    async def _write(self, transaction: Transaction[T]) -> T:
        return await self._db.write(transaction, NOTHING, OPERATOR_TIMEOUT)
