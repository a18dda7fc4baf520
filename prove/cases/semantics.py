"""Methods, conditions, representations and status codes: RFC 9110, sections 8 to 15."""

import re

from prove.cases import AUTH, FINE, HOST, NEVER, Case, Check, get, lines, sized
from prove.http import Conversation

_SHAPE = re.compile(r'"[\x21\x23-\x7e\x80-\xff]*"')


def _ask(method: bytes, *fields: bytes, target: bytes = b"/v1/pets?limit=1") -> bytes:
    return lines(method + b" " + target + b" HTTP/1.1", HOST, AUTH, *fields)


def _allows(*methods: str) -> Check:
    return lambda got: {m.strip() for m in (got.final[0].field("allow") or "").split(",")} == set(methods)


def _same_fields(got: Conversation) -> bool:
    """Returns whether a GET and the HEAD after it have the same headers, except those that vary between requests."""
    own = {"date", "x-request-id", "x-ratelimit-remaining", "x-ratelimit-reset"}
    first, second = ([f for f in response.fields if f[0] not in own] for response in got.final[:2])
    return first == second


def _tagged(got: Conversation) -> bool:
    return bool(_SHAPE.fullmatch(got.final[0].field("etag") or ""))


def _keeps_its_fields(got: Conversation) -> bool:
    return all(got.final[0].field(name) for name in ("etag", "cache-control", "vary", "date")) and not got.final[0].body


def _located(got: Conversation) -> bool:
    return re.fullmatch(r"/v1/pets/[1-9][0-9]*", got.final[0].field("location") or "") is not None


def _echoes_nothing(got: Conversation) -> bool:
    return b"pets_live_" not in got.final[0].body and b"Authorization:" not in got.final[0].body


PET_METHODS = ("GET", "HEAD", "OPTIONS", "POST")
_STAR = b"If-None-Match: *"
_YESTERDAY = b"Sun, 06 Nov 1994 08:49:37 GMT"

