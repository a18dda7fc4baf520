"""Kills all processes or one worker with `kill -9` under load, repeatedly and sometimes during a flush.

At the end, the usage of each key and operation must equal the gate's admissions. It must be at least the number of
responses and at most the number of requests. The sum for each key must equal the count of its day window in the gate.
The proof runs on SQLite with LMDB, and on PostgreSQL with Redis.
"""

import http.client
import itertools
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Literal

from harness.claims import hold, progress, temporary_directory
from harness.servers import Key, Server
from petstore.backends import Backends
from petstore.operations import COUNTED, OperationName
from petstore.plans import Limits
from petstore.store.database import Tx
from petstore.store.freshness import NOTHING
from petstore.usage import DAY
from prove.proof import Figures, Parts, Scale

CLIENTS = 6
PLENTY = Limits(10**9, 10**9)
HANGS = 10.0
FLUSH_SECONDS = 5.2  # long enough for every worker to write its usage once
REQUESTS: tuple[tuple[OperationName, str, str], ...] = (
    ("listPets", "GET", "/v1/pets?limit=1"),
    ("getPet", "GET", "/v1/pets/1"),
    ("getPet", "GET", "/v1/pets/999999999"),  # 404, because errors are also admitted
    ("createPet", "POST", "/v1/pets"),
    ("other", "DELETE", "/v1/pets"),
)

Counts = Counter[tuple[str, OperationName]]  # by key id and operation


class Caller(threading.Thread):
    """Sends requests with one key until the connection breaks, and counts requests and responses."""

    def __init__(self, server: Server, key: Key) -> None:
        super().__init__(daemon=True)
        self._server, self._key = server, key
        self.sent: Counts = Counter()
        self.answered: Counts = Counter()
        self.wrong: list[int] = []
        self.start()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=HANGS)
        body = json.dumps({"name": "Rex", "categoryId": 1})
        try:
            for operation, method, path in itertools.cycle(REQUESTS):
                self.sent[self._key.id, operation] += 1
                connection.request(method, path, body if method == "POST" else None, self._key.headers)
                response = connection.getresponse()
                response.read()
                if response.status in (200, 201, 404, 405):
                    self.answered[self._key.id, operation] += 1
                elif response.status != 503:  # a busy machine can send a 503 before or after admitting a request
                    self.wrong.append(response.status)
                    return
        except (OSError, http.client.HTTPException):
            pass  # the service was killed
        finally:
            connection.close()


def prove(scale: Scale) -> Figures:
    figures: Figures = {"kills": 2 * scale.usage_kills}
    parts = Parts(scale)
    with temporary_directory() as data:
        with parts.part():
            figures["admissions on SQLite and LMDB"] = _killed(scale, data / "embedded", "own")
        with parts.part():
            figures["admissions on PostgreSQL and Redis"] = _killed(scale, data / "cluster", "cluster")
    parts.judge()
    return {**figures, "difference to the usage": 0}


def _killed(scale: Scale, data: Path, backends: Literal["own", "cluster"]) -> int:
    """Kills the service under load. Returns the number of admissions. Raises Broken."""
    dice = random.Random(21)
    sent: Counts = Counter()
    answered: Counts = Counter()
    data.mkdir()
    # With `degrade`, a node that waits too long for Redis would use local counters, so Redis would miss admissions.
    server = Server(data / "data", backends, "--gate-outage", "refuse", workers=2)
    try:
        server.start()
        keys = [server.key(limits=PLENTY) for _ in range(CLIENTS)]
        for kill in range(scale.usage_kills):
            callers = [Caller(server, key) for key in keys]
            time.sleep(FLUSH_SECONDS if kill % 20 == 19 else dice.uniform(0.02, 0.3))
            if kill % 3 == 1:
                _kill_a_worker(server, dice)
                time.sleep(dice.uniform(0.0, 0.2))
            server.kill()
            for caller in callers:
                caller.join(timeout=HANGS)
                hold(not caller.wrong, f"every request gets an expected status: {caller.wrong}")
                sent += caller.sent
                answered += caller.answered
            if scale.plant:
                server.act(_forget_what_was_counted)
            server.start()
            if kill % 50 == 49:
                progress(f"usage_kills on {backends}: {kill + 1} of {scale.usage_kills}, {answered.total():,} answered")
        hold(server.stop() == 0, "the service shuts down cleanly at the end")
        return _compare(server, keys, sent, answered)
    finally:
        server.kill()


def _kill_a_worker(server: Server, dice: random.Random) -> None:
    assert server.process is not None
    main = server.process.pid
    workers = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    os.kill(int(dice.choice(workers)), signal.SIGKILL)


def _compare(server: Server, keys: list[Key], sent: Counts, answered: Counts) -> int:
    """Compares usage, admissions and windows. Returns the number of admissions. Raises Broken."""
    ids = [key.id for key in keys]
    days = [(int(time.time()) // DAY - back) * DAY for back in (0, 1)]

    async def read(backends: Backends) -> tuple[Counts, Counts, Counter[str]]:
        admitted: Counts = Counter()
        async for totals in backends.gate.admissions(ids):
            for total in totals:
                admitted[total.key_id, total.operation] += total.total
        used: Counts = Counter()
        for operation in COUNTED:
            for row in await backends.stores["live"].usage.of_keys(ids, DAY, days, operation):
                if row.measure == "admitted":
                    used[row.key_id, operation] += row.requests
        windows = await backends.gate.windows(ids)
        return admitted, used, Counter({key_id: w.day_used for key_id, w in zip(ids, windows, strict=True)})

    admitted, used, of_day = server.act(read)
    for cell in sent:
        about = f"{cell[0]}, {cell[1]}: sent {sent[cell]}, answered {answered[cell]}"
        hold(used[cell] == admitted[cell], f"{about}; usage {used[cell]}, admitted {admitted[cell]}")
        hold(answered[cell] <= admitted[cell] <= sent[cell], f"{about}; admitted {admitted[cell]}")
    for key_id in ids:
        counted = sum(admitted[key_id, operation] for operation in COUNTED)
        hold(counted == of_day[key_id], f"{key_id}: totals {counted}, day window {of_day[key_id]}")
    return admitted.total()


async def _forget_what_was_counted(backends: Backends) -> None:
    """Planted fault: the store forgets which admissions it has already added to the usage."""
    database = backends.stores["live"].database

    async def transaction(tx: Tx) -> None:
        await tx.execute(f"DELETE FROM {database.schema}.counted_admissions")

    await database.write(transaction, NOTHING)
