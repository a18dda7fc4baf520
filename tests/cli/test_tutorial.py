"""Runs every command in docs/tutorial.md and the README in order, and compares the output with the document.

Ports, the data directory and the secret differ from the document's, and `sleep` moves the service's clock.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from harness.backends import program
from harness.consoles import Console, running_console
from harness.served import Served

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
CHECKOUT = os.pathsep.join(str(ROOT / path) for path in ("src", "client/src"))
# Builds the client's metadata but does not install it, because other tests use this environment.
PIP_INSTALL = "pip install --dry-run --quiet --no-deps --no-index --no-build-isolation"


class Line(NamedTuple):
    """A command in a document, and the output that the document shows for it."""

    command: str
    shown: list[str]


def lines_of(document: str) -> list[Line]:
    found = []
    text = (ROOT / document).read_text()
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for command, shown in re.findall(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            found.append(Line(command.rstrip("\n"), shown.splitlines()))
    return found


def options_of(command: str) -> list[str]:
    """Returns the arguments that a command in the Makefile passes to `petstore`."""
    words = ["make", "--dry-run", "--no-print-directory", "--old-file=.venv/.installed"]
    # Remove the variables that `make test ARGS=…` passes on to its child processes.
    variables = {name: value for name, value in os.environ.items() if name not in ("ARGS", "MAKEFLAGS", "MFLAGS")}
    done = subprocess.run(
        [*words, *shlex.split(command, comments=True)[1:]],
        env=variables, cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return shlex.split(done.stdout.splitlines()[-1])[1:]


def assert_prints(line: Line, printed: str) -> None:
    lines = [each.strip() for each in printed.splitlines()]
    for shown in filter(None, map(str.strip, line.shown)):
        pattern = re.escape(shown).replace("…", ".+")
        assert any(re.fullmatch(pattern, each) for each in lines), f"{line.command}\n{shown}\n\n{printed}"


@pytest.fixture(params=["docs/tutorial.md", "README.md"])
def document(request: pytest.FixtureRequest) -> str:
    program("curl")
    return str(request.param)


@pytest.fixture
def served(document: str, tmp_path: Path) -> Iterator[Served]:
    """Starts the service with the document's first command."""
    first = lines_of(document)[0]
    command, *options = options_of(first.command)
    assert command == "serve"
    server = Served(tmp_path / "data", *options, "--clock-file", str(tmp_path / "data.clock"))
    server.start()
    try:
        assert_prints(first, server.printed.replace(str(server.port), "8080"))
        yield server
    finally:
        server.stop()


@pytest.fixture
def console(document: str, served: Served) -> Iterator[Console]:
    (line,) = [line for line in lines_of(document) if line.command.startswith("make console")]
    assert options_of(line.command) == ["console"]
    with running_console(served) as running:
        assert_prints(line, running.output.read_text().replace(str(running.port), "8081"))
        yield running


@pytest.mark.thorough
def test_every_line_runs_and_prints_what_is_shown(
    document: str, served: Served, console: Console, tmp_path: Path
) -> None:
    with httpx.Client(follow_redirects=True, timeout=15) as browser:
        assert "Overview" in browser.get(console.link).text
    for number, script in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)):
        assert number == 0
        (tmp_path / "tour.py").write_text(script)

    found = re.search(r"pets_live_\w+", served.printed)
    assert found is not None
    lines = [line for line in lines_of(document) if not line.command.startswith("make ")]
    assert len(lines) >= 3
    script = f"sleep() {{ echo $1 > {served.clock_file}; }}\n"
    for number, line in enumerate(lines):
        command = line.command
        for before, after in (
            ("127.0.0.1:8080", f"127.0.0.1:{served.port}"), ("pets_live_…", found[0]), (".venv/bin", str(BIN)),
            ("/tmp/tour/bin/pip install dist/petstore_client-1.0.0-py3-none-any.whl",
             f"{BIN}/python -m {PIP_INSTALL} {ROOT / 'client'}"),
            ("/tmp/tour/bin/python tour.py", f"{BIN}/python tour.py"), ("/tmp/tour", str(tmp_path / "tour")),
        ):  # fmt: skip
            command = command.replace(before, after)
        script += f"echo '@@@{number}'\n{command}\necho\n"
    variables = os.environ | served.where | {"PYTHONPATH": CHECKOUT}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    printed = dict(re.findall(r"^@@@(\d+)\n(.*?)(?=^@@@|\Z)", done.stdout, re.MULTILINE | re.DOTALL))
    for number, line in enumerate(lines):
        assert_prints(line, printed[str(number)])


def test_the_tutorial_waits_as_long_as_a_window_is() -> None:
    assert [line.command for line in lines_of("docs/tutorial.md") if line.command.startswith("sleep")] == ["sleep 60"]
