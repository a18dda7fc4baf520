"""Upgrades from the current code to the next version, which is the current code with one more migration.

Each upgrade migrates the schema while clients add animals with idempotency keys. Afterwards, every animal exists once,
with the acknowledged id. The upgrade is a restart, a second node on the same data, or a reload. Clients retry only
during a restart, because a second node and a reload drop no requests.
"""

import http.client
import itertools
import json
import shutil
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Literal, NamedTuple

from harness.backends import Postgres, Redis, shared
from harness.claims import hold, progress, temporary_directory
from harness.served import Served, wait_for
from harness.servers import PETSTORE
from harness.stores import StorePlace
from petstore.web.requests import write_cursor
from prove.next_version import HARMFUL, HARMLESS, add_migration, copy_code
from prove.proof import Figures, Parts, Scale
from prove.reloads import reload

CLIENTS = 4
PAUSE = 0.01  # seconds between two requests of a client
ENOUGH = 60  # create requests before and after each step of an upgrade
TIMEOUT = 30.0
PLENTY = 10**9
Backends = Literal["own", "cluster"]
NAMES: dict[Backends, str] = {"own": "SQLite and LMDB", "cluster": "PostgreSQL and Redis"}


class Node(Served):
    """`petstore serve` from the code in a directory, on either pair of backends."""

    def __init__(self, code: Path, data: Path, backends: Backends) -> None:
        super().__init__(data, workers=2)
        self.code: Path = code
        if backends == "cluster":
            self.store, self.gate = shared(Postgres).url(), shared(Redis).url()

    def with_code(self, code: Path) -> "Node":
        """Returns a node with other code on the same data."""
        other = Node(code, self.data, "own")
        other.store, other.gate = self.store, self.gate
        other.log, other.output = code / "log", code / "output"
        return other

    def make_key(self) -> str:
        """Creates a key with the command of this node's version. Returns its secret."""
        limits = ("--per-minute", str(PLENTY), "--per-day", str(PLENTY))
        command = [*PETSTORE, "keys", "create", "--plan", "enterprise", *limits, "--json"]
        made = subprocess.run(command, env=self.variables, check=True, capture_output=True)
        return str(json.loads(made.stdout)["key"])

    def refused(self) -> tuple[int, str]:
        """Starts the service, which must fail. Returns its exit code and the last line of its log."""
        self.start(wait=False)
        assert self.process is not None
        code = self.process.wait(TIMEOUT)
        return code, self.log.read_text().splitlines()[-1]

    @property
    def schema(self) -> int:
        """Returns the schema version of the live environment."""
        sql = "PRAGMA user_version" if self.store is None else "SELECT version FROM format"
        return int(StorePlace(self.data, self.store).by_hand(sql)[0][0])


class Response(NamedTuple):
    status: int  # 0 if there was no response
    body: bytes
    remaining: int
    error: str = ""


class Clients:
    """Threads that add animals through each port in turn, and list every acknowledged animal through every port.

    With `retry`, a create request is sent again if the service is unavailable. Without it, that counts as a fault.
    """

    def __init__(self, secret: str, *ports: int, retry: bool = False) -> None:
        self.ports = ports
        self._retry = retry
        self.acknowledged: dict[str, int] = {}  # the name of an animal → its id
        self.at_port: Counter[int] = Counter()  # acknowledged create requests
        self.sent = 0
        self.answered = 0
        self.retries: list[str] = []
        self.faults: list[str] = []
        self._headers = {"Authorization": f"Bearer {secret}"}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(CLIENTS)]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Waits until every create request is acknowledged."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait(self, port: int) -> None:
        """Waits until more create requests are acknowledged at a port. Raises Broken."""
        enough = self.at_port[port] + ENOUGH
        wait_for(lambda: self.at_port[port] >= enough or self.faults, TIMEOUT)
        self.check()
        hold(self.at_port[port] >= enough, f"create requests keep succeeding; the last retries: {self.retries[-3:]}")

    def check(self) -> None:
        """Raises Broken."""
        hold(not self.faults, f"every request succeeds: {self.faults[:3]}")

    def request(self, port: int, method: str, path: str, name: str = "") -> Response:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        headers = {**self._headers, "Idempotency-Key": name} if name else self._headers
        body = json.dumps({"name": name, "categoryId": 1}) if name else None
        with self._lock:
            self.sent += 1
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            return Response(0, b"", 0, repr(error))
        finally:
            connection.close()
        with self._lock:
            self.answered += 1
        return Response(response.status, content, int(response.headers["X-RateLimit-Remaining"]))

    def _run(self, number: int) -> None:
        for turn in itertools.count():
            if self._stop.is_set() or self.faults:
                return
            self._add(f"{number}.{turn}", turn)
            self._stop.wait(PAUSE)

    def _add(self, name: str, turn: int) -> None:
        deadline = time.monotonic() + TIMEOUT
        for trial in itertools.count(turn):
            port = self.ports[trial % len(self.ports)]
            response = self.request(port, "POST", "/v1/pets", name)
            if response.status == 201:
                break
            self.retries.append(response.error or f"status {response.status}")
            if not self._retry or response.status not in (0, 503) or time.monotonic() > deadline:
                self.faults.append(f"create of {name}: {self.retries[-1]}")
                return
            time.sleep(PAUSE)
        pet_id = json.loads(response.body)["id"]
        with self._lock:
            self.acknowledged[name] = pet_id
            self.at_port[port] += 1
        page = f"/v1/pets?limit=1&cursor={write_cursor(pet_id - 1)}"
        for other in self.ports:
            seen = self.request(other, "GET", page)
            listed = [pet["name"] for pet in json.loads(seen.body)] if seen.status == 200 else []
            if seen.status not in (0, 503) and listed != [name]:
                self.faults.append(f"{name}, added at port {port}, is not listed at port {other}: {seen}")


