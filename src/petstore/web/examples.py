"""The examples of the OpenAPI document. A test makes the running service give each of these answers.

They tell one story: the three animals below are added to a new service in this order, with a key of the free plan.
"""

from typing import NamedTuple

from petstore.pets import NewPet, Pet
from petstore.web.cursors import write_cursor

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

# By status, code and operations: the name of each example, its message, and the request that leads to it.
_ERRORS: dict[tuple[int, str, tuple[str, ...]], dict[str, tuple[str, str]]] = {
    (400, "invalid_body", CREATE): {
        "invalid_body": (
            "name is required; categoryId must be a whole number that fits in 64 bits.",
            'The body is {"categoryId": "1"}',
        ),
        "invalid_members": (
            "name must not be empty or only white space; categoryId is required; status must"
            " be one of available, pending, sold.",
            'The body is {"name": " ", "status": "lost"}',
        ),
        "name_not_a_string": ("name must be a string.", 'The body is {"name": 7, "categoryId": 1}'),
        "name_too_long": ("name must have at most 255 characters.", "The name has 256 characters"),
        "name_with_control_characters": (
            "name must not contain control characters or lone surrogates.",
            "The name has a line break in it",
        ),
        "repeated_member": (
            "name must be given at most once; a member must be given at most once.",
            'The body has "name" twice, and "note" twice',
        ),
        "body_missing": (
            "The body is missing: send a JSON object with name and categoryId.",
            "The request has no body",
        ),
        "body_not_json": ("The body is not valid JSON.", 'The body is {"name": "Rex",'),
        "body_not_a_number": (
            "The body is not valid JSON: NaN and Infinity are not JSON.",
            'The body is {"name": "Rex", "categoryId": NaN}',
        ),
        "body_not_an_object": ("The body must be a JSON object with name and categoryId.", "The body is []"),
        "body_not_utf_8": ("The body is not valid UTF-8.", "The body is in UTF-16"),
        "body_nested_too_deeply": ("The body is nested too deeply.", "The body is 60,000 opening brackets"),
    },
    (400, "invalid_parameter", LIST): {
        "invalid_parameter": ("limit must be a whole number from 1 to 100.", "The query is limit=101"),
        "invalid_status": ("status must be one of available, pending, sold.", "The query is status=lost"),
        "invalid_cursor": (
            "cursor is not one that this service gave out; start again without it.",
            "The cursor lacks its last character",
        ),
        "repeated_parameter": ("limit must be given at most once.", "The query is limit=2&limit=3"),
    },
    (400, "invalid_parameter", CREATE): {
        "invalid_idempotency_key": (
            "Idempotency-Key must be given once, with 1 to 255 visible ASCII characters.",
            "The Idempotency-Key has a space in it",
        )
    },
    (400, "malformed_request", ALL): {
        "malformed_request": ("The request is not valid HTTP/1.1.", "A header has no colon")
    },
    (401, "unauthorized", ALL): {
        "unauthorized": ("Send an API key as Authorization: Bearer <API_KEY>.", "The request has no key"),
        "key_in_another_header": (
            "Send the API key as Authorization: Bearer <API_KEY>, not as X-API-Key.",
            "The key is in X-API-Key",
        ),
        "key_of_staging": (
            "This API key belongs to the staging environment, and this is live.",
            "The key begins with pets_test_",
        ),
        "key_of_live": (
            "This API key belongs to the live environment, and this is staging.",
            "A request to staging, and the key begins with pets_live_",
        ),
        "key_in_quotes": (
            "Send one API key, without quotes, as Authorization: Bearer <API_KEY>.",
            "The key is in quotes, or the header is there twice",
        ),
        "key_mistyped": (
            "The API key is mistyped or incomplete: its checksum does not match.",
            "The key lacks its last character",
        ),
        "key_not_valid": ("The API key is not valid.", "The key is unknown, suspended, expired or revoked"),
    },
    (403, "insufficient_scope", READS): {
        "insufficient_scope_read": ("This key does not have the read scope.", "The key has the scope write alone")
    },
    (403, "insufficient_scope", CREATE): {
        "insufficient_scope_write": ("This key does not have the write scope.", "The key has the scope read alone")
    },
    (404, "pet_not_found", GET): {"pet_not_found": ("There is no such animal.", "No animal has this id")},
    (408, "request_timeout", ALL): {
        "head_timeout": ("The request did not arrive in time.", "The headers stop in the middle")
    },
    (408, "request_timeout", CREATE): {
        "request_timeout": ("The body did not arrive within 8 seconds.", "The body stops in the middle")
    },
    (409, "idempotency_conflict", CREATE): {
        "idempotency_conflict": (
            "The first request with this Idempotency-Key is still running; retry shortly.",
            "Two requests with one Idempotency-Key at the same time",
        )
    },
    (410, "gone", GET): {
        "gone": (
            "This operation was removed on 5 December 2030; use GET /pets with a status filter.",
            "The request comes on or after 5 December 2030",
        )
    },
    (413, "body_too_large", CREATE): {
        "body_too_large": ("The body must have at most 65536 bytes.", "The body has 65,537 bytes")
    },
    (414, "malformed_request", ALL): {
        "target_too_long": ("The address of the request is too long.", "The query has 60,000 characters")
    },
    (415, "unsupported_media_type", CREATE): {
        "unsupported_media_type": ("Content-Type must be application/json.", "The Content-Type is text/plain"),
        "content_encoding": (
            "Content-Encoding is not supported: send the body as it is.",
            "The Content-Encoding is gzip",
        ),
    },
    (422, "idempotency_mismatch", CREATE): {
        "idempotency_mismatch": (
            "This Idempotency-Key was used before with another body.",
            "A second request with the Idempotency-Key, and another body",
        )
    },
    (429, "rate_limit_exceeded", ALL): {
        "rate_limit_exceeded": (
            "Too many requests: wait as long as Retry-After says.",
            "The key has used up its minute",
        )
    },
    (429, "key_banned", ALL): {
        "key_banned": (
            "This key is banned for a while, because it kept sending requests after it was"
            " refused. Wait as long as Retry-After says.",
            "The key went on after many refused requests",
        )
    },
    (431, "malformed_request", ALL): {
        "headers_too_large": (
            "The header fields of the request are too large or too many.",
            "A header has 60,000 characters",
        )
    },
    (500, "internal_error", ALL): {
        "internal_error": (f"Something went wrong; it is recorded as {REQUEST_ID}.", "The service has a bug")
    },
    (501, "malformed_request", ALL): {
        "transfer_encoding_not_implemented": (
            "The Transfer-Encoding of the request is not supported.",
            "The Transfer-Encoding is gzip, chunked",
        )
    },
    (503, "unavailable", ALL): {
        "unavailable": ("The service cannot answer right now.", "The database does not answer")
    },
    (505, "malformed_request", ALL): {
        "version_not_supported": (
            "The HTTP version of the request is not supported.",
            "The request line ends in HTTP/2.0",
        )
    },
}
ERRORS = tuple(
    ErrorExample(name, status, code, message, summary, operations)
    for (status, code, operations), group in _ERRORS.items()
    for name, (message, summary) in group.items()
)
