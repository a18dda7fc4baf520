"""Animals in PostgreSQL: a read takes a connection, new animals go to the writer."""

from collections.abc import AsyncIterator, Sequence

import msgspec

from petstore.audit import AuditEntry
from petstore.keys import Environment
from petstore.pets import STATUSES, Added, Found, IdempotencyKey, NewPet, Page, Pet, PetStatus
from petstore.store import OnCommit
from petstore.store.postgres.base import PostgresBase, any_in
from petstore.store.postgres.pool import LONG, Connection, PostgresPool, at_leisure
from petstore.store.postgres.writer import PostgresWriter, turn_of
from petstore.store.schema import SEARCH_STEP, InFlight, pets_of, spellings


class PostgresCatalogue(PostgresBase):
    """See `Catalogue` for what each method promises."""

    immediate = False

    def __init__(self, pool: PostgresPool, environment: Environment, on_commit: OnCommit) -> None:
        super().__init__(pool, environment, on_commit)
        self._writer = PostgresWriter(pool, self._schema, environment, self._writes, on_commit)
        self._in_flight = InFlight()
        pet = f"SELECT id, name, category_id, status FROM {self._schema}.pets"
        self._page_sql = f"{pet} WHERE id > $1 ORDER BY id LIMIT $2"
        self._page_by_status_sql = f"{pet} WHERE status = $3 AND id > $1 ORDER BY id LIMIT $2"
        self._pet_sql = f"{pet} WHERE id = $1"

    async def page(self, *, after: int, limit: int, status: PetStatus | None) -> Page:
        if status is None:
            rows = await self._rows(self._page_sql, after, limit + 1)
        else:
            rows = await self._rows(self._page_by_status_sql, after, limit + 1, status)
        return Page(pets_of(rows[:limit]), len(rows) > limit)

    async def search(self, text: str, *, after: int, limit: int, status: PetStatus | None) -> Found:
        forms = spellings(text)
        if not forms:
            return Found([], after, more=False)
        # All statuses are looked at, whichever is wanted: rows in the order of their ids are the cheapest to read.
        rows = await self._rows(
            f"SELECT * FROM ({self._page_sql}) AS p WHERE status = coalesce($3, status)"
            f" AND {any_in(['name'], forms, 4)} LIMIT {limit + 1}",
            after, SEARCH_STEP, status, *forms,
        )  # fmt: skip
        if len(rows) > limit:
            return Found(pets_of(rows[:limit]), rows[limit - 1][0], more=True)
        last = await self._rows(f"{self._page_sql} OFFSET {SEARCH_STEP - 1}", after, 1)
        return Found(pets_of(rows), last[0][0] if last else after, more=bool(last))

    async def pet(self, pet_id: int) -> Pet | None:
        rows = await self._rows(self._pet_sql, pet_id)
        return pets_of(rows)[0] if rows else None

    async def newest(self) -> int:
        return (await self._rows(f"SELECT max(id) FROM {self._schema}.pets"))[0][0] or 0

    async def stamp(self) -> object:
        # Equal snapshots see the same transactions. On a busy server it always differs, which costs a read a second.
        return (await self._rows("SELECT pg_current_snapshot()::text"))[0][0]

    async def add(self, new: NewPet, now: float, idempotency_key: IdempotencyKey | None = None) -> Added:
        if idempotency_key is None:
            return await self._writer.add(new, now, None)
        with self._in_flight.only(idempotency_key):
            return await self._writer.add(new, now, idempotency_key)

    async def add_by_hand(self, new: NewPet, entry: AuditEntry) -> Pet:
        async def work(connection: Connection) -> Pet:
            await connection.execute(f"SELECT {turn_of(self._schema)}")
            pet_id: int = await connection.fetchval(
                f"INSERT INTO {self._schema}.pets (name, category_id, status) VALUES ($1, $2, $3) RETURNING id",
                new.name, new.category_id, new.status,
            )  # fmt: skip
            await self._record(connection, msgspec.structs.replace(entry, subject=str(pet_id)))
            return Pet(pet_id, new.name, new.category_id, new.status)

        return await self._change(work, "catalogue")

    async def set_status(self, pet_ids: Sequence[int], status: PetStatus, entry: AuditEntry) -> list[Pet]:
        async def work(connection: Connection) -> list[Pet]:
            changed = []
            for pet_id in sorted(pet_ids):  # in one order everywhere: two operators cannot deadlock
                row = await connection.fetchrow(
                    f"UPDATE {self._schema}.pets SET status = $2 WHERE id = $1 RETURNING id, name, category_id, status",
                    pet_id,
                    status,
                )
                if row is not None:
                    await self._record(connection, msgspec.structs.replace(entry, subject=str(pet_id)))
                    changed += pets_of([row])
            return changed

        return await self._change(work, "catalogue")

    async def import_pets(self, batches: AsyncIterator[list[NewPet]], entry: AuditEntry) -> int:
        async def work(connection: Connection) -> int:
            count = 0
            async with at_leisure(connection):
                async for batch in batches:
                    await connection.copy_records_to_table(
                        "pets",
                        schema_name=self._schema,
                        columns=["name", "category_id", "status"],
                        records=[(pet.name, pet.category_id, pet.status) for pet in batch],
                    )
                    count += len(batch)
                await self._record(connection, msgspec.structs.replace(entry, detail=f"{count} animals"))
            return count

        count = await self._pool.run(work, LONG)
        await self._on_commit("catalogue")
        return count

    async def count(self) -> dict[PetStatus, int]:
        rows = await self._rows_at_leisure(f"SELECT status, count(*) FROM {self._schema}.pets GROUP BY status")
        found: dict[str, int] = dict(rows)
        return {status: found.get(status, 0) for status in STATUSES}
