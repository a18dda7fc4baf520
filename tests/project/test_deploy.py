"""The files in deploy/. systemd checks the units, their command lines work, and a real nginx serves the site."""

import contextlib
import os
import re
import shlex
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from harness.backends import free_port, program, running
from harness.commands import Commands
from harness.proxies import Nginx
from harness.served import wait_for
from harness.servers import Server, serving, takes_connections
from harness.wire import request
from petstore.gate import recovery

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = [
    "petstore.service", "petstore-backup.service", "petstore-backup.timer", "petstore-console.service",
    "petstore-dump.service", "petstore-dump.timer",
]  # fmt: skip
PETSTORE = Path(sys.executable).with_name("petstore")
STOPS_WITHIN = 5.0


# systemd


def installed(tmp_path: Path) -> list[Path]:
    """Writes the units with the path of this machine's petstore command. Returns their files."""
    for name in UNITS:
        (tmp_path / name).write_text(
            (DEPLOY / name).read_text().replace("/opt/petstore/.venv/bin/petstore", str(PETSTORE))
        )
    return [tmp_path / name for name in UNITS]


def setting(unit: str, name: str) -> list[str]:
    return re.findall(rf"(?m)^{name}=(.*)$", (DEPLOY / unit).read_text())


def test_systemd_finds_no_fault_with_the_units(tmp_path: Path) -> None:
    done = subprocess.run(
        [program("systemd-analyze"), "verify", *map(str, installed(tmp_path))],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "unit", ["petstore.service", "petstore-backup.service", "petstore-console.service", "petstore-dump.service"]
)
def test_systemd_rates_the_units_as_little_exposed(tmp_path: Path, unit: str) -> None:
    installed(tmp_path)
    done = subprocess.run(
        [program("systemd-analyze"), "security", "--offline=true", "--threshold=30", str(tmp_path / unit)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-300:]


@pytest.mark.parametrize("unit", ["petstore.service", "petstore-node.service", "petstore-console.service"])
def test_the_units_let_the_service_read_the_boot_id(unit: str) -> None:
    """ProcSubset=pid would hide it, and the gate could not detect a power cut."""
    assert recovery.BOOT_ID_FILE.is_relative_to("/proc/sys")
    assert setting(unit, "ProcSubset") in ([], ["all"])


def variables(unit: str, **instead: str) -> dict[str, str]:
    """Returns the environment variables of a unit. `instead` has other values for some of them."""
    env_file = dict(
        line.split("=", 1) for line in (DEPLOY / "petstore.env").read_text().splitlines() if line[:1] == "P"
    )
    own = dict(line.split("=", 1) for line in setting(unit, "Environment"))
    return {**os.environ, **own, **env_file, **instead}


def test_the_units_command_serves_and_stops_in_time(tmp_path: Path) -> None:
    port = free_port()
    (start,) = setting("petstore.service", "ExecStart")
    words = shlex.split(start.replace("/opt/petstore/.venv/bin/petstore", str(PETSTORE)))
    env = variables("petstore.service", PETSTORE_DATA=str(tmp_path / "data"), PETSTORE_PORT=str(port))
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(words, stdout=log, stderr=log, env=env, start_new_session=True)
    try:
        assert wait_for(lambda: takes_connections(port)), (tmp_path / "log").read_text()
        with httpx.Client(verify=False) as client:
            assert wait_for(lambda: client.get(f"http://127.0.0.1:{port}/readyz").status_code == 200)
        workers = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        assert len(workers) == int(env["PETSTORE_WORKERS"]) == 2
        began = time.monotonic()
        running.terminate()
        assert running.wait(timeout=float(setting("petstore.service", "TimeoutStopSec")[0])) == 0
        assert time.monotonic() - began < STOPS_WITHIN < float(setting("petstore.service", "TimeoutStopSec")[0])
    finally:
        with contextlib.suppress(ProcessLookupError):
            running.kill()
        running.wait(timeout=60)


def test_the_console_units_command_answers_and_keeps_its_link_out_of_the_journal(tmp_path: Path) -> None:
    unit, port = "petstore-console.service", free_port()
    assert setting(unit, "StandardOutput") == ["null"]
    (start,) = setting(unit, "ExecStart")
    words = shlex.split(start.replace("/opt/petstore/.venv/bin/petstore", str(PETSTORE)))
    env = variables(unit, PETSTORE_DATA=str(tmp_path / "data"), PETSTORE_CONSOLE_PORT=str(port))
    with (tmp_path / "journal").open("wb") as journal:
        running = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=journal, env=env, start_new_session=True)
    try:
        assert wait_for(lambda: takes_connections(port)), (tmp_path / "journal").read_text()
        assert "Sign in" in httpx.get(f"http://127.0.0.1:{port}/", verify=False, follow_redirects=True).text
        running.terminate()
        assert running.wait(timeout=float(setting(unit, "TimeoutStopSec")[0])) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            running.kill()
        running.wait(timeout=60)
    assert "token=" not in (tmp_path / "journal").read_text()


