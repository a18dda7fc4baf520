"""Deprecation follows from the table of operations, with no, one or two deprecated operations."""

import ast
import itertools
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from email.utils import format_datetime
from pathlib import Path

import httpx
import pytest

import petstore
from harness.deprecations import SINCE, deprecating, program
from harness.in_process import NOW, Clock, Running, pairs, request, use_app
from harness.scraping import scrape
from harness.served import wait_for
from harness.servers import Server, started
from petstore.errors import Gone
from petstore.keys import SCOPES, mint
from petstore.operations import OPERATIONS, Operation, OperationName, deprecated_operations
from petstore.pets import NewPet
from petstore.web.deprecation import gone_message
from petstore.web.documents import openapi_document
from petstore.web.replies import Reply
from tests.interface import faults_of, operations_of, sample
from tests.web.calls import ask, key_with
from tools.breaking_changes import AFTER_EVERY_SUNSET

ROOT = Path(__file__).parents[2]
CASES: list[tuple[OperationName, ...]] = [(), ("getPet",), ("getPet", "listPets")]
Table = tuple[Operation, ...]


@pytest.fixture(params=CASES, ids=lambda names: "+".join(names) or "none")
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    """The table of operations, with none, one or two of them deprecated."""
    with deprecating(*request.param) as rows:
        yield rows


def test_the_table_has_the_dates_of_the_contract() -> None:
    (get_pet,) = deprecated_operations()
    assert get_pet.deprecation is not None
    assert get_pet.deprecation.since.isoformat() == "2026-11-14T00:00:00+00:00"
    assert get_pet.deprecation.sunset.isoformat() == "2030-12-05T00:00:00+00:00"
    successor = next(each for each in OPERATIONS if each.path == get_pet.deprecation.successor)
    assert get_pet.deprecation.replacement.startswith(f"{successor.method} {successor.path} ")
    assert successor.end == math.inf


