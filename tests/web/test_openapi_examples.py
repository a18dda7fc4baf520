"""The examples in the OpenAPI document: none is missing, each fits its schema, and the service returns each of them.

They tell one story: the three animals below are added to a new service in this order, with a key on the free plan.
"""

import ast
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jsonschema_rs
import pytest

from harness.in_process import NOW, Running, Wrapped, pairs, request, use_app
from harness.pets import pet
from harness.servers import Key, Server, raw, serving
from harness.stores import BY
from petstore import errors
from petstore.errors import REQUEST_ERRORS, RequestError, Unavailable
from petstore.gate import Gate
from petstore.keys import SCOPES, KeyChanges, mint, new_key
from petstore.operations import OPERATIONS, Operation, OperationName, deprecated_operations
from petstore.plans import Limits
from petstore.store import Store
from petstore.web.documents import Json
from petstore.web.replies import REJECTIONS, Reply
from tests.interface import AFTER_SUNSET, DOCUMENT, DOCUMENTED, assert_documented, operations_of, sample
from tests.web.answers import Answer, ask, parse

PETS = [
    pet(id=1, name="Rex", categoryId=1),
    pet(id=2, name="Ada", categoryId=1, status="pending"),
    pet(id=3, name="Bo", categoryId=2),
]
CURSOR = "AAAAAAAAAAJbFjEf"  # points after the second animal
JSON = "application/json"


class Example(NamedTuple):
    """An error as the document shows it in a response."""

    name: str
    status: int
    value: Json


ERRORS = {
    name: Example(name, int(status), example["value"])
    for operation in DOCUMENTED.values()
    for status, response in operation["responses"].items()
    for name, example in response.get("content", {}).get(JSON, {}).get("examples", {}).items()
}


# No example is missing


def contents(document: Json) -> Iterator[tuple[str, Json]]:
    """Yields the location and content of every request and response body."""
    for name, operation in operations_of(document).items():
        if "requestBody" in operation:
            yield f"{name} body", operation["requestBody"]["content"][JSON]
        for status, response in operation["responses"].items():
            if status != "304":
                yield f"{name} {status}", response["content"][JSON]


@pytest.mark.parametrize("document", [DOCUMENT, AFTER_SUNSET], ids=["before the sunset", "after the sunset"])
def test_every_request_and_response_has_an_example_that_fits_its_schema(document: Json) -> None:
    for where, content in contents(document):
        assert "example" in content or "examples" in content, f"openapi.yaml: add an `example` to the {where}"
        values = [each["value"] for each in content.get("examples", {}).values()] or [content["example"]]
        for value in values:
            assert jsonschema_rs.is_valid(content["schema"], value), (where, value)


def test_every_header_and_parameter_has_an_example_or_a_default() -> None:
    for operation in DOCUMENTED.values():
        for response in operation["responses"].values():
            for name, header in response["headers"].items():
                assert jsonschema_rs.is_valid(header["schema"], header["example"]), name
        for parameter in operation["parameters"]:
            schema = parameter["schema"]
            assert "example" in parameter or {"default", "examples", "enum"} & schema.keys(), parameter["name"]
            for value in schema.get("examples", ()):
                assert jsonschema_rs.is_valid(schema, value), parameter["name"]


# Successes


