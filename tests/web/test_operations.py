"""The table of operations: what must exist for each row, and what must follow from it. Failures name the gap."""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import click
import jsonschema_rs
import msgspec
import pytest
import yaml

from harness.in_process import NOW, Running, pairs, use_app
from petstore.cli.usage import usage
from petstore.keys import SCOPES
from petstore.observability import metrics
from petstore.operations import COUNTED, OPERATIONS, OTHER, Operation
from petstore.pets import STATUSES, NewPet
from petstore.usage import MINUTE
from petstore.web.counters import SITE
from petstore.web.pets import HANDLERS
from petstore.web.requests import BODY_MAX
from petstore_client import AsyncPetstore, Petstore
from tests.interface import DOCUMENTED, body_of, error_faults, sample
from tests.web.calls import ask, error_of, key_with

ROOT = Path(__file__).parents[2]
each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)


with_a_body = [operation for operation in OPERATIONS if "requestBody" in DOCUMENTED.get(operation.name, {})]
each_with_a_body = pytest.mark.parametrize("operation", with_a_body, ids=lambda operation: operation.name)


# What follows from a row


@pytest.mark.parametrize(("name", "number"), [("listPets", 1), ("createPet", 2), ("getPet", 3)])
def test_a_published_operation_keeps_its_number(name: str, number: int) -> None:
    """Gates and backups store the number instead of the name. Each release adds its new operations here."""
    assert COUNTED.index(name) == number, f"{name} has kept the number {number} since 1.0.0"


def test_names_and_numbers_are_unique_and_numbers_have_no_gap() -> None:
    numbers = {operation.name: operation.number for operation in OPERATIONS}
    assert list(numbers.values()) == list(range(1, len(OPERATIONS) + 1)), numbers
    assert len(set(COUNTED)) == len(COUNTED) == len(OPERATIONS) + 1
    assert len({(operation.method, operation.path) for operation in OPERATIONS}) == len(OPERATIONS)


@each_operation
def test_a_key_that_may_only_read_changes_nothing(operation: Operation) -> None:
    assert operation.scope == ("read" if operation.method == "GET" else "write")