CASES = [
    # 9: methods
    Case("9110 9.3.2", "HEAD has the fields of GET and no body", _ask(b"GET") + _ask(b"HEAD"), "stays", (200,), _same_fields, ("GET", "HEAD")),
    Case("9110 9.3.2", "HEAD of a missing animal has no body", _ask(b"HEAD", target=b"/v1/pets/0"), "stays", (404,), None, ("HEAD",)),
    Case("9110 9.3.2", "HEAD without a key has no body", lines(b"HEAD /v1/pets HTTP/1.1", HOST), "stays", (401,), None, ("HEAD",)),
    Case("9110 9.3.2", "HEAD with a condition has no body", _ask(b"HEAD", _STAR), "stays", (304,), None, ("HEAD",)),
    Case("9110 9.1", "GET and HEAD must be supported outside the interface too", lines(b"HEAD /openapi.json HTTP/1.1", HOST), "stays", (200,), None, ("HEAD",)),
    Case("9110 9.3.7", "the response to OPTIONS lists the allowed methods", lines(b"OPTIONS /v1/pets HTTP/1.1", HOST), "stays", (204,), _allows(*PET_METHODS)),
    Case("9110 9.3.7", "OPTIONS may have a body", lines(b"OPTIONS /v1/pets HTTP/1.1", HOST, b"Content-Length: 31") + NEVER, "stays", (204,)),
    Case("9110 15.5.6", "a 405 lists the allowed methods: DELETE", _ask(b"DELETE"), "stays", (405,), _allows(*PET_METHODS)),
    Case("9110 15.5.6", "a 405 lists the allowed methods: PUT", _ask(b"PUT", b"Content-Length: 31") + NEVER, "stays", (405,), _allows(*PET_METHODS)),
    Case("9110 15.5.6", "a 405 lists the allowed methods: PATCH", _ask(b"PATCH", b"Content-Length: 31") + NEVER, "stays", (405,), _allows(*PET_METHODS)),
    Case("9110 15.5.6", "a 405 lists the allowed methods: for one animal", _ask(b"POST", b"Content-Length: 31", target=b"/v1/pets/1") + NEVER, "stays", (405,), _allows("GET", "HEAD", "OPTIONS")),
    Case("9110 15.5.6", "a 405 lists the allowed methods: outside the interface", lines(b"DELETE /healthz HTTP/1.1", HOST), "stays", (405,), _allows("GET", "HEAD", "OPTIONS")),
    Case("9110 9.3.8", "TRACE does not return credentials", _ask(b"TRACE"), "stays", (405, 501), _echoes_nothing),
    Case("9110 7.6.2", "Max-Forwards only concerns proxies", lines(b"OPTIONS /v1/pets HTTP/1.1", HOST, b"Max-Forwards: 0"), "stays", (204,)),
    Case("9110 9.2.1", "a GET with a body adds nothing", _ask(b"GET", b"Content-Length: 31") + NEVER, "stays", (200,)),
    # 8: representations
    Case("9110 8.8.3", "an entity tag is quoted", get(), "stays", (200,), _tagged),
    Case("9110 8.3.1", "media types are case-insensitive", sized(FINE, b"Content-Type: Application/JSON"), "stays", (201,)),
    Case("9110 8.3.1", "parameters of media types may be quoted", sized(FINE, b'Content-Type: application/json; charset="utf-8"'), "stays", (201,)),
    Case("9110 8.3.1", "white space around the semicolon is allowed", sized(FINE, b"Content-Type: application/json ; charset=utf-8"), "stays", (201,)),
    Case("9110 15.5.16", "another media type gets a 415", sized(NEVER, b"Content-Type: text/plain"), "stays", (415,)),
    Case("9110 8.4", "an unsupported coding gets a 415", sized(NEVER, b"Content-Encoding: gzip"), "stays", (415,)),
    Case("9110 8.3", "two media types are refused", sized(NEVER, b"Content-Type: application/json", b"Content-Type: text/plain"), "stays", (400, 415)),
    Case("9110 8.3", "a response with a body has a Content-Type", get(), "stays", (200,), lambda got: got.final[0].field("content-type") == "application/json"),
    Case("9110 12.5.1", "an Accept that cannot be met gets a 406 or is ignored", get(b"Accept: image/png"), "stays", (200, 406)),
    Case("9110 12.5.3", "no coding is applied unless it is requested", get(b"Accept-Encoding: identity"), "stays", (200,), lambda got: got.final[0].field("content-encoding") is None),
    Case("9110 12.5.5", "Vary names what the response depends on", get(), "stays", (200,), lambda got: got.final[0].field("vary") == "Authorization"),
    # 13: conditions
    Case("9110 13.1.2", "* matches whatever exists: 304", get(_STAR), "stays", (304,), _keeps_its_fields),
    Case("9110 13.1.2", "the tag of another page does not match", get(b'If-None-Match: "other"'), "stays", (200,)),
    Case("9110 13.1.2", "an unquoted tag does not match", get(b"If-None-Match: other"), "stays", (200,)),
    Case("9110 13.1.2", "a list of tags is one condition", get(b'If-None-Match: "a", W/"b", , "c"'), "stays", (200,)),
    Case("9110 5.3", "several lines form one list", get(b'If-None-Match: "a"', _STAR), "stays", (304,)),
    Case("9110 13.1.3", "If-Modified-Since is ignored next to If-None-Match", get(b'If-None-Match: "other"', b"If-Modified-Since: " + _YESTERDAY), "stays", (200,)),
    Case("9110 13.1.3", "an invalid date is ignored", get(b"If-Modified-Since: yesterday"), "stays", (200,)),
    Case("9110 13.1.3", "If-Modified-Since is ignored if no date is known", get(b"If-Modified-Since: " + _YESTERDAY), "stays", (200,)),
    Case("9110 13.1.3", "If-Modified-Since is ignored for other methods", sized(FINE, b"If-Modified-Since: " + _YESTERDAY), "stays", (201,)),
    Case("9110 13.1.4", "If-Unmodified-Since is ignored if no date is known", get(b"If-Unmodified-Since: " + _YESTERDAY), "stays", (200,)),
    Case("9110 13.1.5", "If-Range is ignored without Range", get(b'If-Range: "other"'), "stays", (200,)),
    Case("9110 14.2", "Range may be ignored", get(b"Range: bytes=0-0"), "stays", (200,)),
    Case("9110 14.2", "an unknown range unit is ignored", get(b"Range: pets=0-0"), "stays", (200,)),
    Case("9110 14.2", "Range is only for GET", sized(FINE, b"Range: bytes=0-0"), "stays", (201,)),
    Case("9110 13.2.1", "a condition does not hide a 401", lines(b"GET /v1/pets HTTP/1.1", HOST, _STAR), "stays", (401,)),
    Case("9110 13.2.1", "a condition does not hide a 404", get(_STAR, target=b"/v1/pets/0"), "stays", (404,)),
    Case("9110 13.2.1", "a condition does not hide a 400", get(_STAR, target=b"/v1/pets?limit=0"), "stays", (400,)),
    Case("9110 13.1.1", "a request whose If-Match fails is not performed", get(b'If-Match: "other"'), "stays", (200,),
         deviates="No operation changes or removes an animal, so no update can be lost. A reader gets the page with its current tag."),
    Case("9110 13.1.2", "If-None-Match: * forbids a POST to a resource that exists", sized(FINE, _STAR), "stays", (201,),
         deviates="A list always exists, so the condition could never be met. The interface has Idempotency-Key to add an animal only once."),
    # 11 and 15: authentication, status codes
    Case("9110 11.1", "schemes are case-insensitive", lines(b"GET /v1/pets?limit=1 HTTP/1.1", HOST, AUTH.replace(b"Bearer", b"bEARER")), "stays", (200,)),
    Case("9110 11.6.1", "a 401 has a challenge with a scheme", lines(b"GET /v1/pets HTTP/1.1", HOST), "stays", (401,), lambda got: (got.final[0].field("www-authenticate") or "").startswith("Bearer ")),
    Case("9110 11.6.2", "two credentials are refused", get(AUTH), "stays", (401,)),
    Case("9110 15.3.2", "a 201 has the location of the animal", sized(FINE), "stays", (201,), _located),
    Case("9110 15.3.5", "a 204 has no body", lines(b"OPTIONS /v1/pets HTTP/1.1", HOST) * 2, "stays", (204,), lambda got: len(got.final) == 3, ("OPTIONS", "OPTIONS")),
    Case("9110 15.4.5", "a 304 has no body, and the next response follows it", get(_STAR) * 2, "stays", (304,), lambda got: [r.status for r in got.final] == [304, 304, 200], ("GET", "GET")),
    Case("9110 15.5.5", "an unknown address gets a 404", lines(b"GET /nothing HTTP/1.1", HOST), "stays", (404,)),
]  # fmt: skip
