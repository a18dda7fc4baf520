"""`petstore backup` while animals are being added. A backup has every animal that was acknowledged before it began."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.backends import shared
from harness.commands import Commands
from harness.other_user import as_nobody, directory_of_nobody
from harness.scraping import scrape
from harness.served import wait_for
from harness.servers import PETSTORE, Key, Server, serving
from harness.shells import is_stopped
from petstore import data_dir
from petstore.backends import Backends
from petstore.cli.backup import backup
from petstore.maintenance import archive
from petstore.pets import Pet
from petstore.plans import Limits
from tests.marks import only_as_root

SECONDS, EVERY = 3.0, 1.0
CLIENTS = 4


class Creator(threading.Thread):
    """Adds animals with unique names, each with an idempotency key, and records every 201."""

    def __init__(self, server: Server, key: Key, number: int) -> None:
        super().__init__(daemon=True)
        self.server, self.key, self.number = server, key, number
        self.acknowledged: dict[int, str] = {}
        self.wrong: list[int] = []
        self.enough = False

    def run(self) -> None:
        with httpx.Client(timeout=15, verify=False) as client:
            count = 0
            while not self.enough:
                answer = create(client, self.server, self.key, f"{self.number}.{count}")
                count += 1
                if answer.status_code == 201:
                    self.acknowledged[answer.json()["id"]] = answer.json()["name"]
                else:
                    self.wrong.append(answer.status_code)


def create(client: httpx.Client, server: Server, key: Key, name: str) -> httpx.Response:
    return client.post(
        server.url("/pets"), headers={**key.headers, "Idempotency-Key": name}, json={"name": name, "categoryId": 1}
    )


async def _all_pets(backends: Backends) -> list[Pet]:
    found: list[Pet] = []
    more = True
    while more:
        page, more = await backends.stores["live"].pets.page(
            after=found[-1].id if found else 0, limit=5_000, status=None
        )
        found += page
    return found


def test_every_backup_has_all_animals_acknowledged_before_it_began(tmp_path: Path) -> None:
    with serving(tmp_path / "data", workers=2) as server:
        key = server.key(limits=Limits(10**9, 10**9))
        creators = [Creator(server, key, number) for number in range(CLIENTS)]
        for creator in creators:
            creator.start()
        end = time.monotonic() + SECONDS
        restored: list[int] = []
        while time.monotonic() < end or len(restored) < 3:
            due = time.monotonic() + EVERY
            before = {pet_id: name for creator in creators for pet_id, name in dict(creator.acknowledged).items()}
            shutil.rmtree(tmp_path / "copy", ignore_errors=True)
            copy = Server(tmp_path / "copy")
            made = Commands(server).json("backup", str(tmp_path / "backup.zip"), "--force")
            Commands(copy).text("restore", str(tmp_path / "backup.zip"))
            pets = {pet.id: pet.name for pet in copy.act(_all_pets)}
            assert {pet_id: name for pet_id, name in before.items() if pets.get(pet_id) != name} == {}
            assert [name for name, times in Counter(pets.values()).items() if times > 1] == []
            assert made["manifest"]["members"][0]["rows"]["pets"] == len(pets)
            restored.append(len(pets))
            time.sleep(max(0.0, min(due, end) - time.monotonic()))  # wait until the next backup is due
        for creator in creators:
            creator.enough = True
        for creator in creators:
            creator.join(timeout=15)
            assert creator.wrong == []
    assert restored == sorted(restored)
    assert restored[-1] > restored[0]
    print(f"{len(restored)} backups of {restored[0]} to {restored[-1]} animals")
    with serving(copy.data) as again, httpx.Client(verify=False) as client:
        pet_id, name = next(iter(before.items()))
        answer = create(client, again, key, name)
        assert (answer.json()["id"], answer.headers["idempotent-replayed"]) == (pet_id, "true")
        assert create(client, again, key, "new").json()["id"] > restored[-1]


def test_restore_brings_back_both_environments_and_resets_the_counters(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        key, banned = server.key("free"), server.key(limits=Limits(1, 10))
        server.fill(3)
        server.fill(5, "staging")
        for _ in range(7):
            httpx.get(server.url("/pets"), headers=key.headers, verify=False)
        for _ in range(5):
            httpx.get(server.url("/pets"), headers=banned.headers, verify=False)
        Commands(server).text("backup", str(tmp_path / "backup.zip"))
    kept = Commands(server).json("restore", str(tmp_path / "backup.zip"), "--force")["kept"]
    assert (Path(kept) / "gate.mdb").exists()
    with serving(server.data) as again:
        answer = httpx.get(again.url("/pets"), headers=key.headers, verify=False)
        assert (len(answer.json()), answer.headers["x-ratelimit-remaining"]) == (3, str(60 - 1))
        assert Commands(again).json("bans", "list") == []
        assert httpx.get(again.url("/pets"), headers=banned.headers, verify=False).status_code == 200
        staging = again.key(environment="staging")
        assert len(httpx.get(again.url("/pets", "staging"), headers=staging.headers, verify=False).json()) == 5


@pytest.fixture
def embedded(tmp_path: Path) -> Commands:
    commands = Commands(Server(tmp_path / "data"))
    commands.text("pets", "add", "--name", "Rex", "--category-id", "1")
    return commands


def test_backup_is_one_private_zip_file_with_a_manifest(embedded: Commands, tmp_path: Path) -> None:
    target = tmp_path / "backup.zip"
    printed = embedded.text("backup", str(target))
    assert str(target) in printed and "1 animal and" in printed
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None
        assert set(archive.namelist()) == {"manifest.json", "live.db", "staging.db"}
        manifest = json.loads(archive.read("manifest.json"))
    assert {member["name"]: member["rows"]["pets"] for member in manifest["members"]} == {"live.db": 1, "staging.db": 0}
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if "backup" in path.name] == ["backup.zip"]


def test_backup_is_in_the_audit_log_and_in_the_metrics(embedded: Commands, tmp_path: Path) -> None:
    embedded.text("backup", str(tmp_path / "backup.zip"))
    entry = embedded.entries()[0]
    assert (entry.action, entry.subject) == ("backup", "backup.zip")
    with serving(embedded.data) as server:
        assert abs(scrape(server).value("petstore_last_backup_timestamp_seconds") - time.time()) < 60


def test_backup_replaces_a_file_only_with_force(embedded: Commands, tmp_path: Path) -> None:
    target = tmp_path / "backup.zip"
    target.write_text("precious")
    assert "--force" in embedded.fails_in_one_line("backup", str(target))
    assert target.read_text() == "precious"
    embedded.text("backup", str(target), "--force")
    embedded.text("backup", "--verify", str(target))


@pytest.mark.parametrize("target", ["no such/backup.zip", ".", "data/live.db/backup.zip"])
def test_backup_to_an_impossible_path_is_refused(embedded: Commands, tmp_path: Path, target: str) -> None:
    embedded.fails_in_one_line("backup", str(tmp_path / target))


@only_as_root
def test_a_backup_never_replaces_the_data_or_what_is_no_file(embedded: Commands, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.zip")
    for target, fault in (
        (tmp_path / "pipe.zip", "is not a regular file"),
        (Path("/dev/null"), "is not a regular file"),
        (embedded.data / "live.db", "is in the data directory"),
        (embedded.data / "new.zip", "is in the data directory"),
    ):
        assert fault in embedded.fails_in_one_line("backup", str(target), "--force")
    assert "is in the data directory" in embedded.fails_in_one_line("backup", str(embedded.data), "--keep", "2")
    assert (tmp_path / "pipe.zip").is_fifo() and Path("/dev/null").is_char_device()
    embedded.text("pets", "list")


def test_a_pipe_is_no_backup_and_is_not_waited_for(embedded: Commands, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.zip")
    for words in (
        ["restore", str(tmp_path / "pipe.zip"), "--force"],
        ["backup", "--verify", str(tmp_path / "pipe.zip")],
    ):
        assert "is not a regular file" in embedded.fails_in_one_line(*words)


def test_backup_without_permission_is_one_line(embedded: Commands, tmp_path: Path) -> None:
    def attempt(data: Path, target: Path) -> str:
        words = [str(target), "--data", str(data)]
        return as_nobody(lambda: backup.main(words, standalone_mode=False))

    with directory_of_nobody() as directory:
        for name in ("live.db", "staging.db"):
            (directory / name).touch()
        target = tmp_path / "x.zip"
        assert attempt(directory, target) == f"OperatorError: {target}: Permission denied"
        assert (
            attempt(embedded.data, directory / "x.zip") == f"OperatorError: --data {embedded.data}: Permission denied"
        )


def test_a_file_name_that_is_not_utf_8_can_be_restored_but_not_written(embedded: Commands, tmp_path: Path) -> None:
    odd = tmp_path / "odd\udcff.zip"
    assert "not UTF-8" in embedded.fails_in_one_line("backup", str(odd))
    embedded.text("backup", str(tmp_path / "backup.zip"))
    (tmp_path / "backup.zip").rename(odd)
    assert "odd\ufffd.zip is complete" in embedded.text("backup", "--verify", str(odd))
    embedded.text("restore", str(odd), "--force")
    assert (embedded.entries()[0].action, embedded.entries()[0].subject) == ("restore", "odd\ufffd.zip")


@pytest.mark.thorough
def test_a_backup_that_is_stopped_leaves_nothing_behind(embedded: Commands, tmp_path: Path) -> None:
    embedded.server.fill(50_000)
    target = tmp_path / "backup.zip"
    for _ in range(3):
        running = subprocess.Popen([*PETSTORE, "backup", str(target)], env={**os.environ, **embedded.server.where})
        wait_for(lambda: list(tmp_path.glob(".backup*")) or running.poll() is not None)  # noqa: B023  # used at once
        running.terminate()
        stopped = running.wait(timeout=30) != 0
        left = [path.name for path in tmp_path.iterdir() if "backup" in path.name]
        assert left == ([] if stopped else ["backup.zip"])  # the backup may have finished before the signal
        target.unlink(missing_ok=True)


def test_backup_of_nothing_is_refused(tmp_path: Path) -> None:
    commands = Commands(Server(tmp_path / "data"))
    assert (
        commands.fails_in_one_line("backup", str(tmp_path / "backup.zip"))
        == f"{commands.data} has no Petstore data: it does not exist"
    )
    assert not (tmp_path / "data").exists()


def test_backup_of_damaged_data_is_refused_and_leaves_no_file(embedded: Commands, tmp_path: Path) -> None:
    with (embedded.data / "live.db").open("rb+") as file:
        file.seek(3 * 4096)
        file.write(b"\xff" * 8192)
    embedded.fails_in_one_line("backup", str(tmp_path / "backup.zip"))
    assert [path.name for path in tmp_path.iterdir() if "backup" in path.name] == []


def test_restore_raises_the_versions_of_a_gate_in_redis(tmp_path: Path) -> None:
    from harness.backends import Redis

    server = Server(tmp_path / "data")
    server.gate = shared(Redis).url()
    commands = Commands(server)
    commands.text("pets", "add", "--name", "Rex", "--category-id", "1")
    before = server.act(lambda backends: backends.gate.keys_version("live"))
    made = commands.json("backup", str(tmp_path / "backup.zip"))
    assert {member["name"] for member in made["manifest"]["members"]} == {"live.db", "staging.db"}
    commands.text("restore", str(tmp_path / "backup.zip"), "--force")
    assert server.act(lambda backends: backends.gate.keys_version("live")) > before
    assert len(commands.json("pets", "list")) == 1


def test_the_oldest_backups_are_removed_after_the_new_one_was_verified(embedded: Commands, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    made = [embedded.json("backup", str(backups), "--keep", "2") for _ in range(4)]
    names = [Path(each["file"]).name for each in made]
    assert all(re.fullmatch(r"\d{8}T\d{6}Z\.zip", name) for name in names)
    assert names == sorted(set(names)), "backups of the same second have different names"
    assert sorted(path.name for path in backups.iterdir()) == names[2:]
    assert [Path(path).name for each in made for path in each["removed"]] == names[:2]
    assert stat.S_IMODE(backups.stat().st_mode) == 0o700
    assert [entry.subject for entry in embedded.entries() if entry.action == "backup"] == names[::-1]
    embedded.text("backup", "--verify", str(backups / names[3]))
    assert "Removed " in embedded.text("backup", str(backups), "--keep", "1")
    assert len(list(backups.iterdir())) == 1


def test_backups_at_the_same_time_get_different_names(embedded: Commands, tmp_path: Path) -> None:
    words = [*PETSTORE, "backup", str(tmp_path / "b"), "--keep", "9", "--data", str(embedded.data)]
    made = [subprocess.Popen(words, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(timeout=30) for process in made] == [0, 0, 0]
    assert len(list((tmp_path / "b").iterdir())) == 3


@pytest.fixture
def suspended(embedded: Commands, tmp_path: Path) -> Iterator[int]:
    """The process id of a backup to the directory `backups` that was suspended while it held the lock."""
    embedded.server.fill(50_000)
    words = [*PETSTORE, "backup", str(tmp_path / "backups"), "--keep", "9", "--data", str(embedded.data)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            assert wait_for(lambda: list((tmp_path / "backups").glob(".*")))  # the temporary copy
            process.send_signal(signal.SIGSTOP)
            assert wait_for(lambda: is_stopped(process.pid))
            yield process.pid
        finally:
            process.kill()


def test_a_suspended_backup_is_named_to_those_that_wait_for_it(suspended: int, tmp_path: Path) -> None:
    locked = data_dir.lock_alone(tmp_path / "backups", "another backup or dump", timeout=0.0)
    with pytest.raises(data_dir.InUse) as raised, locked:
        pass
    assert f"another backup or dump is in progress by process {suspended} (" in str(raised.value)
    assert f"backups --keep 9 --data {tmp_path}" in str(raised.value)
    assert f"`kill -CONT {suspended}`" in str(raised.value)


@pytest.mark.thorough  # takes 20 s
def test_a_backup_gives_up_when_another_one_is_suspended(embedded: Commands, suspended: int, tmp_path: Path) -> None:
    message = embedded.fails_in_one_line("backup", str(tmp_path / "backups"), "--keep", "9")
    assert f"process {suspended} (" in message


def test_the_copies_of_a_killed_backup_are_removed_by_the_next(embedded: Commands, tmp_path: Path) -> None:
    left, other = tmp_path / ".20261117T031801Z.zip-51b7b52d", tmp_path / ".before-upgrade.zip-51b7b52d"
    for directory in (left, other):
        directory.mkdir()
        (directory / "live.db").write_bytes(b"x" * 1000)
    embedded.text("backup", str(tmp_path), "--keep", "1")
    assert not left.exists() and other.exists()


def test_files_with_other_names_are_never_removed(embedded: Commands, tmp_path: Path) -> None:
    others = ["before-upgrade.zip", "20260101T000000Z.zip.gpg", "x20260101T000000Z.zip", "20260101T000000Z"]
    for name in others:
        (tmp_path / name).write_text("precious")
    future = tmp_path / "20990101T000000Z.zip"  # made while the clock was wrong
    future.write_text("x")
    for _ in range(2):
        new = Path(embedded.json("backup", str(tmp_path), "--keep", "1")["file"])
        assert new.exists()
    assert all((tmp_path / name).read_text() == "precious" for name in others)
    assert not future.exists()


def test_a_backup_that_cannot_be_verified_removes_nothing(
    embedded: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulates a disk that does not return the data written to it."""
    backups = tmp_path / "backups"
    kept = embedded.json("backup", str(backups), "--keep", "1")["file"]
    write = archive.write

    def faulty(target: Path, *given: Any) -> None:
        write(target, *given)
        with target.open("rb+") as file:
            file.seek(1000)
            file.write(b"\xff\x00")

    monkeypatch.setattr(archive, "write", faulty)
    last = (embedded.data / "last-backup").stat().st_mtime_ns
    assert "damaged" in embedded.fails_in_one_line("backup", str(backups), "--keep", "1")
    assert [str(path) for path in backups.iterdir()] == [kept]
    assert (embedded.data / "last-backup").stat().st_mtime_ns == last
    assert len([entry for entry in embedded.entries() if entry.action == "backup"]) == 1


def test_keep_takes_a_directory_and_no_other_options(embedded: Commands, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    assert "requires a directory" in embedded.fails_in_one_line("backup", str(tmp_path / "file"), "--keep", "3")
    assert "--keep" in embedded.fails_in_one_line("backup", str(tmp_path))
    for option in ("--verify", "--force"):
        assert "--keep" in embedded.fails_in_one_line("backup", str(tmp_path), "--keep", "3", option)
    embedded.fails_in_one_line("backup", str(tmp_path), "--keep", "0")
    cluster = Commands(Server(tmp_path / "node", "cluster"))
    assert "pg_dump" in cluster.fails("backup", str(tmp_path / "none"), "--keep", "3")
    assert not (tmp_path / "none").exists()


def test_kept_backups_are_verified_in_their_directory(
    embedded: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's temporary directory is not used, because it may be small or in memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "does not exist"))
    embedded.text("backup", str(tmp_path / "kept"), "--keep", "2")
    assert [file.suffix for file in (tmp_path / "kept").iterdir() if not file.name.startswith(".")] == [".zip"]
