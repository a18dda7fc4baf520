"""The OpenAPI 3.1 document, from the same types and tables as the code."""

from typing import Any

import msgspec

from petstore import __version__
from petstore.errors import STATUS_OF_CODE
from petstore.pets import STATUSES, NewPet, Pet
from petstore.plans import PLANS
from petstore.web.replies import Error
from petstore.web.requests import DEFAULT_LIMIT, MAX_LIMIT

Json = dict[str, Any]

_PLAN_TABLE = "\n".join(
    f"| {plan} | {limits.per_minute if limits else 'custom'} | {limits.per_day if limits else 'custom'} |"
    for plan, limits in PLANS.items()
)
DESCRIPTION = f"""
Browse and add individual animals that are available for adoption.

Every request carries an API key: `Authorization: Bearer <API_KEY>`. Every response carries the state of the rate
limit in `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, and a unique `X-Request-Id`.

| plan | requests per minute | requests per day |
|---|---|---|
{_PLAN_TABLE}

After a `429`, wait as long as `Retry-After` says, and back off exponentially. A key that keeps asking is banned for a
minute, then two, up to an hour. `v1` only ever grows: new optional parameters, new headers, new error codes.
""".strip()


def _header(description: str, schema: Json, *, required: bool = True) -> Json:
    return {"description": description, "required": required, "schema": schema}


_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}

HEADERS: Json = {
    "X-RateLimit-Limit": _header("The limit of the window with the least remaining.", _COUNT),
    "X-RateLimit-Remaining": _header("Requests remaining in that window.", _COUNT),
    "X-RateLimit-Reset": _header("Unix timestamp at which that window resets.", _COUNT),
    "X-Request-Id": _header("Unique to this response; quote it when asking for help.", _TEXT),
    "Retry-After": _header("Whole seconds after which to retry.", {"type": "integer", "minimum": 1}),
    "WWW-Authenticate": _header("The Bearer challenge.", _TEXT),
    "ETag": _header("A strong tag of this page, for `If-None-Match`.", _TEXT),
    "Cache-Control": _header("Always `private, no-cache`: keep the page, ask again before using it.", _TEXT),
    "Vary": _header("The page depends on who asks.", _TEXT),
    "Link": _header('The next page (`rel="next"`), present exactly when there is one.', _TEXT, required=False),
    "Location": _header("Where the new animal is.", _TEXT),
    "Idempotent-Replayed": _header("`true` when this repeats an earlier answer.", _TEXT, required=False),
    "Deprecation": _header("Since when the operation is deprecated (RFC 9745).", _TEXT),
    "Sunset": _header("When it is to be removed (RFC 8594).", _TEXT),
    "DeprecationLink": _header("The replacement, and where to read about it.", _TEXT),
    "Allow": _header("The methods of this address.", _TEXT),
}
_ON_EVERY_RESPONSE = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-Request-Id")
_ON_STATUS = {401: ("WWW-Authenticate",), 403: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",)}

MEANING = {
    400: "The request has invalid values; the message names them.",
    401: "The API key is missing or invalid.",
    403: "The key lacks the scope for this operation.",
    404: "The animal could not be found.",
    408: "The body took too long to arrive.",
    409: "The first request with this Idempotency-Key is still running.",
    410: "The operation has been removed.",
    413: "The body is larger than 64 KiB.",
    415: "The body is not plain JSON.",
    422: "The Idempotency-Key was used before with another body.",
    429: "The rate limit is exceeded, or the key is banned for a while.",
    500: "Something went wrong on our side.",
    503: "The service cannot answer right now.",
}


def document(public_base: str) -> Json:
    """`public_base` is what the servers' addresses start with; empty, they are relative to where this is read."""
    _, schemas = msgspec.json.schema_components([Pet, NewPet, Error])
    schemas["PetStatus"] = {
        "title": "PetStatus",
        "description": "Where an animal stands in its adoption.",
        "type": "string",
        "enum": list(STATUSES),
    }
    schemas["Pet"]["properties"]["status"] = _ref("schemas", "PetStatus")
    schemas["NewPet"]["properties"]["status"] = {**_ref("schemas", "PetStatus"), "default": "available"}
    schemas["Error"]["properties"]["code"]["enum"] = sorted(STATUS_OF_CODE)
    schemas["Error"]["additionalProperties"] = False
    schemas["Pets"] = {"title": "Pets", "type": "array", "maxItems": MAX_LIMIT, "items": _ref("schemas", "Pet")}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Petstore",
            "version": __version__,
            "summary": "An HTTP and JSON pet store.",
            "description": DESCRIPTION,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [
            {"url": f"{public_base}/v1", "description": "live"},
            {"url": f"{public_base}/staging/v1", "description": "staging: separate animals, keys and counters"},
        ],
        "security": [{"apiKey": []}],
        "tags": [{"name": "pets", "description": "Animals"}],
        "paths": {
            "/pets": {"get": _list_pets(), "post": _create_pet()},
            "/pets/{petId}": {"get": _get_pet()},
        },
        "components": {
            "schemas": schemas,
            "headers": HEADERS,
            "responses": {str(status): _error(status) for status in MEANING},
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


def _list_pets() -> Json:
    return {
        "operationId": "listPets",
        "summary": "List animals",
        "description": "Animals in the order of their ids. Follow `Link` for the next page.",
        "tags": ["pets"],
        "parameters": [
            _query(
                "limit",
                "Maximum number of animals returned.",
                {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
            ),
            _query("status", "Only animals with this status.", _ref("schemas", "PetStatus")),
            _query(
                "cursor",
                'Where the page starts: opaque, taken from the `Link` with `rel="next"`.',
                {"type": "string", "pattern": "^[A-Za-z0-9_-]{16}$"},
            ),
            {
                "name": "If-None-Match",
                "in": "header",
                "description": "Entity tags the client has: an unchanged page is answered with 304.",
                "schema": _TEXT,
            },
        ],
        "responses": {
            "200": _success("A page of animals.", "Pets", "ETag", "Cache-Control", "Vary", "Link"),
            "304": {
                "description": "The client has this page already.",
                "headers": _headers("ETag", "Cache-Control", "Vary", "Link"),
            },
            **_errors(400, 401, 403, 429, 500, 503),
        },
    }


def _create_pet() -> Json:
    return {
        "operationId": "createPet",
        "summary": "Add an animal",
        "description": "The animal is on disk, and in every list, before the answer is sent.",
        "tags": ["pets"],
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "Makes a retry safe: for 24 hours the same key and body get the original answer again.",
                "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
            }
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref("schemas", "NewPet")}}},
        "responses": {
            "201": _success("The created animal.", "Pet", "Location", "Idempotent-Replayed"),
            **_errors(400, 401, 403, 408, 409, 413, 415, 422, 429, 500, 503),
        },
    }