@pytest.mark.parametrize("change", ['HANDLERS.pop("getPet")', 'HANDLERS["movePet"] = PetOperations.get_pet'])
def test_an_operation_without_a_handler_and_a_handler_without_an_operation_fail_at_import(change: str) -> None:
    source = resources.files("petstore.web").joinpath("pets.py").read_text()
    spoiled = source.replace("if unbound :=", f"{change}\nif unbound :=")
    assert spoiled != source
    done = subprocess.run([sys.executable, "-c", spoiled], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert re.search("each operation must have one handler: (getPet|movePet)", done.stderr)


@each_operation
def test_an_operation_has_a_handler(operation: Operation) -> None:
    assert operation.name in HANDLERS


@each_operation
def test_without_a_key_it_is_401(operation: Operation, tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        assert (await ask(running, operation)).status == 401

    use_app(tmp_path, work)


@each_operation
def test_a_key_without_its_scope_gets_403_and_one_with_it_alone_is_served(operation: Operation, tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        _, refused = await key_with(running, *(scope for scope in SCOPES if scope != operation.scope))
        reply = await ask(running, operation, refused)
        assert reply.status == 403, f"{operation.name} needs the scope {operation.scope}"
        challenge = f'Bearer error="insufficient_scope", scope="{operation.scope}"'
        assert dict(pairs(reply.headers))["www-authenticate"] == challenge
        _, served = await key_with(running, operation.scope)
        assert (await ask(running, operation, served)).status in (200, 201, 404)

    use_app(tmp_path, work)


@each_operation
def test_it_is_limited_and_says_so(operation: Operation, tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        _, secret = await key_with(running, operation.scope, limit=2)
        replies = [await ask(running, operation, secret) for _ in range(3)]
        remaining = [dict(pairs(reply.headers))["x-ratelimit-remaining"] for reply in replies]
        assert remaining == ["1", "0", "0"]
        assert [reply.status == 429 for reply in replies] == [False, False, True]
        assert dict(pairs(replies[2].headers))["retry-after"] == "86400"

    use_app(tmp_path, work)


@each_operation
def test_every_error_body_is_whole(operation: Operation, tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        _, other = await key_with(running, *(scope for scope in SCOPES if scope != operation.scope))
        _, limited = await key_with(running, operation.scope, limit=1)
        replies = [await ask(running, operation, secret) for secret in (None, other, limited, limited, running.secret)]
        replies.append(await ask(running, operation, running.secret, "BREW"))
        replies += [await ask(running, operation, running.secret, body=body) for body in (b"{", b"{}", b"[]")]
        replies.append(await ask(running, operation, running.secret, content_type="text/plain"))
        replies.append(await ask(running, operation, running.secret, idempotency_key="a b"))
        faults = {
            f"{operation.name} {reply.status}": found
            for reply in replies
            if reply.status >= 400 and (found := error_faults(json.loads(reply.body)))
        }
        assert faults == {}
        assert {401, 403, 405, 429} <= {reply.status for reply in replies}

    use_app(tmp_path, work)


@each_operation
def test_a_retry_gets_the_same_response(operation: Operation, tmp_path: Path) -> None:
    """Uses an Idempotency-Key if the operation accepts one. Other operations must be safe to retry without it."""
    parameters = {each["name"] for each in DOCUMENTED[operation.name]["parameters"]}
    has_key = "Idempotency-Key" in parameters
    fields: dict[str, Any] = {"idempotency_key": "a"} if has_key else {}

    async def work(running: Running) -> None:
        await running.store.pets.add(NewPet("Rex", 1), NOW)  # the animal in the example
        first, again = [await ask(running, operation, running.secret, **fields) for _ in range(2)]
        assert first.status < 300
        why = "the replay differs" if has_key else "it has no Idempotency-Key, so a retry must be harmless"
        assert (again.status, again.body) == (first.status, first.body), f"{operation.name}: {why}"

    use_app(tmp_path, work)


@each_with_a_body
def test_a_body_that_cannot_be_read_is_refused_with_a_documented_status(operation: Operation, tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        await running.store.pets.add(NewPet("Rex", 1), NOW)  # the animal in the example
        refused = {
            "another media type": (await ask(running, operation, running.secret, content_type="text/plain")).status,
            "a large body": (await ask(running, operation, running.secret, body=b" " * (BODY_MAX + 1))).status,
            "no JSON": (await ask(running, operation, running.secret, body=b"{")).status,
            "no object": (await ask(running, operation, running.secret, body=b"[]")).status,
        }
        assert refused == {"another media type": 415, "a large body": 413, "no JSON": 400, "no object": 400}
        missing = {str(status) for status in refused.values()} - DOCUMENTED[operation.name]["responses"].keys()
        assert missing == set(), f"openapi.yaml: add these responses to {operation.name}"

    use_app(tmp_path, work)


@each_with_a_body
def test_a_body_is_accepted_exactly_if_it_fits_its_schema(operation: Operation, tmp_path: Path) -> None:
    """Tries bodies with no member, with one member, with one member missing, and with one value changed."""
    schema, example = body_of(operation.name)["schema"], body_of(operation.name)["example"]
    bodies: list[dict[str, Any]] = [{}]
    for name, member in schema["properties"].items():
        bodies += [{**example, name: value} for value in values_for(member)]
        bodies += [{name: value} for value in values_for(member) if jsonschema_rs.is_valid(member, value)]
        bodies.append({other: value for other, value in example.items() if other != name})

    async def work(running: Running) -> None:
        await running.store.pets.add(NewPet("Rex", 1), NOW)  # the animal in the example
        wrong = []
        for body in bodies:
            is_valid = jsonschema_rs.is_valid(schema, body)
            reply = await ask(running, operation, running.secret, body=json.dumps(body).encode())
            if (reply.status < 300) != is_valid or reply.status not in (200, 201, 204, 400):
                rule = "allows" if is_valid else "excludes"
                wrong.append(f"{operation.name} returns {reply.status} for {body!r:.90}, which openapi.yaml {rule}")
        assert wrong == []

    use_app(tmp_path, work)


def values_for(schema: dict[str, Any]) -> list[Any]:
    """Returns values of every type, and values at and beyond each limit of the schema."""
    longest, least, most = schema.get("maxLength", 9), schema.get("minimum", 0), schema.get("maximum", 0)
    texts = ["", " ", "text", "Re\x07x", "Rex\n", "\x00", "\x7f", "x" * longest, "x" * (longest + 1)]
    return [None, True, [], {}, 7, 1.5, least, least - 1, most, most + 1, *texts, *schema.get("enum", ())]


@each_with_a_body
def test_a_message_about_the_body_names_its_members(operation: Operation, tmp_path: Path) -> None:
    """If the body is not an object, the message names the required members, or all members if none is required."""
    schema, example = body_of(operation.name)["schema"], body_of(operation.name)["example"]

    async def work(running: Running) -> None:
        await running.store.pets.add(NewPet("Rex", 1), NOW)  # the animal in the example

        async def named(body: bytes) -> set[str]:
            reply = await ask(running, operation, running.secret, body=body)
            return set(schema["properties"]) & set(re.findall(r"\w+", error_of(reply)["message"]))

        for body in (b"", b"[]"):
            expected = set(schema.get("required") or schema["properties"])
            assert await named(body) == expected, f"the message for the body {body!r} names the wrong members"
        for name in schema["properties"]:
            wrong = json.dumps({**example, name: []}).encode()
            assert await named(wrong) == {name}, f"the message for {wrong!r} must name {name} and no other member"

    use_app(tmp_path, work)


@pytest.mark.parametrize("segment", ["abc", "+1", "1_0", "01", "1.0", "-1", "\u0663", "9" * 20, "1" * 5_000])
@pytest.mark.parametrize(
    "operation", [each for each in OPERATIONS if "{petId}" in each.path], ids=lambda each: each.name
)
def test_an_id_in_another_form_is_404(operation: Operation, segment: str, tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        for number in range(10):
            await running.store.pets.add(NewPet(f"Rex {number}", 1), NOW)
        method, _, body = sample(operation.name)
        path = "/v1" + operation.path.replace("{petId}", segment)
        reply = await running.ask(path, method=method, body=body, content_type="application/json")
        assert (reply.status, error_of(reply)["code"]) == (404, "pet_not_found")

    use_app(tmp_path, work)


@pytest.mark.parametrize(
    "operation", [each for each in OPERATIONS if each.scope == "write"], ids=lambda each: each.name
)
def test_what_it_changes_is_listed_at_once(operation: Operation, tmp_path: Path) -> None:
    async def listed(running: Running, query: str) -> Any:
        return json.loads((await running.ask(query=query)).body)

    async def work(running: Running) -> None:
        await running.store.pets.add(NewPet("Rex", 1, "pending"), NOW)  # the animal in the example
        await running.store.pets.add(NewPet("Ada", 1), NOW)
        # Adding an animal does not change the page with limit=1, so a worker rereads it only after an edit.
        queries = ["limit=1", "", *(f"status={status}" for status in STATUSES)]
        before = [await listed(running, query) for query in queries]  # cached by the worker from now on
        assert (await ask(running, operation, running.secret)).status in (200, 201, 204)
        after = [await listed(running, query) for query in queries]
        assert after != before, f"{operation.name} announces no change of animals: lists stay as they were"
        cases = [(1, None), (20, None), *((20, status) for status in STATUSES)]
        pages = [await running.store.pets.page(after=0, limit=limit, status=status) for limit, status in cases]
        in_store = [msgspec.to_builtins(page.pets) for page in pages]
        stale = [f"?{query}" for query, found, stored in zip(queries, after, in_store, strict=True) if found != stored]
        assert stale == [], f"{operation.name} announces the wrong change (EDITED or ADDED): these lists are stale"

    use_app(tmp_path, work)


@each_operation
def test_it_is_counted_and_logged_under_its_name(
    operation: Operation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(running: Running) -> None:
        key, secret = await key_with(running, *(scope for scope in SCOPES if scope != operation.scope))
        before = dict(metrics.REQUESTS.cells)
        with caplog.at_level(logging.INFO, "petstore"):
            await ask(running, operation, secret)
        running.app.publish(0.0)
        grown = {cell for cell, value in metrics.REQUESTS.cells.items() if value > before.get(cell, 0)}
        assert grown == {("live", operation.name, "403", "enterprise")}
        assert metrics.REQUEST_SECONDS.cells.keys() == {(operation.name,)}
        assert [total.operation async for rows in running.gate.admissions([key.id]) for total in rows] == [
            operation.name
        ]
        for counters in running.app.counters:
            await counters.flush(NOW)
        rows = await running.store.usage.of_keys([key.id], MINUTE, [int(NOW) // MINUTE * MINUTE], operation.name)
        assert [row.requests for row in rows if row.measure == "client_error"] == [1]
        (line,) = [record.__dict__["fields"] for record in caplog.records if record.message == "request"]
        assert line["operation"] == operation.name

    metrics.REQUEST_SECONDS.cells.clear()
    use_app(tmp_path, work, access_log=True)


@each_operation
def test_allow_names_its_method_and_head_where_get_is(operation: Operation, tmp_path: Path) -> None:
    expected = {"OPTIONS", *(each.method for each in OPERATIONS if each.path == operation.path)}
    expected |= {"HEAD"} if "GET" in expected else set()

    async def work(running: Running) -> None:
        for method, status in (("OPTIONS", 204), ("BREW", 405)):
            reply = await ask(running, operation, running.secret, method)
            assert reply.status == status
            assert set(dict(pairs(reply.headers))["allow"].split(", ")) == expected
        assert operation.method in expected

    use_app(tmp_path, work)


def test_a_head_is_counted_as_its_get(tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        before = dict(metrics.REQUESTS.cells)
        for operation in OPERATIONS:
            if operation.method == "GET":
                await ask(running, operation, running.secret, "HEAD")
        running.app.publish(0.0)
        grown = {cell[1] for cell, value in metrics.REQUESTS.cells.items() if value > before.get(cell, 0)}
        assert grown == {operation.name for operation in OPERATIONS if operation.method == "GET"}

    use_app(tmp_path, work)


# What must exist for a row


@each_operation
def test_the_command_line_can_ask_for_its_usage(operation: Operation) -> None:
    (option,) = (each for each in usage.params if each.name == "operation")
    assert isinstance(option.type, click.Choice) and operation.name in option.type.choices


@each_operation
def test_the_alert_on_slow_answers_includes_it(operation: Operation) -> None:
    rules = yaml.safe_load((ROOT / "docs/monitoring/petstore-alerts.yml").read_text())
    (slow,) = (rule for group in rules["groups"] for rule in group["rules"] if rule["alert"] == "PetstoreSlow")
    ((sign, pattern),) = re.findall(r'operation(=~|!~)"([^"]+)"', slow["expr"])
    included = {
        name for name in (*COUNTED, SITE) if (re.fullmatch(pattern, name) is not None) == (sign == "=~")
    }  # fmt: skip
    assert operation.name in included, f"PetstoreSlow leaves out {operation.name}"
    assert not {OTHER, SITE} & included


@pytest.mark.parametrize("file", ["grafana-dashboard.json", "petstore-alerts.yml"])
def test_operations_that_monitoring_names_exist(file: str) -> None:
    text = (ROOT / "docs/monitoring" / file).read_text()
    named = re.findall(r'\boperation[=!]~?\\?"([^"\\]+)\\?"', text)
    assert named
    assert {name for names in named for name in names.split("|")} <= {*COUNTED, SITE}
    for names in named:  # names one operation or all of them
        left_out = {each.name for each in OPERATIONS} - set(names.split("|"))
        is_list_of_operations = len(set(names.split("|")) - {OTHER, SITE}) > 1
        assert not (is_list_of_operations and left_out), f"{file}: {names} leaves out {', '.join(left_out)}"


@each_operation
def test_the_description_of_the_interface_has_a_heading_and_an_example_for_it(operation: Operation) -> None:
    title = f": `{operation.method} {operation.path}`" + (" (deprecated)" if operation.deprecation else "")
    text = (ROOT / "docs/api.md").read_text()
    section = re.search(rf"^### .+{re.escape(title)}$(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL)
    assert section, f"docs/api.md: add a heading like `### Update an animal{title}`"
    path = re.sub(r"\{\w+\}", r"[^/ ]+", operation.path)
    has_example = re.search(rf"^\$ curl .*\$BASE{path}[ ?\"]", section[1], re.MULTILINE)
    assert has_example, f"docs/api.md: add a `$ curl` command with $BASE{operation.path} below the heading{title}"


def snake_case(name: str) -> str:
    return re.sub("([A-Z])", lambda match: f"_{match[1].lower()}", name)


_CLIENTS = (Petstore("pets_live_x"), AsyncPetstore("pets_live_x"))
CLIENTS = [each for client in _CLIENTS for each in (client, client.with_raw_response)]


@each_operation
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: type(client).__name__)
def test_the_client_has_a_method_for_it(operation: Operation, client: object) -> None:
    method: Callable[..., Any] | None = getattr(client, snake_case(operation.name), None)
    assert method is not None, f"{type(client).__name__} has no {snake_case(operation.name)}"
    assert method.__doc__
    methods = (ROOT / "docs/reference/client.md").read_text().partition("| method | result |\n")[2].partition("\n\n")[0]
    assert f"| `{snake_case(operation.name)}(" in methods, (
        f"docs/reference/client.md: add {snake_case(operation.name)} to the table of methods"
    )


@each_operation
def test_the_reference_page_has_a_sample_of_the_client_for_it(operation: Operation) -> None:
    samples = resources.files("petstore.web").joinpath("static/samples.js").read_text()
    calls = samples.partition("const CALLS = {")[2].partition("\n};")[0]
    (sample_of,) = re.findall(rf"^  {operation.name}\b.*?(?=^  \w|\Z)", calls, re.MULTILINE | re.DOTALL) or [""]
    assert f"store.{snake_case(operation.name)}(" in sample_of, f"samples.js has no sample for {operation.name}"
