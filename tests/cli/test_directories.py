"""Which directory a command uses. Commands never change an unrelated directory, and create stores only on request."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from harness.backends import free_port
from harness.commands import Commands, Processes
from harness.served import wait_for
from harness.servers import PETSTORE, Server, started, takes_connections
from tests.cli.samples import SAMPLES, Sample

CREATING = [sample for sample in SAMPLES if sample.access == "create"]
every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.words)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory unrelated to Petstore, with files that a careless command could damage."""
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    (home / "notes.txt").write_text("mine")
    (home / "project/link").symlink_to("../notes.txt")
    os.mkfifo(home / "project/pipe")
    (home / "lock").touch()  # Petstore also has a file with this name
    return home


@every_sample
def test_a_directory_with_other_content_is_refused_and_stays_as_it_is(
    home: Path, sample: Sample, tmp_path: Path
) -> None:
    before = {path: path.lstat().st_mode for path in home.rglob("*")}
    content = (home / "notes.txt").read_text()
    said = Commands(Server(home)).run(*sample.arguments(tmp_path), stdin=sample.stdin)
    assert said.returncode == 2, said
    assert said.stderr.splitlines()[-1] == f"petstore: {home} has no Petstore data", said.stderr
    assert "rm " not in said.stderr
    assert ({path: path.lstat().st_mode for path in home.rglob("*")}, (home / "notes.txt").read_text()) == (
        before,
        content,
    )


def test_a_file_that_another_first_command_is_writing_does_not_make_the_directory_foreign(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    server.data.mkdir(mode=0o700)
    (server.data / ".petstore-0123456789abcdef.part").touch(mode=0o600)
    with started(server):
        pass


def test_a_file_of_another_program_with_our_name_is_refused_and_nothing_else_is_searched(home: Path) -> None:
    (home / "live.db").write_bytes(b"SQLite format 3\0" + bytes(52) + b"\0\0\0\1" + bytes(2000))
    before = (home / "live.db").read_bytes()
    said = Commands(Server(home)).fails_in_one_line("keys", "list")
    assert said.startswith(f"{home / 'live.db'}: was not written by Petstore 1.0 or later"), said
    assert (home / "live.db").read_bytes() == before


@pytest.mark.parametrize("existing", [False, True], ids=["missing", "empty"])
@pytest.mark.parametrize("sample", CREATING, ids=lambda sample: sample.words)
def test_a_store_is_created_where_data_names_an_empty_directory(tmp_path: Path, sample: Sample, existing: bool) -> None:
    data = tmp_path / "data"
    if existing:
        (data / "lost+found").mkdir(parents=True)
    said = Commands(Server(data)).run(*sample.arguments(tmp_path))
    assert (said.returncode, said.stderr.splitlines()[0]) == (0, f"Created a store in {data}"), said.stderr
    assert (data / "live.db").exists()


@pytest.mark.parametrize(
    "sample", [each for each in SAMPLES if each.access in ("read", "write")], ids=lambda sample: sample.words
)
def test_other_commands_create_nothing(tmp_path: Path, sample: Sample) -> None:
    data = tmp_path / "data"
    said = Commands(Server(data)).run(*sample.arguments(tmp_path), stdin=sample.stdin)
    assert said.returncode == (0 if "--dry-run" in sample.words else 2), said
    assert not data.exists()


@pytest.mark.parametrize(
    "sample",
    [Sample("keys list", "read"), Sample("backup FILE.zip", "whole"), *CREATING],
    ids=lambda sample: sample.words,
)
def test_no_command_creates_a_store_in_a_directory_that_nobody_named(tmp_path: Path, sample: Sample) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    said = subprocess.run(
        [*PETSTORE, *sample.arguments(tmp_path)], cwd=elsewhere, capture_output=True, text=True, timeout=60,
        env={name: value for name, value in os.environ.items() if not name.startswith("PETSTORE_")},
    )  # fmt: skip
    path = elsewhere / "petstore-data"
    expected = f"petstore: {path} has no Petstore data: it does not exist; specify the data directory with --data DIR\n"
    assert (said.returncode, said.stderr) == (2, expected)
    assert list(elsewhere.iterdir()) == []


def test_a_file_is_not_taken_for_an_empty_directory(tmp_path: Path) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    petstore.text("pets", "add", "--name", "Rex", "--category-id", "1")
    file = tmp_path / "data/live.db"
    message = Commands(Server(file)).fails_in_one_line("keys", "list")
    assert message == f"{file} has no Petstore data: it is a file, not a directory"


@pytest.mark.parametrize("moment", ["lock", "metrics", "empty store", "gate only"])
def test_a_start_works_in_the_directory_that_a_killed_start_left(tmp_path: Path, moment: str) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "lock").touch()
    if moment == "metrics":
        (data / "metrics").mkdir()
    elif moment == "empty store":
        (data / "live.db").touch()
    elif moment == "gate only":
        (data / "gate.mdb").touch()
        (data / "gate.mdb-boot").touch()
    port = free_port()
    with subprocess.Popen(
        [*PETSTORE, "serve", "--data", str(data), "--port", str(port)], stdout=subprocess.DEVNULL
    ) as service:
        try:
            assert wait_for(lambda: takes_connections(port))
        finally:
            service.send_signal(signal.SIGTERM)


def test_commands_on_servers_need_no_directory(tmp_path: Path) -> None:
    node = Commands(Server(tmp_path / "node", "cluster"))
    key = node.json("keys", "create", "--plan", "free")
    assert node.json("keys", "show", key["id"])["id"] == key["id"]
    assert not (tmp_path / "node").exists()


# Suggested commands


def test_a_suggested_command_names_the_data_and_can_be_typed(tmp_path: Path) -> None:
    data = tmp_path / "my data"
    petstore = Processes(Server(data))
    petstore.run("pets", "add", "--name", "Rex", "--category-id", "1")
    said = subprocess.run(
        [*PETSTORE, "keys", "show", "key_none", "--data", str(data)], capture_output=True, text=True, timeout=60
    )
    (command,) = [each for each in said.stderr.split("`") if "keys list" in each]
    assert f"--data '{data}'" in command
    assert subprocess.run(["sh", "-c", command], capture_output=True, timeout=60).returncode == 0