def _get_pet() -> Json:
    on_all = ("Deprecation", "Sunset", "DeprecationLink")
    responses = {"200": _success("The requested animal.", "Pet", *on_all)}
    for status in (401, 403, 404, 410, 429, 500, 503):
        responses[str(status)] = _error(status, *on_all)
    return {
        "operationId": "getPet",
        "summary": "Get an animal",
        "description": "To be removed on 5 December 2030. Use `GET /pets` with a `status` filter instead.",
        "deprecated": True,
        "tags": ["pets"],
        "parameters": [
            {
                "name": "petId",
                "in": "path",
                "required": True,
                "description": "Identifier of the animal.",
                "schema": {"type": "integer", "format": "int64"},
            }
        ],
        "responses": responses,
    }


def _ref(kind: str, name: str) -> Json:
    return {"$ref": f"#/components/{kind}/{name}"}


def _query(name: str, description: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _headers(*names: str) -> Json:
    # "DeprecationLink" is a Link with another meaning.
    return {
        "Link" if name == "DeprecationLink" else name: _ref("headers", name) for name in (*_ON_EVERY_RESPONSE, *names)
    }


def _success(description: str, schema: str, *headers: str) -> Json:
    return {
        "description": description,
        "headers": _headers(*headers),
        "content": {"application/json": {"schema": _ref("schemas", schema)}},
    }


def _error(status: int, *headers: str) -> Json:
    codes = [code for code, its_status in STATUS_OF_CODE.items() if its_status == status]
    reply = _success(MEANING[status], "Error", *_ON_STATUS.get(status, ()), *headers)
    reply["description"] += " Codes: " + ", ".join(f"`{code}`" for code in codes) + "."
    return reply


def _errors(*statuses: int) -> Json:
    return {str(status): _ref("responses", str(status)) for status in statuses}


def as_json(built: Json) -> bytes:
    return msgspec.json.format(msgspec.json.encode(built), indent=2)


def as_yaml(built: Json) -> bytes:
    return msgspec.yaml.encode(built)
