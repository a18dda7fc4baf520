"""Imports a large file while clients create animals, and kills the importing processes again and again.

No create request is refused or takes two seconds. Two processes import the same file together, and each is killed at a
random moment. After each kill, running the same command resumes the import immediately. At the end, the catalogue has
exactly the file's animals, and after `undo-import` it no longer has any. The proof runs on SQLite with LMDB, and on
PostgreSQL with Redis.
"""

import http.client
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from harness.claims import hold, progress, temporary_directory
from harness.servers import PETSTORE, Key, Server, started
from petstore.backends import Backends
from petstore.plans import Limits
from petstore.store.database import Tx
from petstore.store.freshness import NOTHING
from prove.proof import Figures, Parts, Scale

CLIENTS = 4
PAUSE = 0.01  # seconds between two create requests of a client
PLENTY = Limits(10**9, 10**9)
WAIT_MAX = 2.0
PAGE = 10_000
# Exit codes of an import. DONE_BEFORE means that another process had finished the import before this one began.
DONE, DONE_BEFORE, KILLED = 0, 2, -signal.SIGKILL
# Planted fault: the last chunk is left as if its animals had been committed without its counter and its row.
_LAST_CHUNK = "first_id = (SELECT max(first_id) FROM {0}.import_chunks)"
FORGET = (
    "UPDATE {0}.imports SET added = (SELECT place FROM {0}.import_chunks WHERE " + _LAST_CHUNK + ")"
    " WHERE id = (SELECT import_id FROM {0}.import_chunks WHERE " + _LAST_CHUNK + ")",
    "DELETE FROM {0}.import_chunks WHERE " + _LAST_CHUNK,
)


class Creator(threading.Thread):
    """Creates animals one after another on its own connection until it is stopped."""

    def __init__(self, server: Server, key: Key, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._server, self._key, self._stopped = server, key, stop
        self.ids: list[int] = []
        self.refused: list[int] = []
        self.longest = 0.0
        self.start()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=30)
        body = json.dumps({"name": "created", "categoryId": 1})
        while not self._stopped.wait(PAUSE):
            began = time.monotonic()
            connection.request("POST", "/v1/pets", body, self._key.headers)
            response = connection.getresponse()
            content = response.read()
            self.longest = max(self.longest, time.monotonic() - began)
            if response.status == 201:
                self.ids.append(json.loads(content)["id"])
            else:
                self.refused.append(response.status)
        connection.close()


