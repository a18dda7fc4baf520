"""The OpenAPI document with its references resolved, and a check that it documents a response."""

import json
import re
from collections.abc import Iterable
from urllib.parse import unquote

import httpx
import jsonschema_rs

from petstore.operations import OPERATIONS, Operation, OperationName
from petstore.settings import BASES
from petstore.web.documents import Json, openapi_document
from tools.breaking_changes import AFTER_EVERY_SUNSET, resolved

# Headers that are not documented, because HTTP, the server or the operator's settings add them to responses.
UNDOCUMENTED = {
    "access-control-allow-headers", "access-control-allow-methods", "access-control-allow-origin",
    "access-control-expose-headers", "access-control-max-age", "connection", "content-length", "content-type", "date",
    "ratelimit", "ratelimit-policy", "server", "transfer-encoding", "vary",
}  # fmt: skip


ERROR_MEMBERS = ("code", "message", "status")


class Described(dict[OperationName, Json]):
    """Operations by operationId. References are resolved, and `method` and `path` are added."""

    def __missing__(self, name: OperationName) -> Json:
        raise AssertionError(f"openapi.yaml has no {name}")


def operations_of(document: Json) -> Described:
    return Described(
        (operation["operationId"], {**resolved(operation, document), "method": method.upper(), "path": path})
        for path, item in document["paths"].items()
        for method, operation in item.items()
    )


DOCUMENT = openapi_document("/v1", "/staging/v1", 0)
AFTER_SUNSET = openapi_document("/v1", "/staging/v1", AFTER_EVERY_SUNSET)
DOCUMENTED = operations_of(DOCUMENT)
DOCUMENTED_AFTER_SUNSET = operations_of(AFTER_SUNSET)


def sample(operation: OperationName) -> tuple[str, str, bytes]:
    """Returns the method, the path relative to the base address, and the body of the documented example request."""
    shown = DOCUMENTED[operation]
    path: str = shown["path"]
    for parameter in shown["parameters"]:
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", str(parameter["example"]))
    return shown["method"], path, json.dumps(body_of(operation)["example"]).encode() if "requestBody" in shown else b""


def body_of(operation: OperationName) -> Json:
    """Returns the schema and the example of an operation's request body."""
    content: Json = DOCUMENTED[operation]["requestBody"]["content"]["application/json"]
    assert "example" in content, f"openapi.yaml: add an `example` to the requestBody of {operation}"
    return content


def operation_at(method: str, path: str) -> Operation | None:
    """Finds the operation for a request without sharing any code with the router."""
    for base in sorted(BASES.values(), key=len, reverse=True):
        for operation in OPERATIONS:
            template = re.sub(r"\{\w+\}", r"(?!\\.{1,2}$)[^/]+", operation.path)
            if re.fullmatch(base + template, path, re.DOTALL) and (method.replace("HEAD", "GET") == operation.method):
                return operation
    return None


def path_of(target: str) -> str:
    """Returns the percent-decoded path of a target. An encoded slash does not separate segments."""
    return unquote(re.sub("(?i)%2f", "%252F", target.partition("?")[0]), "latin-1")


def assert_documented(method: str, path: str, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
    """Asserts that the document describes this response. `path` is percent-decoded.

    Responses that belong to no operation are not checked: some 404s and 405s, OPTIONS, and the site.
    """
    operation = operation_at(method, path)
    if operation is None:
        return
    sent = dict(headers)
    # A client can request a simulated error that only other operations document.
    if "error=" in sent.get("preference-applied", ""):
        assert any(str(status) in shown["responses"] for shown in DOCUMENTED.values()) or status in (404, 405)
        return
    found = [
        faults_of(documented[operation.name]["responses"].get(str(status)), sent, b"" if method == "HEAD" else body)
        for documented in (DOCUMENTED, DOCUMENTED_AFTER_SUNSET)
        if operation.name in documented
    ]
    assert [] in found, f"{operation.name} {status}: {found[0]}"


def faults_of(response: Json | None, headers: dict[str, str], body: bytes) -> list[str]:
    if response is None:
        return ["the status is not documented"]
    documented = {name.lower(): header["required"] for name, header in response["headers"].items()}
    faults = [f"{name} is missing" for name, required in documented.items() if required and name not in headers]
    faults += [f"{name} is not documented" for name in headers.keys() - documented.keys() - UNDOCUMENTED]
    faults += [
        f"{name} is {headers[name.lower()]!r}, which does not fit {header['schema']}"
        for name, header in response["headers"].items()
        if name.lower() in headers and not _fits(header["schema"], headers[name.lower()])
    ]
    if body:
        content = response.get("content", {}).get(headers.get("content-type", ""))
        if content is None:
            return [*faults, f"{headers.get('content-type')} is not documented"]
        value = json.loads(body)
        if not jsonschema_rs.is_valid(content["schema"], value):
            faults.append(f"{value} does not fit the schema")
        codes = {example["value"]["code"] for example in content.get("examples", {}).values()}
        if codes:
            faults += error_faults(value)
        if codes and value.get("code", "") not in codes:
            faults.append(f"the code {value.get('code')} has no example")
    return faults


def error_faults(body: Json) -> list[str]:
    """Returns a message for each missing or unexpected member of an Error body."""
    faults = [f"the Error body lacks {name}" for name in ERROR_MEMBERS if name not in body]
    return faults + [f"the Error body has {name}" for name in body if name not in ERROR_MEMBERS]


def _fits(schema: Json, text: str) -> bool:
    """Returns whether a header matches a schema. Headers are text, so numbers must be converted first."""
    return jsonschema_rs.is_valid(schema, int(text) if schema["type"] == "integer" and text.isdecimal() else text)


def documented(response: httpx.Response) -> None:
    """Checks each response that a client receives. Use as an event hook of httpx."""
    request, headers = response.request, response.headers
    path = path_of(request.url.raw_path.decode())
    # A response without a request id comes from a proxy, not from the service.
    if "x-request-id" in headers and operation_at(request.method, path) is not None:
        body = response.read()
        assert_documented(request.method, path, response.status_code, headers.items(), body)