def test_the_backup_units_command_makes_a_backup_and_keeps_24(tmp_path: Path) -> None:
    commands = Commands(Server(tmp_path / "data"))
    commands.server.fill(3)
    backups = tmp_path / "backups"
    backups.mkdir()
    for name in ("before-upgrade", *(f"202601{day:02}T023000Z" for day in range(1, 31))):
        (backups / f"{name}.zip").write_text("x")
    unit = "petstore-backup.service"
    assert setting(unit, "ExecStartPost") == []
    (line,) = setting(unit, "ExecStart")
    words = shlex.split(line.replace("/opt/petstore/.venv/bin/petstore", str(PETSTORE)))
    subprocess.run(
        [word.replace("/var/backups/petstore", str(backups)) for word in words],
        check=True, capture_output=True, env=variables(unit, PETSTORE_DATA=str(commands.data)), timeout=60,
    )  # fmt: skip
    left = sorted(path.name for path in backups.iterdir())
    assert left[0] == "20260108T023000Z.zip" and left[-1] == "before-upgrade.zip" and len(left) == 25


def test_the_wrapper_runs_a_command_with_the_services_settings(tmp_path: Path) -> None:
    """Runs the script with the current user instead of petstore, and with other paths."""
    script = (DEPLOY / "petstore.sh").read_text()
    (tmp_path / "petstore.env").write_text("PETSTORE_PUBLIC_URL='nonsense & more'\n")
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    for before, after in (
        ("!= petstore", f"!= {user}"), ("/var/lib/petstore", str(tmp_path / "data")),
        ("/etc/petstore.env", str(tmp_path / "petstore.env")), ("/opt/petstore/.venv/bin/petstore", str(PETSTORE)),
    ):  # fmt: skip
        assert before in script
        script = script.replace(before, after)
    (tmp_path / "petstore.sh").write_text(script)
    Commands(Server(tmp_path / "data")).text("pets", "add", "--name", "Rex", "--category-id", "1")
    done = subprocess.run(["sh", str(tmp_path / "petstore.sh"), "check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "--public-url nonsense & more" in done.stdout


# nginx


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Nginx]]:
    directory = tmp_path_factory.mktemp("nginx")
    options = ["--trusted-proxy", "127.0.0.1", "--public-url", "https://api.example.com", "--address-per-minute", "50"]
    with (
        serving(directory / "data", "own", *options, "--access-log") as server,
        running(Nginx(server.port)) as nginx,
    ):
        yield server, nginx


@pytest.fixture
def outside(proxied: tuple[Server, Nginx]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"https://127.0.0.1:{proxied[1].port}", verify=False, timeout=15) as client:
        yield client


def test_links_behind_nginx_have_the_public_address(proxied: tuple[Server, Nginx], outside: httpx.Client) -> None:
    server, _ = proxied
    key = server.key()
    sent = {**key.headers, "Idempotency-Key": "once", "Host": "api.example.com"}
    added = outside.post("/v1/pets", headers=sent, json={"name": "Rex", "categoryId": 1})
    assert (added.status_code, added.headers["location"]) == (201, "https://api.example.com/v1/pets/1")
    again = outside.post("/v1/pets", headers=sent, json={"name": "Rex", "categoryId": 1})
    assert again.headers["idempotent-replayed"] == "true"
    listed = outside.get("/v1/pets", headers=key.headers)
    tagged = outside.get("/v1/pets", headers={**key.headers, "If-None-Match": listed.headers["etag"]})
    assert (listed.status_code, tagged.status_code) == (200, 304)
    assert len(listed.headers.get_list("x-ratelimit-limit")) == 1
    assert outside.get("//v1/pets", headers=key.headers).status_code == 404  # the path is not normalised


def test_nginx_keeps_its_connections_to_the_service_open(proxied: tuple[Server, Nginx], outside: httpx.Client) -> None:
    server, nginx = proxied
    key = server.key()
    for _ in range(20):
        assert outside.get("/v1/pets", headers=key.headers).status_code == 200
    assert nginx.process is not None
    pid = Path(f"/proc/{nginx.process.pid}/task/{nginx.process.pid}/children").read_text().split()[0]
    sockets = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    port = f":{server.port:04X}"
    kept = [row for row in rows if row[2].endswith(port) and row[3] == "01" and f"socket:[{row[9]}]" in sockets]
    assert 1 <= len(kept) <= 3


