"""The contenders: how each is made ready, started with the same animals on a free loopback port, and ended."""

import hashlib
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import backends

BENCH = Path(__file__).parent
# Not the system's temporary folder, which may live in memory, where a durable write costs nothing.
BUILD = BENCH / "build"
VENV = BENCH / ".venv"
GO_LIBRARIES = Path("/usr/share/gocode")  # where Debian's golang-*-dev packages put their sources
PETSTORE_SALT = b"petstore cursor 1"
STATUSES = ("available", "pending", "sold")
UNLIMITED = "1000000000"
READY_WITHIN = 120.0


class Missing(Exception):
    """A tool that the contender needs is not here: it is skipped."""


class Broken(Exception):
    """A contender did not start, or ended by itself."""


@dataclass(frozen=True, slots=True)
class Launch:
    command: list[str]
    key: str
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
    key: str
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


def animal(number: int) -> dict[str, str | int]:
    """A new animal, the same for all: the peers make these by themselves."""
    return {"name": f"Animal {number}", "categoryId": number % 50, "status": STATUSES[number % 3]}


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


# petstore


def petstore_command() -> Path:
    return Path(sys.executable).with_name("petstore")


def ready_petstore() -> None:
    if not petstore_command().exists():
        raise Missing("petstore is not installed beside this Python (pip install -e .)")


def launch_petstore(folder: Path, port: int, animals: int, *where: str, workers: int = 1) -> Launch:
    petstore, data = str(petstore_command()), ["--data", str(folder / "data"), *where]

    def new_key(limit: str) -> str:
        limits = ["--plan", "enterprise", "--per-minute", limit, "--per-day", limit]
        made: str = json.loads(run([petstore, "keys", "create", *data, *limits, "--json"]))["key"]
        return made

    lines = folder / "animals.jsonl"
    with lines.open("w") as file:
        file.writelines(json.dumps(animal(number)) + "\n" for number in range(1, animals + 1))
    run([petstore, "pets", "import", str(lines), *data])
    # The peers know no bans and do not count strangers: here neither may come in between.
    options = ["--workers", str(workers), "--ban-strikes", UNLIMITED, "--address-per-minute", UNLIMITED]
    return Launch([petstore, "serve", *data, "--port", str(port), *options], new_key(UNLIMITED), new_key("1"))


def launch_two_workers(folder: Path, port: int, animals: int) -> Launch:
    return launch_petstore(folder, port, animals, workers=2)


def launch_petstore_cluster(folder: Path, port: int, animals: int) -> Launch:
    where = ["--store", backends.postgres().url(), "--gate", backends.redis().url()]
    return launch_petstore(folder, port, animals, *where)


# Go


def ready_go() -> None:
    if shutil.which("go") is None:
        raise Missing("go is not installed (Debian: golang-go)")
    if not (GO_LIBRARIES / "src/github.com/mattn/go-sqlite3").exists():
        raise Missing("go-sqlite3 is not installed (Debian: golang-github-mattn-go-sqlite3-dev)")
    # Without modules Go takes libraries from GOPATH, as Debian packages them, and asks nothing of the network.
    sources = [str(file) for file in sorted((BENCH / "peers/go").glob("*.go"))]
    run(
        ["go", "build", "-o", str(BUILD / "go-peer"), *sources], GO111MODULE="off", GOPATH=str(GO_LIBRARIES), GOFLAGS=""
    )


def launch_go(folder: Path, port: int, animals: int, *more: str) -> Launch:
    key = secrets.token_urlsafe(32)
    command = [str(BUILD / "go-peer"), "-db", str(folder / "pets.db"), "-port", str(port), "-key", key]
    spent_key = secrets.token_urlsafe(32)
    command += ["-per-minute", UNLIMITED, "-per-day", UNLIMITED, "-spent-key", spent_key, "-seed", str(animals), *more]
    return Launch(command, key, spent_key)


def launch_tuned_go(folder: Path, port: int, animals: int) -> Launch:
    return launch_go(folder, port, animals, "-tuned")


# FastAPI