def prove(scale: Scale) -> Figures:
    figures: Figures = {"upgrades of each kind": scale.upgrades, "lost": 0, "twice": 0}
    parts = Parts(scale)
    with temporary_directory() as place:
        for backends, name in NAMES.items():
            total = retries = 0
            for number in range(scale.upgrades):
                for upgrade in (_by_restart, _by_second_node, _by_reload):
                    data = place / f"{backends}{number}{upgrade.__name__}"
                    data.mkdir()
                    with parts.part():
                        clients = upgrade(data, backends, scale)
                        total += len(clients.acknowledged)
                        retries += len(clients.retries)
                    shutil.rmtree(data)
                if scale.full:
                    progress(f"upgrades on {name}: {number + 1} of {scale.upgrades}, {total:,} animals")
            figures[f"creates on {name}"] = total
            figures[f"retries on {name}"] = retries
    parts.judge()
    return figures


def _by_restart(place: Path, backends: Backends, scale: Scale) -> Clients:
    """Stops the current code and starts the next version on its port. Planted fault: an animal is lost meanwhile."""
    old = Node(copy_code(place / "old"), place / "data", backends)
    new = old.with_code(copy_code(place / "new"))
    new.port, new.origin = old.port, old.origin
    newest = add_migration(new.code)
    try:
        old.start()
        secret = old.make_key()
        with Clients(secret, old.port, retry=True) as clients:
            clients.wait(old.port)
            hold(old.stop() == 0, "the current code shuts down cleanly")
            if scale.plant:
                lost = max(clients.acknowledged.values())
                StorePlace(old.data, old.store).by_hand(f"DELETE FROM pets WHERE id = {lost}")
            new.start()
            clients.wait(new.port)
        _check(new, clients, newest)
    finally:
        old.kill()
        new.kill()
    return clients


def _by_second_node(place: Path, backends: Backends, scale: Scale) -> Clients:
    """Starts the next version, which migrates the data while the current code is running. Both then serve requests.

    Once stopped, the current code must refuse to start again. Planted fault: create requests fail after the migration.
    """
    old = Node(copy_code(place / "old"), place / "data", backends)
    new = old.with_code(copy_code(place / "new"))
    newest = add_migration(new.code, HARMFUL if scale.plant else HARMLESS)
    try:
        old.start()
        secret = old.make_key()
        with Clients(secret, old.port) as clients:
            clients.wait(old.port)
            new.start()
            clients.ports = (old.port, new.port)
            clients.wait(old.port)
            clients.wait(new.port)
            clients.ports = (new.port,)
        clients.check()
        hold(old.stop() == 0, "the current code shuts down cleanly")
        code, message = old.refused()
        hold(code == 2 and "newer Petstore" in message, f"the current code refuses to start: {code}, {message}")
        _check(new, clients, newest)
    finally:
        old.kill()
        new.kill()
    return clients


def _by_reload(place: Path, backends: Backends, scale: Scale) -> Clients:
    """Replaces the current code on disk with the next version, and reloads the service. No request fails.

    Planted fault: create requests fail after the migration.
    """
    node = Node(copy_code(place / "code"), place / "data", backends)
    try:
        node.start()
        secret = node.make_key()
        with Clients(secret, node.port) as clients:
            clients.wait(node.port)
            newest = add_migration(node.code, HARMFUL if scale.plant else HARMLESS)
            reload(node)
            clients.wait(node.port)
        _check(node, clients, newest)
    finally:
        node.kill()
    return clients


def _check(node: Node, clients: Clients, newest: int) -> None:
    """Checks the data after the upgrade, while the node is still serving. Raises Broken."""
    clients.check()
    hold(node.schema == newest, f"the schema is {newest}: {node.schema}")
    for name in list(clients.acknowledged)[:ENOUGH]:  # from before the upgrade
        again = clients.request(node.port, "POST", "/v1/pets", name)
        hold(again.status == 201, f"a repeated create request gets a 201, not a {again.status}")
        first = clients.acknowledged[name]
        hold(json.loads(again.body)["id"] == first, f"{name} keeps its id {first}: {again.body!r}")
    counted = PLENTY - clients.request(node.port, "GET", "/v1/pets?limit=1").remaining
    hold(
        clients.answered <= counted <= clients.sent,
        f"limits are exact: {clients.sent} requests were sent, {clients.answered} answered, {counted} counted",
    )
    hold(node.stop() == 0, "the service shuts down cleanly at the end")
    rows = StorePlace(node.data, node.store).by_hand("SELECT id, name FROM pets")
    stored = Counter((name, pet_id) for pet_id, name in rows)
    expected = Counter(clients.acknowledged.items())
    lost, further = expected - stored, stored - expected
    hold(not lost, f"{len(lost)} of {len(expected)} acknowledged animals are lost: {[*lost][:3]}")
    hold(not further, f"{len(further)} animals exist twice or were never acknowledged: {[*further][:3]}")
