"""The service's user puts links into the data directory, where root then runs commands.

Each link is also tested as if it had been created after the directory was checked. Directories with other owners or
that other users can write to are tested too. Figures: the commands that root ran, and the outside files that changed.
"""

import contextlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.claims import Skipped, hold, temporary_directory
from harness.commands import Commands
from harness.servers import Server
from harness.watched_files import NOBODY
from prove.attacks.altered import program
from prove.proof import Figures, Scale

TIMEOUT = 60
LIST, ADD, SERVE = ("keys", "list"), ("keys", "create", "--plan", "free"), ("serve",)
BACKUP, RESTORE, EXPORT = ("backup", "made.zip", "--force"), ("restore", "backup.zip", "--force"), ("pets", "export")
# For each link: its name in the data directory, whether it points to a directory, and a command that would follow it.
LINKS = (
    ("lock", False, LIST), ("live.db", False, ADD), ("live.db-turn", False, ADD), ("live.db-wal", False, ADD),
    ("gate.mdb", False, LIST), ("gate.mdb-boot", False, LIST), ("last-backup", False, BACKUP), ("metrics", True, SERVE),
    ("metrics/lock", False, SERVE), ("metrics/counter_0.db", False, SERVE), ("restore", True, LIST),
    ("restore.part", True, RESTORE),
)  # fmt: skip
# LMDB opens this file and would follow the link, so only the check of the directory prevents that.
ONLY_CHECKED = (("gate.mdb-lock", False, LIST),)
COMMANDS = (LIST, ADD, BACKUP, RESTORE, SERVE)


def prove(scale: Scale) -> Figures:
    if os.geteuid() != 0:
        raise Skipped("only root can work in another user's directory")
    ran = 0
    with temporary_directory() as place:
        place.chmod(0o755)
        for words in _programs(scale):
            for name, leads_to_directory, command in _links(scale, words):
                for each in COMMANDS if scale.full else (command,):
                    with _precious(place, leads_to_directory) as precious, _data(place) as data:
                        link = data / name
                        link.parent.mkdir(exist_ok=True)
                        link.unlink(missing_ok=True)
                        link.symlink_to(precious)
                        _run(words, place, data, each)
                        ran += 1
            with _precious(place, False) as precious, _data(place) as data:
                (data / "lock").unlink()
                (data / "lock").hardlink_to(precious)
                _run(words, place, data, LIST)
            with _precious(place, False) as precious, _data(place) as data:
                (place / "pets.csv.part").symlink_to(precious)
                hold(_run(words, place, data, (*EXPORT, str(place / "pets.csv"))) == 0, "the export succeeds")
                hold(not (place / "pets.csv").is_symlink(), "the export is a new file")
                (place / "pets.csv.part").unlink()
                (place / "pets.csv").unlink()
        refused = sum(_owned_by_another(place, command) for command in COMMANDS[: None if scale.full else 2])
        for mode in (0o777, 0o770, 0o702):
            _writable_by_others(place, mode)
    return {"commands of root": ran, "files that differ": 0, "refused for their owner": refused}


def _programs(scale: Scale) -> list[list[str]]:
    return [program("links_followed")] if scale.plant else [program(), program("links_after_the_check")]


def _links(scale: Scale, words: list[str]) -> tuple[tuple[str, bool, tuple[str, ...]], ...]:
    """Returns the links to test. The check treats all alike, so the short scale tests only the first and the last."""
    if words != program():
        return LINKS
    return LINKS + ONLY_CHECKED if scale.full else LINKS[:1] + ONLY_CHECKED


def _run(words: list[str], place: Path, data: Path, command: tuple[str, ...]) -> int:
    """Runs a command and returns its exit code. Stops the service if the command starts one."""
    if command == SERVE:
        server = Server(data)
        server.program = words
        try:
            server.start()
            return server.stop()
        except AssertionError:  # the service refused to start
            return 2
        finally:
            server.kill()
    variables = {**os.environ, "PETSTORE_DATA": str(data)}
    line = [sys.executable, "-m", *words, *command]
    variables["PYTHONPATH"] = str(Path(__file__).parents[2])
    return subprocess.run(line, cwd=place, env=variables, capture_output=True, timeout=TIMEOUT).returncode


@contextlib.contextmanager
def _precious(place: Path, is_directory: bool) -> Iterator[Path]:
    """Creates a file owned by root, or a directory of such files. Raises Broken if anything has changed at the end."""
    precious = place / "precious"
    if is_directory:
        for directory in (precious, precious / "new", precious / "old"):
            directory.mkdir(mode=0o700)
        for name in ("members", "new/live.db", "counter_0.db", "file"):
            (precious / name).write_text("live.db")
    else:
        precious.write_text("precious")
        precious.chmod(0o600)
    before = _state(precious)
    try:
        yield precious
        after = _state(precious)
        changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        hold(not changed, f"a command that root ran changed {changed} outside the data directory")
    finally:
        shutil.rmtree(precious) if is_directory else precious.unlink()


def _state(path: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for each in (path, *path.rglob("*")):
        status = each.lstat()
        content = each.read_bytes() if each.is_file() else b""
        found[str(each.relative_to(path.parent))] = (
            status.st_uid, status.st_gid, status.st_mode, status.st_mtime_ns, content
        )  # fmt: skip
    return found


@contextlib.contextmanager
def _data(place: Path) -> Iterator[Path]:
    """Creates a data directory with an animal, owned by the user nobody."""
    original, data = place / "original", place / "data"
    if not original.exists():
        commands = Commands(Server(original))
        commands.text("pets", "add", "--name", "Rex", "--category-id", "1")
        commands.text("backup", str(place / "backup.zip"))
    shutil.copytree(original, data)
    for path in (data, *data.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    try:
        yield data
    finally:
        shutil.rmtree(data)


def _owned_by_another(place: Path, command: tuple[str, ...]) -> bool:
    with _data(place) as data:
        for path in data.iterdir():
            os.chown(path, 0, 0)
        before = _state(data)
        hold(_run(program(), place, data, command) == 2, f"{command} is refused if another user owns the files")
        hold(_state(data) == before, f"{command} does not change these files")
    return True


def _writable_by_others(place: Path, mode: int) -> None:
    with _data(place) as data:
        data.chmod(mode)
        hold(_run(program(), place, data, LIST) == 0, "root removes the write permission and continues")
        left = stat.S_IMODE(data.stat().st_mode)
        hold(left == mode & ~0o022, f"the mode {mode:o} becomes {left:o}")
