"""The data directory: its locks, its owner and permissions, and symlinks, which are never followed."""

import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

import pytest

from harness.backends import free_port
from harness.commands import Commands
from harness.other_user import ANONYMOUS, as_nobody, directory_of_nobody
from harness.served import wait_for
from harness.servers import PETSTORE, Server, serving
from petstore import data_dir
from petstore.errors import OperatorError
from petstore.files import open_file, read_text, replacing, touch
from petstore.gate import recovery
from petstore.observability import multiprocess
from tests.marks import only_as_root


@pytest.fixture
def used(tmp_path: Path) -> Commands:
    commands = Commands(Server(tmp_path / "data"))
    commands.text("keys", "create", "--plan", "free")
    return commands


@pytest.mark.parametrize("name", ["gate.mdb", "live.db", "metrics/counter_0.db"])
def test_a_pipe_in_the_data_directory_is_refused_and_not_waited_for(used: Commands, name: str) -> None:
    pipe = used.data / name
    pipe.parent.mkdir(exist_ok=True)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    for words in (["keys", "list"], ["serve", "--port", str(free_port())], ["check"]):
        assert "it is a pipe. Remove it with `rm " in used.fails_in_one_line(*words)


def test_restore_is_refused_while_a_process_has_the_shared_lock(tmp_path: Path) -> None:
    with serving(tmp_path / "data", workers=2) as server:
        commands = Commands(server)
        commands.text("pets", "add", "--name", "Rex", "--category-id", "1")
        commands.text("backup", str(tmp_path / "backup.zip"))
        assert "stop it first" in commands.fails_in_one_line("restore", str(tmp_path / "backup.zip"), "--force")
        server.kill()
    words = ("restore", str(tmp_path / "backup.zip"), "--force")
    assert wait_for(lambda: commands.run(*words).returncode == 0)  # a killed worker may take a moment to exit
    with data_dir.shared_lock(server.data):
        commands.fails_in_one_line("restore", str(tmp_path / "backup.zip"), "--force")
    commands.text("restore", str(tmp_path / "backup.zip"), "--force")


def test_commands_are_refused_during_a_restore(used: Commands, tmp_path: Path) -> None:
    commands = (["serve", "--port", str(free_port())], ["pets", "list"], ["backup", str(tmp_path / "x.zip")])
    with data_dir.exclusive_lock(used.data):
        started = [
            subprocess.Popen([*PETSTORE, *words], stderr=subprocess.PIPE, text=True, env=used.variables)
            for words in commands
        ]
        for command in started:  # all wait LOCK_TIMEOUT at the same time
            _, message = command.communicate(timeout=30)
            assert command.returncode == 2 and message.count("\n") == 1
            assert "a restore or a copy is in progress" in message


def test_the_shared_lock_fails_after_its_timeout(used: Commands) -> None:
    with (
        data_dir.exclusive_lock(used.data),
        pytest.raises(data_dir.InUse, match="in progress"),
        data_dir.shared_lock(used.data, timeout=0),
    ):
        pass


@pytest.mark.parametrize("lock", [data_dir.shared_lock, data_dir.exclusive_lock])
def test_an_error_of_the_body_leaves_the_lock_as_it_is(
    used: Commands, lock: Callable[[Path], AbstractContextManager[None]]
) -> None:
    with pytest.raises(BlockingIOError, match="of the body"), lock(used.data):
        raise BlockingIOError("of the body")
    assert not data_dir.is_locked(used.data)


def test_the_shared_lock_waits_for_the_end_of_an_exclusive_lock(used: Commands) -> None:
    assert not data_dir.is_locked(used.data)
    stack = ExitStack()
    stack.enter_context(data_dir.exclusive_lock(used.data))
    assert data_dir.is_locked(used.data)
    threading.Timer(0.2, stack.close).start()
    with data_dir.shared_lock(used.data):
        assert data_dir.is_locked(used.data)
    assert not data_dir.is_locked(used.data)
    assert not data_dir.is_locked(used.data / "nowhere")


def test_the_first_command_after_a_power_cut_renames_the_gate_file(used: Commands) -> None:
    (used.data / "gate.mdb-boot").write_text("another boot")
    used.text("keys", "list")
    assert len(list(used.data.glob("gate.mdb.damaged-*"))) == 1
    used.text("keys", "list")
    assert len(list(used.data.glob("gate.mdb.damaged-*"))) == 1


