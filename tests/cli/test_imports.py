"""Imports that Ctrl-C or `kill -9` interrupts, and imports by several processes at the same time."""

import asyncio
import contextlib
import io
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.commands import Commands
from harness.served import wait_for
from harness.servers import Server, started
from harness.stores import NOW, PATIENT, StorePlace, import_file, names
from harness.wire import asking
from petstore.audit import Actor
from petstore.backends import Backends
from petstore.errors import OperatorError, Unavailable
from petstore.formats.pet_files import Checked, PetFile
from petstore.imports import Import
from petstore.pets import NewPet
from petstore.store import Store, StorePolicy
from petstore.store.database import Tx
from petstore.store.freshness import NOTHING
from petstore.store.imports import INTERRUPTED_AFTER, Imports
from tests.store.test_imports import SMALL_CHUNKS

COUNT = 20_000
# One animal per transaction, so that an import takes long enough to be interrupted.
ONE_BY_ONE = (
    "from petstore.cli import data, main;data.OPERATOR_BOUNDS = data.OPERATOR_BOUNDS._replace(import_chunk=1); main()"
)


def written(path: Path, count: int) -> Path:
    path.write_text("name,categoryId\n" + "".join(f"Pet {number},1\n" for number in range(count)))
    return path


def all_names(petstore: Commands) -> list[str]:
    return petstore.server.act(lambda backends: names(backends.stores["live"]))


def latest(petstore: Commands) -> dict[str, Any]:
    """Returns the newest import, as `pets imports` lists it."""
    found: dict[str, Any] = petstore.json("pets", "imports")[0]
    return found


@contextlib.contextmanager
def in_the_middle(petstore: Commands, file: Path) -> Iterator["subprocess.Popen[str]"]:
    """Starts an import and waits until it has added some of the file's animals."""
    command = subprocess.Popen(
        [sys.executable, "-c", ONE_BY_ONE, "pets", "import", str(file)],
        stderr=subprocess.PIPE, text=True, env=petstore.variables,
    )  # fmt: skip
    try:
        assert wait_for(lambda: len(petstore.json("pets", "imports")) == 1 and latest(petstore)["added"] > 0)
        yield command
    finally:
        command.kill()
        command.communicate(timeout=60)


def resumes(petstore: Commands, file: Path, *options: str) -> None:
    """Asserts that repeating the command adds exactly the file's remaining animals, without asking for confirmation."""
    before = latest(petstore)["added"]
    done = petstore.run("pets", "import", str(file), *options)
    assert done.returncode == 0, done.stderr
    found = latest(petstore)
    assert done.stdout == f"{COUNT:,} animals added to live (import {found['id']}).\n"
    assert done.stderr == f"Resuming {found['id']}, which has already added {before:,} of {COUNT:,} animals.\n"
    assert (found["state"], found["added"], len(petstore.json("pets", "imports"))) == ("done", COUNT, 1)
    assert all_names(petstore) == [f"Pet {number}" for number in range(COUNT)]


def test_ctrl_c_says_how_to_resume_and_the_same_command_does(petstore: Commands, tmp_path: Path) -> None:
    file = written(tmp_path / "animals.csv", COUNT)
    with in_the_middle(petstore, file) as command:
        command.send_signal(signal.SIGINT)
        _, message = command.communicate(timeout=60)
        assert command.returncode == 130 and "Interrupted. Run the same command again to resume.\n" in message
    resumes(petstore, file)


@pytest.mark.thorough
def test_killed_import_is_resumed_immediately(petstore: Commands, tmp_path: Path) -> None:
    file = written(tmp_path / "animals.csv", COUNT)
    with in_the_middle(petstore, file) as command:
        command.kill()
        command.wait(timeout=60)
    found = latest(petstore)
    assert found["state"] == "running" and 0 < found["added"] < found["total"] == COUNT
    resumes(petstore, file)