def test_the_requests_of_the_document_get_the_answers_of_the_document(fresh: Server, client: httpx.Client) -> None:
    key = fresh.key("free")
    pets = fresh.url("/pets")
    (etag,) = DOCUMENTED["listPets"]["parameters"][3]["schema"]["examples"]
    (once,) = DOCUMENTED["createPet"]["parameters"][0]["schema"]["examples"]

    def compare(response: httpx.Response, operation: OperationName, *headers: str) -> None:
        documented = DOCUMENTED[operation]["responses"][str(response.status_code)]
        shown = {name: header["example"] for name, header in documented["headers"].items()}
        if response.content:
            assert response.json() == documented["content"][JSON]["example"]
        assert {name: response.headers[name] for name in headers} == {name: str(shown[name]) for name in headers}
        for request_id in (response.headers["X-Request-Id"], shown["X-Request-Id"]):
            assert re.fullmatch("[0-9A-Za-z_-]{8,64}", request_id)

    body = sample("createPet")[2]
    created = client.post(pets, content=body, headers=key.headers | {"Idempotency-Key": once})
    assert created.status_code == 201
    compare(created, "createPet", "X-RateLimit-Limit", "X-RateLimit-Remaining", "Location")
    for other in PETS[1:]:
        new = {name: value for name, value in other.items() if name != "id"}
        assert client.post(pets, json=new, headers=key.headers).status_code == 201
    again = client.post(pets, content=body, headers=key.headers | {"Idempotency-Key": once})
    compare(again, "createPet", "Idempotent-Replayed", "Location", "Cache-Control")

    listed = client.get(pets, params={"limit": 2}, headers=key.headers)
    compare(listed, "listPets", "ETag", "Cache-Control", "Vary", "Link")
    unchanged = client.get(pets, params={"limit": 2}, headers=key.headers | {"If-None-Match": etag})
    assert unchanged.status_code == 304
    compare(unchanged, "listPets", "ETag", "Cache-Control", "Vary", "Link")
    second = client.get(pets, params={"limit": 2, "cursor": CURSOR}, headers=key.headers)
    assert second.json() == PETS[2:]

    one = client.get(f"{pets}/1", headers=key.headers)
    compare(one, "getPet", "Deprecation", "Sunset", "Cache-Control", "Vary")
    assert DOCUMENTED["getPet"]["responses"]["200"]["headers"]["Link"]["example"] in one.headers["Link"]
    challenge = DOCUMENTED["listPets"]["responses"]["401"]["headers"]["WWW-Authenticate"]
    assert client.get(pets).headers["WWW-Authenticate"] == challenge["example"]


SUCCESSES = {("listPets", 200), ("listPets", 304), ("createPet", 201), ("getPet", 200)}  # covered by the test above


# Errors: how to trigger each of them. The key is valid and has the scopes unless the key causes the error.


def send(
    server: Server, operation: OperationName, *headers: str, key: Key | None, query: str = "", body: bytes | None = None
) -> Answer:
    method, path, shown = sample(operation)
    sent = shown if body is None else body
    length = [f"Content-Length: {len(sent)}"] if "requestBody" in DOCUMENTED[operation] else []
    return ask(server, f"{method} /v1{path}{query}", *length, *headers, key=key, body=sent)


def limited(server: Server, requests: int) -> Answer:
    """Sends this many requests with a key that allows one a minute. Returns the last response."""
    key = server.key("enterprise", Limits(1, 100))
    return [send(server, "listPets", key=key) for _ in range(requests)][-1]


def held_up(server: Server) -> Answer:
    key = server.key()
    with server.writes_held_up():
        return send(server, "createPet", key=key)


def unfinished(server: Server) -> Answer:
    lines = [
        "POST /v1/pets HTTP/1.1",
        "Host: here",
        f"Authorization: Bearer {server.key().secret}",
        "Content-Length: 9",
    ]
    return parse(raw(server.port, "\r\n".join([*lines, "", "{"]).encode(), seconds=12))


def in_many_chunks(server: Server) -> Answer:
    lines = [
        "POST /v1/pets HTTP/1.1",
        "Host: here",
        f"Authorization: Bearer {server.key().secret}",
        "Transfer-Encoding: chunked",
    ]
    return parse(raw(server.port, "\r\n".join([*lines, "", ""]).encode() + b"1\r\n \r\n" * 8_193))


def mismatched(server: Server) -> Answer:
    key = server.key()
    send(server, "createPet", "Idempotency-Key: order-19", key=key)
    other = sample("createPet")[2].replace(b"Rex", b"Max")
    return send(server, "createPet", "Idempotency-Key: order-19", key=key, body=other)


def after_sunset(server: Server) -> Answer:
    server.move_clock(deprecated_operations()[0].end - time.time() + 1)
    return send(server, "getPet", key=server.key())


def spoiled(server: Server) -> Answer:
    server.spoil()
    return send(server, "listPets", key=server.key())


