"""`petstore serve` as an operator runs it: its output, and the one-line messages of failures."""

import asyncio
import contextlib
import json
import os
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import asyncpg
import httpx
import pytest

from harness.backends import free_port
from harness.certificates import self_signed
from harness.commands import Commands
from harness.served import SECRET, Served, serve_fails_in_one_line, wait_for
from harness.servers import PETSTORE, Server, started, takes_connections
from harness.stores import StorePlace
from petstore.plans import Limits
from petstore.store.postgres.migrations import MIGRATION_LOCK

OPENSSL = next((path for path in (Path("/usr/bin/openssl"), Path("/usr/local/bin/openssl")) if path.exists()), None)
CURL = Path("/usr/bin/curl")
ROOT = Path(__file__).parents[2]


def test_first_start_prints_one_key_and_a_curl_line_that_works(serve: Callable[..., Served]) -> None:
    own = serve("--show-first-key")
    assert len(set(SECRET.findall(own.printed))) == 1
    line = next(line.strip() for line in own.printed.splitlines() if line.strip().startswith("curl "))
    if CURL.exists():
        answer = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=20)
        status, body = answer.stdout.splitlines()[0], answer.stdout.splitlines()[-1]
        assert (answer.returncode, "200" in status, body) == (0, True, "[]")
    else:
        words = re.fullmatch(r"curl -i (\S+) -H '([^:]+): ([^']+)'", line)
        assert words is not None
        assert httpx.get(words[1], headers={words[2]: words[3]}, verify=False).json() == []


def test_first_start_without_a_terminal_prints_the_command_that_creates_a_key(serve: Callable[..., Served]) -> None:
    own = serve()
    assert SECRET.findall(own.printed + own.log.read_text()) == []
    (line,) = re.findall("Create one with `(.*)`", own.printed)
    assert f"--data {own.data}" in line
    created = subprocess.run(["sh", "-c", f"{line} --json"], capture_output=True, text=True, check=True)
    key = json.loads(created.stdout)["key"]
    assert httpx.get(own.url("/pets"), headers={"Authorization": f"Bearer {key}"}).json() == []


def test_make_serve_prints_a_curl_line_that_works_even_if_its_output_goes_to_a_file(tmp_path: Path) -> None:
    printed = tmp_path / "out"
    variables = {name: value for name, value in os.environ.items() if name not in ("ARGS", "MAKEFLAGS", "MFLAGS")}
    with printed.open("wb") as out:
        making = subprocess.Popen(
            ["make", "serve", f"ARGS=--data {tmp_path / 'data'} --port {free_port()} --workers 1"],
            cwd=ROOT, stdout=out, stderr=subprocess.DEVNULL, env=variables, start_new_session=True,
        )  # fmt: skip
    try:
        assert wait_for(lambda: "curl " in printed.read_text())
        line = next(each.strip() for each in printed.read_text().splitlines() if each.strip().startswith("curl "))
        (url,), (secret,) = re.findall(r"http://\S+", line), set(SECRET.findall(line))
        assert wait_for(lambda: takes_connections(int(url.split(":")[2].split("/")[0])))
        assert httpx.get(url, headers={"Authorization": f"Bearer {secret}"}).json() == []
    finally:
        os.killpg(making.pid, signal.SIGTERM)
        making.wait(30)


def test_the_banner_names_the_data_by_its_absolute_path(serve: Callable[..., Served]) -> None:
    own = serve()
    assert re.search(rf"^  data +{re.escape(str(own.data.absolute()))}$", own.printed, re.MULTILINE)


