"""Kills the whole service with `kill -9` during concurrent create requests, a thousand times on the same data.

After every tenth kill, the service is also killed while it starts. After each kill, `integrity_check` must succeed, and
every acknowledged animal must exist. At the end, no animal may exist twice or without having been sent. The median
start takes under a second. The gate must never have counted fewer requests than were acknowledged.
"""

import http.client
import json
import os
import random
import socket
import statistics
import threading
import time
from collections import Counter
from pathlib import Path

import apsw

from harness.claims import Broken, hold, progress, temporary_directory
from harness.servers import Key, Server
from petstore.plans import Limits
from prove.proof import Figures, Scale

CLIENTS = 6
PLENTY = Limits(10**9, 10**9)
READY_SECONDS = 1.0
HANGS = 10.0


class Creator(threading.Thread):
    """Adds animals until the connection breaks, and records what it sent and what was acknowledged."""

    def __init__(self, server: Server, key: Key, prefix: str) -> None:
        super().__init__(daemon=True)
        self._server, self._key, self._prefix = server, key, prefix
        self.sent: set[str] = set()
        self.acknowledged: dict[int, str] = {}
        self.wrong: list[int] = []
        self.start()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=HANGS)
        try:
            while not self.wrong:
                name = f"{self._prefix}.{len(self.sent)}"
                self.sent.add(name)
                body = json.dumps({"name": name, "categoryId": 1})
                connection.request("POST", "/v1/pets", body, self._key.headers)
                answer = connection.getresponse()
                content = answer.read()
                if answer.status == 201:
                    self.acknowledged[json.loads(content)["id"]] = name
                else:
                    self.wrong.append(answer.status)
        except (OSError, http.client.HTTPException):
            pass  # the service was killed
        finally:
            connection.close()


def prove(scale: Scale) -> Figures:
    dice = random.Random(9)
    sent: set[str] = set()
    acknowledged: dict[int, str] = {}
    ready: list[tuple[float, float]] = []  # elapsed seconds and CPU seconds
    with temporary_directory() as data:
        server = Server(data / "data", workers=2)
        try:
            server.start()
            key = server.key(limits=PLENTY)
            for kill in range(scale.kills):
                creators = [Creator(server, key, f"{kill}.{number}") for number in range(CLIENTS)]
                time.sleep(dice.uniform(0.02, 0.15))
                server.kill()
                new: dict[int, str] = {}
                for creator in creators:
                    creator.join(timeout=HANGS)
                    hold(not creator.wrong, f"no create request is refused: {creator.wrong}")
                    sent |= creator.sent
                    new |= creator.acknowledged
                acknowledged |= new
                if kill % 10 == 9:
                    server.start(wait=False)
                    time.sleep(dice.uniform(0.0, 0.6))
                    server.kill()
                if scale.plant and new:
                    _lose(server.data / "live.db", max(new))
                ready.append(_seconds_until_ready(server))
                _look(server.data / "live.db", new)
                _counted(server, key, len(acknowledged))
                if kill % 100 == 99:
                    progress(f"kills: {kill + 1:,} of {scale.kills:,}, {len(acknowledged):,} animals acknowledged")
            hold(server.stop() == 0, "the service shuts down cleanly at the end")
            _look(server.data / "live.db", acknowledged)
            stored = Counter(name for _, name in _animals(server.data / "live.db"))
        finally:
            server.kill()
    twice = [name for name, times in stored.items() if times > 1]
    hold(not twice, f"{len(twice)} animals exist twice")
    hold(set(stored) <= sent, f"{len(set(stored) - sent)} animals exist that nobody sent")
    clock, cpu = zip(*ready, strict=True)
    if scale.full:  # check only the median of the elapsed time, because other work slows single starts
        hold(statistics.median(clock) <= READY_SECONDS, f"the median start took {statistics.median(clock):.2f} s")
        hold(max(cpu) <= READY_SECONDS, f"a start took {max(cpu):.2f} s of CPU time")
    return {"kills": scale.kills, "acknowledged": len(acknowledged), "lost": 0, "twice": 0, "phantoms": 0,
            "integrity_check": "ok each time", "ready in s (median)": round(statistics.median(clock), 2),
            "of 100 ready within 1 s": round(100 * sum(s <= READY_SECONDS for s in clock) / len(clock), 1),
            "slowest s": round(max(clock), 2), "most CPU s": round(max(cpu), 2)}  # fmt: skip


def _seconds_until_ready(server: Server) -> tuple[float, float]:
    """Starts the service. Returns the elapsed and CPU seconds until /readyz returns 200. Raises Broken if it hangs."""
    began = time.monotonic()
    server.start(wait=False)
    while time.monotonic() - began < HANGS:
        try:
            with socket.create_connection(("127.0.0.1", server.port), timeout=HANGS) as connection:
                connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                if connection.recv(65536).startswith(b"HTTP/1.1 200"):
                    return time.monotonic() - began, _cpu_seconds(server)
        except OSError:
            pass
        time.sleep(0.005)
    raise Broken(f"not ready after {HANGS} s; the log ends with {server.log.read_text()[-300:]}")


def _cpu_seconds(server: Server) -> float:
    """Returns the CPU time that the supervisor and its workers have used so far."""
    assert server.process is not None
    supervisor = server.process.pid
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    ticks = 0
    for pid in [str(supervisor), *children]:
        ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _look(path: Path, acknowledged: dict[int, str]) -> None:
    """Checks the data while the service is running. Raises Broken."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(5_000)
        hold(connection.pragma("integrity_check") == "ok", "integrity_check is ok")
        wanted = json.dumps(list(acknowledged))
        sql = "SELECT id, name FROM pets WHERE id IN (SELECT value FROM json_each(?))"
        found: dict[object, object] = {row[0]: row[1] for row in connection.execute(sql, (wanted,))}
        lost = {name for pet_id, name in acknowledged.items() if found.get(pet_id) != name}
        hold(not lost, f"{len(lost)} of {len(acknowledged)} acknowledged animals are lost")
    finally:
        connection.close()


def _animals(path: Path) -> list[tuple[int, str]]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        return [(int(pet_id), str(name)) for pet_id, name in connection.execute("SELECT id, name FROM pets")]
    finally:
        connection.close()


def _counted(server: Server, key: Key, answered: int) -> None:
    """Raises Broken if the gate counted fewer requests than were answered."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANGS)
    connection.request("GET", "/v1/pets?limit=1", headers=key.headers)
    used = PLENTY.per_day - int(connection.getresponse().headers["x-ratelimit-remaining"])
    connection.close()
    hold(used >= answered, f"the gate counted {used} requests, but {answered} were answered")


def _lose(path: Path, pet_id: int) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM pets WHERE id = ?", (pet_id,))
    connection.close()
