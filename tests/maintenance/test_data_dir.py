"""The data directory: its locks, its owner and permissions."""

import os
import stat
import subprocess
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from harness.backends import free_port
from harness.commands import Commands
from harness.other_user import ANONYMOUS, as_nobody, directory_of_nobody
from harness.served import wait_for
from harness.servers import PETSTORE, Server, serving
from harness.watched_files import open_directory
from petstore import data_dir
from petstore.cli.check import check
from petstore.cli.suggestions import suggestion
from petstore.errors import OperatorError
from petstore.files import replacing
from petstore.gate import recovery
from tests.marks import only_as_root


@pytest.fixture
def used(tmp_path: Path) -> Commands:
    commands = Commands(Server(tmp_path / "data"))
    commands.text("keys", "create", "--plan", "free")
    return commands


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


# The owner, and the permission to write


COMMANDS = [
    ["serve"], ["console"], ["keys", "list"], ["keys", "create", "--plan", "free"], ["pets", "export", "pets.csv"],
    ["backup", "made.zip"], ["restore", "backup.zip", "--force"], ["copy", "--to-store", "other"], ["check"],
]  # fmt: skip


@only_as_root
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_user_but_the_owner_is_refused_with_the_command_to_type(
    used: Commands, tmp_path: Path, words: list[str]
) -> None:
    used.text("backup", str(tmp_path / "backup.zip"))
    subprocess.run(["chown", "-R", "nobody", str(used.data)], check=True)
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    done = used.run(*words, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
    typed = f"petstore {' '.join(words)} --data {used.data}"
    assert f"belongs to nobody. Run `sudo -u nobody {typed}`" in done.stderr.replace(suggestion("", ""), "petstore ")
    assert f"`chown -R root {used.data}` as root" in done.stderr
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


@only_as_root
def test_a_user_without_permission_gets_the_command_to_type() -> None:
    with open_directory() as directory:
        data = directory / "data"
        Commands(Server(data)).text("keys", "create", "--plan", "free")
        words = ["--data", str(data)]
        refused = as_nobody(lambda: check.main(words, standalone_mode=False))
        assert refused.startswith(f"OperatorError: --data {data}: belongs to root. Run `sudo -u root "), refused


@only_as_root
@pytest.mark.parametrize("name", ["live.db", "gate.mdb-lock", "metrics", "metrics/0.lock", "restore"])
def test_a_file_of_another_user_is_refused(used: Commands, tmp_path: Path, name: str) -> None:
    used.text("backup", str(tmp_path / "backup.zip"))
    file = used.data / name
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    file.symlink_to(tmp_path / "elsewhere")
    os.lchown(file, ANONYMOUS, ANONYMOUS)
    for words in COMMANDS:
        done = used.run(*words, cwd=tmp_path)
        assert done.returncode == 2, done
        assert done.stderr.startswith(f"petstore: Refusing to open {file}: it belongs to nobody."), done
        assert f"`chown -R root {used.data}` as root" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.zip", "data"]


@only_as_root
def test_a_link_of_another_user_to_a_directory_is_refused(used: Commands, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(used.data)
    used.text("keys", "list", "--data", str(tmp_path / "link"))
    os.lchown(tmp_path / "link", ANONYMOUS, ANONYMOUS)
    assert "belongs to nobody" in used.fails_in_one_line("keys", "list", "--data", str(tmp_path / "link"))


@only_as_root
def test_root_may_create_the_link_to_a_directory() -> None:
    with directory_of_nobody() as directory:
        (directory / "data").mkdir(mode=0o700)
        os.chown(directory / "data", ANONYMOUS, ANONYMOUS)
        (directory / "link").symlink_to("data")
        assert as_nobody(lambda: data_dir.secure(directory / "link")) == "None"


@only_as_root
@pytest.mark.parametrize(
    "how", ["owned by another user", "writable by every user", "with a link to it", "behind a link"]
)
def test_a_directory_that_another_user_could_replace_is_refused(used: Commands, tmp_path: Path, how: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    data = other / "data"
    if how == "with a link to it":
        data.symlink_to(used.data)
    else:
        used.data.rename(data)
    if how == "behind a link":
        data = tmp_path / "data"
        data.symlink_to(other / "data")
    used.text("keys", "list", "--data", str(data))
    if how == "writable by every user":
        other.chmod(0o777)
    else:
        os.chown(other, ANONYMOUS, ANONYMOUS)
    assert "could replace data; choose another place" in used.fails_in_one_line("keys", "list", "--data", str(data))
    other.chmod(0o1777)  # in a directory with the sticky bit, users cannot rename the files of others
    os.chown(other, 0, 0)
    used.text("keys", "list", "--data", str(data))


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o720])
def test_the_permission_to_write_is_taken_away_from_others(used: Commands, mode: int) -> None:
    used.data.chmod(mode)
    assert "chmod -R go=" in used.run("check").stdout
    assert stat.S_IMODE(used.data.stat().st_mode) == mode, "petstore check changes nothing"
    used.text("keys", "list")
    assert stat.S_IMODE(used.data.stat().st_mode) == mode & ~0o022


@only_as_root
def test_what_others_created_while_they_could_is_refused() -> None:
    with directory_of_nobody() as directory:
        os.chown(directory, 0, 0)
        directory.chmod(0o777)
        assert as_nobody((directory / "lock").touch) == "None"
        with pytest.raises(OperatorError, match="lock: it belongs to nobody"):
            data_dir.secure(directory)
        (directory / "lock").unlink()
        data_dir.secure(directory)
        assert as_nobody((directory / "lock").touch).startswith("PermissionError")


def test_a_file_system_that_ignores_the_change_is_refused(used: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    used.data.chmod(0o777)
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    with pytest.raises(OperatorError, match="chmod go-w"):
        data_dir.secure(used.data)


def test_a_file_is_replaced_in_the_directory_that_was_named_at_the_start(tmp_path: Path) -> None:
    for name in ("named", "other"):
        (tmp_path / name).mkdir()
    link = tmp_path / "link"
    link.symlink_to("named")
    with replacing(link / "file") as file:
        link.unlink()
        link.symlink_to("other")
        file.write("new")
    assert (tmp_path / "named/file").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "named/file").stat().st_mode) == 0o600
    assert list((tmp_path / "other").iterdir()) == [] and len(list((tmp_path / "named").iterdir())) == 1
