"""The embedded store: one SQLite file per environment.

Reads run in the event loop's thread on a connection of their own, as prepared statements of some microseconds.
Writes go to the writer. Other processes may write at the same time.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec

from petstore.errors import IdempotencyConflict
from petstore.keys import ApiKey, Environment
from petstore.ledger import Deed, Usage
from petstore.pets import Added, NewPet, Once, Page, Pet, PetStatus
from petstore.store import OnCommit
from petstore.store.sqlite_file import connect, migrate, translated
from petstore.store.sqlite_writer import Writer
from petstore.store.tables import Row, Table

T = TypeVar("T")

_STATUS = {status.value: status for status in PetStatus}
_PAGE = "SELECT id, name, category_id, status FROM pets WHERE id > ? ORDER BY id LIMIT ?"
_PAGE_BY_STATUS = "SELECT id, name, category_id, status FROM pets WHERE status = ? AND id > ? ORDER BY id LIMIT ?"
_PET = "SELECT id, name, category_id, status FROM pets WHERE id = ?"
_KEY = "k.id, k.name, k.plan, k.per_minute, k.per_day, k.scopes, k.created, k.expires, k.revoked, k.last_used"


class SqliteStore:
    """See `Catalogue`, `KeyStore` and `Ledger` for what each method promises."""

    def __init__(self, path: Path, environment: Environment, on_commit: OnCommit) -> None:
        migrate(path)
        self._path = path
        self._environment: Environment = environment
        self._read = connect(path)
        self._read.execute("PRAGMA query_only = ON")
        self._writer = Writer(path, on_commit)
        self._running: set[tuple[str, str]] = set()

    # Animals

    async def page(self, *, after: int, limit: int, status: PetStatus | None) -> Page:
        if status is None:
            rows = self._rows(_PAGE, (after, limit + 1))
        else:
            rows = self._rows(_PAGE_BY_STATUS, (status.value, after, limit + 1))
        pets = [Pet(pet_id, name, category, _STATUS[value]) for pet_id, name, category, value in rows[:limit]]
        return Page(pets, len(rows) > limit)

    async def pet(self, pet_id: int) -> Pet | None:
        return _pet(self._rows(_PET, (pet_id,)))

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
                _record(connection, deed)
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
            _record(connection, msgspec.structs.replace(deed, detail=f"{count} animals"))
            return count

        try:
            return await self._writer.call(work, "catalogue", patience=3600)
        finally:
            staging.close()

    async def count(self) -> dict[PetStatus, int]:
        found = dict(self._rows("SELECT status, count(*) FROM pets GROUP BY status", ()))
        return {status: found.get(status.value, 0) for status in PetStatus}

    # Keys

    async def find_key(self, digest: bytes) -> ApiKey | None:
        rows = self._rows(
            f"SELECT {_KEY}, s.expires FROM secrets AS s JOIN keys AS k ON k.id = s.key_id WHERE s.digest = ?",
            (digest,),
        )
        if not rows:
            return None
        *row, until = rows[0]
        key = self._key(row)
        if until is None or (key.expires is not None and key.expires <= until):
            return key
        return msgspec.structs.replace(key, expires=until)

    async def key(self, key_id: str) -> ApiKey | None:
        rows = self._rows(f"SELECT {_KEY} FROM keys AS k WHERE k.id = ?", (key_id,))
        return self._key(rows[0]) if rows else None

    async def keys(self, *, after: str = "", limit: int = 1000) -> list[ApiKey]:
        rows = self._rows(f"SELECT {_KEY} FROM keys AS k WHERE k.id > ? ORDER BY k.id LIMIT ?", (after, limit))
        return [self._key(row) for row in rows]

    async def add_key(self, key: ApiKey, digest: bytes, deed: Deed) -> None:
        def work(connection: apsw.Connection) -> None:
            connection.execute(
                "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    key.id, key.name, key.plan, key.per_minute, key.per_day, " ".join(key.scopes),
                    key.created, key.expires, key.revoked, key.last_used,
                ),
            )  # fmt: skip
            connection.execute("INSERT INTO secrets VALUES (?, ?, NULL)", (digest, key.id))
            _record(connection, deed)

        await self._writer.call(work, "keys")

    async def rotate_key(self, key_id: str, digest: bytes, old_until: float, deed: Deed) -> None:
        def work(connection: apsw.Connection) -> None:
            connection.execute(
                "UPDATE secrets SET expires = min(coalesce(expires, ?1), ?1) WHERE key_id = ?2", (old_until, key_id)
            )
            connection.execute("INSERT INTO secrets VALUES (?, ?, NULL)", (digest, key_id))
            _record(connection, deed)

        await self._writer.call(work, "keys")

    async def revoke_key(self, key_id: str, deed: Deed) -> None:
        def work(connection: apsw.Connection) -> None:
            connection.execute("UPDATE keys SET revoked = ? WHERE id = ?", (deed.at, key_id))
            _record(connection, deed)

        await self._writer.call(work, "keys")

    def _key(self, row: Sequence[Any]) -> ApiKey:
        key_id, name, plan, per_minute, per_day, scopes, created, expires, revoked, last_used = row
        return ApiKey(
            id=key_id, name=name, environment=self._environment, plan=plan, per_minute=per_minute, per_day=per_day,
            scopes=tuple(scopes.split()), created=created, expires=expires, revoked=revoked, last_used=last_used,
        )  # fmt: skip

    # Deeds and usage

    async def record(self, deed: Deed) -> None:
        await self._writer.call(lambda connection: _record(connection, deed))

    async def deeds(self, *, before: int | None = None, limit: int = 100) -> list[tuple[int, Deed]]:
        rows = self._rows(
            "SELECT id, at, actor, action, subject, detail FROM deeds WHERE id < ? ORDER BY id DESC LIMIT ?",
            (2**63 - 1 if before is None else before, limit),
        )
        return [(number, Deed(*rest)) for number, *rest in rows]

    async def add_usage(self, rows: Sequence[Usage], last_used: dict[str, float]) -> None:
        def work(connection: apsw.Connection) -> None:
            connection.executemany(
                "INSERT INTO usage (key_id, hour, answer, count) VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET count = count + excluded.count",
                rows,
            )
            connection.executemany(
                "UPDATE keys SET last_used = max(coalesce(last_used, 0), ?) WHERE id = ?",
                [(at, key_id) for key_id, at in last_used.items()],
            )

        await self._writer.call(work)

    async def usage(self, *, since: int, key_id: str | None = None) -> list[Usage]:
        where, bindings = ("", (since,)) if key_id is None else (" AND key_id = ?", (since, key_id))
        rows = self._rows(
            f"SELECT key_id, hour, answer, count FROM usage WHERE hour >= ?{where} ORDER BY hour, key_id", bindings
        )
        return [Usage(*row) for row in rows]

    # Moving rows to and from another store

    async def rows(self, table: Table, after: Row | None, limit: int) -> list[Row]:
        columns, key = ", ".join(table.columns), ", ".join(table.key)
        where = f"WHERE ({key}) > ({', '.join('?' * len(table.key))})" if after else ""
        sql = f"SELECT {columns} FROM {table.name} {where} ORDER BY {key} LIMIT ?"
        return self._rows(sql, (*(after or ()), limit))

    async def last_row(self, table: Table) -> Row | None:
        order = ", ".join(f"{column} DESC" for column in table.key)
        found = self._rows(f"SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY {order} LIMIT 1", ())
        return found[0] if found else None

    async def put_rows(self, table: Table, rows: Sequence[Row]) -> None:
        places = ", ".join("?" * len(table.columns))
        sql = f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({places})"

        def work(connection: apsw.Connection) -> None:
            connection.executemany(sql, rows)

        await self._writer.call(work, patience=3600)

    async def copying_from(self) -> str | None:
        rows = self._rows("SELECT source FROM copying", ())
        return rows[0][0] if rows else None

    async def set_copying_from(self, source: str | None) -> None:
        def work(connection: apsw.Connection) -> None:
            connection.execute("DELETE FROM copying")
            if source is not None:
                connection.execute("INSERT INTO copying VALUES (?)", (source,))

        await self._writer.call(work)

    # The file itself

    async def ping(self) -> None:
        self._rows(_PAGE, (0, 1))

    async def faults(self) -> list[str]:
        def work() -> list[str]:
            connection = connect(self._path)
            try:
                found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check; PRAGMA foreign_key_check")]
            except apsw.CorruptError as error:
                found = [str(error)]
            finally:
                connection.close()
            return [text for text in found if text != "ok"]

        return await asyncio.to_thread(work)

    async def close(self) -> None:
        await self._writer.close()
        self._read.close()

    def _rows(self, sql: str, bindings: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        # All rows at once: an unfinished statement would hold on to its snapshot, and the log could not start over.
        try:
            return self._read.execute(sql, bindings).fetchall()
        except apsw.Error as error:
            raise translated(error) from error


def _pet(rows: list[tuple[Any, ...]]) -> Pet | None:
    if not rows:
        return None
    pet_id, name, category_id, status = rows[0]
    return Pet(pet_id, name, category_id, _STATUS[status])


def _record(connection: apsw.Connection, deed: Deed) -> None:
    connection.execute(
        "INSERT INTO deeds (at, actor, action, subject, detail) VALUES (?, ?, ?, ?, ?)",
        (deed.at, deed.actor, deed.action, deed.subject, deed.detail),
    )
