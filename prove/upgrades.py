"""Upgrades under creates: from release 1.1 to the present code, and from the present code to a next version.

Each upgrade migrates the schema while clients add animals, each with an idempotency key, and repeat every create that
was not acknowledged. The code of the release comes from the history of git. The next version is the present code with
one more migration. Afterwards every animal is there once, with the id that was acknowledged.

Release 1.1 has to be stopped first. While it runs, a reload into the present code fails, and a node with the present
code does not start; the release goes on.
"""

import http.client
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Literal, NamedTuple

from harness.claims import Skipped, folder, hold, progress
from harness.served import Served, wait_for
from harness.servers import PETSTORE, Server
from harness.stores import StorePlace
from petstore.store.schema import NEWEST_SCHEMA
from petstore.web.requests import write_cursor
from prove.proof import Figures, Scale
from prove.reloads import events, reload

RELEASE = "7da90a0b1fbd7e82643f506074cc8d77783cce6f"  # 1.1
ROOT = Path(__file__).parent.parent
CLIENTS = 4
PAUSE = 0.01  # seconds between two requests of a client
ENOUGH = 60  # creates before and after each step of an upgrade
TIMEOUT = 30.0
PLENTY = 10**9
# What a migration may do that the version before must bear: add tables, and columns of tables into which both insert by
# the names of columns.
NEXT_MIGRATION = """
CREATE TABLE births (pet_id bigint PRIMARY KEY, born bigint NOT NULL);
CREATE INDEX births_by_time ON births (born);
ALTER TABLE pets ADD COLUMN chip integer;
"""

Backends = Literal["own", "cluster"]
NAMES: dict[Backends, str] = {"own": "SQLite and LMDB", "cluster": "PostgreSQL and Redis"}


class Node(Served):
    """`petstore serve` with the code of a directory."""

    def __init__(self, code: Path, data: Path, backends: Backends) -> None:
        Server.__init__(self, data, backends, workers=2)
        self.output = data.parent / f"{data.name}.out"
        self.code = code

    def with_code(self, code: Path) -> "Node":
        """Another node on the same data."""
        other = Node(code, self.data, "own")
        other.store, other.gate = self.store, self.gate
        return other

    def start(self, *, wait: bool = True, log: int | None = None) -> "Node":
        command = [*PETSTORE, "serve", "--port", str(self.port), "--workers", str(self.workers)]
        with self.output.open("wb") as out, self.log.open("ab") as file:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=log or file, env=self._variables, start_new_session=True
            )
        if wait:
            self.wait_until_ready()
        return self

    def make_key(self) -> str:
        """The secret of a new key, made by the command of this node's version."""
        limits = ("--per-minute", str(PLENTY), "--per-day", str(PLENTY))
        command = [*PETSTORE, "keys", "create", "--plan", "enterprise", *limits, "--json"]
        made = subprocess.run(command, env=self._variables, check=True, capture_output=True)
        return str(json.loads(made.stdout)["key"])

    @property
    def schema(self) -> int:
        """The number of the newest migration of the live environment."""
        sql = "PRAGMA user_version" if self.store is None else "SELECT max(number) FROM migrations"
        return int(StorePlace(self.data, self.store).by_hand(sql)[0][0])

    @property
    def _variables(self) -> dict[str, str]:
        return {**os.environ, **self.where, "PYTHONPATH": str(self.code)}


class Response(NamedTuple):
    status: int  # 0: there was none
    body: bytes
    remaining: int
    error: str = ""


