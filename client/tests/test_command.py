"""The command, run as a process: its output, errors and exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from harness.backends import free_port
from harness.servers import Key, Server, serving
from petstore.plans import Limits
from petstore_client import __version__


def run(
    *arguments: str, key: str | None, server: Server | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PETSTORE_")}
    if key is not None:
        variables["PETSTORE_API_KEY"] = key
    if server is not None:
        variables["PETSTORE_BASE_URL"] = server.url("")
    return subprocess.run(
        [sys.executable, "-m", "petstore_client", *arguments],
        env=variables | more, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


class _Answer(BaseHTTPRequestHandler):
    status = 200
    body = ""

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def answering(status: int, body: str) -> Iterator[str]:
    """Runs a server that sends the same response to every request. Yields its base URL."""
    handler = type("Handler", (_Answer,), {"status": status, "body": body})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("command") / "data") as server:
        server.fill(150, status="sold")
        yield server


def test_list_prints_one_line_for_each_animal_of_all_pages(shop: Server) -> None:
    done = run("list", "--status", "sold", key=shop.key().secret, server=shop)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 150
    assert lines[0].split() == ["1", "sold", "0", "Pet", "1"]


def test_list_as_json_is_one_array(shop: Server) -> None:
    key = shop.key().secret
    done = run("list", "--status", "sold", "--json", key=key, server=shop)
    assert [pet["id"] for pet in json.loads(done.stdout)] == list(range(1, 151))
    assert json.loads(done.stdout)[0] == {"id": 1, "name": "Pet 1", "categoryId": 0, "status": "sold"}
    assert json.loads(run("list", "--status", "pending", "--json", key=key, server=shop).stdout) == []
    assert run("list", "--status", "pending", key=key, server=shop).stdout == ""


@pytest.mark.parametrize(
    ("limit", "limits"),
    [(1, ["1"]), (100, ["100"]), (120, ["100", "20"]), (150, ["100", "50"]), (1000, ["100", "100"])],
)
def test_list_with_a_limit_prints_only_the_first_animals(shop: Server, limit: int, limits: list[str]) -> None:
    arguments = ["list", "--limit", str(limit), "--status", "sold"]
    done = run(*arguments, "--verbose", key=shop.key().secret, server=shop)
    assert [int(line.split()[0]) for line in done.stdout.splitlines()] == list(range(1, min(limit, 150) + 1))
    requests = re.findall(r"^GET /pets\?limit=(\d+)", done.stderr, re.MULTILINE)
    assert requests == limits, "the command must request only what it prints"


def test_add_and_get_print_the_animal_and_get_warns_of_its_removal(server: Server, key: Key) -> None:
    added = run("add", "Rex", "7", "--status", "sold", "--json", key=key.secret, server=server)
    rex = json.loads(added.stdout)
    assert (rex["name"], rex["categoryId"], rex["status"]) == ("Rex", 7, "sold")
    got = run("get", str(rex["id"]), "--json", key=key.secret, server=server)
    assert json.loads(got.stdout) == rex
    assert "5 December 2030" in got.stderr
    assert "Warning:" not in got.stderr, "the message must not contain a line of code"
    shown = run("get", str(rex["id"]), "--base-url", server.url(""), key=key.secret)
    assert shown.stdout.split() == [str(rex["id"]), "sold", "7", "Rex"]


@pytest.mark.parametrize("output", [[], ["--json"]])
def test_control_characters_are_escaped(server: Server, key: Key, output: list[str]) -> None:
    name = "Rex\u061c\u200e\u2028\u2029\u202e\u2066"
    done = run("add", name, "7", *output, key=key.secret, server=server)
    escaped = r"Rex\u061c\u200e\u2028\u2029\u202e\u2066"
    assert escaped in done.stdout
    assert done.stdout.replace("\n", "").isascii()
    if output:
        assert json.loads(done.stdout)["name"] == name, "the value is unchanged"


@pytest.mark.parametrize("output", [[], ["--json"]])
def test_control_characters_that_the_service_should_have_refused_are_escaped(output: list[str]) -> None:
    pets = [{"id": 1, "name": "Rex\x1b[31m\x80\x9b31m", "categoryId": 7, "status": "sold"}]
    with answering(200, json.dumps(pets)) as base_url:
        done = run("list", *output, key="k", PETSTORE_BASE_URL=base_url)
    assert r"Rex\u001b[31m\u0080\u009b31m" in done.stdout
    assert done.stdout.replace("\n", "").isascii()


def test_control_characters_in_an_error_are_escaped() -> None:
    body = {"code": "a\x9bb", "message": "No\u202e\n", "status": 418}
    with answering(418, json.dumps(body)) as base_url:
        done = run("list", "--verbose", key="k", PETSTORE_BASE_URL=base_url)
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == [r"No\u202e\u000a (a\u009bb, status 418)"]
    assert done.stderr.replace("\n", "").isascii()


def test_an_error_of_the_service_is_one_line_and_exit_code_1(server: Server, key: Key) -> None:
    done = run("get", "999999999999", key=key.secret, server=server)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("There is no such animal. (pet_not_found, status 404, request ")
    assert len(done.stderr.splitlines()) == 1


def test_without_a_key_the_exit_code_is_2_and_the_variable_is_named(server: Server) -> None:
    done = run("list", key=None, server=server)
    assert done.returncode == 2
    assert "PETSTORE_API_KEY" in done.stderr


@pytest.mark.parametrize(
    "bad",
    [
        [],
        ["list", "--status", "lost"],
        ["list", "--limit", "0"],
        ["list", "--limit", "x"],
        ["add", "Rex"],
        ["get", "Rex"],
        ["sell"],
    ],
)
def test_bad_usage_is_exit_code_2(bad: list[str]) -> None:
    assert run(*bad, key="k").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "variables", "why"),
    [
        (["list", "--base-url", "http://h:abc/v1"], {}, "Invalid port"),
        (["list", "--base-url", "http://a..b/v1"], {}, "not a valid URL"),
        (["list", "--base-url", "http://pets.example/v1"], {}, "--allow-http"),
        (["add", "\udcff", "1"], {}, "not valid Unicode"),
        (["list"], {"SSL_CERT_FILE": "/none"}, "SSL_CERT_FILE"),
        (["list"], {"ALL_PROXY": "socks5://127.0.0.1:1"}, "SOCKS"),
        (["list"], {"HTTP_PROXY": "http://h:abc"}, "Invalid port"),
    ],
)
def test_a_request_that_cannot_be_sent_is_one_line_and_exit_code_2(
    arguments: list[str], variables: dict[str, str], why: str
) -> None:
    done = run(*arguments, key="k", server=None, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_character_that_the_output_lacks_is_escaped(server: Server, key: Key) -> None:
    added = run("add", "Rex 🐶", "7", key=key.secret, server=server, PYTHONIOENCODING="cp1252")
    assert (added.returncode, added.stderr) == (0, "")
    assert added.stdout.endswith("  Rex \\U0001f436\n")


def test_json_is_utf_8_on_every_terminal(server: Server, key: Key) -> None:
    added = run("add", "Rex 🐶", "7", "--json", key=key.secret, server=server, PYTHONIOENCODING="cp1252")
    assert json.loads(added.stdout)["name"] == "Rex 🐶"


@pytest.mark.parametrize(("output", "why"), [(">/dev/full", "No space left"), (">&-", "standard output is closed")])
def test_output_that_cannot_be_written_is_one_line_and_exit_code_1(shop: Server, output: str, why: str) -> None:
    variables = {**os.environ, "PETSTORE_API_KEY": shop.key().secret, "PETSTORE_BASE_URL": shop.url("")}
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m petstore_client list {output}', sys.executable],
        env=variables, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_verbose_prints_each_attempt_without_the_key(key: Key) -> None:
    done = run("list", "--verbose", "--base-url", f"http://127.0.0.1:{free_port()}/v1", key=key.secret)
    assert done.returncode == 1
    assert [line.split(",")[1] for line in done.stderr.splitlines()[:3]] == [f" attempt {n}" for n in (1, 2, 3)]
    assert key.secret not in done.stderr


def test_a_wait_for_the_rate_limit_is_printed(server: Server) -> None:
    """The first command uses up the limit, and the second is interrupted while it waits."""
    key = server.key("enterprise", Limits(1, 1000)).secret
    assert run("list", key=key, server=server).returncode == 0
    variables = {**os.environ, "PETSTORE_API_KEY": key, "PETSTORE_BASE_URL": server.url("")}
    with subprocess.Popen(
        [sys.executable, "-m", "petstore_client", "list"],
        env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert re.fullmatch(r"waiting \d\d s: (per-minute )?rate limit\n", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130


def test_a_closed_pipe_is_not_an_error(shop: Server) -> None:
    variables = {**os.environ, "PETSTORE_API_KEY": shop.key().secret, "PETSTORE_BASE_URL": shop.url("")}
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "petstore_client", "list"],
        env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_version_and_help_are_printed() -> None:
    assert run("--version", key=None).stdout.strip() == __version__
    shown = run("--help", key=None).stdout
    assert all(command in shown for command in ("list", "add", "get", "PETSTORE_API_KEY"))
