"""The examples of the OpenAPI document: there is one everywhere, each fits its schema, and the service answers each."""

import ast
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import msgspec
import pytest

from petstore import errors
from petstore.admin.actions import Admin
from petstore.errors import STATUS_OF_CODE, RequestError
from petstore.keys import KeyChanges, mint
from petstore.plans import Limits
from petstore.web import examples, guide, openapi
from petstore.web.examples import ERRORS, ErrorExample
from petstore.web.pets import SUNSET
from petstore.web.replies import REJECTIONS
from tests.servers import Key, Server, raw, serving
from tests.web.answers import Answer, ask, parse

DOCUMENT = openapi.document("/v1", "/staging/v1", 0)
AFTER_SUNSET = openapi.document("/v1", "/staging/v1", SUNSET)
BODY = msgspec.json.encode(examples.NEW_PET)
OPERATIONS = {"listPets": "GET /v1/pets", "createPet": "POST /v1/pets", "getPet": "GET /v1/pets/1"}


def contents(document: openapi.Json) -> Iterator[tuple[str, openapi.Json]]:
    """The content of every request and every response, and where it is."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if "requestBody" in operation:
                yield f"{method} {path} body", operation["requestBody"]["content"]["application/json"]
            for status, response in operation["responses"].items():
                if status != "304":
                    yield f"{method} {path} {status}", response["content"]["application/json"]


@pytest.mark.parametrize("document", [DOCUMENT, AFTER_SUNSET], ids=["before the sunset", "after the sunset"])
def test_every_request_and_response_has_an_example_that_fits_its_schema(document: openapi.Json) -> None:
    for where, content in contents(document):
        validator = jsonschema_rs.validator_for({**content["schema"], "components": document["components"]})
        named = [document["components"]["examples"][name] for name in content.get("examples", ())]
        values = [each["value"] for each in named] or [content["example"]]
        for value in values:
            assert validator.is_valid(value), (where, value)


def test_every_header_and_parameter_has_an_example_or_a_default() -> None:
    for name, header in DOCUMENT["components"]["headers"].items():
        assert jsonschema_rs.is_valid(header["schema"], header["example"]), name
    for path in DOCUMENT["paths"].values():
        for operation in path.values():
            for parameter in operation["parameters"]:
                schema = parameter["schema"]
                assert "example" in parameter or {"default", "examples", "$ref"} & schema.keys(), parameter["name"]
                for value in schema.get("examples", ()):
                    assert jsonschema_rs.is_valid(schema, value), parameter["name"]


def test_every_code_has_an_example_or_belongs_to_no_operation() -> None:
    outside = {"not_found", "method_not_allowed"}  # answers of addresses and methods that the document does not have
    assert {example.code for example in ERRORS} | outside == set(guide.CODES)
    assert DOCUMENT["components"]["schemas"]["Error"]["properties"]["code"]["examples"] == list(guide.CODES)
    assert all(f"| `{code}` |" in DOCUMENT["info"]["description"] for code in guide.CODES)


def test_every_code_of_the_service_is_in_the_document() -> None:
    assert set(STATUS_OF_CODE) - set(guide.CODES) == set()
    assert set(guide.CODES) - set(STATUS_OF_CODE) <= {"malformed_request"}


def test_responses_are_open_for_growth() -> None:
    text = json.dumps([DOCUMENT["paths"], DOCUMENT["components"]])
    assert "additionalProperties" not in text
    assert "enum" not in DOCUMENT["components"]["schemas"]["Error"]["properties"]["code"]


def test_the_requests_of_the_document_get_the_answers_of_the_document(fresh: Server, client: httpx.Client) -> None:
    key = fresh.key("free")
    pets = fresh.url("/pets")
    paths = DOCUMENT["paths"]
    shown = {name: header["example"] for name, header in DOCUMENT["components"]["headers"].items()}

    def compare(response: httpx.Response, operation: openapi.Json, *headers: str) -> None:
        documented = operation["responses"][str(response.status_code)]
        if response.content:
            assert response.json() == documented["content"]["application/json"]["example"]
        assert {name: response.headers[name] for name in headers} == {name: str(shown[name]) for name in headers}
        assert {name.lower() for name, header in documented["headers"].items()} >= set(map(str.lower, headers))
        for request_id in (response.headers["X-Request-Id"], shown["X-Request-Id"]):
            assert re.fullmatch("[0-9A-Za-z_-]{8,64}", request_id)

    body = paths["/pets"]["post"]["requestBody"]["content"]["application/json"]["example"]
    created = client.post(pets, json=body, headers=key.headers | {"Idempotency-Key": examples.IDEMPOTENCY_KEY})
    assert created.status_code == 201
    compare(created, paths["/pets"]["post"], "X-RateLimit-Limit", "X-RateLimit-Remaining", "Location")
    for pet in examples.PETS[1:]:
        new = {"name": pet.name, "categoryId": pet.category_id, "status": pet.status}
        assert client.post(pets, json=new, headers=key.headers).status_code == 201
    again = client.post(pets, json=body, headers=key.headers | {"Idempotency-Key": examples.IDEMPOTENCY_KEY})
    compare(again, paths["/pets"]["post"], "Idempotent-Replayed", "Location")

    listed = client.get(pets, params={"limit": 2}, headers=key.headers)
    compare(listed, paths["/pets"]["get"], "ETag", "Cache-Control", "Vary", "Link")
    condition = {"If-None-Match": examples.ETAG}
    unchanged = client.get(pets, params={"limit": 2}, headers=key.headers | condition)
    assert unchanged.status_code == 304
    compare(unchanged, paths["/pets"]["get"], "ETag", "Cache-Control", "Vary", "Link")
    second = client.get(pets, params={"limit": 2, "cursor": examples.CURSOR}, headers=key.headers)
    assert second.json() == msgspec.to_builtins(examples.PETS[2:])

    one = client.get(f"{pets}/{examples.PETS[0].id}", headers=key.headers)
    compare(one, paths["/pets/{petId}"]["get"], "Deprecation", "Sunset")
    assert shown["DeprecationLink"] in one.headers["Link"]
    assert client.get(pets).headers["WWW-Authenticate"] == shown["WWW-Authenticate"]


Elicit = Callable[[Server, ErrorExample], Answer]

# What makes the service answer each error. The key has all that it needs, unless it is what is wrong.


def send(
    server: Server, example: ErrorExample, *headers: str, key: Key | None, query: str = "", body: bytes = BODY
) -> Answer:
    line = OPERATIONS[example.operations[0]] + query
    if not line.startswith("POST"):
        return ask(server, line, *headers, key=key)
    return ask(server, line, f"Content-Length: {len(body)}", *headers, key=key, body=body)


def limited(server: Server, example: ErrorExample, requests: int) -> Answer:
    """The last answer to so many requests of a key that may send one a minute."""
    key = server.key("enterprise", Limits(1, 100))
    return [send(server, example, key=key) for _ in range(requests)][-1]


def in_conflict(server: Server, example: ErrorExample) -> Answer:
    key = server.key()
    with server.writes_held_up(), ThreadPoolExecutor(2) as pool:
        sent = [pool.submit(send, server, example, "Idempotency-Key: order-18", key=key) for _ in range(2)]
        answers = [each.result() for each in sent]
    return next(answer for answer in answers if answer.status == 409)


def held_up(server: Server, _: ErrorExample) -> Answer:
    key = server.key()
    with server.writes_held_up():
        return ask(server, "POST /v1/pets", f"Content-Length: {len(BODY)}", key=key, body=BODY)


def unfinished(server: Server, _: ErrorExample) -> Answer:
    lines = [
        "POST /v1/pets HTTP/1.1",
        "Host: here",
        f"Authorization: Bearer {server.key().secret}",
        "Content-Length: 9",
    ]
    return parse(raw(server.port, "\r\n".join([*lines, "", "{"]).encode(), seconds=12))


def mismatched(server: Server, example: ErrorExample) -> Answer:
    key = server.key()
    send(server, example, "Idempotency-Key: order-19", key=key)
    return send(server, example, "Idempotency-Key: order-19", key=key, body=BODY.replace(b"Rex", b"Max"))


def after_sunset(server: Server, example: ErrorExample) -> Answer:
    server.move_clock(SUNSET - time.time() + 1)
    return send(server, example, key=server.key())


def spoiled(server: Server, example: ErrorExample) -> Answer:
    server.spoil()
    return send(server, example, key=server.key())


def of_another_version(server: Server, _: ErrorExample) -> Answer:
    return parse(raw(server.port, b"GET /v1/pets HTTP/2.0\r\nHost: here\r\n\r\n"))


def unusable(server: Server, example: ErrorExample) -> Answer:
    """Keys that are unknown, suspended, expired and revoked get one answer."""
    unknown = f"Authorization: Bearer {mint('live')}"
    answers = [
        send(server, example, unknown, key=None),
        send(server, example, key=stopped(server, lambda admin, key: admin.suspend_key(key.id))),
        send(server, example, key=stopped(server, lambda admin, key: admin.revoke_key(key.id))),
        send(
            server, example, key=stopped(server, lambda admin, key: admin.update_key(key.id, KeyChanges(expires=1.0)))
        ),
    ]
    assert len({answer.body for answer in answers}) == 1
    return answers[0]


def stopped(server: Server, stop: Callable[[Admin, Key], Awaitable[object]]) -> Key:
    key = server.key()
    server.act(lambda backends: stop(Admin(backends.stores["live"], backends.gate, "a test", time.time), key))
    return key


def with_body(body: bytes) -> Elicit:
    return lambda server, example: send(server, example, key=server.key(), body=body)


def with_query(query: str) -> Elicit:
    return lambda server, example: send(server, example, key=server.key(), query=f"?{query}")


ELICIT: dict[str, Elicit] = {
    **{name: with_body(body) for name, body in examples.BAD_BODIES.items()},
    **{name: with_query(query) for name, query in examples.BAD_QUERIES.items()},
    "invalid_idempotency_key": lambda s, e: send(s, e, "Idempotency-Key: order 17", key=s.key()),
    "malformed_request": lambda s, e: send(s, e, "No-Colon", key=s.key()),
    "unauthorized": lambda s, e: send(s, e, key=None),
    "key_in_another_header": lambda s, e: send(s, e, f"X-API-Key: {s.key().secret}", key=None),
    "key_of_staging": lambda s, e: send(s, e, key=s.key(environment="staging")),
    "key_of_live": lambda s, _: ask(s, "GET /staging/v1/pets", key=s.key()),
    "key_in_quotes": lambda s, e: send(s, e, f'Authorization: Bearer "{s.key().secret}"', key=None),
    "key_mistyped": lambda s, e: send(s, e, f"Authorization: Bearer {s.key().secret[:-1]}", key=None),
    "key_not_valid": unusable,
    "insufficient_scope_read": lambda s, e: send(s, e, key=s.key(scopes=["write"])),
    "insufficient_scope_write": lambda s, e: send(s, e, key=s.key(scopes=["read"])),
    "pet_not_found": lambda s, e: send(s, e, key=s.key(), query="2345678"),
    "head_timeout": lambda s, _: parse(raw(s.port, b"GET /v1/pets HTTP/1.1\r\nHost: here\r\n", seconds=15)),
    "request_timeout": unfinished,
    "idempotency_conflict": in_conflict,
    "gone": after_sunset,
    "body_too_large": lambda s, e: send(s, e, key=s.key(), body=b"x" * 65_537),
    "target_too_long": lambda s, e: send(s, e, key=s.key(), query="?" + "a" * 60_000),
    "unsupported_media_type": lambda s, e: send(s, e, "Content-Type: text/plain", key=s.key()),
    "content_encoding": lambda s, e: send(s, e, "Content-Encoding: gzip", key=s.key()),
    "idempotency_mismatch": mismatched,
    "rate_limit_exceeded": lambda s, e: limited(s, e, 2),
    "key_banned": lambda s, e: limited(s, e, 5),
    "headers_too_large": lambda s, e: send(s, e, "X-Note: " + "a" * 60_000, key=s.key()),
    "internal_error": spoiled,
    "transfer_encoding_not_implemented": lambda s, e: ask(
        s, "POST /v1/pets", "Transfer-Encoding: gzip, chunked", key=s.key()
    ),
    "unavailable": held_up,
    "version_not_supported": of_another_version,
}
SPOILING = {"gone", "internal_error"}  # they change a server for good


@pytest.mark.parametrize("example", ERRORS, ids=lambda example: example.name)
def test_the_service_answers_each_error_as_the_document_shows_it(
    example: ErrorExample, server: Server, tmp_path: Path
) -> None:
    if example.code == "malformed_request" and "malformed_request" not in STATUS_OF_CODE:
        pytest.skip("the service has no code for what it rejects before it is a request")
    if (example.code == "malformed_request" or example.name == "head_timeout") and server.host == "asgi":
        pytest.skip("what is rejected before it is a request is the host's")
    if example.name in SPOILING:
        with serving(tmp_path / "data", server.host) as own:
            answer = ELICIT[example.name](own, example)
    else:
        answer = ELICIT[example.name](server, example)
    shown: Any = DOCUMENT["components"]["examples"][example.name]["value"]
    (request_id,) = answer.values("x-request-id")
    shown = {**shown, "message": shown["message"].replace(examples.REQUEST_ID, request_id)}
    assert (answer.status, json.loads(answer.body)) == (example.status, shown)
    for operation in example.operations:
        responses = next(
            each["responses"]
            for path in DOCUMENT["paths"].values()
            for each in path.values()
            if each["operationId"] == operation
        )
        if operation == example.operations[0]:
            present = {name for name, _ in answer.headers}
            assert {name.lower() for name in responses[str(example.status)]["headers"]} <= present
        assert example.name in responses[str(example.status)]["content"]["application/json"]["examples"]


def test_every_error_example_is_elicited() -> None:
    assert sorted(example.name for example in ERRORS) == sorted(ELICIT)


# Of addresses and methods that the document does not have, and of a body whose client is gone.
WITHOUT_EXAMPLE = (
    "There is nothing at this address.", "This address answers GET, HEAD.", "The body broke off before its end.",
)  # fmt: skip
ERROR_CLASSES = {kind.__name__ for kind in RequestError.__subclasses__()}


def texts_of_errors(path: Path) -> Iterator[str]:
    """Patterns of the texts in a module: arguments of errors, and what the functions named for faults return."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ERROR_CLASSES:
                yield from pattern_of(node.args[0])
            elif node.func.id == "error_reply" and len(node.args) > 1:
                yield from pattern_of(node.args[1])
        elif isinstance(node, ast.FunctionDef) and node.name.endswith(("_fault", "_hint")):
            for inside in ast.walk(node):
                if isinstance(inside, ast.Return) and inside.value is not None:
                    yield from pattern_of(inside.value)


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
    assert len(found) > 40
    shown = [*(example.message for example in ERRORS), *WITHOUT_EXAMPLE]
    assert [text for text in found if not any(re.search(text, message) for message in shown)] == []
