"""Reading a request: what the pipeline sees of it, and the strict parsing of its parts. Raises RequestError."""

import asyncio
import binascii
import ipaddress
import re
import struct
import time
import zlib
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl

import msgspec

from petstore.errors import BodyTooLarge, InvalidParameter, RequestTimeout, UnsupportedMediaType
from petstore.pets import INT64_MAX, STATUSES, PetStatus, is_status
from petstore.web.counters import NO_TALLY, Tally

BODY_MAX = 64 * 1024
BODY_SECONDS = 8.0  # and at most one more until the sweep comes by
DEFAULT_LIMIT, MAX_LIMIT = 20, 100

CLOSE = (("connection", "close"),)


class Memo(msgspec.Struct, gc=False):
    """What was worked out from a head alone. A host may share it between requests with equal heads."""

    credential: tuple[str | None, bytes] | None = None
    route: Any = None  # app.py's `Route`
    query: "ListQuery | None" = None
    pet_id: int | None = None
    token: str | None = None
    tally: Tally = NO_TALLY


class Request(Protocol):
    """A parsed request, as an adapter presents it. Header names are lower case."""

    method: str
    path: str  # percent-decoded
    query: str  # as sent
    memo: "Memo"

    @property
    def peer(self) -> str:
        """The address at the other end of the connection."""

    def header(self, name: str) -> str | None: ...

    def headers(self, name: str) -> Sequence[str]: ...

    def body(self) -> AsyncIterable[bytes]:
        """The body as it comes in."""

    async def whole_body(self) -> bytes:
        """All of a body, to be used only when its size is known to be small."""

    def body_at_hand(self) -> bytes | None:
        """All of a body that has come with its head, as most do; None: it must be waited for."""


class ListQuery(NamedTuple):
    limit: int
    status: PetStatus | None
    after: int


def parse_list_query(query: str) -> ListQuery:
    """Raises InvalidParameter naming the parameter."""
    linked = _AS_LINKED(query)
    if linked:
        size, kept, cursor = linked.groups()
        return ListQuery(int(size or DEFAULT_LIMIT), kept, read_cursor(cursor) if cursor else 0)
    limit, after = DEFAULT_LIMIT, 0
    status: PetStatus | None = None
    seen = set()
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in ("limit", "status", "cursor"):
            continue
        if name in seen:
            raise InvalidParameter(f"{name} must be given at most once.")
        seen.add(name)
        if name == "limit":
            # Not int() alone: it takes "+5", "1_0", " 5" and digits of other scripts.
            if not re.fullmatch("[0-9]{1,3}", value) or not 1 <= int(value) <= MAX_LIMIT:
                raise InvalidParameter(f"limit must be a whole number from 1 to {MAX_LIMIT}.")
            limit = int(value)
        elif name == "status":
            if not is_status(value):
                raise InvalidParameter("status must be one of available, pending, sold.")
            status = value
        else:
            after = read_cursor(value)
    return ListQuery(limit, status, after)


# As our own links have it, and most who make theirs: nothing is encoded, nothing comes twice.
_AS_LINKED: Callable[[str], Any] = re.compile(
    f"(?:limit=([1-9][0-9]?|{MAX_LIMIT}))?(?:(?:^|&)status=({'|'.join(STATUSES)}))?(?:(?:^|&)cursor=([A-Za-z0-9_-]+))?"
).fullmatch


_cursor = struct.Struct(">qI")
_CURSOR_SALT = zlib.crc32(b"petstore cursor 1")
_CURSOR_FORM = re.compile("[A-Za-z0-9_-]{16}").fullmatch  # 12 bytes without padding: one text for each position
_TO_URL, _FROM_URL = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")


def write_cursor(after: int) -> str:
    """An opaque position in the list, with a check of its own."""
    raw = after.to_bytes(8, signed=True)
    whole = raw + zlib.crc32(raw, _CURSOR_SALT).to_bytes(4)
    return binascii.b2a_base64(whole, newline=False).translate(_TO_URL).decode()


def read_cursor(text: str) -> int:
    """Raises InvalidParameter."""
    if _CURSOR_FORM(text):
        raw = binascii.a2b_base64(text.encode().translate(_FROM_URL))
        after, check = _cursor.unpack(raw)
        if check == zlib.crc32(raw[:8], _CURSOR_SALT):
            return int(after)
    raise InvalidParameter("cursor is not one that this service gave out; start again without it.")


