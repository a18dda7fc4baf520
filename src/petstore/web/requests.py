"""The `Request` protocol, and strict parsers for the parts of a request. The parsers raise RequestError."""

import asyncio
import binascii
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol
from urllib.parse import unquote_plus

from petstore.errors import BodyTooLarge, InvalidBody, InvalidParameter, RequestTimeout, UnsupportedMediaType
from petstore.keys import without_keys
from petstore.pets import STATUSES, PetStatus, is_status

BODY_MAX = 64 * 1024
BODY_TIMEOUT = 8.0
DEFAULT_LIMIT, MAX_LIMIT = 20, 100
LIST_PARAMETERS = ("limit", "status", "cursor")
FIELD_PARSED_MAX = 512  # maximum characters in a header field; longer fields are not parsed
ESCAPES_MAX = 128  # if a query contains more escapes (%XX) than this, parameter names are not decoded

FORWARDED_PREFIX = "x-forwarded-"
# The header fields that the service reads. The server skips all others.
FIELDS = frozenset(
    {
        "accept", "accept-encoding", "access-control-request-method", "authorization", "content-encoding",
        "content-length", "content-type", "forwarded", "host", "idempotency-key", "if-none-match", "origin", "prefer",
        "via", "x-api-key", "x-real-ip", FORWARDED_PREFIX,
    }
)  # fmt: skip


class Body(Protocol):
    """A request body that is still arriving."""

    async def read(self) -> bytes:
        """Returns the next bytes, or an empty bytes object at the end.

        Raises ConnectionError if the body is incomplete, and BodyTooLarge if it has too many chunks.
        """


class Request(Protocol):
    """A parsed request, as provided by a server. `body` is the complete body unless `stream` is set."""

    method: str
    path: str  # percent-decoded
    query: str  # as sent
    fields: dict[str, str]  # values by lower-case name; repeated fields are joined with commas
    peer: str  # the address of the client or the proxy
    started: float  # when the first byte arrived (time.perf_counter)
    body: bytes

    @property
    def stream(self) -> Body | None: ...


# Parameters of a list


class ListQuery(NamedTuple):
    limit: int
    status: PetStatus | None
    after: int


_KNOWN = re.compile("(?<![^&])(limit|status|cursor)(?![^&=])=?([^&]*)").findall
_KNOWN_OR_ESCAPED = re.compile("(?<![^&])(limit|status|cursor|[^&=%]*%[^&=]*)(?![^&=])=?([^&]*)").findall


@lru_cache(maxsize=256)
def parse_list_query(query: str, strict: bool = False) -> ListQuery:
    """Parses the query of a list request. Raises InvalidParameter for invalid and, if `strict`, unknown parameters."""
    limit, after = DEFAULT_LIMIT, 0
    status: PetStatus | None = None
    seen = set()
    faults: dict[str, str] = {}
    has_few_escapes = query.count("%") <= ESCAPES_MAX
    # A query can have thousands of parameters. A regular expression skips unknown ones ten times faster than a loop.
    for name, value in _KNOWN_OR_ESCAPED(query) if has_few_escapes else _KNOWN(query):
        if "%" in name:
            name = unquote_plus(name)
            if name not in LIST_PARAMETERS:
                continue
        if name in seen:
            faults[name] = "must be given at most once"
            continue
        seen.add(name)
        if ("%" in value or "+" in value) and len(value) <= FIELD_PARSED_MAX:  # valid values are shorter
            value = unquote_plus(value)
        if name == "limit":
            # int() alone would accept "+5", "1_0", " 5" and digits in other scripts.
            if re.fullmatch("[0-9]{1,3}", value) and 1 <= int(value) <= MAX_LIMIT:
                limit = int(value)
            else:
                faults[name] = f"must be a whole number from 1 to {MAX_LIMIT}"
        elif name == "status":
            if is_status(value):
                status = value
            else:
                faults[name] = f"must be one of {', '.join(STATUSES)}"
        else:
            position = read_cursor(value)
            if position is None:
                faults[name] = "is not valid: start again without it"
            else:
                after = position
    reasons = [f"{name} {fault}" for name, fault in faults.items()]
    if strict and (unknown := _unknown_parameters(query, LIST_PARAMETERS)):
        reasons.append(_parameters_fault(unknown))
    if reasons:
        raise InvalidParameter("; ".join(reasons) + ".")
    return ListQuery(limit, status, after)


def check_no_parameters(query: str) -> None:
    """Raises InvalidParameter if there are any parameters. Strict operations without parameters call this."""
    if unknown := _unknown_parameters(query, ()):
        raise InvalidParameter(_parameters_fault(unknown) + ".")


def last_segment(path: str) -> str:
    return path.rpartition("/")[2]


# Strict handling: unknown parameters and members

NAMES_SHOWN = 10  # maximum unknown names to list in a message
LENGTH_SHOWN = 30  # maximum characters shown of an unknown name; too few to reveal a key that `without_keys` overlooks


def _unknown_parameters(query: str, known: Collection[str]) -> list[str]:
    """Returns the names of parameters that are not in `known`, without duplicates and still encoded."""
    names = dict.fromkeys(part.partition("=")[0] for part in query.split("&") if part)
    has_few_escapes = query.count("%") <= ESCAPES_MAX
    return [name for name in names if (unquote_plus(name) if has_few_escapes and "%" in name else name) not in known]


