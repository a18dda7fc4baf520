"""Runs the service for tests, in a separate process on a free loopback port, and accesses its data."""

import asyncio
import contextlib
import os
import signal
import socket
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from harness.backends import Postgres, Redis, free_port, shared
from harness.processes import Running, launched
from harness.stores import BY, imported
from petstore.backends import Backends
from petstore.cli.data import OPERATOR_BOUNDS
from petstore.data_dir import UMASK
from petstore.keys import SCOPES, ApiKey, Environment, Scope, mint, new_key
from petstore.pets import STATUSES, NewPet
from petstore.plans import Limits, Plan
from petstore.settings import Settings
from petstore.store.schema import COUNTERS

# A service with its own files, and a node of a cluster.
Host = Literal["own", "cluster"]
HOSTS: dict[Host, str] = {"own": "sqlite-lmdb", "cluster": "postgres-redis"}
READY_WITHIN = 60.0  # seconds; other tests can keep the machine busy
PLENTY = Limits(1_000_000, 1_000_000)
PETSTORE = [sys.executable, "-m", "petstore"]

T = TypeVar("T")


class Key(NamedTuple):
    """A key with its secret."""

    record: ApiKey
    secret: str

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secret}"}


class Server:
    """One running service."""

    def __init__(
        self, data: Path, host: Host = "own", *options: str, workers: int = 1, port: int | None = None
    ) -> None:
        self.data = data
        self.host = host
        self.options = options
        self.workers = workers
        self.port = port or free_port()
        self.origin = f"http://127.0.0.1:{self.port}"
        self.clock_file = data.parent / f"{data.name}.clock"
        self.log = data.parent / f"{data.name}.log"
        self.log_start = 0  # the position in the log at which the current run begins
        self.program = ["petstore"]  # the module to run, and its first arguments
        self.process: Running | None = None
        self._stock: dict[Environment, list[Key]] = {"live": [], "staging": []}
        self.store = shared(Postgres).url() if host == "cluster" else None
        self.gate = shared(Redis).url() if host == "cluster" else None

    @property
    def where(self) -> dict[str, str]:
        """The environment variables that tell commands where the data is."""
        found = {"PETSTORE_DATA": str(self.data), "PETSTORE_STORE": self.store, "PETSTORE_GATE": self.gate}
        return {name: value for name, value in found.items() if value}

    def url(self, path: str, environment: Environment = "live") -> str:
        return self.origin + {"live": "/v1", "staging": "/staging/v1"}[environment] + path

    def start(self, *, wait: bool = True) -> "Server":
        words = [*self.program, "serve", "--port", str(self.port), "--workers", str(self.workers),
                 "--clock-file", str(self.clock_file), *self.options]  # fmt: skip
        self.log_start = self.log.stat().st_size if self.log.exists() else 0
        self.process = launched(words, self.where, self.log)
        if wait:
            self.wait_until_ready()
        return self

    def wait_until_ready(self) -> float:
        """Waits until the log says that the service has started. Returns the seconds it took."""
        began = time.monotonic()
        while time.monotonic() - began < READY_WITHIN:
            if self.process is not None and self.process.poll() is not None:
                break
            if b'"event":"started"' in self.log.read_bytes()[self.log_start :]:
                return time.monotonic() - began
            time.sleep(0.01)  # polls for at most READY_WITHIN
        raise AssertionError(f"the server is not ready. Its log:\n{self.log.read_text()[-2000:]}")

    def stop(self) -> int:
        """Stops the service without a drain, as Ctrl-C does. Returns the exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGINT)
        try:
            return self.process.wait(timeout=READY_WITHIN)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kills the whole process group with SIGKILL."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=READY_WITHIN)
            self.process = None
            deadline = time.monotonic() + READY_WITHIN
            while takes_connections(self.port) and time.monotonic() < deadline:
                time.sleep(0.001)  # a killed worker can take a moment to exit

    def worker_behind(self, client_port: int) -> int:
        """Returns the process id of the worker that has a connection, according to the kernel's socket table."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        local, remote = f":{self.port:04X}", f":{client_port:04X}"
        (inode,) = {row[9] for row in rows if row[1].endswith(local) and row[2].endswith(remote)}
        assert self.process is not None
        main = self.process.pid
        for pid in Path(f"/proc/{main}/task/{main}/children").read_text().split():
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if str(link.readlink()) == f"socket:[{inode}]":
                        return int(pid)
        raise AssertionError("no worker has this connection")

    def move_clock(self, seconds: float) -> None:
        """Shifts the service's clock by this number of seconds. Takes effect with the next request."""
        part = self.clock_file.with_suffix(".part")
        part.write_text(str(seconds))
        part.replace(self.clock_file)

    def create(self) -> None:
        """Creates empty data, as the first start of a service does."""
        if self.store is not None:
            self.store = empty_store()
        else:
            self._create()

    def _create(self) -> None:
        async def read(backends: Backends) -> None:
            for store in backends.stores.values():
                await store.transfer.rows(COUNTERS, None, 1)  # waits for the migrations, without a timeout

        self.act(read)

    def act(self, work: Callable[[Backends], Awaitable[T]]) -> T:
        """Runs `work` on the data, as commands do. The service may be running."""

        async def inside() -> T:
            settings = Settings(data=self.data, store=self.store, gate=self.gate)
            async with Backends(settings, bounds=OPERATOR_BOUNDS) as backends:
                return await work(backends)

        before = os.umask(UMASK)  # as in every command
        try:
            # Use another thread, because browser tests run an event loop in this one.
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(lambda: asyncio.run(inside())).result()
        finally:
            os.umask(before)

    def key(
        self,
        plan: Plan = "enterprise",
        limits: Limits | None = None,
        *,
        environment: Environment = "live",
        scopes: Iterable[Scope] = SCOPES,
        expires: float | None = None,
    ) -> Key:
        if plan == "enterprise" and limits is None:
            limits = PLENTY
        made = Key(
            new_key(environment, plan, now=time.time(), limits=limits, scopes=scopes, expires=expires),
            mint(environment),
        )
        self.act(lambda backends: backends.stores[environment].keys.create(made.record, made.secret, BY))
        return made

    def key_in_stock(self, environment: Environment = "live") -> Key:
        """Returns a key, like `key()`. Creates 64 at a time, because opening the data takes longer than most tests."""
        if not self._stock[environment]:
            records = [new_key(environment, "enterprise", now=time.time(), limits=PLENTY) for _ in range(64)]
            stock = [Key(record, mint(environment)) for record in records]

            async def add(backends: Backends) -> None:
                for made in stock:
                    await backends.stores[environment].keys.create(made.record, made.secret, BY)

            self.act(add)
            self._stock[environment] = stock  # only now, when all keys are in the store
        return self._stock[environment].pop()

    def fill(self, count: int, environment: Environment = "live", status: Any = None) -> None:
        """Adds animals named Pet 1, Pet 2 and so on. If no status is given, they cycle through the three statuses."""
        statuses = [status] if status else STATUSES
        pets = [NewPet(f"Pet {i + 1}", i, statuses[i % len(statuses)]) for i in range(count)]
        self.act(lambda backends: imported(backends.stores[environment], *pets, by=BY))

    @contextlib.contextmanager
    def writes_held_up(self) -> Iterator[None]:
        """Blocks all writes to the live environment with another transaction. Reads are not affected."""
        if self.store is None:
            with contextlib.closing(sqlite3.connect(self.data / "live.db", isolation_level=None)) as blocker:
                blocker.execute("BEGIN IMMEDIATE")
                yield
        else:
            with shared(Postgres).transaction(self.store) as execute:
                execute("LOCK TABLE petstore_live.pets IN EXCLUSIVE MODE")
                yield

    def spoil(self) -> None:
        """Adds a corrupt animal to the live catalogue. Its name is one that no version of the service could write."""
        self.fill(1)
        if self.store is None:
            with contextlib.closing(sqlite3.connect(self.data / "live.db", isolation_level=None)) as by_hand:
                by_hand.execute("UPDATE pets SET name = CAST(x'ff' AS TEXT)")  # not valid UTF-8
        else:
            address = "ALTER TABLE petstore_live.pets ALTER name TYPE inet USING '::1'"
            shared(Postgres).execute(address, self.store)  # not text


_empty_stores: dict[Postgres, str] = {}


def empty_store() -> str:
    """Returns the URL of a new database with empty tables. Copies the tables, because creating them is slow."""
    postgres = shared(Postgres)
    if postgres not in _empty_stores:
        with tempfile.TemporaryDirectory() as directory:
            first = Server(Path(directory) / "data", "cluster")
            first._create()
        _empty_stores[postgres] = str(first.store).rpartition("/")[2]
    return postgres.url(_empty_stores[postgres])


@contextlib.contextmanager
def started(server: Server) -> Iterator[Server]:
    try:
        yield server.start()
    finally:
        server.stop()


def serving(
    data: Path, host: Host = "own", *options: str, workers: int = 1
) -> contextlib.AbstractContextManager[Server]:
    return started(Server(data, host, *options, workers=workers))


def takes_connections(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def raw(port: int, data: bytes, seconds: float = 20.0) -> bytes:
    """Sends bytes and returns everything received until the server closes or stops sending."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(data)
        received = b""
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while chunk := connection.recv(65536):
                received += chunk
        return received
