"""Checks docs/api.md: every `curl` command works as shown and prints the output shown. Every header is explained."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from harness.backends import program
from harness.servers import PETSTORE, serving
from petstore.plans import PLANS
from petstore.rate_limits import SECOND, BanPolicy, Outcome, Windows, admit
from petstore.web.replies import seconds
from tests.interface import DOCUMENTED

API = (Path(__file__).parents[2] / "docs/api.md").read_text()


def commands() -> list[tuple[str, list[str]]]:
    """Returns each `curl` and `keys create` command of the document, in order, with the output lines shown."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", API, re.MULTILINE | re.DOTALL):
        for command, shown in re.findall(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            found.append((command, shown.splitlines()))
    return [(command, shown) for command, shown in found if "curl" in command or "keys create" in command]


def test_every_curl_of_the_document_answers_what_it_shows(tmp_path: Path) -> None:
    program("curl")
    assert len(commands()) >= 14
    with serving(tmp_path / "data") as server:
        variables = {
            "BASE": server.url(""), "KEY": server.key("business").secret, "STAGING": server.url("", "staging"),
        }  # fmt: skip
        for command, shown in commands():
            if name := re.match(r"export (\w+)=", command):
                command = command.replace(".venv/bin/petstore", shlex.join(PETSTORE))
                command = command.replace("/tmp/empty", str(server.data)) + f"printenv {name[1]}"
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                env=os.environ | variables, cwd=tmp_path, capture_output=True, text=True, timeout=30,
            )  # fmt: skip
            assert done.returncode == 0, command + done.stderr
            if name:
                variables[name[1]] = done.stdout.strip()
            answered = [line.rstrip() for line in done.stdout.splitlines()]
            for line in shown:
                pattern = re.escape(line).replace("…", ".+")
                assert any(re.fullmatch(pattern, other) for other in answered), f"{command}{line}\n{done.stdout}"


def test_the_drawing_of_a_ban_is_what_happens() -> None:
    """Checks the requests, strikes and Retry-After of each stage, at three requests a second on the free plan."""
    limits = PLANS["free"]
    assert limits is not None
    rows: dict[Outcome, list[tuple[int, int, int]]] = {outcome: [] for outcome in Outcome}
    windows = Windows()
    for number in range(1, 302):
        windows, decision = admit(windows, limits, BanPolicy(), 10**12 + (number - 1) * SECOND // 3)
        rows[decision.outcome].append((number, windows.strikes, seconds(decision.wait)))
    assert [number for number, *_ in rows[Outcome.ADMITTED]] == [*range(1, 61), 301] and windows.strikes == 0
    assert (rows[Outcome.LIMITED][0], rows[Outcome.LIMITED][-1]) == ((61, 1, 40), (120, 60, 21))
    assert [(number, wait) for number, _, wait in rows[Outcome.BANNED]][::179] == [(121, 60), (300, 1)]
    for shown in ("1 … 60          61 … 120        121 … 300", "40 … 21         60 … 1"):
        assert shown in API


HEADERS = {
    name for operation in DOCUMENTED.values() for response in operation["responses"].values()
    for name in response["headers"]
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(HEADERS))
def test_every_header_of_a_response_is_explained(name: str) -> None:
    assert re.search(rf"^\| `{name}` \| .+ \| .+ \|$", API, re.MULTILINE)


def test_every_header_and_parameter_of_a_request_is_explained() -> None:
    for operation in DOCUMENTED.values():
        for parameter in operation["parameters"]:
            assert re.search(rf"`{parameter['name']}`|{{{parameter['name']}}}", API), parameter["name"]


def test_every_status_of_the_interface_is_mentioned() -> None:
    for operation in DOCUMENTED.values():
        for status in operation["responses"]:
            assert re.search(rf"\b{status}\b", API), status
