"""Imports in the store: animals of a file, added in chunks that are visible when they commit.

docs/decisions/0014 says why. One process at a time adds chunks: the one whose token the import has as its `owner`.
"""

import math
import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from petstore.audit import AuditEntry
from petstore.errors import ImportTaken
from petstore.pets import Adder, Import, ImportState, NewPet, Undone, new_import_id
from petstore.store.audit import recorded
from petstore.store.database import OPERATOR_TIMEOUT, Database, PutRows, Statement, T, Transaction, lock_tables, steps
from petstore.store.freshness import ADDED, EDITED, NOTHING
from petstore.store.pets import added
from petstore.store.schema import IMPORT_CHUNKS
from petstore.wording import counted

LIFE_SECONDS = 60.0  # without a sign of life for so long, an import that runs is `interrupted`
_NO_LIFE = -math.inf


class Claim(NamedTuple):
    """The right to add chunks to an import, until another process takes it over."""

    import_id: str
    owner: str


class Imports:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._table = f"{db.schema}.imports"
        self._chunks = f"{db.schema}.{IMPORT_CHUNKS.name}"
        # The animals of the import $1 that are still there.
        self._its_pets = (
            f"FROM {self._chunks} AS c JOIN {db.schema}.pets AS p ON p.id >= c.first_id AND p.id < c.first_id + c.count"
            " WHERE c.import_id = $1"
        )

    # Reading. `now` is the time at which an import may be interrupted.

    async def get(self, import_id: str, now: float) -> Import | None:
        found = await self._read("WHERE id = $2", now, import_id)
        return found[0] if found else None

    async def page(self, now: float, *, before: tuple[float, str] | None = None, limit: int = 100) -> list[Import]:
        """The newest first; `before` is the time and the id of the last one on the previous page."""
        last = before or (math.inf, "")
        return await self._read("WHERE (at, id) < ($2, $3) ORDER BY at DESC, id DESC LIMIT $4", now, *last, limit)

    async def of_file(self, sha256: str, now: float) -> Import | None:
        """The newest import of a file with these bytes that was not undone."""
        order = "ORDER BY at DESC, id DESC LIMIT 1"
        found = await self._read(f"WHERE sha256 = $2 AND state IN ('running', 'done') {order}", now, sha256)
        return found[0] if found else None

    async def of_pet(self, pet_id: int, now: float) -> Import | None:
        """The import that has added this animal, whether or not the animal is still there."""
        chunk = f"SELECT c.import_id FROM {self._chunks} AS c WHERE c.first_id <= $2 AND $2 < c.first_id + c.count"
        found = await self._read(f"WHERE id = ({chunk})", now, pet_id)
        return found[0] if found else None

    async def _read(self, which: str, now: float, *values: object) -> list[Import]:
        rows = await self._db.read(
            f"SELECT id, at, actor, name, sha256, total, {self._added_sql('i.id')},"
            " CASE WHEN state = 'running' AND touched < CAST($1 AS double precision) THEN 'interrupted' ELSE state END"
            f" FROM {self._table} AS i {which}",
            now - LIFE_SECONDS, *values,
        )  # fmt: skip
        return [Import(*row) for row in rows]

    # Adding

    async def begin(self, sha256: str, total: int, entry: AuditEntry) -> Claim | None:
        """A new import of so many animals; the entry's subject is the file. None while one of the same bytes runs.

        Raises OperatorError on a full disk.
        """
        self._db.check_space()
        claim = Claim(new_import_id(), secrets.token_hex(8))

        def transaction() -> Transaction[Claim | None]:
            yield from lock_tables(self._db, "imports")  # two processes must not begin the same file at once
            same = f"SELECT 1 FROM {self._table} WHERE sha256 = $1 AND state = 'running'"
            if (yield Statement(same, (sha256,))):
                return None
            yield Statement(
                f"INSERT INTO {self._table} (id, at, actor, name, sha256, total, state, owner, touched)"
                " VALUES ($1, $2, $3, $4, $5, $6, 'running', $7, $2)",
                (claim.import_id, entry.at, entry.actor, entry.subject, sha256, total, claim.owner),
            )
            named = msgspec.structs.replace(entry, detail=f"{counted(total, 'animal')}, {claim.import_id}")
            yield recorded(self._db.schema, named)
            return claim

        return await self._write(transaction())

    async def take_over(self, import_id: str, now: float) -> Claim | None:
        """The right to go on with an interrupted import. None while its process gives signs of life."""
        claim = Claim(import_id, secrets.token_hex(8))
        rows = await self._write(
            steps(
                Statement(
                    f"UPDATE {self._table} SET owner = $2, touched = $3 WHERE id = $1 AND state = 'running'"
                    " AND touched < $4 RETURNING id",
                    (import_id, claim.owner, now, now - LIFE_SECONDS),
                )
            )
        )
        return claim if rows else None

    async def add_chunk(self, claim: Claim, place: int, new: Sequence[NewPet], now: float) -> None:
        """Add the animals that follow `place` others of the file. Adds nothing when they are there already.

        Raises ImportTaken when another process goes on with the import or undoes it, OperatorError on a full disk.
        """
        self._db.check_space()

        def transaction() -> Transaction[None]:
            yield from self._touch(claim, "running", now)
            known = Statement(
                f"SELECT 1 FROM {self._chunks} WHERE import_id = $1 AND place = $2", (claim.import_id, place)
            )
            if (yield known):
                return  # by a commit whose outcome was unknown
            pets = yield from added(self._db, new, Adder("import", claim.import_id), now)
            yield PutRows(self._db.schema, IMPORT_CHUNKS, [(claim.import_id, place, pets[0].id, len(pets))])

        await self._db.write(transaction(), ADDED, OPERATOR_TIMEOUT)

    async def finish(self, claim: Claim, now: float) -> None:
        """Every chunk was added. Raises ImportTaken."""
        await self._write(self._touch(claim, "done", now))

    async def release(self, claim: Claim) -> None:
        """Let the import be `interrupted` at once: this process adds no further chunk."""
        no_life = Statement(
            f"UPDATE {self._table} SET touched = $3 WHERE id = $1 AND owner = $2 AND state = 'running'",
            (*claim, _NO_LIFE),
        )
        await self._db.write(steps(no_life), NOTHING)  # within a request's time: the process may be ending

    def _touch(self, claim: Claim, state: ImportState, now: float) -> Transaction[None]:
        """Lock the import, see that it is ours and runs, and give a sign of life."""
        rows = yield Statement(
            f"UPDATE {self._table} SET state = $3, touched = $4 WHERE id = $1 AND owner = $2 AND state = 'running'"
            " RETURNING id",
            (*claim, state, now),
        )
        if not rows:
            raise ImportTaken(f"another process goes on with {claim.import_id}, or undoes it: this one stops")

    # Undoing

    async def undo(
        self, import_id: str, entry: AuditEntry, removing: Callable[[int], None] = lambda searched: None
    ) -> bool:
        """Remove the animals of an import that no operator has changed since. False when it cannot be undone.

        Undoing that was interrupted goes on; several processes may do it at once. `entry` is recorded at the
        beginning, with the number of animals that the import has added. `removing` is called with the number of
        animals that were removed or kept so far.
        """

        def begin() -> Transaction[bool]:
            # From now on no chunk is added.
            rows = yield Statement(
                f"UPDATE {self._table} SET state = 'undoing' WHERE id = $1 AND state IN ('running', 'done')"
                " RETURNING id",
                (import_id,),
            )
            if rows:
                # A statement of its own: it sees the chunk for whose end the first one may have waited.
                ((added,),) = yield Statement(f"SELECT {self._added_sql('$1')}", (import_id,))
                detail = f"{entry.detail}, {counted(added, 'animal')}"
                yield recorded(self._db.schema, msgspec.structs.replace(entry, detail=detail))
            undoing = f"SELECT 1 FROM {self._table} WHERE id = $1 AND state = 'undoing'"
            return bool((yield Statement(undoing, (import_id,))))

        if not await self._write(begin()):
            return False
        step = self._db.bounds.import_chunk
        searched = 0
        chunks = f"SELECT first_id, count FROM {self._chunks} WHERE import_id = $1 ORDER BY place"
        for first, count in await self._db.read_long(chunks, import_id):
            for start in range(first, first + count, step):
                remove = Statement(
                    f"DELETE FROM {self._db.schema}.pets WHERE id >= $1 AND id < $2 AND edited = 0",
                    (start, min(start + step, first + count)),
                )
                await self._db.write(steps(remove), EDITED, OPERATOR_TIMEOUT)
                searched += min(step, first + count - start)
                removing(searched)
        end = Statement(f"UPDATE {self._table} SET state = 'undone' WHERE id = $1", (import_id,))
        await self._write(steps(end))
        return True

    async def undone(self, import_id: str) -> Undone:
        """How many animals of this import are gone, how many stay, and how many undoing has still to remove."""
        ((added, left, kept),) = await self._db.read_long(
            f"SELECT {self._added_sql('$1')}, (SELECT count(*) {self._its_pets} AND p.edited = 0),"
            f" (SELECT count(*) {self._its_pets} AND p.edited = 1)",
            import_id,
        )
        return Undone(added - kept - left, kept, left)

    async def kept_ids(self, import_id: str, limit: int) -> list[int]:
        """The ids of animals that stay, because an operator has changed them."""
        rows = await self._db.read_long(
            f"SELECT p.id {self._its_pets} AND p.edited = 1 ORDER BY p.id LIMIT $2", import_id, limit
        )
        return [row[0] for row in rows]

    def _added_sql(self, import_id: str) -> str:
        """An expression: how many animals an import has added."""
        total = f"SELECT sum(c.count) FROM {self._chunks} AS c WHERE c.import_id = {import_id}"
        return f"CAST(coalesce(({total}), 0) AS bigint)"

    async def _write(self, transaction: Transaction[T]) -> T:
        return await self._db.write(transaction, NOTHING, OPERATOR_TIMEOUT)