class Clients:
    """Threads that add animals at every port in turn, and list each one at every port once it is acknowledged."""

    def __init__(self, secret: str, *ports: int) -> None:
        self.ports = ports
        self.acknowledged: dict[str, int] = {}  # the name of an animal → its id
        self.at_port: Counter[int] = Counter()  # creates acknowledged
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
        """Returns when every create that was sent is acknowledged."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait(self, port: int) -> None:
        """Returns when more creates were acknowledged at a port. Raises Broken."""
        enough = self.at_port[port] + ENOUGH
        wait_for(lambda: self.at_port[port] >= enough or self.faults, TIMEOUT)
        self.check()
        hold(self.at_port[port] >= enough, f"creates go on; the last retries: {self.retries[-3:]}")

    def check(self) -> None:
        """Raises Broken."""
        hold(not self.faults, f"every request is answered as usual: {self.faults[:3]}")

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
            if response.status not in (0, 409, 503) or time.monotonic() > deadline:
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
    with folder() as place:
        release = _release(place / "release")
        for backends, name in NAMES.items():
            total = retries = 0
            for number in range(scale.upgrades):
                for upgrade in (_restarted, _too_early, _reloaded):
                    data = place / f"{backends}{number}{upgrade.__name__}"
                    data.mkdir()
                    clients = upgrade(release, data, backends, scale)
                    total += len(clients.acknowledged)
                    retries += len(clients.retries)
                    shutil.rmtree(data)
                if scale.full:
                    progress(f"upgrades on {name}: {number + 1} of {scale.upgrades}, {total:,} creates")
            figures[f"creates on {name}"] = total
            figures[f"retries on {name}"] = retries
    return figures


def _release(place: Path) -> Path:
    """The code of the release. Raises Skipped."""
    try:
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", RELEASE, "src"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise Skipped("the code of release 1.1 is not here: it needs git and the whole history") from None
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(place)  # git has just made it, from this repository
    return place / "src"


def _restarted(release: Path, place: Path, backends: Backends, scale: Scale) -> Clients:
    """The release stops, and the present code starts on its port."""
    old = Node(release, place / "data", backends)
    new = old.with_code(ROOT / "src")
    new.port, new.origin = old.port, old.origin
    try:
        secret = old.start().make_key()
        with Clients(secret, old.port) as clients:
            clients.wait(old.port)
            before = old.schema
            hold(old.stop() == 0, "the release stops in order")
            if scale.plant:
                lost = max(clients.acknowledged.values())
                StorePlace(old.data, old.store).by_hand(f"DELETE FROM pets WHERE id = {lost}")
            new.start()
            clients.wait(new.port)
        _check(new, clients, before)
    finally:
        old.kill()
        new.kill()
    return clients


def _too_early(release: Path, place: Path, backends: Backends, scale: Scale) -> Clients:
    """The present code is reloaded, and started as a second node, while the release runs: both fail."""
    code = place / "code"
    shutil.copytree(release, code)
    old = Node(code, place / "data", backends)
    new = old.with_code(ROOT / "src")
    try:
        secret = old.start().make_key()
        with Clients(secret, old.port) as clients:
            clients.wait(old.port)
            before = old.schema
            shutil.rmtree(code / "petstore")
            shutil.copytree(ROOT / "src" / "petstore", code / "petstore")
            assert old.process is not None
            os.kill(old.process.pid, signal.SIGHUP)
            failed = wait_for(lambda: events(old, "reload failed"), TIMEOUT)
            hold(failed, f"the reload fails: {old.log.read_text()[-500:]}")
            new.start(wait=False)
            assert new.process is not None
            refused = new.process.wait(TIMEOUT)
            said = new.log.read_text().splitlines()[-1]
            hold(refused == 2 and "1.1" in said and "stop" in said, f"a node is refused: {refused}, {said}")
            clients.wait(old.port)
        clients.check()
        hold(not clients.retries, f"no create fails: {clients.retries[:3]}")
        hold(old.schema == before, f"the schema is still {before}: {old.schema}")
    finally:
        old.kill()
        new.kill()
    return clients


def _reloaded(_: Path, place: Path, backends: Backends, scale: Scale) -> Clients:
    """The present code is replaced on disk by a next version, and reloaded. No request fails."""
    code = place / "code"
    shutil.copytree(ROOT / "src" / "petstore", code / "petstore")
    node = Node(code, place / "data", backends)
    try:
        secret = node.start().make_key()
        with Clients(secret, node.port) as clients:
            clients.wait(node.port)
            before = node.schema
            _add_migration(code / "petstore" / "store")
            reload(node)
            clients.wait(node.port)
        hold(not clients.retries, f"no create fails during a reload: {clients.retries[:3]}")
        _check(node, clients, before)
    finally:
        node.kill()
    return clients


def _add_migration(store: Path) -> None:
    """Make the code one of a next version."""
    for migrations in (store / "migrations").iterdir():
        (migrations / f"{NEWEST_SCHEMA + 1:04}_next.sql").write_text(NEXT_MIGRATION)
    schema = store / "schema.py"
    newest = re.compile(r"(NEWEST_SCHEMA = .*, )(\d+)$", re.MULTILINE)
    text, count = newest.subn(rf"\g<1>{NEWEST_SCHEMA + 1}", schema.read_text())
    hold(count == 1, "the number of the newest schema has moved")
    schema.write_text(text)


def _check(node: Node, clients: Clients, before: int) -> None:
    """After the upgrade, while the node still serves. Raises Broken."""
    clients.check()
    hold(node.schema > before, f"the schema was {before} and is newer: {node.schema}")
    for name in list(clients.acknowledged)[:ENOUGH]:  # from before the upgrade
        again = clients.request(node.port, "POST", "/v1/pets", name)
        hold(again.status == 201, f"a repeated create is answered: {again.status}")
        first = clients.acknowledged[name]
        hold(json.loads(again.body)["id"] == first, f"{name} keeps its id {first}: {again.body!r}")
    counted = PLENTY - clients.request(node.port, "GET", "/v1/pets?limit=1").remaining
    hold(
        clients.answered <= counted <= clients.sent,
        f"limits hold: {clients.sent} requests were sent, {clients.answered} answered, {counted} counted",
    )
    hold(node.stop() == 0, "it stops in order at the end")
    rows = StorePlace(node.data, node.store).by_hand("SELECT id, name FROM pets")
    stored = Counter((name, pet_id) for pet_id, name in rows)
    expected = Counter(clients.acknowledged.items())
    lost, further = expected - stored, stored - expected
    hold(not lost, f"{len(lost)} of {len(expected)} acknowledged animals are lost: {[*lost][:3]}")
    hold(not further, f"{len(further)} animals are there twice: {[*further][:3]}")
