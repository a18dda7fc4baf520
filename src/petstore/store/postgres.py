"""The store of many machines: PostgreSQL, one schema per environment.

Reads take a connection each; new animals go to the writer, which puts all that waits into one statement.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

import asyncpg
import msgspec

from petstore.errors import IdempotencyConflict, Unavailable
from petstore.keys import ApiKey, Environment
from petstore.ledger import Deed, Usage
from petstore.pets import Added, NewPet, Once, Page, Pet, PetStatus
from petstore.store import OnCommit, Subject
from petstore.store.postgres_pool import LONG, Connection, PostgresPool, Work, at_leisure
from petstore.store.postgres_writer import PostgresWriter
from petstore.store.tables import Row, Table

T = TypeVar("T")

_STATUS = {status.value: status for status in PetStatus}
_KEY = "k.id, k.name, k.plan, k.per_minute, k.per_day, k.scopes, k.created, k.expires, k.revoked, k.last_used"
INT64_MAX = 2**63 - 1


def schema_of(environment: Environment) -> str:
    return f"petstore_{environment}"


class PostgresStore:
    """See `Catalogue`, `KeyStore` and `Ledger` for what each method promises."""

    def __init__(self, pool: PostgresPool, environment: Environment, on_commit: OnCommit) -> None:
        self._pool = pool
        self._environment: Environment = environment
        self._on_commit = on_commit
        self._schema = schema = schema_of(environment)
        self._writer = PostgresWriter(pool, schema, on_commit)
        self._running: set[tuple[str, str]] = set()
        pet = f"SELECT id, name, category_id, status FROM {schema}.pets"
        self._page_sql = f"{pet} WHERE id > $1 ORDER BY id LIMIT $2"
        self._page_by_status_sql = f"{pet} WHERE status = $3 AND id > $1 ORDER BY id LIMIT $2"
        self._pet_sql = f"{pet} WHERE id = $1"

    # Animals

    async def page(self, *, after: int, limit: int, status: PetStatus | None) -> Page:
        if status is None:
            rows = await self._rows(self._page_sql, after, limit + 1)
        else:
            rows = await self._rows(self._page_by_status_sql, after, limit + 1, status.value)
        return Page([_pet(row) for row in rows[:limit]], len(rows) > limit)

    async def pet(self, pet_id: int) -> Pet | None:
        rows = await self._rows(self._pet_sql, pet_id)
        return _pet(rows[0]) if rows else None

    async def stamp(self) -> object:
        # Equal snapshots see the same transactions. On a busy server it always differs, which costs a read a second.
        return (await self._rows("SELECT pg_current_snapshot()::text"))[0][0]

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
        async def work(connection: Connection) -> Pet | None:
            row = await connection.fetchrow(
                f"UPDATE {self._schema}.pets SET status = $2 WHERE id = $1 RETURNING id, name, category_id, status",
                pet_id,
                status.value,
            )
            if row is not None:
                await self._record(connection, deed)
            return _pet(row) if row else None

        return await self._change(work, "catalogue")

    async def import_pets(self, batches: AsyncIterator[list[NewPet]], deed: Deed) -> int:
        async def work(connection: Connection) -> int:
            count = 0
            async with at_leisure(connection):
                async for batch in batches:
                    await connection.copy_records_to_table(
                        "pets",
                        schema_name=self._schema,
                        columns=["name", "category_id", "status"],
                        records=[(pet.name, pet.category_id, pet.status.value) for pet in batch],
                    )
                    count += len(batch)
                await self._record(connection, msgspec.structs.replace(deed, detail=f"{count} animals"))
            return count

        count = await self._pool.run(work, LONG)
        await self._on_commit("catalogue")
        return count

    async def count(self) -> dict[PetStatus, int]:
        rows = await self._rows(f"SELECT status, count(*) FROM {self._schema}.pets GROUP BY status")
        found: dict[str, int] = dict(rows)
        return {status: found.get(status.value, 0) for status in PetStatus}

    # Keys

    async def find_key(self, digest: bytes) -> ApiKey | None:
        rows = await self._rows(
            f"SELECT {_KEY}, s.expires FROM {self._schema}.secrets AS s JOIN {self._schema}.keys AS k"
            " ON k.id = s.key_id WHERE s.digest = $1",
            digest,
        )
        if not rows:
            return None
        *row, until = rows[0]
        key = self._key(row)
        if until is None or (key.expires is not None and key.expires <= until):
            return key
        return msgspec.structs.replace(key, expires=until)

    async def key(self, key_id: str) -> ApiKey | None:
        rows = await self._rows(f"SELECT {_KEY} FROM {self._schema}.keys AS k WHERE k.id = $1", key_id)
        return self._key(rows[0]) if rows else None

    async def keys(self, *, after: str = "", limit: int = 1000) -> list[ApiKey]:
        rows = await self._rows(
            f"SELECT {_KEY} FROM {self._schema}.keys AS k WHERE k.id > $1 ORDER BY k.id LIMIT $2", after, limit
        )
        return [self._key(row) for row in rows]

    async def add_key(self, key: ApiKey, digest: bytes, deed: Deed) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute(
                f"INSERT INTO {self._schema}.keys VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
                key.id, key.name, key.plan, key.per_minute, key.per_day, " ".join(key.scopes),
                key.created, key.expires, key.revoked, key.last_used,
            )  # fmt: skip
            await connection.execute(f"INSERT INTO {self._schema}.secrets VALUES ($1, $2, NULL)", digest, key.id)
            await self._record(connection, deed)

        await self._change(work, "keys")

    async def rotate_key(self, key_id: str, digest: bytes, old_until: float, deed: Deed) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute(
                f"UPDATE {self._schema}.secrets SET expires = least(coalesce(expires, $1), $1) WHERE key_id = $2",
                old_until,
                key_id,
            )
            await connection.execute(f"INSERT INTO {self._schema}.secrets VALUES ($1, $2, NULL)", digest, key_id)
            await self._record(connection, deed)

        await self._change(work, "keys")

    async def revoke_key(self, key_id: str, deed: Deed) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute(f"UPDATE {self._schema}.keys SET revoked = $1 WHERE id = $2", deed.at, key_id)
            await self._record(connection, deed)

        await self._change(work, "keys")

    def _key(self, row: Sequence[Any]) -> ApiKey:
        key_id, name, plan, per_minute, per_day, scopes, created, expires, revoked, last_used = row
        return ApiKey(
            id=key_id, name=name, environment=self._environment, plan=plan, per_minute=per_minute, per_day=per_day,
            scopes=tuple(scopes.split()), created=created, expires=expires, revoked=revoked, last_used=last_used,
        )  # fmt: skip

    # Deeds and usage

    async def record(self, deed: Deed) -> None:
        await self._pool.run(lambda connection: self._record(connection, deed))

    async def deeds(self, *, before: int | None = None, limit: int = 100) -> list[tuple[int, Deed]]:
        rows = await self._rows(
            f"SELECT id, at, actor, action, subject, detail FROM {self._schema}.deeds"
            " WHERE id < $1 ORDER BY id DESC LIMIT $2",
            INT64_MAX if before is None else before,
            limit,
        )
        return [(number, Deed(*rest)) for number, *rest in rows]

    async def add_usage(self, rows: Sequence[Usage], last_used: dict[str, float]) -> None:
        async def work(connection: Connection) -> None:
            async with connection.transaction():
                # In one order everywhere: two workers that write the same rows cannot deadlock.
                await connection.executemany(
                    f"INSERT INTO {self._schema}.usage AS u (key_id, hour, answer, count) VALUES ($1, $2, $3, $4)"
                    " ON CONFLICT (hour, key_id, answer) DO UPDATE SET count = u.count + excluded.count",
                    sorted(rows),
                )
                await connection.executemany(
                    f"UPDATE {self._schema}.keys SET last_used = greatest(coalesce(last_used, 0), $2) WHERE id = $1",
                    sorted(last_used.items()),
                )

        await self._pool.run(work)

    async def usage(self, *, since: int, key_id: str | None = None) -> list[Usage]:
        where, values = ("", (since,)) if key_id is None else (" AND key_id = $2", (since, key_id))
        rows = await self._rows(
            f"SELECT key_id, hour, answer, count FROM {self._schema}.usage WHERE hour >= $1{where}"
            " ORDER BY hour, key_id",
            *values,
        )
        return [Usage(*row) for row in rows]

    # Moving rows to and from another store

    async def rows(self, table: Table, after: Row | None, limit: int) -> list[Row]:
        columns, key = ", ".join(table.columns), ", ".join(table.key)
        places = ", ".join(f"${number}" for number in range(2, len(table.key) + 2))
        where = f"WHERE ({key}) > ({places})" if after else ""
        sql = f"SELECT {columns} FROM {self._schema}.{table.name} {where} ORDER BY {key} LIMIT $1"

        async def work(connection: Connection) -> list[Row]:
            async with at_leisure(connection):
                return [tuple(row) for row in await connection.fetch(sql, limit, *(after or ()))]

        return await self._pool.run(work, LONG)

    async def last_row(self, table: Table) -> Row | None:
        order = ", ".join(f"{column} DESC" for column in table.key)
        columns = ", ".join(table.columns)
        found = await self._rows(f"SELECT {columns} FROM {self._schema}.{table.name} ORDER BY {order} LIMIT 1")
        return found[0] if found else None

    async def put_rows(self, table: Table, rows: Sequence[Row]) -> None:
        async def work(connection: Connection) -> None:
            async with at_leisure(connection):
                await connection.copy_records_to_table(
                    table.name, schema_name=self._schema, columns=list(table.columns), records=rows
                )
                if table.name in ("pets", "deeds"):
                    sequence = f"{self._schema}.{table.name[:-1]}_ids"
                    await connection.execute("SELECT setval($1::regclass, $2)", sequence, rows[-1][0])

        await self._pool.run(work, LONG)

    async def copying_from(self) -> str | None:
        rows = await self._rows(f"SELECT source FROM {self._schema}.copying")
        return rows[0][0] if rows else None

    async def set_copying_from(self, source: str | None) -> None:
        async def work(connection: Connection) -> None:
            async with connection.transaction():
                await connection.execute(f"DELETE FROM {self._schema}.copying")
                if source is not None:
                    await connection.execute(f"INSERT INTO {self._schema}.copying VALUES ($1)", source)

        await self._pool.run(work)

    # The server itself

    async def ping(self) -> None:
        """A read, and whether writes would be taken."""
        rows = await self._rows(
            f"SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool,"
            f" (SELECT count(*) FROM (SELECT id FROM {self._schema}.pets LIMIT 1) AS one)"
        )
        if rows[0][0]:
            raise Unavailable("the store is read-only: a replica, or a primary that was demoted")

    async def faults(self) -> list[str]:
        rows = await self._rows("SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes')")
        found = [f"PostgreSQL runs with {name} = off: a power cut can lose animals" for name, on in rows if on == "off"]
        commit = (await self._rows("SELECT current_setting('synchronous_commit')"))[0][0]
        if commit == "off":
            found.append("PostgreSQL runs with synchronous_commit = off: a crash can lose animals")
        return found

    async def close(self) -> None:
        await self._writer.close()
        await self._pool.close()

    async def _rows(self, sql: str, *values: Any) -> list[Row]:
        return await self._pool.run(lambda connection: connection.fetch(sql, *values))

    async def _change(self, work: Work[T], subject: Subject) -> T:
        """A transaction of which readers must be told."""

        async def inside(connection: Connection) -> T:
            async with connection.transaction():
                try:
                    return await work(connection)
                except asyncpg.IntegrityConstraintViolationError as error:
                    raise Unavailable(f"the store refused a row: {error}") from error

        result = await self._pool.run(inside)
        await self._on_commit(subject)
        return result

    async def _record(self, connection: Connection, deed: Deed) -> None:
        await connection.execute(
            f"INSERT INTO {self._schema}.deeds (at, actor, action, subject, detail) VALUES ($1, $2, $3, $4, $5)",
            deed.at, deed.actor, deed.action, deed.subject, deed.detail,
        )  # fmt: skip


def _pet(row: Sequence[Any]) -> Pet:
    pet_id, name, category_id, status = row
    return Pet(pet_id, name, category_id, _STATUS[status])