class Importing:
    """Runs the commands of operators who import the same file."""

    def __init__(self, server: Server, file: Path) -> None:
        self._server, self._file = server, file

    def command(self, *words: str) -> "subprocess.Popen[str]":
        variables = {**os.environ, **self._server.where}
        return subprocess.Popen(
            [*PETSTORE, "pets", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables
        )

    def run(self, *words: str) -> Any:
        """Returns the JSON output of a command. Raises Broken if it fails."""
        command = self.command(*words, "--json")
        printed, message = command.communicate(timeout=1800)
        hold(command.returncode == 0, f"{words[0]} succeeds: {message[-500:]}")
        return json.loads(printed)

    @contextmanager
    def commands(self, count: int) -> Iterator[list["subprocess.Popen[str]"]]:
        """Starts this many imports of the file, and kills those that are still running at the end."""
        commands = [self.command("import", str(self._file)) for _ in range(count)]
        try:
            yield commands
        finally:
            for command in commands:
                if command.returncode is None:
                    command.kill()
                    command.communicate(timeout=60)

    def kill(self, *after: float) -> bool:
        """Starts one import for each number in `after`, and kills it after that many seconds.

        Returns whether the import is still unfinished.
        """
        began = time.monotonic()
        with self.commands(len(after)) as commands:
            for seconds, command in sorted(zip(after, commands, strict=True), key=lambda each: each[0]):
                try:
                    command.wait(timeout=max(0.0, began + seconds - time.monotonic()))
                except subprocess.TimeoutExpired:
                    command.kill()
                _, message = command.communicate(timeout=60)
                _check_end(command, message, DONE, DONE_BEFORE, KILLED)
        return self.states()[:1] != ["done"]

    def finish(self) -> None:
        """Lets two processes finish the import together. Raises Broken."""
        with self.commands(2) as commands:
            for command in commands:
                _, message = command.communicate(timeout=1800)
                _check_end(command, message, DONE, DONE_BEFORE)
        hold(self.states()[:1] == ["done"], "two imports finish together")

    def states(self) -> list[str]:
        """Returns the states of the imports, newest first."""
        return [each["state"] for each in self.run("imports")]


def _check_end(command: "subprocess.Popen[str]", message: str, *codes: int) -> None:
    """Raises Broken unless the command's exit code is one of `codes`."""
    hold(command.returncode in codes, f"an import exits with {codes}, not {command.returncode}: {message[-500:]}")


def prove(scale: Scale) -> Figures:
    figures: Figures = {"animals": scale.imported, "kills": 2 * scale.import_kills}
    parts = Parts(scale)
    with temporary_directory() as data:
        file = data / "animals.csv"
        with file.open("w") as rows:
            rows.write("name,categoryId\n")
            rows.writelines(f"Imported {number},{number}\n" for number in range(scale.imported))
        with parts.part():
            figures |= _imported(scale, data / "embedded", "own", file, "SQLite")
        with parts.part():
            figures |= _imported(scale, data / "cluster", "cluster", file, "PostgreSQL")
    parts.judge()
    return {**figures, "animals missing or twice": 0}


def _imported(scale: Scale, data: Path, host: Literal["own", "cluster"], file: Path, where: str) -> Figures:
    """Imports the file on one pair of backends while clients create animals. Raises Broken."""
    data.mkdir()
    with started(Server(data / "data", host, workers=2)) as server:
        stop, key = threading.Event(), server.key(limits=PLENTY)
        creators = [Creator(server, key, stop) for _ in range(CLIENTS)]
        try:
            figures = _killed(scale, server, Importing(server, file), where)
        finally:
            stop.set()
            for creator in creators:
                creator.join(timeout=60)
        created = [pet_id for creator in creators for pet_id in creator.ids]
        hold(
            sorted(created) == [pet_id for pet_id, _ in _animals(server)],
            "each created animal exists once, and no other",
        )
        refused = [status for creator in creators for status in creator.refused]
        longest = max(creator.longest for creator in creators)
        if scale.full:
            hold(not refused, f"no create request is refused: {refused[:5]}")
            hold(longest < WAIT_MAX, f"no create request takes {WAIT_MAX} s: the slowest took {longest:.2f} s")
    return {
        **figures,
        f"creates during the import ({where})": len(created),
        f"longest create ({where})": f"{longest:.2f} s",
    }


def _killed(scale: Scale, server: Server, importing: Importing, where: str) -> Figures:
    dice = random.Random(14)
    began = time.monotonic()
    importing.finish()
    seconds = time.monotonic() - began
    began = time.monotonic()
    _check_and_undo(scale, server, importing)
    undone = time.monotonic() - began
    for number in range(scale.import_kills):
        while not importing.kill(*(dice.uniform(0.0, seconds) for _ in range(2))):
            _check_and_undo(scale, server, importing)  # the import was finished before it could be killed
        _plant(scale, server)
        progress(f"{where}: {number + 1} kills, import {importing.states()[0]}")
    importing.finish()
    _check_and_undo(scale, server, importing)
    return {f"an import ({where})": f"{seconds:.1f} s", f"check and undo ({where})": f"{undone:.1f} s"}


def _check_and_undo(scale: Scale, server: Server, importing: Importing) -> None:
    """Raises Broken unless an import has added each animal once and in order, and undoing it removes them all."""
    names = [name for _, name in _animals(server) if name != "created"]
    wanted = [f"Imported {number}" for number in range(scale.imported)]
    hold(len(names) == len(wanted), f"an import adds {len(wanted):,} animals, not {len(names):,}")
    hold(names == wanted, "an import adds the animals in the file's order")
    _plant(scale, server)
    (newest, *others) = importing.run("imports")
    hold(newest["state"] == "done" and not {each["state"] for each in others} - {"undone"}, "one import is done")
    importing.run("undo-import", newest["id"], "--yes")
    left = sum(name != "created" for _, name in _animals(server))
    hold(left == 0, f"undoing an import removes all of its animals, but {left:,} remain")


def _plant(scale: Scale, server: Server) -> None:
    async def forget(backends: Backends) -> None:
        database = backends.stores["live"].database

        async def transaction(tx: Tx) -> None:
            for each in FORGET:
                await tx.execute(each.format(database.schema))

        await database.write(transaction, NOTHING)

    if scale.plant:
        server.act(forget)


def _animals(server: Server) -> list[tuple[int, str]]:
    """Returns the ids and names of all animals."""

    async def read(backends: Backends) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        more = True
        while more:
            after = found[-1][0] if found else 0
            page, more = await backends.stores["live"].pets.page(after=after, limit=PAGE, status=None)
            found += [(pet.id, pet.name) for pet in page]
        return found

    return server.act(read)