def unusable(server: Server) -> Answer:
    """Checks that unknown, suspended, expired and revoked keys get the same response. Returns one of them."""
    unknown = f"Authorization: Bearer {mint('live')}"
    answers = [
        send(server, "listPets", unknown, key=None),
        send(server, "listPets", key=stopped(server, lambda store, key: store.keys.suspend(key.id, BY))),
        send(server, "listPets", key=stopped(server, lambda store, key: store.keys.revoke(key.id, BY))),
        send(
            server,
            "listPets",
            key=stopped(server, lambda store, key: store.keys.update(key.id, KeyChanges(expires=1.0), BY)),
        ),
    ]
    assert len({answer.body for answer in answers}) == 1
    return answers[0]


def stopped(server: Server, stop: Callable[[Store, Key], Awaitable[object]]) -> Key:
    key = server.key()
    server.act(lambda backends: stop(backends.stores["live"], key))
    return key


Elicit = Callable[[Server], Answer]


def list_with(query: str = "", *headers: str) -> Elicit:
    return lambda server: send(server, "listPets", *headers, key=server.key(), query=query)


def list_without_key(header: Callable[[Server], str] | None = None) -> Elicit:
    return lambda server: send(server, "listPets", *([header(server)] if header else []), key=None)


def create_with(body: bytes | None = None, *headers: str) -> Elicit:
    return lambda server: send(server, "createPet", *headers, key=server.key(), body=body)


STRICT = "Prefer: handling=strict"

# How to trigger each error, by operation and name of the example.
ELICIT: dict[tuple[OperationName, str], Elicit] = {
    ("listPets", "invalid_parameter"): list_with("?limit=101"),
    ("listPets", "invalid_parameters"): list_with("?limit=0&status=lost"),
    ("listPets", "invalid_cursor"): list_with(f"?cursor={CURSOR[:-1]}"),
    ("listPets", "repeated_parameter"): list_with("?limit=2&limit=3"),
    ("listPets", "unknown_parameter"): list_with("?page=2", STRICT),
    ("listPets", "unknown_parameters"): list_with("?limit=0&page=2&offset=20", STRICT),
    ("createPet", "unknown_member"): create_with(b'{"name": "Rex", "categoryid": 1}', STRICT),
    ("createPet", "unknown_members"): create_with(
        b'{"id": 1, "name": "Rex", "categoryId": 1, "notAMember": 1}', STRICT
    ),
    ("createPet", "invalid_idempotency_key"): create_with(None, "Idempotency-Key: order 17"),
    ("createPet", "invalid_body"): create_with(b'{"categoryId": "1"}'),
    ("createPet", "invalid_members"): create_with(b'{"name": " ", "status": "lost"}'),
    ("createPet", "name_not_a_string"): create_with(b'{"name": 7, "categoryId": 1}'),
    ("createPet", "name_too_long"): create_with(b'{"categoryId": 1, "name": "%s"}' % (b"x" * 256)),
    ("createPet", "name_with_control_characters"): create_with(rb'{"name": "Rex\n", "categoryId": 1}'),
    ("createPet", "repeated_member"): (create_with(b'{"name": "A", "name": "B", "categoryId": 1, "a": 1, "a": 2}')),
    ("createPet", "body_missing"): create_with(b""),
    ("createPet", "body_not_json"): create_with(b'{"name": "Rex",'),
    ("createPet", "body_not_json_in_line_2"): create_with(b'{"name": "Rex",\n "categoryId": }'),
    ("createPet", "body_not_a_number"): create_with(b'{"name": "Rex", "categoryId": NaN}'),
    ("createPet", "body_not_an_object"): create_with(b"[]"),
    ("createPet", "body_not_utf_8"): create_with(b'{"name": "\xff", "categoryId": 1}'),
    ("createPet", "body_nested_too_deeply"): create_with(b"[" * 60_000),
    ("listPets", "malformed_request"): list_with("", "No-Colon"),
    ("listPets", "unauthorized"): list_without_key(),
    ("listPets", "key_in_another_header"): list_without_key(lambda s: f"X-API-Key: {s.key().secret}"),
    ("listPets", "key_of_staging"): (
        list_without_key(lambda s: f"Authorization: Bearer {s.key(environment='staging').secret}")
    ),
    ("listPets", "key_of_live"): lambda s: ask(s, "GET /staging/v1/pets", key=s.key()),
    ("listPets", "key_in_quotes"): list_without_key(lambda s: f'Authorization: Bearer "{s.key().secret}"'),
    ("listPets", "key_mistyped"): list_without_key(lambda s: f"Authorization: Bearer {s.key().secret[:-1]}"),
    ("listPets", "key_not_valid"): unusable,
    ("listPets", "insufficient_scope_read"): lambda s: send(s, "listPets", key=s.key(scopes=["write"])),
    ("createPet", "insufficient_scope_write"): lambda s: send(s, "createPet", key=s.key(scopes=["read"])),
    ("getPet", "pet_not_found"): lambda s: send(s, "getPet", key=s.key(), query="2345678"),
    ("listPets", "head_timeout"): (
        lambda s: parse(raw(s.port, b"GET /v1/pets HTTP/1.1\r\nHost: here\r\n", seconds=15))
    ),
    ("createPet", "request_timeout"): unfinished,
    ("getPet", "gone"): after_sunset,
    ("createPet", "body_too_large"): create_with(b"x" * 65_537),
    ("createPet", "too_many_chunks"): in_many_chunks,
    ("listPets", "target_too_long"): list_with("?" + "a" * 60_000),
    ("createPet", "unsupported_media_type"): create_with(None, "Content-Type: text/plain"),
    ("createPet", "content_encoding"): create_with(None, "Content-Encoding: gzip"),
    ("createPet", "idempotency_mismatch"): mismatched,
    ("listPets", "rate_limit_exceeded"): lambda s: limited(s, 2),
    ("listPets", "key_banned"): lambda s: limited(s, 5),
    ("listPets", "headers_too_large"): list_with("", "X-Note: " + "a" * 60_000),
    ("listPets", "internal_error"): spoiled,
    ("createPet", "transfer_encoding_not_implemented"): (
        lambda s: ask(s, "POST /v1/pets", "Transfer-Encoding: gzip, chunked", key=s.key())
    ),
    ("createPet", "unavailable"): held_up,
    ("listPets", "version_not_supported"): (
        lambda s: parse(raw(s.port, b"GET /v1/pets HTTP/2.0\r\nHost: here\r\n\r\n"))
    ),
}
DAMAGING = {"gone", "internal_error"}  # these damage a server permanently