@pytest.mark.thorough
def test_killed_import_is_listed_as_interrupted_after_a_minute(petstore: Commands, tmp_path: Path) -> None:
    file = written(tmp_path / "animals.csv", COUNT)
    with in_the_middle(petstore, file) as command:
        command.kill()
        command.wait(timeout=60)
    petstore.server.move_clock(INTERRUPTED_AFTER + 5)
    clock = ("--clock-file", str(petstore.server.clock_file))
    (found,) = petstore.json("pets", "imports", *clock)
    assert set(found) >= {"id", "name", "state", "added", "total", "at", "actor"}
    assert (found["name"], found["state"]) == ("animals.csv", "interrupted")
    assert re.search(rf"{found['id']} +animals\.csv +interrupted", petstore.text("pets", "imports", *clock))
    dry = petstore.text("pets", "import", str(file), "--dry-run", *clock)
    assert f"Found an earlier import of this file (interrupted): {found['id']}" in dry
    resumes(petstore, file, *clock)


@pytest.mark.thorough
def test_two_processes_import_the_same_file_together(petstore: Commands, tmp_path: Path) -> None:
    file = written(tmp_path / "animals.csv", COUNT)
    with in_the_middle(petstore, file) as command:  # one animal per chunk, while the other import adds 2,000 at once
        second = petstore.run("pets", "import", str(file))
        command.communicate(timeout=60)
        assert (command.returncode, second.returncode) == (0, 0)
    (found,) = petstore.json("pets", "imports")
    assert (found["state"], found["added"]) == ("done", COUNT)
    assert all_names(petstore) == [f"Pet {number}" for number in range(COUNT)]


def test_file_of_a_killed_and_undone_import_can_be_imported_again(petstore: Commands, tmp_path: Path) -> None:
    file = written(tmp_path / "animals.csv", COUNT)
    with in_the_middle(petstore, file) as command:
        command.kill()
        command.wait(timeout=60)
    found = latest(petstore)
    undone = petstore.json("pets", "undo-import", found["id"], "--yes")
    assert (undone["removed"], undone["kept"], all_names(petstore)) == (found["added"], 0, [])
    assert petstore.json("pets", "import", str(file))["import"] != found["id"]
    assert [each["state"] for each in petstore.json("pets", "imports")] == ["done", "undone"]
    assert len(all_names(petstore)) == COUNT


def test_undo_of_a_running_import_stops_its_process(petstore: Commands, tmp_path: Path) -> None:
    file = written(tmp_path / "animals.csv", COUNT)
    with in_the_middle(petstore, file) as command:
        found = latest(petstore)
        assert found["state"] == "running"
        petstore.text("pets", "undo-import", found["id"], "--yes")
        _, message = command.communicate(timeout=60)
        assert command.returncode == 2
        assert message == f"petstore: {found['id']} was undone, so no more animals were added\n"
    assert all_names(petstore) == []


