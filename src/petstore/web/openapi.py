"""The OpenAPI 3.1 document, from the same types and tables as the code. `guide.py` has its prose."""

from itertools import groupby
from typing import Any

import msgspec

from petstore import __version__
from petstore.pets import STATUSES, NewPet, Pet
from petstore.web import examples
from petstore.web.examples import ERRORS, ErrorExample
from petstore.web.guide import CODES, guide
from petstore.web.pets import SUNSET
from petstore.web.replies import Error
from petstore.web.requests import DEFAULT_LIMIT, MAX_LIMIT

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_LIMIT: Json = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
_CURSOR: Json = {"type": "string", "pattern": "^[A-Za-z0-9_-]{16}$", "examples": [examples.CURSOR]}
_ETAGS: Json = {"type": "string", "examples": [examples.ETAG]}
_IDEMPOTENCY_KEY: Json = {"type": "string", "pattern": "^[!-~]{1,255}$", "examples": [examples.IDEMPOTENCY_KEY]}


def _header(description: str, schema: Json, example: str | int, *, required: bool = True) -> Json:
    return {"description": description, "required": required, "schema": schema, "example": example}


HEADERS: Json = {
    "X-RateLimit-Limit": _header("The limit of the window with the least remaining.", _COUNT, 60),
    "X-RateLimit-Remaining": _header("Requests remaining in that window.", _COUNT, 59),
    "X-RateLimit-Reset": _header("Unix timestamp at which that window resets.", _COUNT, 1794614460),
    "X-Request-Id": _header("Unique to this response. Quote it when you ask for help.", _TEXT, examples.REQUEST_ID),
    "Retry-After": _header("Whole seconds after which to retry.", {"type": "integer", "minimum": 1}, 41),
    "WWW-Authenticate": _header("The Bearer challenge.", _TEXT, 'Bearer realm="petstore"'),
    "ETag": _header("A strong tag of this page, for `If-None-Match`.", _TEXT, examples.ETAG),
    "Cache-Control": _header(
        "Always `private, no-cache`: keep the page, and ask again before you use it.", _TEXT, "private, no-cache"
    ),
    "Vary": _header("The page depends on the `Authorization` header.", _TEXT, "Authorization"),
    "Link": _header(
        'The next page (`rel="next"`). Present exactly when more animals exist.', _TEXT, examples.NEXT, required=False
    ),
    "Location": _header("The address of the new animal.", _TEXT, "/v1/pets/1"),
    "Idempotent-Replayed": _header("`true` when this answer repeats an earlier one.", _TEXT, "true", required=False),
    "Deprecation": _header("Since when the operation is deprecated (RFC 9745).", _TEXT, "@1794614400"),
    "Sunset": _header("When the operation is removed (RFC 8594).", _TEXT, "Thu, 05 Dec 2030 00:00:00 GMT"),
    "DeprecationLink": _header(
        "The replacement, and where to read about it.", _TEXT, '</v1/pets>; rel="successor-version"'
    ),
}
_ON_EVERY_RESPONSE = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-Request-Id")
_ON_STATUS = {401: ("WWW-Authenticate",), 403: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",)}
_ON_DEPRECATED = ("Deprecation", "Sunset", "DeprecationLink")
_REJECTED = {"malformed_request", "request_timeout"}  # the codes of messages that never became a request

MEMBERS = {
    "id": "Given by the service. Ids grow and are never used again.",
    "name": "1 to 255 characters, not only white space, no control characters. Kept as sent.",
    "categoryId": "The category of the animal. Another interface manages categories.",
    "status": "Where the animal stands in its adoption.",
}


def document(live: str, staging: str, now: float) -> Json:
    """The document at the time `now`, for the two base addresses. A base address may be relative to the document."""
    sunset_passed = now >= SUNSET
    paths: Json = {"/pets": {"get": _list_pets(), "post": _create_pet(with_location=not sunset_passed)}}
    if not sunset_passed:
        paths["/pets/{petId}"] = {"get": _get_pet()}
    used = _references(paths)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Petstore",
            "version": __version__,
            "summary": "An HTTP and JSON pet store.",
            "description": guide(live, staging, sunset_passed=sunset_passed),
            "contact": {"name": "The operator of this Petstore", **({"url": live} if "://" in live else {})},
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [
            {"url": live, "description": "Live"},
            {"url": staging, "description": "Staging: its own animals, keys and rate limits"},
        ],
        "security": [{"apiKey": []}],
        "tags": [{"name": "pets", "description": "Animals that are available for adoption."}],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "headers": {name: HEADERS[name] for name in HEADERS if f"#/components/headers/{name}" in used},
            "examples": {
                each.name: {
                    "summary": each.summary,
                    "value": msgspec.to_builtins(Error(each.code, each.message, each.status)),
                }
                for each in ERRORS
                if f"#/components/examples/{each.name}" in used
            },
            "securitySchemes": {
                "apiKey": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "API key",
                    "description": "`pets_live_…` for live, `pets_test_…` for staging.",
                }
            },
        },
    }


