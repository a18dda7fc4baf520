"""Commands that are stopped with Ctrl-Z in a shell on a terminal, next to a running service."""

import random
import shlex
import time
from pathlib import Path

import httpx
import pytest

from harness.commands import Commands
from harness.served import is_running, wait_for
from harness.servers import PETSTORE, Server
from harness.shells import CTRL_Z, Shell, is_stopped, shell

ANIMALS, STOPS = 100_000, 10
backends = pytest.mark.on("sqlite-lmdb", "postgres-redis")


def written(place: Path, count: int) -> Path:
    place.write_text("".join(f'{{"name": "Pet {n}", "categoryId": {n}}}\n' for n in range(count)))
    return place


def stop(terminal: Shell, pid: int) -> None:
    """Presses Ctrl-Z until the command stops, because Python misses a signal right before a call that blocks."""
    while not is_stopped(pid):
        terminal.type(CTRL_Z)
        wait_for(lambda: is_stopped(pid), 1.0)


@backends
def test_creates_continue_while_an_import_is_stopped_with_ctrl_z(fresh: Server, tmp_path: Path) -> None:
    commands, key = Commands(fresh), fresh.key()
    file = written(tmp_path / "animals.jsonl", ANIMALS)
    waits = random.Random(1)
    with shell(commands.variables) as terminal, httpx.Client(headers=key.headers, timeout=60) as client:
        pid = terminal.run(shlex.join([*PETSTORE, "pets", "import", str(file)]))
        assert wait_for(lambda: client.get(fresh.url("/pets?limit=1")).json()), terminal.printed
        for number in range(STOPS):
            time.sleep(waits.uniform(0, 0.1))
            stop(terminal, pid)
            added = client.post(fresh.url("/pets"), json={"name": f"During stop {number}", "categoryId": 1})
            assert added.status_code == 201
            terminal.type("fg\n")
        assert wait_for(lambda: not is_running(pid)), terminal.printed
    (run,) = commands.json("pets", "imports")
    assert (run["state"], run["added"]) == ("done", ANIMALS)


@pytest.mark.on("sqlite-lmdb")
def test_ctrl_z_stops_a_command_at_its_prompt(fresh: Server) -> None:
    key = fresh.key()
    commands = Commands(fresh)
    with shell(commands.variables) as terminal:
        pid = terminal.run(shlex.join([*PETSTORE, "keys", "revoke", key.id]))
        assert wait_for(lambda: "[y/N]" in terminal.printed), terminal.printed
        stop(terminal, pid)
        terminal.type("fg\ny\n")
        assert wait_for(lambda: not is_running(pid)), terminal.printed
    assert commands.json("keys", "show", key.id)["state"] == "revoked"