def parse_pet_id(text: str) -> int | None:
    """A canonical decimal within int64, or None."""
    if not _CANONICAL(text):
        return None
    value = int(text)
    return value if value <= INT64_MAX else None


_CANONICAL = re.compile("0|[1-9][0-9]{0,18}").fullmatch


def bearer(credentials: Sequence[str]) -> str | None:
    """The secret of the one `Authorization: Bearer`, or None."""
    if len(credentials) != 1:
        return None
    if credentials[0].startswith("Bearer pets_"):  # what nearly everyone sends
        return credentials[0][7:]
    scheme, _, secret = credentials[0].partition(" ")
    if scheme.lower() != "bearer":
        return None
    return secret.strip(" ") or None


def check_media_type(request: Request) -> None:
    """Raises UnsupportedMediaType unless the body is plain JSON."""
    if request.headers("content-encoding"):
        raise UnsupportedMediaType("Content-Encoding is not supported: send the body as it is.")
    kinds = request.headers("content-type")
    if len(kinds) > 1 or (kinds and kinds[0].partition(";")[0].strip().lower() != "application/json"):
        raise UnsupportedMediaType("Content-Type must be application/json.")


def idempotency_token(request: Request) -> str | None:
    """Raises InvalidParameter."""
    tokens = request.headers("idempotency-key")
    if not tokens:
        return None
    if len(tokens) > 1 or not re.fullmatch("[!-~]{1,255}", tokens[0]):
        raise InvalidParameter("Idempotency-Key must be given once, with 1 to 255 visible ASCII characters.")
    return tokens[0]


class BodyReader:
    """Reads bodies of bounded size in bounded time.

    One sweep a second over all that are being read ends those that trickle in: a timer for each would cost a create
    a tenth of its time.
    """

    def __init__(self) -> None:
        self._due: dict[asyncio.Task[Any], float] = {}
        self._overdue: set[asyncio.Task[Any]] = set()

    async def read(self, request: Request) -> bytes:
        """The whole body. Raises BodyTooLarge and, when a client trickles it, RequestTimeout."""
        at_hand = request.body_at_hand()
        if at_hand is not None:
            return _bounded(at_hand)
        declared = request.header("content-length") or ""
        sized = declared.isdecimal()
        if sized and int(declared) > BODY_MAX:
            raise too_large()
        task = asyncio.current_task()
        assert task is not None  # whoever has to wait for a body is a task: see http1.py, _handle
        self._due[task] = time.monotonic() + BODY_SECONDS
        try:
            return await request.whole_body() if sized else await _collect(request.body())
        except asyncio.CancelledError:
            if task not in self._overdue:
                raise
            task.uncancel()
            raise RequestTimeout(f"The body did not arrive within {BODY_SECONDS:.0f} seconds.", CLOSE) from None
        finally:
            del self._due[task]
            self._overdue.discard(task)

    def sweep(self) -> None:
        """End the reading of what is overdue."""
        now = time.monotonic()
        for task in [task for task, due in self._due.items() if due < now]:
            self._overdue.add(task)
            task.cancel()


async def _collect(chunks: AsyncIterable[bytes]) -> bytes:
    """A body whose size is not declared, up to the most it may have. Raises BodyTooLarge."""
    collected = b""
    async for chunk in chunks:
        collected = _bounded(collected + chunk)
    return collected


def _bounded(body: bytes) -> bytes:
    if len(body) > BODY_MAX:
        raise too_large()
    return body


def too_large() -> BodyTooLarge:
    return BodyTooLarge(f"The body must have at most {BODY_MAX} bytes.", CLOSE)


def etag_matches(conditions: Iterable[str], etag: str) -> bool:
    """If-None-Match by weak comparison."""
    for condition in conditions:
        if condition.strip() == "*":
            return True
        if etag in (part.strip().removeprefix("W/") for part in condition.split(",")):
            return True
    return False


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def client_address(request: Request, trusted: tuple[Network, ...]) -> str:
    """Who is asking: the peer or, behind proxies we trust, the nearest address that is not one of them."""
    peer = request.peer
    if not trusted or not is_in(peer, trusted):
        return peer
    for hop in reversed([h.strip() for value in request.headers("x-forwarded-for") for h in value.split(",")]):
        if not is_in(hop, trusted):
            return hop
        peer = hop
    return peer


def is_in(address: str, networks: tuple[Network, ...]) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    plain = getattr(parsed, "ipv4_mapped", None) or parsed  # of a socket that is open for both kinds
    return any(parsed in network or plain in network for network in networks)