def test_behind_nginx_each_client_is_limited_by_its_own_address(
    proxied: tuple[Server, Nginx], outside: httpx.Client
) -> None:
    server, _ = proxied
    answer = outside.get("/v1/pets", headers={"X-Forwarded-For": "203.0.113.9", "Forwarded": "for=203.0.113.9"})
    assert answer.status_code == 401
    entries = [line for line in server.log.read_text().splitlines() if answer.headers["x-request-id"] in line]
    assert '"address":"127.0.0.1"' in entries[0]  # this test's address, not the forged one


def test_nginx_leaves_a_body_that_is_too_large_to_the_service(
    proxied: tuple[Server, Nginx], outside: httpx.Client
) -> None:
    key = proxied[0].key()
    answer = outside.post("/v1/pets", headers=key.headers, content=b"x" * 100_000)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert outside.post("/v1/pets", headers=key.headers, content=b"x" * 2_000_000).status_code == 413


def test_metrics_are_404_behind_nginx(proxied: tuple[Server, Nginx], outside: httpx.Client) -> None:
    server, _ = proxied
    origin = str(outside.base_url).rstrip("/")  # complete URLs, because in "//metrics", metrics would be a host
    for path in ("/metrics", "/metrics?x", "/%6detrics", "//metrics", "/./metrics", "/v1/../metrics"):
        assert outside.get(origin + path).status_code == 404, path
    # Metrics are not available through a proxy without this configuration either.
    head = {"Host": "127.0.0.1", "X-Forwarded-For": "203.0.113.9"}
    assert httpx.get(server.origin + "/metrics", headers=head, verify=False).status_code == 404
    assert httpx.get(server.origin + "/metrics", verify=False).status_code == 200


def test_nginx_answers_502_and_recovers_when_the_service_is_restarted(
    proxied: tuple[Server, Nginx], outside: httpx.Client
) -> None:
    server, _ = proxied
    key = server.key()
    server.stop()
    assert outside.get("/v1/pets", headers=key.headers).status_code in (502, 503, 504)
    server.start()
    assert wait_for(lambda: outside.get("/v1/pets", headers=key.headers).status_code == 200, 15)


def test_smuggled_framing_does_not_get_through_nginx(proxied: tuple[Server, Nginx]) -> None:
    _, nginx = proxied
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    data = (
        request("POST", "/v1/pets", {"Transfer-Encoding": "chunked", "Content-Length": "6"})
        + b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", nginx.port), timeout=15) as plain, context.wrap_socket(plain) as secure:
        secure.sendall(data)
        received = b""
        with contextlib.suppress(TimeoutError, OSError):
            while chunk := secure.recv(65536):
                received += chunk
    assert received.count(b"HTTP/1.1 ") == 1
    assert b"HTTP/1.1 400" in received


TWO_HOSTS = ("--trusted-proxy", "127.0.0.1", "--public-url", "https://api.example.com",
             "--staging-url", "https://staging.example.com")  # fmt: skip


def assert_staging_has_two_addresses(server: Server, port: int) -> None:
    """Asserts that staging has its own host and is also at a path of the live host, behind a proxy for both hosts."""
    live, staging = server.key(), server.key(environment="staging")
    with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=False, timeout=15) as client:
        host = {"Host": "staging.example.com"}
        added = client.post("/v1/pets", headers={**staging.headers, **host}, json={"name": "Rex", "categoryId": 1})
        assert (added.status_code, added.headers["location"]) == (201, "https://staging.example.com/v1/pets/1")
        for path, headers, status in (
            ("/v1/pets", {**live.headers, "Host": "api.example.com"}, 200),
            ("/v1/pets", {**staging.headers, "Host": "api.example.com"}, 401),
            ("/v1/pets", {**live.headers, **host}, 401),
            ("/staging/v1/pets", {**staging.headers, "Host": "api.example.com"}, 200),
        ):
            assert client.get(path, headers=headers).status_code == status, (path, headers["Host"])


def test_behind_nginx_staging_can_have_a_separate_host(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "data", "own", *TWO_HOSTS) as server,
        running(Nginx(server.port, "api.example.com staging.example.com")) as nginx,
    ):
        assert_staging_has_two_addresses(server, nginx.port)
