"""Imports that end in the middle: by Ctrl-C, `kill -9` or a second process. The same command goes on."""

import asyncio
import contextlib
import io
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.commands import Commands
from harness.served import wait_for
from harness.servers import Server, started
from harness.stores import ENTRY, NOW, StorePlace, names
from harness.wire import asking
from petstore.admin.actions import Admin
from petstore.admin.pet_files import PetFile
from petstore.backends import Backends
from petstore.errors import ImportTaken, OperatorError, Unavailable
from petstore.pets import Import, NewPet
from petstore.store import Store
from petstore.store.imports import LIFE_SECONDS, Imports
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
    """The newest import, as the command lists it."""
    found: dict[str, Any] = petstore.json("pets", "imports")[0]
    return found


@contextlib.contextmanager
def in_the_middle(petstore: Commands, file: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that has added some animals of the file."""
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


def goes_on(petstore: Commands, file: Path, *options: str) -> None:
    """The same command, without a question, ends with exactly the file's animals."""
    before = latest(petstore)["added"]
    done = petstore.run("pets", "import", str(file), *options)
    assert done.returncode == 0, done.stderr
    found = latest(petstore)
    assert done.stdout == f"{COUNT:,} animals added to live by import {found['id']}.\n"
    assert done.stderr == f"Going on with {found['id']}, which has added {before:,} of {COUNT:,} animals.\n"
    assert (found["state"], found["added"], len(petstore.json("pets", "imports"))) == ("done", COUNT, 1)
    assert all_names(petstore) == [f"Pet {number}" for number in range(COUNT)]


def test_ctrl_c_says_how_to_go_on_and_the_same_command_does(petstore: Commands, tmp_path: Path) -> None:
    file = written(tmp_path / "animals.csv", COUNT)
    with in_the_middle(petstore, file) as command:
        command.send_signal(signal.SIGINT)
        _, message = command.communicate(timeout=60)
        assert command.returncode == 130 and "Interrupted: give the same command again to go on.\n" in message
    assert latest(petstore)["state"] == "interrupted", "at once, not after a minute"
    goes_on(petstore, file)


def test_killed_import_is_interrupted_after_a_minute_and_goes_on(petstore: Commands, tmp_path: Path) -> None:
    file = written(tmp_path / "animals.csv", COUNT)
    with in_the_middle(petstore, file) as command:
        command.kill()
        command.wait(timeout=60)
    found = latest(petstore)
    assert found["state"] == "running" and 0 < found["added"] < found["total"] == COUNT
    petstore.server.move_clock(LIFE_SECONDS + 5)
    clock = ("--clock-file", str(petstore.server.clock_file))
    (found,) = petstore.json("pets", "imports", *clock)
    assert set(found) >= {"id", "name", "state", "added", "total", "at", "actor"}
    assert (found["name"], found["state"]) == ("animals.csv", "interrupted")
    assert re.search(rf"{found['id']} +animals\.csv +interrupted", petstore.text("pets", "imports", *clock))
    dry = petstore.text("pets", "import", str(file), "--dry-run", *clock)
    assert f"Its import is interrupted: {found['id']}" in dry
    goes_on(petstore, file, *clock)


def test_killed_import_can_be_undone_and_then_begins_anew(petstore: Commands, tmp_path: Path) -> None:
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
        assert message == f"petstore: another process goes on with {found['id']}, or undoes it: this one stops\n"
    assert all_names(petstore) == []


def test_nothing_is_created_for_a_file_with_bad_rows(without_data: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.csv"
    file.write_text("name,categoryId\nRex,one\n")
    assert "line 2: " in without_data.fails("pets", "import", str(file))
    assert not without_data.data.exists()


# The action behind the command


def file_of(count: int) -> PetFile:
    rows = "".join(f"Pet {number},1\n" for number in range(count))
    return PetFile("x.csv", io.BytesIO(f"name,categoryId\n{rows}".encode()))


def admin_of(store: Store, now: float = NOW) -> Admin:
    """Imports need no gate."""
    return Admin(store, None, "ada", lambda: now)  # type: ignore[arg-type]


async def refuse(running: Import) -> None:
    raise AssertionError(f"waits for {running.id}")


def test_import_waits_for_a_process_with_signs_of_life_and_goes_on_after_its_death(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        file = file_of(30)
        checked = await file.check()
        claim = await store.imports.begin(checked.sha256, 30, ENTRY)
        assert claim is not None
        await store.imports.add_chunk(claim, 0, [NewPet(f"Pet {number}", 1) for number in range(10)], NOW)
        with pytest.raises(OperatorError, match=f"{claim.import_id} imports the same file now; try again in a minute"):
            await admin_of(store).import_pets("x.csv", file, checked)
        waited: list[str] = []
        now = NOW

        async def wait(running: Import) -> None:
            nonlocal now
            waited.append(running.id)
            now += 25

        heard: list[int] = []
        admin = Admin(store, None, "ada", lambda: now)  # type: ignore[arg-type]
        done = await admin.import_pets("x.csv", file, checked, adding=heard.append, waiting=wait)
        assert (done.id, done.state, waited, heard) == (claim.import_id, "done", [done.id] * 3, [10, 20, 30])
        assert await names(store) == [f"Pet {number}" for number in range(30)]

    store_at.use(work, policy=SMALL_CHUNKS)


def test_import_that_another_process_finishes_meanwhile_is_not_added_twice(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        file = file_of(3)
        checked = await file.check()
        claim = await store.imports.begin(checked.sha256, 3, ENTRY)
        assert claim is not None

        async def wait(running: Import) -> None:
            await store.imports.add_chunk(claim, 0, [NewPet("x", 1)] * 3, NOW)
            await store.imports.finish(claim, NOW)

        with pytest.raises(OperatorError, match=f"{claim.import_id} has added this file meanwhile"):
            await admin_of(store, ENTRY.at).import_pets("x.csv", file, checked, waiting=wait)
        assert await names(store) == ["x"] * 3
        await admin_of(store).import_pets("x.csv", file, checked, waiting=refuse)  # as after a confirmed question
        assert len(await names(store)) == 6

    store_at.use(work)


class Failing(Imports):
    """The answer to the third chunk is lost: after its commit, or instead of it."""

    commits = True
    chunks = 0

    async def add_chunk(self, *values: Any) -> None:
        self.chunks += 1
        if self.chunks != 3 or self.commits:
            await super().add_chunk(*values)
        if self.chunks == 3:
            raise Unavailable("the answer was lost")


@pytest.mark.parametrize("commits", [True, False])
def test_chunk_with_an_unknown_outcome_is_added_once(store_at: StorePlace, commits: bool) -> None:
    async def work(store: Store) -> None:
        file = file_of(45)
        checked = await file.check()
        failing = Failing(store.database)
        failing.commits = commits
        with pytest.raises(OperatorError) as failed:
            await admin_of(store._replace(imports=failing)).import_pets("x.csv", file, checked)
        (found,) = await store.imports.page(NOW)
        assert (found.state, found.added) == ("interrupted", 30 if commits else 20)
        assert str(failed.value) == (
            f"the answer was lost; {found.id} has added at least 20 of 45 animals: import the same content again to"
            f" go on, or remove them with petstore pets undo-import {found.id}"
        )
        done = await admin_of(store).import_pets("x.csv", file, checked, waiting=refuse)
        assert (done.id, done.added, done.state) == (found.id, 45, "done")
        assert await names(store) == [f"Pet {number}" for number in range(45)]

    store_at.use(work, policy=SMALL_CHUNKS)


def test_process_that_was_taken_over_stops_and_says_so(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        file = file_of(45)
        checked = await file.check()

        async def finish_elsewhere() -> None:
            async with store_at.open(policy=SMALL_CHUNKS) as other:
                await admin_of(other, NOW + LIFE_SECONDS + 1).import_pets("x.csv", file_of(45), checked)

        class TakenOver(Imports):
            async def add_chunk(self, *values: Any) -> None:
                if values[1] == 20:
                    await finish_elsewhere()
                await super().add_chunk(*values)

        with pytest.raises(ImportTaken, match=r"this one stops$"):
            await admin_of(store._replace(imports=TakenOver(store.database))).import_pets("x.csv", file, checked)
        (found,) = await store.imports.page(NOW)
        assert (found.state, found.added) == ("done", 45)
        assert await names(store) == [f"Pet {number}" for number in range(45)]

    store_at.use(work, policy=SMALL_CHUNKS)


def test_import_of_a_file_that_changes_is_interrupted(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        checked = await file_of(45).check()
        with pytest.raises(OperatorError, match=r"x\.csv has changed .* has added at least 0 of 45 animals"):
            await admin_of(store).import_pets("x.csv", file_of(44), checked)
        (found,) = await store.imports.page(NOW)
        assert (found.state, await names(store)) == ("interrupted", [])

    store_at.use(work, policy=SMALL_CHUNKS)


@pytest.mark.parametrize("host", ["own", "cluster"])
def test_each_worker_lists_a_chunk_from_the_next_request_on(tmp_path: Path, host: Any) -> None:
    with started(Server(tmp_path / "data", host, workers=2)) as server:
        key = server.key()

        def listed() -> set[int]:
            """How many animals a list has, on several connections: both workers answer some."""
            answers = (asking(server.port, 1, key.headers, "/v1/pets?limit=100")[0] for _ in range(12))
            return {len(msgspec.json.decode(answer.body)) for answer in answers}

        async def work(backends: Backends) -> None:
            imports = backends.stores["live"].imports
            claim = await imports.begin("x", 30, ENTRY)
            assert claim is not None
            for place in range(0, 30, 3):
                assert await asyncio.to_thread(listed) == {place}
                await imports.add_chunk(claim, place, [NewPet("Rex", 1)] * 3, NOW)

        server.act(work)
        assert listed() == {30}
