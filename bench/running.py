"""Starts a contender on a free loopback port, measures its CPU time, and always stops it."""

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
# The system's temporary directory may be in memory, where durable writes take no time.
BUILD = BENCH / "build"
READY_TIMEOUT = 120.0
TICKS = os.sysconf("SC_CLK_TCK")


class Missing(Exception):
    """Raised if a tool that a contender requires is not installed, so that the contender is skipped."""


class Broken(Exception):
    """Raised if a contender did not start or ended unexpectedly."""


@dataclass(frozen=True, slots=True)
class Launch:
    command: list[str]
    keys: Sequence[str]
    spent_key: str  # has a limit of one request per day
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    about: str
    make_ready: Callable[[], None]  # raises Missing
    launch: Callable[[Path, int, int], Launch]  # takes the data directory, the port and the number of animals
    cursor_salt: bytes = b""  # included in the checksum of a cursor, in addition to the id
    serves: tuple[str, ...] = ()  # the rows that it can run, or empty if it can run all


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
    """Returns the user and system time of a process and all its children, including those that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
    try:
        return sum(map(int, fields[11:15])) / TICKS + sum(processor_seconds(int(child)) for child in children)
    except (FileNotFoundError, ProcessLookupError):  # a child has just ended, so its time is now part of its parent's
        return processor_seconds(pid)


def run(command: list[str], **environment: str) -> str:
    """Runs a command and returns its output. Raises Broken if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment() | environment)
    if done.returncode:
        raise Broken(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Returns our environment without settings that would affect a contender."""
    tuning = ("PETSTORE_", "PEER_", "GOMAXPROCS", "GOGC", "GODEBUG", "UVICORN_", "GRANIAN_", "WEB_CONCURRENCY")
    return {name: value for name, value in os.environ.items() if not name.startswith(tuning)}


@contextmanager
def started(contender: Contender, animals: int) -> Iterator[Running]:
    """Starts a contender, yields when it is ready, and always stops it. Raises Broken."""
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{contender.name}-", dir=BUILD) as name:
        directory, port = Path(name), free_port()
        launch = contender.launch(directory, port, animals)
        write_lines(keys_file(directory), launch.keys)
        log = directory / "log"
        with log.open("wb") as output:
            # Use a new session, so that Ctrl-C reaches only the race, which then stops the contenders cleanly.
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


def keys_file(directory: Path) -> Path:
    """Returns the file with all keys of a contender, one per line. The peers and wrk read it."""
    return directory / "keys"


def write_lines(file: Path, lines: Sequence[str]) -> None:
    file.write_text("\n".join(lines) + "\n")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(running: Running) -> None:
    """Waits until /readyz returns 200. Raises Broken."""
    deadline = time.monotonic() + READY_TIMEOUT
    while time.monotonic() < deadline:
        if running.process.poll() is not None:
            raise Broken(f"{running.name} ended unexpectedly:\n{running.last_words()}")
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
    """Terminates a process that we started, or kills it after ten seconds. Also kills workers that it left behind."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the process is the leader of its group
