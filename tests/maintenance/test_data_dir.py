"""The locks of the data directory: services and commands share one, a restore and a copy exclude all others."""

import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from harness.backends import free_port
from harness.commands import Commands
from harness.served import wait_for
from harness.servers import PETSTORE, Server, serving
from petstore import data_dir
from petstore.gate import recovery


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
    assert wait_for(lambda: commands.run(*words).returncode == 0)  # a killed worker may need a moment to end
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
        for command in started:  # each waits LOCK_TIMEOUT, all at the same time
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
    """As a service in a sandbox that hides the id, and commands outside of it."""
    with data_dir.shared_lock(used.data):
        for seen in (recovery.BOOT_ID_FILE, Path("nowhere"), recovery.BOOT_ID_FILE, Path("nowhere")):
            monkeypatch.setattr(recovery, "BOOT_ID_FILE", seen)
            used.text("keys", "list")
            assert (used.data / "gate.mdb-boot").read_text() != recovery.SYNCED
    assert list(used.data.glob("gate.mdb.damaged-*")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_command_of_root_leaves_the_lock_to_the_owner(used: Commands) -> None:
    for path in (used.data, *used.data.iterdir()):
        shutil.chown(path, "nobody", "nogroup")
    (used.data / data_dir.LOCK).unlink()
    used.text("pets", "list")
    assert (used.data / data_dir.LOCK).owner() == "nobody"