def _parameters_fault(names: list[str]) -> str:
    decoded = [*map(unquote_plus, names[:NAMES_SHOWN]), *names[NAMES_SHOWN:]]  # decode only the names that are shown
    is_one, shown = _shown(decoded)
    return (
        f"{shown} is not a parameter of this operation" if is_one else f"{shown} are not parameters of this operation"
    )


def members_fault(names: Sequence[str]) -> str:
    """Returns the error message for unknown members of a body."""
    is_one, shown = _shown(names)
    return f"{shown} is not a member of this body" if is_one else f"{shown} are not members of this body"


def _shown(names: Sequence[str]) -> tuple[bool, str]:
    """Returns whether there is only one name, and a readable list of the names, shortened and without API keys."""
    shown = []
    for name in names[:NAMES_SHOWN]:
        kept = without_keys(name)
        kept = kept if len(kept) <= LENGTH_SHOWN else kept[:LENGTH_SHOWN] + "…"
        shown.append('"' + "".join(each if each.isprintable() else "�" for each in kept) + '"')
    if more := len(names) - len(shown):
        shown.append(f"{more} more")
    listed = ", ".join(shown[:-1])
    return len(shown) == 1, f"{listed} and {shown[-1]}" if listed else shown[0]


# Cursors: opaque positions in the list of animals, with a checksum

_SALT = zlib.crc32(b"petstore cursor 1")
_FORM = re.compile("[A-Za-z0-9_-]{16}").fullmatch  # exactly 12 bytes in base64, so each position has only one cursor
_TO_URL, _FROM_URL = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")


def write_cursor(after: int) -> str:
    raw = after.to_bytes(8, signed=True)
    whole = raw + zlib.crc32(raw, _SALT).to_bytes(4)
    return binascii.b2a_base64(whole, newline=False).translate(_TO_URL).decode()


def read_cursor(text: str) -> int | None:
    """Returns the position that a cursor encodes, or None if the cursor is not valid."""
    if _FORM(text):
        raw = binascii.a2b_base64(text.encode().translate(_FROM_URL))
        after = int.from_bytes(raw[:8], signed=True)
        if raw[8:] == zlib.crc32(raw[:8], _SALT).to_bytes(4) and after >= 0:
            return after
    return None


# Header fields


def bearer(authorization: str) -> str | None:
    """Returns the secret in an `Authorization: Bearer` header, or None if there is none."""
    if authorization.startswith("Bearer pets_"):  # the common case
        return authorization[7:]
    scheme, _, secret = authorization.partition(" ")
    if scheme.lower() != "bearer":
        return None
    return secret.strip(" ") or None


# Matches the JSON media type with optional parameters. Rejects commas outside quotes, because they separate repeated
# values.
_JSON_TYPE = re.compile(r'application/json[ \t]*(?:;(?:[^",]|"[^"]*")*)?', re.IGNORECASE).fullmatch


def check_media_type(fields: Mapping[str, str]) -> None:
    """Raises UnsupportedMediaType unless the headers describe an uncompressed JSON body."""
    if "content-encoding" in fields:
        raise UnsupportedMediaType("Content-Encoding is not supported. Send the body uncompressed.")
    media_type = fields.get("content-type")
    if media_type is None or media_type == "application/json":
        return
    if len(media_type) > FIELD_PARSED_MAX or not _JSON_TYPE(media_type):
        raise UnsupportedMediaType


def idempotency_token(fields: Mapping[str, str]) -> str | None:
    """Returns the idempotency key, if there is one. Raises InvalidParameter if it is not valid.

    If the header is repeated, its values are joined with ", ", and the result is rejected because it contains a space.
    """
    token = fields.get("idempotency-key")
    if token is None:
        return None
    if not (0 < len(token) <= 255 and token.isascii() and token.isprintable() and " " not in token):
        raise InvalidParameter("Idempotency-Key must be given once, with 1 to 255 visible ASCII characters.")
    return token


def etag_matches(condition: str, etag: str) -> bool:
    """Whether the value of If-None-Match matches an ETag, using weak comparison."""
    if condition == etag:
        return True
    if len(condition) > FIELD_PARSED_MAX:
        return False  # the client receives the full response
    return any(part.strip().removeprefix("W/") in (etag, "*") for part in condition.split(","))


# Bodies


async def read_body(request: Request) -> bytes:
    """Reads the body. Raises BodyTooLarge, RequestTimeout or, if the body is incomplete, InvalidBody."""
    body, stream = request.body, request.stream
    declared = len(body) if stream is None else int(request.fields.get("content-length", 0))
    if declared > BODY_MAX:
        raise _too_large()
    if stream is None:
        return body
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            while part := await stream.read():
                body += part
                if len(body) > BODY_MAX:
                    raise _too_large()
    except TimeoutError:
        raise RequestTimeout(f"The body did not arrive within {BODY_TIMEOUT:.0f} seconds.") from None
    except ConnectionError:
        raise InvalidBody("The body is incomplete.") from None
    return body


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"The body must not be larger than {BODY_MAX} bytes.")