@pytest.mark.parametrize("names", CASES, ids=lambda names: "+".join(names) or "none")
def test_every_module_can_be_imported(names: tuple[OperationName, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *program(*names), "serve", "--help"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


async def every_answer(running: Running, operation: Operation) -> list[Reply]:
    """Returns a success, a 401, a 403, a 429, and a 404 if the operation has one."""
    _, other = await key_with(running, *(scope for scope in SCOPES if scope != operation.scope))
    _, limited = await key_with(running, operation.scope, limit=1)
    secrets = (running.secret, other, None, mint("live"), limited, limited)
    replies = [await ask(running, operation, secret) for secret in secrets]
    await running.store.pets.add(NewPet("Rex", 1), NOW)  # the animal in the example
    return [*replies, await ask(running, operation, running.secret)]


def test_every_response_of_a_deprecated_operation_says_so_and_no_other(table: Table, tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        for operation in table:
            replies = await every_answer(running, operation)
            assert {reply.status for reply in replies} >= {401, 403, 429}
            for reply in replies:
                sent = [pair for pair in pairs(reply.headers) if pair[0] in ("deprecation", "sunset")]
                links = {value for name, value in pairs(reply.headers) if name == "link"}
                if operation.deprecation is None:
                    assert (sent, links) == ([], set()), (operation.name, reply.status)
                    continue
                sunset = format_datetime(operation.deprecation.sunset, usegmt=True)
                assert sent == [("deprecation", f"@{SINCE.timestamp():.0f}"), ("sunset", sunset)]
                successor = f'</v1{operation.deprecation.successor}>; rel="successor-version"'
                assert links >= {successor, '</docs>; rel="deprecation"'}

    use_app(tmp_path, work)


def test_an_operation_is_gone_from_its_own_sunset_on(table: Table, tmp_path: Path) -> None:
    clock = Clock()

    async def work(running: Running) -> None:
        await running.store.pets.add(NewPet("Rex", 1), NOW)  # the animal in the example
        sunsets = [each.end for each in table if each.deprecation]
        for clock.now in (NOW, *(end - 0.001 for end in sunsets), *sunsets, max(sunsets, default=NOW) + 1e9):
            for operation in table:
                reply = await ask(running, operation, running.secret)
                assert (reply.status == 410) == (clock.now >= operation.end), (operation.name, reply.status)
                if reply.status == 410:
                    assert operation.deprecation is not None
                    message = gone_message(operation.deprecation)
                    assert json.loads(reply.body) == {"code": "gone", "message": message, "status": 410}
                    assert (await ask(running, operation)).status == 401
                if operation.method == "POST":
                    get_pet = next(each for each in table if each.path == "/pets/{petId}")
                    assert ("location" in dict(pairs(reply.headers))) == (clock.now < get_pet.end)

    use_app(tmp_path, work, clock)


def test_a_simulated_410_is_that_of_the_operation(table: Table, tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        _, secret = await key_with(running, *SCOPES, environment="staging")
        for operation in table:
            reply = await ask(running, operation, secret, environment="staging", prefer="error=gone")
            expected = gone_message(operation.deprecation) if operation.deprecation else Gone.usual
            assert (reply.status, json.loads(reply.body)["message"]) == (410, expected)

    use_app(tmp_path, work)


def test_the_document_has_what_exists_and_marks_what_is_deprecated(table: Table) -> None:
    for now in (0.0, *(each.end for each in table if each.deprecation), AFTER_EVERY_SUNSET):
        document = openapi_document("/v1", "/staging/v1", now)
        documented = operations_of(document)
        assert documented.keys() == {each.name for each in table if now < each.end}
        announced = [each for each in table if each.deprecation and now < each.end]
        assert {name for name, each in documented.items() if each.get("deprecated")} == {
            each.name for each in announced
        }
        guide = document["info"]["description"]
        assert ("## Deprecation" in guide) == bool(announced)
        for operation in table:
            assert (f"`{operation.method} {operation.path}` is deprecated" in guide) == (operation in announced)
        for operation in announced:
            assert operation.deprecation is not None
            described = documented[operation.name]
            assert described["description"].count(operation.deprecation.sunset_day) == 1
            (gone,) = described["responses"]["410"]["content"]["application/json"]["examples"].values()
            assert gone["value"]["message"] == gone_message(operation.deprecation)
        text = json.dumps(document)
        assert "{{" not in text and "x-deprecation" not in text
        assert ("Sunset" in text) == bool(announced)
        get_pet = next(each for each in table if each.path == "/pets/{petId}")
        assert ("Location" in documented["createPet"]["responses"]["201"]["headers"]) == (now < get_pet.end)


def test_the_served_document_changes_at_each_sunset_and_has_every_response(table: Table, tmp_path: Path) -> None:
    clock = Clock()

    async def work(running: Running) -> None:
        sunsets = [each.end for each in table if each.deprecation]
        for clock.now in itertools.chain([NOW], *((end - 0.001, end) for end in sunsets)):
            served = json.loads((await running.app.answer(request("/openapi.json"))).body)
            assert served == openapi_document("/v1", "/staging/v1", clock.now)
            documented = operations_of(served)
            for operation in table:
                for reply in await every_answer(running, operation) if clock.now < operation.end else ():
                    response = documented[operation.name]["responses"].get(str(reply.status))
                    assert faults_of(response, dict(pairs(reply.headers)), reply.body) == [], operation.name

    use_app(tmp_path, work, clock)


@pytest.mark.parametrize("names", CASES[::2], ids=lambda names: "+".join(names) or "none")
def test_a_running_service_with_others_deprecated_serves_and_counts(
    names: tuple[OperationName, ...], tmp_path: Path
) -> None:
    server = Server(tmp_path / "data")
    server.program = program(*names)
    with started(server), httpx.Client(verify=False) as client:
        key = server.key()
        for operation in OPERATIONS:
            method, path, body = sample(operation.name)
            reply = client.request(method, server.url(path), content=body, headers=key.headers)
            assert ("sunset" in reply.headers) == (operation.name in names)
        described = operations_of(client.get(server.origin + "/openapi.json").json())
        assert {name for name, each in described.items() if each.get("deprecated")} == set(names)
        for operation in OPERATIONS:
            assert wait_for(lambda: scrape(server).value("petstore_requests_total", operation=operation.name) == 1)  # noqa: B023


def test_only_the_table_has_the_dates_and_no_code_depends_on_the_name() -> None:
    package = Path(petstore.__file__).parent
    dates, names = set(), {each.name for each in deprecated_operations()}
    for each in deprecated_operations():
        assert each.deprecation is not None
        for moment in (each.deprecation.since, each.deprecation.sunset):
            dates |= {f"{moment:%Y-%m-%d}", f"{moment:%Y, }{moment.month}, {moment.day}", f"{moment.timestamp():.0f}"}
            dates.add(f"{moment.day} {moment:%B %Y}")
    for file in package.rglob("*"):
        if (
            file.suffix in (".py", ".yaml", ".html", ".js")
            and file.name != "operations.py"
            and "swagger" not in str(file)
        ):
            text = file.read_text()
            assert not [date for date in dates if date in text], file
            if file.suffix == ".py":
                compared = {
                    part.value
                    for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Compare | ast.match_case)
                    for part in ast.walk(node) if isinstance(part, ast.Constant)
                }  # fmt: skip
                assert not names & compared, file


@pytest.mark.parametrize("operation", deprecated_operations(), ids=lambda operation: operation.name)
@pytest.mark.parametrize("file", ["docs/api.md", "docs/reference/client.md", "client/src/petstore_client/_client.py"])
def test_documents_and_the_client_have_the_date_of_the_table(operation: Operation, file: str) -> None:
    assert operation.deprecation is not None
    text = (ROOT / file).read_text()
    dates = re.findall(r"(?:ends on|removed on|working on|From) (\d{1,2} [A-Z][a-z]+ \d{4})", text)
    assert dates and set(dates) == {operation.deprecation.sunset_day}