def test_processes_with_and_without_a_boot_id_share_a_gate_file(
    used: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service may run in a sandbox that hides the boot id, while commands run outside the sandbox."""
    with data_dir.shared_lock(used.data):
        for seen in (recovery.BOOT_ID_FILE, Path("nowhere"), recovery.BOOT_ID_FILE, Path("nowhere")):
            monkeypatch.setattr(recovery, "BOOT_ID_FILE", seen)
            used.text("keys", "list")
            assert (used.data / "gate.mdb-boot").read_text() != recovery.SYNCED
    assert list(used.data.glob("gate.mdb.damaged-*")) == []


@only_as_root
def test_a_command_of_root_leaves_the_lock_to_the_owner(used: Commands) -> None:
    for path in (used.data, *used.data.iterdir()):
        shutil.chown(path, "nobody", "nogroup")
    (used.data / data_dir.LOCK).unlink()
    used.text("pets", "list")
    assert (used.data / data_dir.LOCK).owner() == "nobody"


# The owner, and the permission to write


COMMANDS = [
    ["serve"], ["console"], ["keys", "list"], ["keys", "create", "--plan", "free"], ["pets", "export", "pets.csv"],
    ["backup", "made.zip"], ["restore", "backup.zip", "--force"], ["check"],
]  # fmt: skip


@only_as_root
def test_the_directory_of_another_user_is_refused_by_every_command(used: Commands, tmp_path: Path) -> None:
    used.text("backup", str(tmp_path / "backup.zip"))
    os.chown(used.data, ANONYMOUS, ANONYMOUS)
    for words in COMMANDS:
        done = used.run(*words, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), (words, done)
        assert "belongs to nobody" in done.stderr and f"chown -R root {used.data}" in done.stderr, words
    os.chown(used.data, 0, 0)
    used.text("keys", "list")


@only_as_root
def test_root_works_in_the_directory_of_the_owner_of_the_data_files(used: Commands) -> None:
    os.chown(used.data, ANONYMOUS, ANONYMOUS)
    os.chown(used.data / "live.db", ANONYMOUS, ANONYMOUS)
    data_dir.check_safe(used.data)
    os.chown(used.data, ANONYMOUS - 1, ANONYMOUS)
    with pytest.raises(OperatorError, match=f"belongs to {ANONYMOUS - 1}, "):
        data_dir.check_safe(used.data)


@only_as_root
def test_a_link_of_another_user_to_a_directory_is_refused(used: Commands, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(used.data)
    used.text("keys", "list", "--data", str(tmp_path / "link"))
    os.lchown(tmp_path / "link", ANONYMOUS, ANONYMOUS)
    assert "belongs to nobody" in used.fails_in_one_line("keys", "list", "--data", str(tmp_path / "link"))


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o720])
def test_the_permission_to_write_is_taken_away_from_others(used: Commands, mode: int) -> None:
    used.data.chmod(mode)
    assert "chmod -R go=" in used.run("check").stdout
    assert stat.S_IMODE(used.data.stat().st_mode) == mode, "petstore check changes nothing"
    used.text("keys", "list")
    assert stat.S_IMODE(used.data.stat().st_mode) == mode & ~0o022


@only_as_root
def test_a_directory_that_others_can_write_is_refused_if_it_cannot_be_changed() -> None:
    with directory_of_nobody() as directory:
        os.chown(directory, 0, 0)
        directory.chmod(0o777)
        for work in (data_dir.create, data_dir.check_safe):
            assert as_nobody(partial(work, directory)).endswith(f"run `chmod go-w {directory}`")
        directory.chmod(0o755)
        assert as_nobody(lambda: data_dir.check_safe(directory)) == "None"


def test_a_file_system_that_ignores_the_change_is_refused(used: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    used.data.chmod(0o777)
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    with pytest.raises(OperatorError, match="chmod go-w"):
        data_dir.create(used.data)


# Links

LINKS = (
    "lock", "last-backup", "live.db", "live.db-turn", "live.db-wal", "staging.db", "gate.mdb", "gate.mdb-lock",
    "gate.mdb-boot", "metrics", "metrics/lock", "metrics/counter_0.db", "restore", "restore.part",
)  # fmt: skip


@pytest.mark.parametrize("name", LINKS)
def test_a_directory_with_a_link_is_refused(used: Commands, tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    before = precious.stat()
    link = used.data / name
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(precious)
    for words in (["serve"], ["keys", "list"], ["backup", str(tmp_path / "backup.zip")], ["check"]):
        assert f"Remove it with `rm {link}`" in used.fails_in_one_line(*words)
    after = precious.stat()
    assert (precious.read_text(), after.st_mtime_ns, after.st_uid) == ("precious", before.st_mtime_ns, before.st_uid)


def test_what_opens_a_file_follows_no_link(tmp_path: Path) -> None:
    """No link is followed, even if it is created after the directory was checked."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    before = precious.stat()
    for name in ("file", "pipe", "directory"):
        path = tmp_path / name
        {"file": lambda p: p.symlink_to(precious), "pipe": os.mkfifo, "directory": os.mkdir}[name](path)
        for work in (open_file, touch, read_text):
            with pytest.raises(OSError):
                work(path)
    with replacing(tmp_path / "file") as file:
        file.write("new")
    assert (tmp_path / "file").read_text() == "new" and not (tmp_path / "file").is_symlink()
    assert (precious.read_text(), precious.stat().st_mtime_ns) == ("precious", before.st_mtime_ns)


def test_a_link_in_place_of_a_subdirectory_leads_nowhere(tmp_path: Path) -> None:
    data, precious = tmp_path / "data", tmp_path / "precious"
    for directory in (data, precious, precious / "new", precious / "old"):
        directory.mkdir()
    (precious / "members").write_text("")
    (precious / "new" / "live.db").write_text("precious")
    before = sorted(precious.rglob("*"))
    for name in (data_dir.METRICS, data_dir.STAGE, data_dir.READY):
        (data / name).symlink_to(precious)
    multiprocess.remove_old_numbers(data / data_dir.METRICS)
    with pytest.raises(OSError):
        multiprocess.WorkerMetrics(data / data_dir.METRICS)
    assert data_dir.complete_restore(data) is None
    with pytest.raises(FileExistsError), data_dir.stage_restore(data):
        pass
    assert sorted(precious.rglob("*")) == before


@only_as_root
def test_a_lock_with_a_second_name_keeps_its_owner(used: Commands, tmp_path: Path) -> None:
    """Some kernels let users create hard links to other users' files."""
    for path in (used.data, *used.data.iterdir()):
        shutil.chown(path, "nobody", "nogroup")
    precious = tmp_path / "precious"
    precious.touch()
    (used.data / data_dir.LOCK).unlink()
    (used.data / data_dir.LOCK).hardlink_to(precious)
    used.text("pets", "list")
    assert precious.owner() == "root"
