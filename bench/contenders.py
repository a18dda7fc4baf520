"""The contenders: how to prepare each one, and how to launch it with the same animals and number of keys."""

import asyncio
import hashlib
import json
import os
import secrets
import shutil
import sys
import sysconfig
from functools import partial
from pathlib import Path

import backends
from running import BENCH, BUILD, Broken, Contender, Launch, Missing, keys_file, run
from seed import UNLIMITED, animal, fill

import petstore
from petstore.keys import mint
from petstore.settings import Settings

VENV = BENCH / ".venv"
GO_LIBRARIES = Path("/usr/share/gocode")  # where Debian's golang-*-dev packages put their sources
PETSTORE_SALT = b"petstore cursor 1"
CORES = len(os.sched_getaffinity(0))
KEYS = 1_000
# The peers have neither bans nor limits per address, so turn off both here.
UNBOUNDED = {"PETSTORE_BAN_STRIKES": str(UNLIMITED), "PETSTORE_ADDRESS_PER_MINUTE": str(UNLIMITED)}


# petstore


def petstore_command() -> Path:
    return Path(sys.executable).with_name("petstore")


def ready_petstore() -> None:
    if not petstore_command().exists():
        raise Missing("petstore is not installed in this environment (pip install -e .)")


def launch_petstore(directory: Path, port: int, animals: int, workers: int = CORES) -> Launch:
    settings = Settings(data=directory / "data", port=port, workers=workers)
    return launch_service([str(petstore_command()), "serve"], settings, animals)


def launch_petstore_cluster(directory: Path, port: int, animals: int) -> Launch:
    store, gate = backends.postgres().url(), backends.redis().url()
    settings = Settings(data=directory / "data", port=port, workers=1, store=store, gate=gate)
    return launch_service([str(petstore_command()), "serve"], settings, animals)


def launch_service(command: list[str], settings: Settings, animals: int) -> Launch:
    """Passes the settings as environment variables."""
    keys, spent_key = [mint("live") for _ in range(KEYS)], mint("live")
    asyncio.run(fill(settings, animals, keys, spent_key))
    named = {name: getattr(settings, name) for name in ("data", "port", "workers", "store", "gate")}
    variables = {f"PETSTORE_{name.upper()}": str(value) for name, value in named.items() if value is not None}
    return Launch(command, keys, spent_key, variables | UNBOUNDED)


# petstore under other servers


def ready_asgi() -> None:
    """Installs the peers' packages, and adds petstore and its packages to the end of the path."""
    ready_fastapi()
    places = [Path(petstore.__file__).parent.parent, Path(sysconfig.get_path("purelib"))]
    site_packages = next(VENV.glob("lib/python*/site-packages"))
    (site_packages / "petstore.pth").write_text("".join(f"{place}\n" for place in places))


ASGI_SERVERS = {
    "uvicorn": ["-m", "uvicorn", "--factory", "--loop", "uvloop", "--http", "httptools", "--no-access-log"],
    "granian": ["-m", "granian", "--factory", "--interface", "asgi", "--loop", "uvloop", "--http", "1", "--no-ws"],
}


