"""The examples of the OpenAPI document. A test makes the running service give each of these answers.

They tell one story: the three animals below are added to a new service in this order, with a key of the free plan.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from petstore.errors import STATUS_OF_CODE, RequestError
from petstore.pets import NewPet, Pet, parse_new_pet
from petstore.web.cursors import write_cursor
from petstore.web.replies import REJECTIONS
from petstore.web.requests import parse_list_query

NEW_PET = NewPet("Rex", 1, "available")
PETS = [Pet(1, "Rex", 1, "available"), Pet(2, "Ada", 1, "pending"), Pet(3, "Bo", 2, "available")]
PAGE = PETS[:2]  # with `limit=2`
CURSOR = write_cursor(PAGE[-1].id)
NEXT = f'</v1/pets?limit=2&cursor={CURSOR}>; rel="next"'
ETAG = '"9ab05fbf479225e83c0ed97880b00ef2"'
IDEMPOTENCY_KEY = "order-17"
REQUEST_ID = "b5f0c1d29e7a43865d0c8a1f6e2b9374"


class ErrorExample(NamedTuple):
    """One error, the request that leads to it, and the operations that can answer it."""

    name: str
    status: int
    code: str
    message: str
    summary: str
    operations: tuple[str, ...]


LIST, CREATE, GET = ("listPets",), ("createPet",), ("getPet",)
READS, ALL = LIST + GET, LIST + CREATE + GET
SHOWN_MAX = 40  # characters of a body in a summary: a longer one does not fit on a phone

# Bodies and queries that are refused. The parsers themselves say why.
BAD_BODIES = {
    "invalid_body": b'{"categoryId": "1"}',
    "invalid_members": b'{"name": " ", "status": "lost"}',
    "name_not_a_string": b'{"name": 7, "categoryId": 1}',
    "name_too_long": b'{"categoryId": 1, "name": "%s"}' % (b"x" * 256),
    "name_with_control_characters": rb'{"name": "Rex\n", "categoryId": 1}',
    "repeated_member": b'{"name": "A", "name": "B", "categoryId": 1, "a": 1, "a": 2}',
    "body_missing": b"",
    "body_not_json": b'{"name": "Rex",',
    "body_not_a_number": b'{"name": "Rex", "categoryId": NaN}',
    "body_not_an_object": b"[]",
    "body_not_utf_8": b'{"name": "\xff", "categoryId": 1}',
    "body_nested_too_deeply": b"[" * 60_000,
}
BAD_QUERIES = {
    "invalid_parameter": "limit=101",
    "invalid_status": "status=lost",
    "invalid_cursor": f"cursor={CURSOR[:-1]}",
    "repeated_parameter": "limit=2&limit=3",
}
# By status: what is refused before it is a request.
_REJECTED = {
    400: ("malformed_request", "A header has no colon"),
    408: ("head_timeout", "The headers stop in the middle"),
    414: ("target_too_long", "The query has 60,000 characters"),
    431: ("headers_too_large", "A header has 60,000 characters"),
    501: ("transfer_encoding_not_implemented", "The Transfer-Encoding is gzip, chunked"),
    505: ("version_not_supported", "The request line ends in HTTP/2.0"),
}
# The requests that lead to the other errors.
_REQUESTS = {
    "invalid_idempotency_key": "The Idempotency-Key has a space in it",
    "unauthorized": "The request has no key",
    "key_in_another_header": "The key is in X-API-Key",
    "key_of_staging": "The key begins with pets_test_",
    "key_of_live": "A request to staging, and the key begins with pets_live_",
    "key_in_quotes": "The key is in quotes, or the header is there twice",
    "key_mistyped": "The key lacks its last character",
    "key_not_valid": "The key is unknown, suspended, expired or revoked",
    "insufficient_scope_read": "The key has the scope write alone",
    "insufficient_scope_write": "The key has the scope read alone",
    "pet_not_found": "No animal has this id",
    "request_timeout": "The body stops in the middle",
    "idempotency_conflict": "Two requests with one Idempotency-Key at the same time",
    "gone": "The request comes on or after 5 December 2030",
    "body_too_large": "The body has 65,537 bytes",
    "unsupported_media_type": "The Content-Type is text/plain",
    "content_encoding": "The Content-Encoding is gzip",
    "idempotency_mismatch": "A second request with the Idempotency-Key, and another body",
    "rate_limit_exceeded": "The key has used up its minute",
    "key_banned": "The key went on after many refused requests",
    "internal_error": "The service has a bug",
    "unavailable": "The database does not answer",
}
# By code and operations: what the service says to each of these requests.
_MESSAGES: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {
    ("invalid_parameter", CREATE): {
        "invalid_idempotency_key": "Idempotency-Key must be given once, with 1 to 255 visible ASCII characters."
    },
    ("unauthorized", ALL): {
        "unauthorized": "Send an API key as Authorization: Bearer <API_KEY>.",
        "key_in_another_header": "Send the API key as Authorization: Bearer <API_KEY>, not as X-API-Key.",
        "key_of_staging": "This API key belongs to the staging environment, and this is live.",
        "key_of_live": "This API key belongs to the live environment, and this is staging.",
        "key_in_quotes": "Send one API key, without quotes, as Authorization: Bearer <API_KEY>.",
        "key_mistyped": "The API key is mistyped or incomplete: its checksum does not match.",
        "key_not_valid": "The API key is not valid.",
    },
    ("insufficient_scope", READS): {"insufficient_scope_read": "This key does not have the read scope."},
    ("insufficient_scope", CREATE): {"insufficient_scope_write": "This key does not have the write scope."},
    ("pet_not_found", GET): {"pet_not_found": "There is no such animal."},
    ("request_timeout", CREATE): {"request_timeout": "The body did not arrive within 8 seconds."},
    ("idempotency_conflict", CREATE): {
        "idempotency_conflict": "The first request with this Idempotency-Key is still running; retry shortly."
    },
    ("gone", GET): {"gone": "This operation was removed on 5 December 2030; use GET /pets with a status filter."},
    ("body_too_large", CREATE): {"body_too_large": "The body must have at most 65536 bytes."},
    ("unsupported_media_type", CREATE): {
        "unsupported_media_type": "Content-Type must be application/json.",
        "content_encoding": "Content-Encoding is not supported: send the body as it is.",
    },
    ("idempotency_mismatch", CREATE): {
        "idempotency_mismatch": "This Idempotency-Key was used before with another body."
    },
    ("rate_limit_exceeded", ALL): {"rate_limit_exceeded": "Too many requests: wait as long as Retry-After says."},
    ("key_banned", ALL): {
        "key_banned": "This key is banned for a while, because it kept sending requests after it was refused."
        " Wait as long as Retry-After says."
    },
    ("internal_error", ALL): {"internal_error": f"Something went wrong; it is recorded as {REQUEST_ID}."},
    ("unavailable", ALL): {"unavailable": "The service cannot answer right now."},
}


def _examples() -> Iterator[ErrorExample]:
    for name, body in BAD_BODIES.items():
        text = body.decode(errors="replace")
        shown = text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…"
        message = _message_about(parse_new_pet, body)
        yield ErrorExample(name, 400, "invalid_body", message, f"The body is {shown or 'missing'}", CREATE)
    for name, query in BAD_QUERIES.items():
        message = _message_about(parse_list_query, query)
        yield ErrorExample(name, 400, "invalid_parameter", message, f"The query is {query}", LIST)
    for status, (name, summary) in _REJECTED.items():
        yield ErrorExample(name, status, *REJECTIONS[status], summary, ALL)
    for (code, operations), messages in _MESSAGES.items():
        for name, message in messages.items():
            yield ErrorExample(name, STATUS_OF_CODE[code], code, message, _REQUESTS[name], operations)


def _message_about(parse: Callable[[Any], object], sent: bytes | str) -> str:
    try:
        return f"{parse(sent)} is valid"
    except RequestError as error:
        return error.message


ERRORS = sorted(_examples(), key=lambda example: example.status)