def with_backends(operation: OperationName, name: str) -> Any:
    """Returns a test case, with a marker if it does not run on all backends."""
    marks = []
    if name in ("head_timeout", "request_timeout"):
        marks.append(pytest.mark.on("sqlite-lmdb"))  # eight seconds each
    return pytest.param(operation, name, marks=marks)


@pytest.mark.parametrize(("operation", "name"), [with_backends(*case) for case in ELICIT])
def test_the_service_answers_each_error_as_the_document_shows_it(
    operation: OperationName, name: str, server: Server, tmp_path: Path
) -> None:
    _, status, shown = ERRORS[name]
    elicit = ELICIT[operation, name]
    if name in DAMAGING:
        with serving(tmp_path / "data", server.host) as own:
            answer = elicit(own)
    else:
        answer = elicit(server)
    (request_id,) = answer.values("x-request-id")
    recorded = DOCUMENT["components"]["headers"]["X-Request-Id"]["example"]
    shown = {**shown, "message": shown["message"].replace(recorded, request_id)}
    assert (answer.status, json.loads(answer.body)) == (status, shown)
    documented = DOCUMENTED[operation]["responses"][str(status)]
    assert name in documented["content"][JSON]["examples"]
    if status not in REJECTIONS:  # a rejected message belongs to no operation
        required = {name.lower() for name, header in documented["headers"].items() if header["required"]}
        assert required <= {each for each, _ in answer.headers}


def test_every_example_of_an_error_is_elicited() -> None:
    missing = ERRORS.keys() - {name for _, name in ELICIT}
    assert missing == set(), "add a request to ELICIT for each of these examples in openapi.yaml"
    unknown = {name for _, name in ELICIT} - ERRORS.keys()
    assert unknown == set(), "ELICIT names examples that openapi.yaml does not have"


# Every documented response occurs. Responses that are common to all operations are tested for each operation


async def unavailable(*_: object, **__: object) -> None:
    raise Unavailable("a test")


async def broken(*_: object, **__: object) -> None:
    raise RuntimeError("a test")


