"""Imports: loaded in small transactions, visible at one moment, moved into `pets` while they are visible.

docs/decisions/0014 says why. An import that was interrupted is finished, or removed, by the next call of `tidy`.
"""

import contextlib
import math
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable

import msgspec

from petstore.audit import AuditEntry
from petstore.errors import OperatorError, Unavailable
from petstore.pets import Import, ImportState, NewPet, Undone, new_import_id
from petstore.store.limits import OPERATOR_TIMEOUT
from petstore.store.schema import IMPORT_ROWS, Row
from petstore.store.sql import Statement, T, Transaction, steps
from petstore.store.sql.pets import STATUS_LIST, SqlPets
from petstore.store.sql.transfer import SqlTransfer

TOUCH_INTERVAL = 10.0  # seconds between two signs of life while an import is loaded
# After so many seconds without a sign of life, another process takes over.
LOADING_TIMEOUT = 3600.0  # the file may come from a slow program
MOVING_TIMEOUT = 60.0
AT_ONCE = -math.inf

_COLUMNS = "id, at, actor, name, sha256, count, first_id, last_id, state"
GIVEN_UP = "the import gave no sign of life for an hour, so its rows were removed"
CHUNK = f"import_id = $1 AND status IN ({STATUS_LIST}) AND place >= $2 AND place < $3"