def test_nothing_is_created_for_a_file_with_bad_rows(without_data: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.csv"
    file.write_text("name,categoryId\nRex,one\n")
    assert "line 2: " in without_data.fails("pets", "import", str(file))
    assert not without_data.data.exists()


# The act behind the command


def file_of(count: int) -> PetFile:
    rows = "".join(f"Pet {number},1\n" for number in range(count))
    return PetFile("x.csv", io.BytesIO(f"name,categoryId\n{rows}".encode()))


BY_ADA = Actor("ada", NOW)


async def begin(store: Store, name: str, checked: Checked) -> Import:
    return await store.imports.begin(name, checked.sha256, checked.animals, BY_ADA)


async def add_pets(
    store: Store, begun: Import, file: PetFile, checked: Checked, adding: Callable[[int], None] = lambda count: None
) -> Import:
    return await store.imports.add_pets(begun, partial(file.batches, checked), partial(float, NOW), adding)


def test_processes_with_different_chunk_sizes_add_each_animal_once(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        checked = await file_of(5_000).check()
        async with store_at.open(policy=StorePolicy(bounds=PATIENT._replace(import_chunk=73))) as other:
            heard: list[int] = []
            begun = await begin(store, "x.csv", checked)
            done = await asyncio.gather(
                add_pets(store, begun, file_of(5_000), checked, heard.append),
                *(import_file(other, file_of(5_000), BY_ADA) for _ in range(2)),
            )
        assert {(each.id, each.state, each.added) for each in done} == {(begun.id, "done", 5_000)}
        assert heard[0] == 0 and heard[-1] == 5_000 and heard == sorted(heard)
        assert await names(store) == [f"Pet {number}" for number in range(5_000)]

    store_at.use(work, policy=SMALL_CHUNKS)


def test_import_is_repeated_only_after_a_confirmation(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        checked = await file_of(3).check()
        first = await import_file(store, file_of(3), BY_ADA)
        assert await begin(store, "renamed.csv", checked) == first
        second = await import_file(store, file_of(3), BY_ADA, first.id)
        assert second.id != first.id and len(await names(store)) == 6

    store_at.use(work)


def test_the_same_bytes_in_another_format_do_not_join_an_import(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        checked = await file_of(3).check()
        begun = await begin(store, "x.csv", checked)
        with pytest.raises(OperatorError, match=f"{begun.id} imported the same content as 3 animals, not 4"):
            await begin(store, "x.json", checked._replace(animals=4))

    store_at.use(work)


class Failing(Imports):
    """Loses the response to the third chunk, which is committed only if `commits` is true."""

    commits = True
    chunks = 0

    async def add_chunk(self, *values: Any) -> bool:
        self.chunks += 1
        is_added = self.chunks != 3 or self.commits
        if is_added:
            await super().add_chunk(*values)
        if self.chunks == 3:
            raise Unavailable("the response was lost")
        return is_added


@pytest.mark.parametrize("commits", [True, False])
def test_chunk_with_an_unknown_outcome_is_added_once(store_at: StorePlace, commits: bool) -> None:
    async def work(store: Store) -> None:
        failing = Failing(store.database)
        failing.commits = commits
        with pytest.raises(OperatorError) as failed:
            await import_file(store._replace(imports=failing), file_of(45), BY_ADA)
        (found,) = await store.imports.page(NOW)
        assert (found.state, found.added) == ("running", 30 if commits else 20)
        assert str(failed.value) == (
            f"the response was lost; import the same file again to resume {found.id}, or remove its animals with"
            f" `petstore pets undo-import {found.id}`"
        )
        done = await import_file(store, file_of(45), BY_ADA)
        assert (done.id, done.added, done.state) == (found.id, 45, "done")
        assert await names(store) == [f"Pet {number}" for number in range(45)]

    store_at.use(work, policy=SMALL_CHUNKS)


def test_import_starts_over_where_the_store_has_lost_chunks(store_at: StorePlace) -> None:
    """This happens after a failover to a replica that lacks the last commits."""

    class Losing(Imports):
        lost = False

        async def add_chunk(self, *values: Any) -> bool:
            if values[1] == 2_030 and not self.lost:
                self.lost = True
                await self._db.write(self._forget, NOTHING)
            return await super().add_chunk(*values)

        async def _forget(self, tx: Tx) -> None:
            await tx.execute(f"UPDATE {self._table} SET added = 10")
            await tx.execute(f"DELETE FROM {self._chunks} WHERE place > 0")

    async def work(store: Store) -> None:
        done = await import_file(store._replace(imports=Losing(store.database)), file_of(2_100), BY_ADA)
        assert (done.state, done.added) == ("done", 2_100)
        assert (await names(store))[-2_090:] == [f"Pet {number}" for number in range(10, 2_100)]

    store_at.use(work, policy=SMALL_CHUNKS)


def test_import_of_a_file_that_changes_adds_nothing(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        checked = await file_of(45).check()
        with pytest.raises(OperatorError, match=r"x\.csv has changed since it was checked; import the same file again"):
            await add_pets(store, await begin(store, "x.csv", checked), file_of(44), checked)
        (found,) = await store.imports.page(NOW)
        assert (found.state, found.added, await names(store)) == ("running", 0, [])

    store_at.use(work, policy=SMALL_CHUNKS)


@pytest.mark.parametrize("host", ["own", "cluster"])
def test_each_worker_lists_a_chunk_with_the_next_request(tmp_path: Path, host: Any) -> None:
    with started(Server(tmp_path / "data", host, workers=2)) as server:
        key = server.key()

        def listed() -> set[int]:
            """Returns how many animals the workers list. Uses several connections, so that both workers respond."""
            answers = (asking(server.port, 1, key.headers, "/v1/pets?limit=100")[0] for _ in range(12))
            return {len(msgspec.json.decode(answer.body)) for answer in answers}

        async def work(backends: Backends) -> None:
            imports = backends.stores["live"].imports
            begun = await imports.begin("x.csv", "x", 30, BY_ADA)
            for place in range(0, 30, 3):
                assert await asyncio.to_thread(listed) == {place}
                assert await imports.add_chunk(begun.id, place, [NewPet("Rex", 1)] * 3, NOW)

        server.act(work)
        assert listed() == {30}