FAULTS: dict[int, Any] = {500: broken, 503: unavailable}


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503, *REJECTIONS])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_operation_answers_what_any_can_as_documented(operation: Operation, status: int, tmp_path: Path) -> None:
    method, path, body = sample(operation.name)

    def fail(gate: Gate) -> Any:
        return Wrapped(gate, admit=FAULTS[status]) if status in FAULTS else gate

    async def work(running: Running) -> None:
        async def answered(secret: str | None) -> Reply:
            fields: Json = {"authorization": f"Bearer {secret}"} if secret else {}
            return await running.app.answer(request(f"/v1{path}", method=method, body=body, **fields))

        if status in REJECTIONS:
            reply = await running.app.reject(status, "192.0.2.9")
        elif status == 401:
            reply = await answered(None)
        elif status in FAULTS:
            reply = await answered(running.secret)
        else:
            secret = mint("live")
            scopes = [scope for scope in SCOPES if scope != operation.scope or status == 429]
            key = new_key("live", "enterprise", now=NOW, limits=Limits(1, 1), scopes=scopes)
            await running.store.keys.create(key, secret, BY)
            for _ in range(2 if status == 429 else 1):
                reply = await answered(secret)
        assert reply.status == status
        assert str(status) in DOCUMENTED[operation.name]["responses"]
        if status not in REJECTIONS:
            assert_documented(method, f"/v1{path}", status, pairs(reply.headers), reply.body)

    use_app(tmp_path, work, wrap_gate=fail)


def test_every_documented_answer_is_given_in_a_test() -> None:
    common = {401, 403, 429, 500, 503, *REJECTIONS}
    elicited = SUCCESSES | {(operation, ERRORS[name].status) for operation, name in ELICIT}
    documented = {(name, int(status)) for name, each in DOCUMENTED.items() for status in each["responses"]}
    missing = {(name, status) for name, status in documented if status not in common} - elicited
    assert missing == set(), "add a request for each of these responses: a success to SUCCESSES, an error to ELICIT"


# Every message in the code has an example


# Messages about undocumented addresses and methods, and about a client that disconnects while sending the body.
WITHOUT_EXAMPLE = (
    "There is nothing at this address.", "This address supports only GET, HEAD.", "The body is incomplete.",
)  # fmt: skip
ERROR_CLASSES = {kind.__name__ for kind in RequestError.__subclasses__()}


def texts_of_errors(path: Path) -> Iterator[str]:
    """Yields patterns of error texts in a module: arguments, items of `faults`, results of `…_fault` and `…_hint`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ERROR_CLASSES and node.args:  # otherwise the error has its usual text
                yield from pattern_of(node.args[0])
            elif node.func.id == "error_reply" and len(node.args) > 1:
                yield from pattern_of(node.args[1])
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("faults["):
            yield from pattern_of(node.value)
        elif isinstance(node, ast.FunctionDef) and node.name.endswith(("_fault", "_hint")):
            for inside in ast.walk(node):
                if isinstance(inside, ast.Return) and inside.value is not None:
                    yield from pattern_of(inside.value)


DEPENDS_ON_REQUEST = ("gone", "internal_error", "not_found", "method_not_allowed")  # or not part of an operation


def pattern_of(text: ast.expr) -> Iterator[str]:
    match text:
        case ast.Constant(value=str(value)):
            yield re.escape(value)
        case ast.JoinedStr(values=parts):
            yield "".join(re.escape(str(p.value)) if isinstance(p, ast.Constant) else ".+" for p in parts)
        case ast.IfExp(body=first, orelse=second):
            yield from (*pattern_of(first), *pattern_of(second))


def test_every_text_of_an_error_has_an_example() -> None:
    package = Path(errors.__file__).parent
    found = [text for path in package.rglob("*.py") for text in texts_of_errors(path)]
    found += [re.escape(text) for _, text in REJECTIONS.values()]
    found += [re.escape(error.usual) for error in REQUEST_ERRORS.values() if error.code not in DEPENDS_ON_REQUEST]
    assert len(found) > 40
    shown = [*(example.value["message"] for example in ERRORS.values()), *WITHOUT_EXAMPLE]
    missing = [text for text in found if not any(re.search(text, message) for message in shown)]
    assert missing == [], "openapi.yaml: add an example for each of these messages"