class SqlImports(SqlPets, SqlTransfer):
    """See `Catalogue` for what each method does."""

    async def import_pets(
        self, batches: AsyncIterator[list[NewPet]], entry: AuditEntry, sha256: Callable[[], str] = lambda: ""
    ) -> Import:
        import_id, is_loaded = new_import_id(), False
        self._check_space()
        begin = Statement(
            f"INSERT INTO {self.schema}.imports (id, at, actor, name, sha256, count, state, touched)"
            f" VALUES ($1, $2, $3, $4, '', 0, 'loading', {self.clock})",
            (import_id, entry.at, entry.actor, entry.subject),
        )
        await self._long(steps(begin))
        try:
            count = await self._load(import_id, batches)
            digest, is_loaded = sha256(), True
            while not (added := await self._change(self._publish(import_id, count, digest, entry), OPERATOR_TIMEOUT)):
                await self._finish_moves(AT_ONCE)  # of another import
        except BaseException as error:
            is_discarded = False
            with contextlib.suppress(Unavailable):  # `tidy` does it later
                is_discarded = await self._long(self._set_state(import_id, "loading", "discarded"))
                if isinstance(error, Exception):  # otherwise the caller has gone, and does not wait
                    await self._remove_discarded()
                if not is_discarded and await self.find_import(import_id) is None:  # `tidy` has given it up
                    await self._remove_rows(import_id)
            # A commit that was not answered may have published the animals, unless the state says otherwise.
            if isinstance(error, Unavailable) and (is_discarded or not is_loaded):
                raise OperatorError(f"{error}; nothing was added: import again when the store works") from error
            raise
        with contextlib.suppress(Unavailable):  # every reader sees the animals already; `tidy` moves the rest
            await self._finish_moves(AT_ONCE)
            added = msgspec.structs.replace(added, state="done")
        return added

    async def find_import(self, import_id: str) -> Import | None:
        rows = await self._fetch(f"SELECT {_COLUMNS} FROM {self.schema}.imports WHERE id = $1", import_id)
        return Import(*rows[0]) if rows else None

    async def imports(self, *, before: tuple[float, str] | None = None, limit: int = 100) -> list[Import]:
        rows = await self._fetch(
            f"SELECT {_COLUMNS} FROM {self.schema}.imports WHERE state NOT IN ('loading', 'discarded')"
            " AND (at, id) < ($1, $2) ORDER BY at DESC, id DESC LIMIT $3",
            *(before or (math.inf, "")), limit,
        )  # fmt: skip
        return [Import(*row) for row in rows]

    async def undo_import(self, import_id: str, entry: AuditEntry) -> Undone | None:
        def begin() -> Transaction[None]:
            if (yield from self._set_state(import_id, "done", "undoing")):
                ((unchanged, kept),) = yield Statement(self._unchanged_sql(), (import_id,))
                counts = f"{_animals(unchanged)} to remove, {kept:,} stay{'s' if kept == 1 else ''}"
                yield self._record(msgspec.structs.replace(entry, detail=f"{entry.detail}, {counts}"))

        await self._finish_moves(AT_ONCE)
        await self._long(begin())
        found = await self.find_import(import_id)
        if found is None or found.state != "undoing":
            return None
        await self._undo(found)
        return await self.undo_progress(import_id)

    async def undo_progress(self, import_id: str) -> Undone | None:
        found = await self.find_import(import_id)
        if found is None:
            return None
        ((unchanged, kept),) = await self._fetch_long(self._unchanged_sql(), import_id)
        if found.state not in ("undoing", "undone"):
            return Undone(0, kept, unchanged)
        ((left,),) = await self._fetch_long(
            f"SELECT count(*) FROM {self.schema}.pets WHERE id >= $1 AND id <= $2 AND {self._not_changed}",
            found.first_id or 0, found.last_id or -1,
        )  # fmt: skip
        return Undone(unchanged - left, kept, left)

    async def tidy(self) -> None:
        for import_id, *_ in await self._idle_imports("loading", LOADING_TIMEOUT):
            await self._long(self._set_state(import_id, "loading", "discarded"))
        await self._remove_discarded()
        await self._finish_moves(MOVING_TIMEOUT)
        for import_id, *_ in await self._idle_imports("undoing", MOVING_TIMEOUT):
            found = await self.find_import(import_id)
            if found is not None:
                await self._undo(found)

    # Loading

    def _check_space(self) -> None:  # PostgreSQL has a disk of its own
        """Raises OperatorError when the disk is so full that the rows of an import could not be removed again."""

    async def _load(self, import_id: str, batches: AsyncIterator[list[NewPet]]) -> int:
        count, touched = 0, time.monotonic()
        async for batch in batches:
            for start in range(0, len(batch), self.limits.import_chunk):
                self._check_space()
                chunk = batch[start : start + self.limits.import_chunk]
                rows: list[Row] = [
                    (import_id, pet.status, place, pet.name, pet.category_id) for place, pet in enumerate(chunk, count)
                ]
                await self.put_rows(IMPORT_ROWS, rows)
                count += len(chunk)
                if time.monotonic() - touched > TOUCH_INTERVAL:
                    if not await self._long(self._set_state(import_id, "loading", "loading")):
                        raise Unavailable(GIVEN_UP)
                    touched = time.monotonic()
        return count

    def _publish(self, import_id: str, count: int, sha256: str, entry: AuditEntry) -> Transaction[Import | None]:
        """Give the animals their ids, under which everyone sees them from now on. None while another import is moved.

        Raises Unavailable when `tidy` has removed the import meanwhile.
        """
        yield from self._lock_pet_ids()
        if (yield Statement(f"SELECT id FROM {self.schema}.imports WHERE state = 'moving'")):
            return None
        first_id = (yield from self._draw_pet_ids(count)) if count else None
        last_id = None if first_id is None else first_id + count - 1
        ids = f", ids {first_id} to {last_id}" if count else ""
        yield self._record(msgspec.structs.replace(entry, detail=f"{_animals(count)}, {import_id}{ids}"))
        rows = yield Statement(
            f"UPDATE {self.schema}.imports SET state = $2, first_id = $3, last_id = $4, count = $5, sha256 = $6,"
            f" touched = {self.clock} WHERE id = $1 AND state = 'loading' RETURNING {_COLUMNS}",
            (import_id, "moving" if count else "done", first_id, last_id, count, sha256),
        )
        if not rows:
            raise Unavailable(GIVEN_UP)
        return Import(*rows[0])

    async def _remove_discarded(self) -> None:
        for import_id, *_ in await self._idle_imports("discarded", AT_ONCE):
            await self._remove_rows(import_id)
            await self._long(steps(Statement(f"DELETE FROM {self.schema}.imports WHERE id = $1", (import_id,))))

    async def _remove_rows(self, import_id: str) -> None:
        for start, stop in await self._chunks(import_id):
            await self._long(steps(self._delete_rows(import_id, start, stop)))

    # Moving

    async def _finish_moves(self, idle_for: float) -> None:
        """Move the rows of an import that every reader sees already. Several processes may do this at once."""

        def move(import_id: str, first_id: int, start: int, stop: int) -> Transaction[None]:
            yield from self._move_rows(import_id, first_id, start, stop)
            yield from self._set_state(import_id, "moving", "moving")

        def end(import_id: str) -> Transaction[None]:
            yield from self._set_state(import_id, "moving", "done")
            yield self._note_moving()

        for import_id, first_id, _ in await self._idle_imports("moving", idle_for):
            for start, stop in await self._chunks(import_id):
                await self._long(move(import_id, first_id, start, stop))
            await self._long(end(import_id))

    @abstractmethod
    def _move_rows(self, import_id: str, first_id: int, start: int, stop: int) -> Transaction[None]:
        """Move the rows of these places, those of them that no other process has moved meanwhile."""

    # Undoing

    async def _undo(self, found: Import) -> None:
        """Several processes may do this at once."""

        def remove(start: int, stop: int) -> Transaction[None]:
            yield Statement(
                f"DELETE FROM {self.schema}.pets WHERE id >= $1 AND id < $2 AND {self._not_changed}", (start, stop)
            )
            yield from self._set_state(found.id, "undoing", "undoing")

        end = (found.last_id or -1) + 1
        for start in range(found.first_id or 0, end, self.limits.import_chunk):
            await self._change(remove(start, min(start + self.limits.import_chunk, end)), OPERATOR_TIMEOUT)
        await self._long(self._set_state(found.id, "undoing", "undone"))

    @property
    def _not_changed(self) -> str:
        return f"NOT EXISTS (SELECT 1 FROM {self.schema}.changed_pets WHERE changed_pets.id = pets.id)"

    def _unchanged_sql(self) -> str:
        """How many animals of the import $1 were not changed since, and how many of the others exist.

        The statement reads the changed animals alone: an import may have millions of others.
        """
        return (
            f"SELECT i.count - count(c.id), count(p.id) FROM {self.schema}.imports AS i"
            f" LEFT JOIN {self.schema}.changed_pets AS c ON c.id >= i.first_id AND c.id <= i.last_id"
            f" LEFT JOIN {self.schema}.pets AS p ON p.id = c.id WHERE i.id = $1 GROUP BY i.id, i.count"
        )

    # Any state

    async def _idle_imports(self, state: ImportState, idle_for: float) -> list[Row]:
        """The id and the ids of the animals of imports that gave no sign of life for so many seconds."""
        return await self._fetch(
            f"SELECT id, first_id, last_id FROM {self.schema}.imports"
            f" WHERE state = $1 AND touched < {self.clock} - CAST($2 AS double precision)",
            state, idle_for,
        )  # fmt: skip

    def _set_state(self, import_id: str, old: ImportState, new: ImportState) -> Transaction[bool]:
        """Whether the import was in the old state; this is a sign of life, too."""
        rows = yield Statement(
            f"UPDATE {self.schema}.imports SET state = $3, touched = {self.clock}"
            " WHERE id = $1 AND state = $2 RETURNING id",
            (import_id, old, new),
        )
        return bool(rows)

    async def _chunks(self, import_id: str) -> list[tuple[int, int]]:
        """Ranges of places that cover what is left of the import's rows."""
        ((first, last),) = await self._fetch_long(
            f"SELECT min(place), max(place) FROM {self.schema}.import_rows WHERE import_id = $1", import_id
        )
        size = self.limits.import_chunk
        return [] if first is None else [(start, start + size) for start in range(first, last + 1, size)]

    def _delete_rows(self, import_id: str, start: int, stop: int) -> Statement:
        return Statement(f"DELETE FROM {self.schema}.import_rows WHERE {CHUNK}", (import_id, start, stop))

    async def _long(self, transaction: Transaction[T]) -> T:
        return await self._run(transaction, timeout_seconds=OPERATOR_TIMEOUT)


def _animals(count: int) -> str:
    return f"{count:,} animal{'' if count == 1 else 's'}"