def _schemas() -> Json:
    _, schemas = msgspec.json.schema_components([Pet, NewPet, Error])
    status = {"title": "PetStatus", "description": MEMBERS["status"], "type": "string", "enum": list(STATUSES)}
    schemas["PetStatus"] = status
    for schema in (schemas["Pet"], schemas["NewPet"]):
        for name, member in schema["properties"].items():
            member["description"] = MEMBERS[name]
    schemas["Pet"]["properties"]["status"] = _ref("schemas", "PetStatus")
    schemas["NewPet"]["properties"]["status"] = {**_ref("schemas", "PetStatus"), "default": "available"}
    # No enumeration: the list of codes grows, and a client that rejects a new code would break.
    schemas["Error"]["properties"]["code"] |= {
        "description": "Machine-readable. The list of codes grows: treat an unknown code by its status.",
        "examples": list(CODES),
    }
    schemas["Error"]["properties"]["message"]["description"] = "For people. The wording may change."
    schemas["Error"]["properties"]["status"]["description"] = "The HTTP status."
    schemas["Pets"] = {"title": "Pets", "type": "array", "maxItems": MAX_LIMIT, "items": _ref("schemas", "Pet")}
    return schemas


def _list_pets() -> Json:
    headers = ("ETag", "Cache-Control", "Vary", "Link")
    return _operation(
        "listPets",
        "List animals",
        "Animals in the order of their ids. The `Link` header has the address of the next page.",
        [
            _parameter("query", "limit", "Maximum number of animals returned.", _LIMIT),
            _parameter("query", "status", "Only animals with this status.", _ref("schemas", "PetStatus")),
            _parameter(
                "query", "cursor", "Where the page starts. Opaque: take it from the `Link` of the last page.", _CURSOR
            ),
            _parameter(
                "header", "If-None-Match", "The `ETag`s of pages that you have. An unchanged page is a 304.", _ETAGS
            ),
        ],
        {
            "200": _success("A page of animals.", "Pets", examples.PAGE, headers),
            "304": {"description": "The client has this page already.", "headers": _headers(headers)},
        },
    )


def _create_pet(*, with_location: bool) -> Json:
    headers = ("Location", "Idempotent-Replayed") if with_location else ("Idempotent-Replayed",)
    retries = "Makes a retry safe: for 24 hours the same key and body get the original answer again."
    return _operation(
        "createPet",
        "Add an animal",
        "The animal is on disk, and in every list, before the answer is sent.",
        [_parameter("header", "Idempotency-Key", retries, _IDEMPOTENCY_KEY)],
        {"201": _success("The created animal.", "Pet", examples.PETS[0], headers)},
        requestBody={"required": True, "content": _json("NewPet", example=msgspec.to_builtins(examples.NEW_PET))},
    )


def _get_pet() -> Json:
    pet_id = _parameter("path", "petId", "Identifier of the animal.", {"type": "integer", "format": "int64"})
    return _operation(
        "getPet",
        "Get an animal",
        "**Deprecated. To be removed on 5 December 2030.** From that day on the answer is 410 `gone`. Every answer"
        " carries the date in `Sunset`. The replacement is `GET /pets` with a `status` filter: list the animals of"
        " a status with `limit=100`, and pick yours by its `id`. Keep the pages with their `ETag`s: an unchanged"
        " page costs a 304.",
        [{**pet_id, "required": True, "example": examples.PETS[0].id}],
        {"200": _success("The requested animal.", "Pet", examples.PETS[0], _ON_DEPRECATED)},
        _ON_DEPRECATED,
        deprecated=True,
    )


def _operation(
    name: str, summary: str, description: str, parameters: list[Json], responses: Json,
    error_headers: tuple[str, ...] = (), **more: Any,
) -> Json:  # fmt: skip
    return {
        "operationId": name,
        "summary": summary,
        "description": description,
        "tags": ["pets"],
        "parameters": parameters,
        "responses": {**responses, **_errors(name, error_headers)},
        **more,
    }


def _parameter(where: str, name: str, description: str, schema: Json) -> Json:
    return {"name": name, "in": where, "description": description, "schema": schema}


def _success(description: str, schema: str, example: object, headers: tuple[str, ...]) -> Json:
    content = _json(schema, example=msgspec.to_builtins(example))
    return {"description": description, "headers": _headers(headers), "content": content}


def _json(schema: str, **more: Any) -> Json:
    return {"application/json": {"schema": _ref("schemas", schema), **more}}


def _errors(operation: str, headers: tuple[str, ...]) -> Json:
    """Every error that the operation can answer, by status."""
    own = [example for example in ERRORS if operation in example.operations]
    by_status = {status: list(found) for status, found in groupby(own, key=lambda example: example.status)}
    return {str(status): _error(status, found, headers) for status, found in by_status.items()}


def _error(status: int, found: list[ErrorExample], headers: tuple[str, ...]) -> Json:
    codes = dict.fromkeys(example.code for example in found)
    of_operation = () if codes.keys() <= _REJECTED else headers
    return {
        "description": " ".join(f"`{code}`: {CODES[code][0]}" for code in codes),
        "headers": _headers((*_ON_STATUS.get(status, ()), *of_operation)),
        "content": _json("Error", examples={each.name: _ref("examples", each.name) for each in found}),
    }


def _headers(names: tuple[str, ...]) -> Json:
    # "DeprecationLink" is a Link with another meaning.
    return {
        "Link" if name == "DeprecationLink" else name: _ref("headers", name) for name in (*_ON_EVERY_RESPONSE, *names)
    }


def _ref(kind: str, name: str) -> Json:
    return {"$ref": f"#/components/{kind}/{name}"}


def _references(value: object) -> set[str]:
    """The target of every `$ref` within."""
    if isinstance(value, dict):
        own = {value["$ref"]} if "$ref" in value else set()
        return own.union(*map(_references, value.values()))
    return set().union(*map(_references, value)) if isinstance(value, list) else set()


def as_json(built: Json) -> bytes:
    return msgspec.json.format(msgspec.json.encode(built), indent=2)


def as_yaml(built: Json) -> bytes:
    return msgspec.yaml.encode(built)
