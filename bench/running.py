"""A contender that runs: started on a free loopback port, its processor time read, and ended whatever happens."""

import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

BENCH = Path(__file__).parent
# Not the system's temporary folder, which may live in memory, where a durable write costs nothing.
BUILD = BENCH / "build"
READY_TIMEOUT = 120.0
TICKS = os.sysconf("SC_CLK_TCK")


class Missing(Exception):
    """A tool that the contender needs is not installed: the contender is skipped."""


class Broken(Exception):
    """A contender did not start, or ended by itself."""


@dataclass(frozen=True, slots=True)
class Launch:
    command: list[str]
    keys: Sequence[str]
    spent_key: str  # may make one request a day
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    about: str
    make_ready: Callable[[], None]  # raises Missing
    launch: Callable[[Path, int, int], Launch]  # data folder, port, animals
    cursor_salt: bytes = b""  # what a cursor's checksum covers besides the id
    serves: tuple[str, ...] = ()  # the rows that it can run; none named: all


@dataclass(frozen=True, slots=True)
class Running:
    contender: Contender
    port: int
    keys: Sequence[str]
    spent_key: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def name(self) -> str:
        return self.contender.name

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def processor_seconds(self) -> float:
        return processor_seconds(self.process.pid)


def processor_seconds(pid: int) -> float:
    """User and system time of a process and of all that it has started, those that have ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
    try:
        return sum(map(int, fields[11:15])) / TICKS + sum(processor_seconds(int(child)) for child in children)
    except (FileNotFoundError, ProcessLookupError):  # a child has just ended: now its time is part of its parent's
        return processor_seconds(pid)


def run(command: list[str], **environment: str) -> str:
    """Raises Broken."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment() | environment)
    if done.returncode:
        raise Broken(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Ours, without settings that would change what a contender does."""
    tuning = ("PETSTORE_", "PEER_", "GOMAXPROCS", "GOGC", "GODEBUG", "UVICORN_", "GRANIAN_", "WEB_CONCURRENCY")
    return {name: value for name, value in os.environ.items() if not name.startswith(tuning)}


@contextmanager
def started(contender: Contender, animals: int) -> Iterator[Running]:
    """Yields when the contender is ready to serve, and ends it whatever happens. Raises Broken."""
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{contender.name}-", dir=BUILD) as name:
        folder, port = Path(name), free_port()
        launch = contender.launch(folder, port, animals)
        write_lines(keys_file(folder), launch.keys)
        log = folder / "log"
        with log.open("wb") as output:
            # A session of its own: Ctrl-C reaches the race alone, which then ends what it started, in order.
            process = subprocess.Popen(
                launch.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=clean_environment() | launch.environment,
                start_new_session=True,
            )
        try:
            running = Running(contender, port, launch.keys, launch.spent_key, process, log)
            wait_until_ready(running)
            yield running
        finally:
            end(process)


def keys_file(folder: Path) -> Path:
    """All keys of a contender, one in a line: the peers read them when they start, wrk when it sends."""
    return folder / "keys"


def write_lines(file: Path, lines: Sequence[str]) -> None:
    file.write_text("\n".join(lines) + "\n")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(running: Running) -> None:
    """Raises Broken."""
    deadline = time.monotonic() + READY_TIMEOUT
    while time.monotonic() < deadline:
        if running.process.poll() is not None:
            raise Broken(f"{running.name} ended by itself:\n{running.last_words()}")
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except (OSError, http.client.HTTPException):
            pass  # not listening yet
        finally:
            connection.close()
        time.sleep(0.1)
    raise Broken(f"{running.name} was not ready within {READY_TIMEOUT:.0f} s:\n{running.last_words()}")


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that we started: politely, then not; workers it may have left behind go with it."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # it led a group of its own, which bears its id