def launch_asgi(directory: Path, port: int, animals: int, server: str) -> Launch:
    command = [str(VENV / "bin/python"), *ASGI_SERVERS[server], "--log-level", "warning"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", str(CORES), "asgi:application"]
    launch = launch_service(command, Settings(data=directory / "data", port=port), animals)
    launch.environment["PYTHONPATH"] = str(BENCH)
    return launch


# Go


def ready_go() -> None:
    if shutil.which("go") is None:
        raise Missing("go is not installed (Debian: golang-go)")
    if not (GO_LIBRARIES / "src/github.com/mattn/go-sqlite3").exists():
        raise Missing("go-sqlite3 is not installed (Debian: golang-github-mattn-go-sqlite3-dev)")
    # With modules turned off, Go uses the libraries that Debian installs in GOPATH, and does not access the network.
    sources = [str(file) for file in sorted((BENCH / "peers/go").glob("*.go"))]
    run(
        ["go", "build", "-o", str(BUILD / "go-peer"), *sources], GO111MODULE="off", GOPATH=str(GO_LIBRARIES), GOFLAGS=""
    )


def launch_go(directory: Path, port: int, animals: int, *more: str) -> Launch:
    keys, spent_key = peer_keys()
    command = [str(BUILD / "go-peer"), "-db", str(directory / "pets.db"), "-port", str(port), "-spent-key", spent_key]
    command += ["-keys", str(keys_file(directory)), "-per-minute", str(UNLIMITED), "-per-day", str(UNLIMITED)]
    return Launch([*command, "-seed", str(animals), *more], keys, spent_key, {"GOMAXPROCS": str(CORES)})


def launch_tuned_go(directory: Path, port: int, animals: int) -> Launch:
    return launch_go(directory, port, animals, "-tuned")


def peer_keys() -> tuple[list[str], str]:
    return [secrets.token_urlsafe(32) for _ in range(KEYS)], secrets.token_urlsafe(32)


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
        raise Missing(f"cannot install its packages: {error}") from error
    stamp.write_text(digest)


def launch_fastapi(directory: Path, port: int, animals: int) -> Launch:
    return launch_peer("fastapi_app.py", directory, port, animals, PEER_DB=str(directory / "pets.db"))


def launch_fastapi_cluster(directory: Path, port: int, animals: int) -> Launch:
    store = backends.postgres().url().replace("postgresql://", "postgresql+asyncpg://")
    gate = backends.redis().url()
    return launch_peer("fastapi_cluster_app.py", directory, port, animals, PEER_STORE=store, PEER_GATE=gate)


def launch_peer(file: str, directory: Path, port: int, animals: int, **where: str) -> Launch:
    keys, spent_key = peer_keys()
    settings = {
        **where,
        "PEER_SPENT_KEY": spent_key,
        "PEER_PORT": str(port),
        "PEER_KEYS": str(keys_file(directory)),
        "PEER_PER_MINUTE": str(UNLIMITED),
        "PEER_PER_DAY": str(UNLIMITED),
        "PEER_SEED": str(animals),
    }
    return Launch([str(VENV / "bin/python"), str(BENCH / "peers" / file)], keys, spent_key, settings)


# nginx: an upper bound, not a peer


def ready_nginx() -> None:
    if nginx_command() is None:
        raise Missing("nginx is not installed (Debian: nginx-light)")


def nginx_command() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


def launch_nginx(directory: Path, port: int, animals: int) -> Launch:
    """Launches nginx, which always returns the bytes of the first page."""
    page = json.dumps([{"id": n, **animal(n)} for n in range(1, 21)], separators=(",", ":"))
    headers = {
        "ETag": '"00000000000000000000000000000000"', "Cache-Control": "private, no-cache", "Vary": "Authorization",
        "Link": '</v1/pets?limit=20&cursor=AAAAAAAAABRFz-nr>; rel="next"', "X-RateLimit-Limit": str(UNLIMITED),
        "X-RateLimit-Remaining": str(UNLIMITED), "X-RateLimit-Reset": "1900000000",
        "X-Request-Id": "1234567890ab-1234567",
    }  # fmt: skip
    added = "".join(f"add_header {name} '{value}';\n" for name, value in headers.items())
    (directory / "nginx.conf").write_text(
        f"daemon off; pid {directory}/pid; worker_processes auto; error_log stderr crit;\n"
        "events { worker_connections 1024; }\n"
        "http { access_log off; server_tokens off; keepalive_requests 1000000000; default_type application/json;\n"
        + "".join(f"{name}_temp_path {directory};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        + f"server {{ listen 127.0.0.1:{port};\n"
        f"location = /v1/pets {{ {added} return 200 '{page}'; }}\nlocation = /readyz {{ return 200 ready; }}\n}} }}\n"
    )
    return Launch([str(nginx_command()), "-c", str(directory / "nginx.conf")], ["any"], "any")


CONTENDERS = {
    c.name: c
    for c in (
        Contender(
            "petstore",
            f"petstore serve, {CORES} workers (one per core)",
            ready_petstore,
            launch_petstore,
            PETSTORE_SALT,
        ),
        Contender(
            "petstore-1", "the same, 1 worker", ready_petstore, partial(launch_petstore, workers=1), PETSTORE_SALT
        ),
        Contender(
            "petstore-uvicorn",
            f"the same application under uvicorn, {CORES} workers",
            ready_asgi,
            partial(launch_asgi, server="uvicorn"),
            PETSTORE_SALT,
        ),
        Contender(
            "petstore-granian",
            f"the same application under Granian, {CORES} workers",
            ready_asgi,
            partial(launch_asgi, server="granian"),
            PETSTORE_SALT,
        ),
        Contender("go", f"Go net/http + go-sqlite3, {CORES} cores", ready_go, launch_go),
        Contender("go-tuned", "the same with a page cache and group commit", ready_go, launch_tuned_go),
        Contender("fastapi", "FastAPI + SQLAlchemy + limits on uvicorn, 1 worker", ready_fastapi, launch_fastapi),
        Contender(
            "nginx",
            "nginx returning the bytes of one page, as an upper bound",
            ready_nginx,
            launch_nginx,
            serves=("list", "same"),
        ),
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