def ready_fastapi() -> None:
    wanted = BENCH / "requirements.txt"
    stamp, digest = VENV / "installed", hashlib.sha256(wanted.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    try:
        run([sys.executable, "-m", "venv", "--clear", str(VENV)])
        run([str(VENV / "bin/python"), "-m", "pip", "install", "--quiet", "-r", str(wanted)])
    except Broken as error:
        raise Missing(f"its packages could not be installed: {error}") from error
    stamp.write_text(digest)


def launch_fastapi(folder: Path, port: int, animals: int) -> Launch:
    return launch_peer("fastapi_app.py", port, animals, PEER_DB=str(folder / "pets.db"))


def launch_fastapi_cluster(folder: Path, port: int, animals: int) -> Launch:
    store = backends.postgres().url().replace("postgresql://", "postgresql+asyncpg://")
    return launch_peer("fastapi_cluster_app.py", port, animals, PEER_STORE=store, PEER_GATE=backends.redis().url())


def launch_peer(file: str, port: int, animals: int, **where: str) -> Launch:
    key, spent_key = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    settings = {
        **where,
        "PEER_SPENT_KEY": spent_key,
        "PEER_PORT": str(port),
        "PEER_KEY": key,
        "PEER_PER_MINUTE": UNLIMITED,
        "PEER_PER_DAY": UNLIMITED,
        "PEER_SEED": str(animals),
    }
    return Launch([str(VENV / "bin/python"), str(BENCH / "peers" / file)], key, spent_key, settings)


# nginx: not a peer but the ceiling


def ready_nginx() -> None:
    if nginx_command() is None:
        raise Missing("nginx is not installed (Debian: nginx-light)")


def nginx_command() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


def launch_nginx(folder: Path, port: int, animals: int) -> Launch:
    """It returns the bytes of the first page, and does nothing else."""
    page = json.dumps([{"id": n, **animal(n)} for n in range(1, 21)], separators=(",", ":"))
    headers = {
        "ETag": '"00000000000000000000000000000000"', "Cache-Control": "private, no-cache", "Vary": "Authorization",
        "Link": '</v1/pets?limit=20&cursor=AAAAAAAAABRFz-nr>; rel="next"', "X-RateLimit-Limit": UNLIMITED,
        "X-RateLimit-Remaining": UNLIMITED, "X-RateLimit-Reset": "1900000000", "X-Request-Id": "1234567890ab-1234567",
    }  # fmt: skip
    added = "".join(f"add_header {name} '{value}';\n" for name, value in headers.items())
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; worker_processes auto; error_log stderr crit;\n"
        "events { worker_connections 1024; }\n"
        "http { access_log off; server_tokens off; keepalive_requests 1000000000; default_type application/json;\n"
        + "".join(f"{name}_temp_path {folder};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        + f"server {{ listen 127.0.0.1:{port};\n"
        f"location = /v1/pets {{ {added} return 200 '{page}'; }}\nlocation = /readyz {{ return 200 ready; }}\n}} }}\n"
    )
    return Launch([str(nginx_command()), "-c", str(folder / "nginx.conf")], "any", "any")


CONTENDERS = {
    c.name: c
    for c in (
        Contender("petstore", "petstore serve, 1 worker", ready_petstore, launch_petstore, PETSTORE_SALT),
        Contender("petstore-2", "petstore serve, 2 workers", ready_petstore, launch_two_workers, PETSTORE_SALT),
        Contender("go", "Go net/http + go-sqlite3, all cores", ready_go, launch_go),
        Contender("go-tuned", "the same with a page cache and group commit", ready_go, launch_tuned_go),
        Contender("fastapi", "FastAPI + SQLAlchemy + limits on uvicorn, 1 worker", ready_fastapi, launch_fastapi),
        Contender("nginx", "nginx returning the same bytes: the ceiling", ready_nginx, launch_nginx, serves=("list",)),
        Contender(
            "petstore-cluster",
            "petstore on PostgreSQL + Redis, 1 worker",
            ready_petstore,
            launch_petstore_cluster,
            PETSTORE_SALT,
        ),
        Contender(
            "fastapi-cluster",
            "FastAPI + SQLAlchemy(asyncpg) + limits(redis) on uvicorn, 1 worker",
            ready_fastapi,
            launch_fastapi_cluster,
        ),
    )
}


@contextmanager
def started(contender: Contender, animals: int) -> Iterator[Running]:
    """Yields when the contender is ready to serve, and ends it whatever happens. Raises Broken."""
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{contender.name}-", dir=BUILD) as name:
        folder, port = Path(name), free_port()
        launch = contender.launch(folder, port, animals)
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
            running = Running(contender, port, launch.key, launch.spent_key, process, log)
            wait_until_ready(running)
            yield running
        finally:
            end(process)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(running: Running) -> None:
    """Raises Broken."""
    deadline = time.monotonic() + READY_WITHIN
    while time.monotonic() < deadline:
        if running.process.poll() is not None:
            raise Broken(f"{running.name} ended by itself:\n{running.last_words()}")
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except OSError:
            pass  # not listening yet
        finally:
            connection.close()
        time.sleep(0.1)
    raise Broken(f"{running.name} was not ready within {READY_WITHIN:.0f} s:\n{running.last_words()}")


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
