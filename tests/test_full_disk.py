"""Imports that the store cannot take: nothing is added, their rows are removed at once, and the service goes on."""

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from petstore.audit import AuditEntry
from petstore.errors import OperatorError, Unavailable
from petstore.pets import NewPet
from petstore.store import Store, StorePolicy
from petstore.store.schema import IMPORT_ROWS, IMPORTS
from tests.commands import Processes
from tests.places import NOW, PATIENT, StorePlace, batch, names, sqlite_store
from tests.servers import Server, started

IMPORT = AuditEntry(NOW, "ada", "import", "animals.jsonl")
LIMITS = PATIENT._replace(import_chunk=10)


async def nothing_is_left(store: Store) -> bool:
    found = await store.transfer.rows(IMPORTS, None, 10) + await store.transfer.rows(IMPORT_ROWS, None, 10)
    return not found and await names(store) == [] and (await store.audit.find()).entries == []


def test_import_during_which_the_store_fails_says_that_nothing_was_added(store_at: StorePlace) -> None:
    async def failing() -> AsyncIterator[list[NewPet]]:
        yield [NewPet("Rex", 1)] * 55
        raise Unavailable("the store failed")

    async def work(store: Store) -> None:
        with pytest.raises(OperatorError, match="the store failed; nothing was added: import again"):
            await store.import_pets(failing(), IMPORT)
        assert await nothing_is_left(store)

    store_at.use(work, policy=StorePolicy(bounds=LIMITS))


def test_rows_of_an_import_are_removed_at_once_when_the_disk_is_full(tmp_path: Path) -> None:
    class Full(apsw.Connection):
        """A disk that is full for the sixth chunk of rows."""

        chunks = 0

        def executemany(self, sql: str, *values: Any, **options: Any) -> apsw.Cursor:  # type: ignore[override]
            if "import_rows" in sql:
                Full.chunks += 1
                if Full.chunks == 6:
                    raise apsw.FullError("database or disk is full")
            return super().executemany(sql, *values, **options)

    async def work() -> None:
        async with sqlite_store(tmp_path, LIMITS, Full) as store:
            with pytest.raises(OperatorError, match="disk is full; nothing was added"):
                await store.import_pets(batch(*[NewPet("Rex", 1)] * 100), IMPORT)
            assert await nothing_is_left(store)
            assert (await store.import_pets(batch(NewPet("Rex", 1)), IMPORT)).count == 1

    asyncio.run(work())


@pytest.mark.parametrize("loaded", [0, 55])
def test_import_stops_before_the_disk_is_full(tmp_path: Path, loaded: int) -> None:
    async def work() -> None:
        async with sqlite_store(tmp_path, LIMITS) as store:

            async def growing() -> AsyncIterator[list[NewPet]]:
                yield [NewPet("Rex", 1)] * loaded
                store.limits = LIMITS._replace(import_free_bytes=2**62)  # more than any disk has
                yield [NewPet("Rex", 1)]

            with pytest.raises(OperatorError, match=r"MiB are free.* so nothing was added; free some space"):
                await store.import_pets(growing(), IMPORT)
            assert await nothing_is_left(store)
            with pytest.raises(OperatorError, match="nothing was added"):
                await store.import_pets(batch(NewPet("Rex", 1)), IMPORT)
            assert await nothing_is_left(store)
            await store.pets.add(NewPet("created", 1), NOW)

    asyncio.run(work())


@contextlib.contextmanager
def small_disk(at: Path) -> Iterator[Path]:
    at.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", at], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted: {mounted.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", at], check=True)


def test_service_starts_and_creates_after_an_import_that_did_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "large.csv"
    file.write_text("name,categoryId\n" + f"{'x' * 250},1\n" * 200_000)
    with small_disk(tmp_path / "disk") as disk:
        server = Server(disk / "data")
        server.create()
        message = Processes(server).fails_in_one_line("pets", "import", str(file))
        assert "so nothing was added; free some space" in message
        assert server.act(lambda backends: nothing_is_left(backends.stores["live"]))
        with started(server) as running:
            made = httpx.post(
                running.url("/pets"),
                json={"name": "Rex", "categoryId": 1},
                headers=running.key().headers,
                verify=False,
            )
            assert made.status_code == 201
