"""The command `petstore console`: its options, and the packages that it needs."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from harness.commands import Commands
from harness.consoles import Console, running_console
from harness.servers import PETSTORE, Server, serving
from petstore import __version__


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Uses one pair of backends, because the tests do not depend on the backend."""
    with serving(tmp_path_factory.mktemp("command") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def console(server: Server) -> Iterator[Console]:
    with running_console(server) as running:
        yield running


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--host", "0.0.0.0"], "--public-url"),
        (["--host", "0.0.0.0", "--public-url", "http://console.example.com"], "https"),
        (["--public-url", "console.example.com"], "--public-url"),
        (["--public-url", "https://c.example:abc"], "--public-url"),
        (["--public-url", "https://[x"], "--public-url"),
        (["--public-url", "https://c.example/ops"], "without a path"),
        (["--public-url", "https://c.example?x=1"], "without a path"),
        (["--public-url", "https://me@c.example"], "--public-url"),
        (["--public-url", "https://"], "--public-url"),
        (["--tls-cert", "x.pem"], "--tls-key"),
        (["--port", "0"], "--port"),
        (["--store", "mysql://x"], "mysql"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_unsafe_options_are_refused_in_one_line(tmp_path: Path, options: list[str], names: str) -> None:
    assert names in Commands(Server(tmp_path / "data")).fails_in_one_line("console", *options)


def test_a_port_in_use_is_refused_in_one_line(console: Console) -> None:
    message = Commands(console.server).fails_in_one_line("console", "--port", str(console.port))
    assert str(console.port) in message


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    """The service can be installed without the packages of the console."""
    for module in ("starlette", "jinja2", "python_multipart"):
        hidden = tmp_path / module
        hidden.mkdir()
        (hidden / f"{module}.py").write_text(f"raise ModuleNotFoundError(name={module!r})")
        done = subprocess.run(
            [*PETSTORE, "console", "--data", str(tmp_path / "data"), "--port", "1024"],
            capture_output=True, text=True, timeout=30, env={"PYTHONPATH": str(hidden), "PATH": "/usr/bin"},
        )  # fmt: skip
        assert done.returncode == 2
        wheel = f"./petstore-{__version__}-py3-none-any.whl[console]"
        assert done.stderr == f"petstore: the console requires the package {module}: pip install '{wheel}'\n"


def test_the_service_does_not_serve_the_console(server: Server) -> None:
    for path in ("/sign-in", "/live/overview", "/static/base.css"):
        assert httpx.get(server.origin + path).status_code == 404
