"""Imports that run out of disk space can be resumed or undone, and the service keeps working."""

import asyncio
import io
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from harness.commands import Commands, Processes
from harness.disks import filled, small_disk
from harness.servers import Server, started
from harness.stores import BY, NOW, PATIENT, import_file, names, sqlite_store
from petstore.audit import Actor
from petstore.errors import OperatorError
from petstore.formats.pet_files import PetFile
from petstore.pets import NewPet
from petstore.store import Store

CHUNKS = PATIENT._replace(import_chunk=10)
FULL = CHUNKS._replace(import_free_bytes=2**62)  # more than any disk has


async def import_100(store: Store) -> str:
    """Imports a hundred animals. Returns the state of the import, or the error message."""
    rows = "".join(f"Pet {number},1\n" for number in range(100))
    file = PetFile("x.csv", io.BytesIO(f"name,categoryId\n{rows}".encode()))
    try:
        return (await import_file(store, file, Actor("ada", NOW))).state
    except OperatorError as error:
        return str(error)


async def stopped_at_50(store: Store, message: str, reason: str) -> None:
    (found,) = await store.imports.page(NOW)
    assert (found.state, found.added, len(await names(store))) == ("running", 50, 50)
    assert message.startswith(reason)
    assert message.endswith(
        f"; import the same file again to resume {found.id}, or remove its animals with"
        f" `petstore pets undo-import {found.id}`"
    )


def test_import_is_resumed_after_the_disk_was_full(tmp_path: Path) -> None:
    class Full(apsw.Connection):
        """A disk that is full while the sixth chunk of animals is added."""

        chunks = 0

        def executemany(self, sql: str, *values: Any, **options: Any) -> apsw.Cursor:  # type: ignore[override]
            if "INTO pets" in sql:
                Full.chunks += 1
                if Full.chunks == 6:
                    raise apsw.FullError("database or disk is full")
            return super().executemany(sql, *values, **options)

    async def work() -> None:
        async with sqlite_store(tmp_path, CHUNKS, Full) as store:
            await stopped_at_50(
                store,
                await import_100(store),
                f"the disk used by {tmp_path} is full; free some space there (FullError: ",
            )
            assert await import_100(store) == "done"
            assert await names(store) == [f"Pet {number}" for number in range(100)]

    asyncio.run(work())


def test_import_stops_before_the_disk_is_full_and_can_be_undone(tmp_path: Path) -> None:
    class Filling(apsw.Connection):
        """A disk that is nearly full after five chunks of animals."""

        chunks = 0

        def executemany(self, sql: str, *values: Any, **options: Any) -> apsw.Cursor:  # type: ignore[override]
            if "INTO pets" in sql:
                Filling.chunks += 1
                if Filling.chunks == 5:
                    stores[0].database.bounds = FULL
            return super().executemany(sql, *values, **options)

    stores: list[Store] = []

    async def work() -> None:
        async with sqlite_store(tmp_path, CHUNKS, Filling) as store:
            stores.append(store)
            await stopped_at_50(store, await import_100(store), f"{tmp_path}: only ")
            await store.pets.add(NewPet("created", 1), NOW)
            (found,) = await store.imports.page(NOW)
            assert await store.imports.undo(found.id, BY)
            assert await names(store) == ["created"]

    asyncio.run(work())


def test_a_backup_names_the_full_disk(tmp_path: Path) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    petstore.text("pets", "add", "--name", "Rex", "--category-id", "1")
    with small_disk(tmp_path / "disk", 1) as disk:
        ballast = filled(disk / "ballast")
        with ballast.open("r+b") as file:
            file.truncate(ballast.stat().st_size - 32 * 1024)  # enough to begin, but not to finish
        message = petstore.fails_in_one_line("backup", str(disk / "backup.zip"))
        assert message.startswith(f"the disk used by {disk} is full; free some space there")


def test_import_does_not_begin_on_a_full_disk(tmp_path: Path) -> None:
    async def work() -> None:
        async with sqlite_store(tmp_path, FULL) as store:
            assert (await import_100(store)).endswith("MiB; free some space first")
            assert (await store.imports.page(NOW), (await store.audit.find()).entries) == ([], [])

    asyncio.run(work())


@pytest.mark.thorough
def test_service_starts_and_creates_after_an_import_that_did_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "large.csv"
    file.write_text("name,categoryId\n" + f"{'x' * 250},1\n" * 200_000)
    with small_disk(tmp_path / "disk", 60) as disk:
        server = Server(disk / "data")
        server.create()
        message = Processes(server).fails_in_one_line("pets", "import", str(file))
        assert "free some space first" in message and "import the same file again to resume" in message
        (found,) = Commands(server).json("pets", "imports")
        assert found["state"] == "running" and 0 < found["added"] < 200_000
        with started(server) as running:

            def create() -> int:
                body, headers = {"name": "Rex", "categoryId": 1}, running.key().headers
                return httpx.post(running.url("/pets"), json=body, headers=headers, verify=False).status_code

            assert create() == 201
            undone = Commands(server).json("pets", "undo-import", found["id"], "--yes")
            assert (undone["removed"], undone["kept"]) == (found["added"], 0)
            assert create() == 201
