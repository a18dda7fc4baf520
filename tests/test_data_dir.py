"""Who may work on a data folder, and when: services and commands together, a restore alone."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from petstore import data_dir as folder
from petstore.gate import recovery
from tests.backends import free_port
from tests.commands import Commands
from tests.served import wait_for
from tests.servers import Server, serving


@pytest.fixture
def used(tmp_path: Path) -> Commands:
    commands = Commands(Server(tmp_path / "data"))
    commands.text("pets", "list")
    return commands


def test_restore_is_refused_while_a_service_or_a_command_works_on_the_folder(tmp_path: Path) -> None:
    with serving(tmp_path / "data", workers=2) as server:
        commands = Commands(server)
        commands.text("pets", "add", "--name", "Rex", "--category-id", "1")
        commands.text("backup", str(tmp_path / "backup.zip"))
        assert "stop it first" in commands.fails_in_one_line("restore", str(tmp_path / "backup.zip"), "--force")
        server.kill()
    words = ("restore", str(tmp_path / "backup.zip"), "--force")
    assert wait_for(lambda: commands.run(*words).returncode == 0)  # a killed worker may take a moment to be gone
    hold = folder.Hold(server.data)
    commands.fails_in_one_line("restore", str(tmp_path / "backup.zip"), "--force")
    hold.release()
    commands.text("restore", str(tmp_path / "backup.zip"), "--force")


def test_nobody_starts_while_a_restore_or_a_copy_is_under_way(
    used: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "PATIENCE", 0.1)
    with folder.claimed(used.data):
        for words in (["serve", "--port", str(free_port())], ["pets", "list"], ["backup", str(tmp_path / "x.zip")]):
            assert "a restore or a copy is under way" in used.fails_in_one_line(*words)


def test_whoever_comes_waits_a_moment_for_who_has_the_folder_alone(used: Commands) -> None:
    assert not folder.in_use(used.data)
    claim = folder.claimed(used.data)
    claim.__enter__()
    assert folder.in_use(used.data)
    threading.Timer(0.2, claim.__exit__, (None, None, None)).start()
    folder.Hold(used.data).release()
    assert not folder.in_use(used.data)
    assert not folder.in_use(used.data / "nowhere")


def test_the_first_command_after_a_power_cut_does_not_believe_the_gate(used: Commands) -> None:
    (used.data / "gate.mdb-boot").write_text("another boot")
    used.text("keys", "list")
    assert len(list(used.data.glob("gate.mdb.damaged-*"))) == 1
    used.text("keys", "list")
    assert len(list(used.data.glob("gate.mdb.damaged-*"))) == 1


def test_whoever_cannot_tell_the_boot_works_on_a_gate_together_with_those_who_can(
    used: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a service in a sandbox that hides it, and commands outside."""
    hold = folder.Hold(used.data)
    for seen in (recovery.BOOT_ID_FILE, Path("nowhere"), recovery.BOOT_ID_FILE, Path("nowhere")):
        monkeypatch.setattr(recovery, "BOOT_ID_FILE", seen)
        used.text("keys", "list")
        assert (used.data / "gate.mdb-boot").read_text() != recovery.SYNCED
    hold.release()
    assert list(used.data.glob("gate.mdb.damaged-*")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_command_of_root_does_not_lock_the_services_user_out(used: Commands) -> None:
    for path in (used.data, *used.data.iterdir()):
        shutil.chown(path, "nobody", "nogroup")
    (used.data / folder.LOCK).unlink()
    used.text("pets", "list")
    assert (used.data / folder.LOCK).owner() == "nobody"