def test_a_second_service_on_the_same_directory_says_so_and_shares_its_limits(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    own = serve()
    key = own.key("enterprise", Limits(10, 100))
    with started(Server(own.data)) as second:
        statuses = [httpx.get(each.url("/pets"), headers=key.headers).status_code for each in (own, second) * 6]
        assert (statuses.count(200), statuses.count(429)) == (10, 2)
    process = subprocess.Popen(
        [*PETSTORE, "serve", "--data", str(own.data), "--port", str(free_port())],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert "Another service, console or command is using this data directory" in process.stderr.readline()
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_second_start_prints_no_key(serve: Callable[..., Served]) -> None:
    own = serve("--show-first-key")
    (first,) = set(SECRET.findall(own.printed))
    own.stop()
    own.start()
    assert SECRET.findall(own.printed) == []
    assert httpx.get(own.url("/pets"), headers={"Authorization": f"Bearer {first}"}).status_code == 200


def test_start_says_where_it_listens_and_both_base_addresses(serve: Callable[..., Served]) -> None:
    own = serve()
    words = own.printed.split()
    assert {own.origin, f"{own.origin}/v1", f"{own.origin}/staging/v1"} <= set(words)


def test_start_shows_the_public_base_addresses(serve: Callable[..., Served]) -> None:
    own = serve("--public-url", "https://api.example.com")
    assert {own.origin, "https://api.example.com/v1", "https://api.example.com/staging/v1"} <= set(own.printed.split())


@pytest.mark.parametrize(
    "options",
    [
        ["--unknown"], ["--port", "0"], ["--port", "http"], ["--workers", "0"],
        ["--public-url", "http://[x"], ["--staging-url", "https://staging.example.com:80a"], ["--store", "postgresql://[::1/petstore"],
        ["--gate", "redis://127.0.0.1?foo=bar"],
        ["--public-url", "api.example.com"], ["--public-url", "ftp://api.example.com"],
        ["--public-url", "https://api.example.com?x=1"], ["--trusted-proxy", "proxy"],
        ["--trusted-proxy", "10.0.0.0/99"], ["--tls-cert", __file__], ["--tls-key", __file__],
        ["--tls-cert", "missing.pem", "--tls-key", "missing.pem"], ["--address-per-minute", "0"],
        ["--ban-seconds", "0"], ["--ban-seconds", "60", "--ban-ceiling", "59"], ["--cors-origin", "shop.example.com"],
        ["--cors-origin", "https://bücher.example"], ["--cors-origin", "https://me@shop.example.com"],
        ["--address-per-minute", str(10**12 + 1)], ["--ban-strikes", str(10**12 + 1)],
        ["--gate", "redis://127.0.0.1:6379/abc"], ["--store", "mysql://x"],
        ["--store", "postgresql://me:secret@[::1]:5432,db:none/petstore"], ["--gate", "memcached://x"], ["surplus"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_bad_option_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setattr("petstore.service.serve", lambda settings: pytest.fail("the options were accepted"))
    Commands(Server(tmp_path / "data")).fails_in_one_line("serve", "--port", str(free_port()), *options)


@pytest.mark.parametrize("sockets", ["x", "-1", "²", "1000000", "9000"])
def test_wrong_listen_fds_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sockets: str
) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", sockets)
    line = Commands(Server(tmp_path / "data")).fails_in_one_line("serve", "--port", str(free_port()))
    assert "LISTEN_FDS" in line and not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("package", "option", "url"),
    [("redis", "--gate", "redis://127.0.0.1"), ("asyncpg", "--store", "postgresql://127.0.0.1/pets")],
)
def test_a_package_that_is_missing_is_found_before_anything_is_created(
    tmp_path: Path, package: str, option: str, url: str
) -> None:
    hidden = f"import sys; sys.modules[{package!r}] = None; import petstore.cli; petstore.cli.main()"
    words = ["serve", "--port", str(free_port()), option, url]
    done = subprocess.run(
        [sys.executable, "-c", hidden, *words], cwd=tmp_path, capture_output=True, text=True, timeout=20
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"requires the package {package}" in done.stderr and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a..b"])
def test_host_that_cannot_be_found_is_one_line_and_exit_code_2(tmp_path: Path, host: str) -> None:
    serve_fails_in_one_line(["--data", str(tmp_path / "data"), "--port", str(free_port()), "--host", host])


@pytest.mark.parametrize("below", ["file", "file/data"])
def test_data_directory_that_cannot_be_made_is_one_line_and_exit_code_2(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("not a directory")
    serve_fails_in_one_line(["--data", str(tmp_path / below), "--port", str(free_port())])


def test_a_store_that_is_away_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    store = f"postgresql://127.0.0.1:{free_port()}/x"
    serve_fails_in_one_line(["--data", str(tmp_path / "data"), "--port", str(free_port()), "--store", store])


def test_a_start_waits_for_migrations_that_take_longer_than_a_request_waits(place: StorePlace) -> None:
    server = Served(place.data / "data", "--store", str(place.url), "--show-first-key")

    async def start_while_another_node_migrates() -> None:
        other = await asyncpg.connect(place.url)
        await other.execute("SELECT pg_advisory_lock($1)", MIGRATION_LOCK)
        server.start(wait=False)
        assert await asyncio.to_thread(wait_for, lambda: "store opening" in server.log.read_text())
        await other.close()

    try:
        asyncio.run(start_while_another_node_migrates())
        server.wait_until_ready()
        assert wait_for(lambda: SECRET.search(server.printed))
        assert [entry["event"] for entry in server.events] == ["store opening", "started"]
    finally:
        server.stop()


def test_first_key_that_cannot_be_printed_is_said_to_be_lost(tmp_path: Path) -> None:
    words = [*PETSTORE, "serve", "--show-first-key", "--data", str(tmp_path / "data"), "--port", str(free_port())]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=20)
    assert done.returncode == 2 and re.search(r"The secret is lost\. .*petstore keys create", done.stderr)


def test_tls_files_that_are_no_certificate_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    serve_fails_in_one_line(
        ["--data", str(tmp_path / "data"), "--port", str(free_port()), "--tls-cert", str(junk), "--tls-key", str(junk)]
    )


def test_port_in_use_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = serve_fails_in_one_line(["--data", str(tmp_path / "data"), "--port", str(port)])
    assert str(port) in line


def test_port_of_another_petstore_is_in_use(serve: Callable[..., Served], tmp_path: Path) -> None:
    own = serve()
    assert str(own.port) in serve_fails_in_one_line(["--data", str(tmp_path / "other"), "--port", str(own.port)])


def _is_hung_up_on(port: int, trusting: ssl.SSLContext) -> bool:
    """Returns whether the service soon disconnects a client that keeps sending after it got its response."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=20)
    with trusting.wrap_socket(plain, server_hostname="127.0.0.1") as talking:
        talking.sendall(b"POST /v1/pets HTTP/1.1\r\nHost: here\r\nContent-Length: 100000000000\r\n\r\n")
        until = time.monotonic() + 15
        with contextlib.suppress(OSError):
            while time.monotonic() < until:
                talking.sendall(b"x" * 1000)
                time.sleep(0.05)
            return False
    return True


@pytest.mark.skipif(OPENSSL is None, reason="needs the openssl command to make a certificate")
def test_tls(tmp_path: Path) -> None:
    certificate, private = self_signed(tmp_path)
    own = Served(tmp_path / "data", "--tls-cert", str(certificate), "--tls-key", str(private)).start(wait=False)
    try:
        assert wait_for(lambda: takes_connections(own.port))
        own.origin = f"https://127.0.0.1:{own.port}"
        trusting = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(verify=trusting) as client:
            assert client.get(own.url("/pets"), headers=own.key().headers).json() == []
        assert _is_hung_up_on(own.port, trusting)
        assert f"https://127.0.0.1:{own.port}/v1" in own.printed
    finally:
        own.stop()


def test_unfinished_tls_handshakes_count_for_their_address(tmp_path: Path) -> None:
    certificate, private = self_signed(tmp_path)
    options = ["--tls-cert", str(certificate), "--tls-key", str(private), "--connections-per-address", "5"]
    own = Served(tmp_path / "data", *options, "--workers", "1").start(wait=False)
    trusting = ssl.create_default_context(cafile=str(certificate))
    silent: list[socket.socket] = []
    try:
        assert wait_for(lambda: takes_connections(own.port))
        silent += [socket.create_connection(("127.0.0.1", own.port), timeout=5) for _ in range(9)]
        refused = [each for each in silent if select.select([each], [], [], 0.5)[0]]  # closed immediately
        assert len(refused) == 4
        other = socket.create_connection(("127.0.0.1", own.port), timeout=5, source_address=("127.0.0.2", 0))
        with trusting.wrap_socket(other, server_hostname="127.0.0.1") as talking:
            talking.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
            assert talking.recv(100).startswith(b"HTTP/1.1 200")
        for each in silent:
            each.close()

        def is_served() -> bool:
            with contextlib.suppress(httpx.TransportError):  # fails until the server has noticed that they are closed
                return httpx.get(f"https://127.0.0.1:{own.port}/healthz", verify=trusting).status_code == 200
            return False

        assert wait_for(is_served)
    finally:
        for each in silent:
            each.close()
        own.stop()


@pytest.mark.parametrize(
    "line",
    [
        f"{Path(sys.executable).with_name('petstore')} serve",
        f"{sys.executable} -I -m petstore serve",
        f"{sys.executable} -P -m petstore serve <&- >&- 2>&-",
        f"nohup {Path(sys.executable).with_name('petstore')} serve",
    ],
    ids=["script", "isolated", "streams closed", "nohup"],
)
def test_workers_start_however_the_service_was_started(tmp_path: Path, line: str) -> None:
    """The working directory contains a module with the name of a package that the service imports."""
    (tmp_path / "msgspec.py").write_text("raise SystemExit('imported from the working directory')")
    port = free_port()
    service = subprocess.Popen(
        ["sh", "-c", f"exec {line}"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "PETSTORE_DATA": str(tmp_path / "data"), "PETSTORE_PORT": str(port)},
    )  # fmt: skip
    try:
        assert wait_for(lambda: takes_connections(port))
        assert httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    finally:
        service.terminate()
        assert service.wait(30) == 0
