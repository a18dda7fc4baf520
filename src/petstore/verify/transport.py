"""A minimal HTTP/1.1 client. Sends requests byte for byte, and returns responses exactly as received."""

import functools
import json
import re
import socket
import ssl
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from petstore.errors import OperatorError

TIMEOUT = 10.0  # seconds per socket operation
HEAD_MAX = 64 * 1024
BODY_MAX = 4 * 1024 * 1024
SHOWN_MAX = 160  # maximum length of a string from the server in a message


class Address(NamedTuple):
    """A base address, such as https://staging.example.com/v1."""

    url: str
    host: str
    port: int
    path: str  # without a trailing slash
    secure: bool

    @property
    def authority(self) -> str:
        return urlsplit(self.url).netloc


def parse_address(url: str) -> Address:
    """Parses a base address. Raises OperatorError if it is not valid. The error message never contains a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise OperatorError("the address is not a URL; write it like https://staging.example.com/v1") from None
    if parts.username is not None or parts.password is not None:
        raise OperatorError("the address must not contain a user name or a password")
    plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or not plain:
        raise OperatorError(f"{url!r} is not a base address; write it like https://staging.example.com/v1")
    secure = parts.scheme == "https"
    return Address(url.rstrip("/"), parts.hostname, port or (443 if secure else 80), parts.path.rstrip("/"), secure)


class NoResponse(Exception):
    """The server sent nothing, or something that is not an HTTP response."""


class Response(NamedTuple):
    """A response as received. Header names are in lower case. Repeated headers are not joined."""

    request: str  # the method and path of the request, for messages
    address: Address
    received: float  # Unix time on this machine's clock
    seconds: float  # from the first byte of the request to the last byte of the response
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def values(self, name: str) -> list[str]:
        return [value for found, value in self.headers if found == name.lower()]

    def value(self, name: str) -> str:
        """Returns the value of a header, or an empty string if it is missing or occurs more than once."""
        found = self.values(name)
        return found[0] if len(found) == 1 else ""

    def number(self, name: str) -> int | None:
        text = self.value(name)
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None

    @property
    def date(self) -> float:
        """Returns the time in the `Date` header or, if the header is missing or invalid, the time on this machine."""
        try:
            return parsedate_to_datetime(self.value("date")).timestamp()
        except ValueError:
            return self.received

    @property
    def json(self) -> Any:
        """Returns the JSON value in the body, or None if the body is not valid JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def code(self) -> str:
        """Returns the code in an `Error` body, or an empty string if there is none."""
        value = self.json
        return str(value.get("code", "")) if isinstance(value, dict) else ""

    @property
    def message(self) -> str:
        value = self.json
        return str(value.get("message", "")) if isinstance(value, dict) else ""

    @property
    def pet(self) -> dict[str, Any]:
        """Returns the animal in the body, or an empty dictionary if the body is not an object with an id."""
        value = self.json
        return value if has_id(value) else {}

    @property
    def pets(self) -> list[dict[str, Any]]:
        """Returns the animals in the body, or an empty list if the body is not an array of objects with ids."""
        value = self.json
        return value if isinstance(value, list) and all(map(has_id, value)) else []

    @property
    def summary(self) -> str:
        """Returns a short description of the response, without control characters."""
        kind = self.value("content-type")
        return " ".join(part for part in (str(self.status), shown(kind), shown(self.body.decode("latin-1"))) if part)


def link_target(response: Response, relation: str) -> str:
    """Returns the absolute URL of the link with this relation, or an empty string if there is none."""
    links = re.findall(r'<([^>]*)>\s*;\s*rel="?([^",;]+)"?', ", ".join(response.values("link")))
    return next((urljoin(f"{response.address.url}/", url) for url, found in links if found == relation), "")


def has_id(value: Any) -> bool:
    return isinstance(value, dict) and type(value.get("id")) is int


def escaped(text: str) -> str:
    """Escapes unprintable characters, which a terminal could interpret."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def shown(text: str) -> str:
    """Decodes text that was read from the server as Latin-1, then escapes and shortens it."""
    return shortened(text.encode("latin-1", "replace").decode("utf-8", "backslashreplace"))


def shortened(text: str) -> str:
    """Escapes and shortens text from the server."""
    text = escaped(text)
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…"


@functools.cache
def _tls() -> ssl.SSLContext:
    """Returns a TLS context that trusts the system's certificate authorities, or those in SSL_CERT_FILE if set."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Connection:
    """One connection to an address."""

    def __init__(self, address: Address) -> None:
        """Opens the connection. Raises OSError on failure."""
        self.address = address
        self._data = b""
        self._began = time.monotonic()
        self._socket = socket.create_connection((address.host, address.port), timeout=TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.secure:
            try:
                self._socket = _tls().wrap_socket(self._socket, server_hostname=address.host)
            except OSError:
                self._socket.close()
                raise

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def write(self, data: bytes) -> None:
        """Sends data. Raises OSError on failure."""
        self._began = time.monotonic()
        self._socket.sendall(data)

    def read(self, request: str, *, interim: bool = False) -> Response:
        """Reads a response. Skips interim responses (1xx) unless `interim` is true.

        Raises NoResponse or OSError on failure.
        """
        try:
            status, headers = self._read_head()
            while status < 200 and not interim:
                status, headers = self._read_head()
            without_body = request.startswith("HEAD ") or status < 200 or status in (204, 304)
            body = b"" if without_body else self._read_body(dict(headers))
        except ValueError as error:  # the length is not a number
            raise NoResponse(f"not an HTTP response: {error}") from None
        took = time.monotonic() - self._began
        return Response(request, self.address, time.time(), took, status, headers, body)

    def is_closed(self) -> bool:
        """Whether the server closes the connection without sending more data."""
        try:
            return not self._data and self._socket.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    def _read_head(self) -> tuple[int, tuple[tuple[str, str], ...]]:
        while b"\r\n\r\n" not in self._data:
            if len(self._data) > HEAD_MAX:
                raise NoResponse("the response headers are too long")
            self._receive()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        if not first.startswith("HTTP/1.") or not first[9:12].isdigit():
            raise NoResponse(f"not an HTTP response: {shown(first)}")
        pairs = (line.partition(":") for line in lines)
        return int(first[9:12]), tuple((name.strip().lower(), value.strip()) for name, _, value in pairs)

    def _read_body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return b"".join(self._chunks())
        if "content-length" in headers:
            return self._take(int(headers["content-length"]))
        body = b""
        while True:  # until the connection is closed
            try:
                self._receive()
            except NoResponse:
                body, self._data = self._data, b""
                return body

    def _chunks(self) -> Iterator[bytes]:
        while True:
            size = int(self._line().partition(b";")[0], 16)
            if size == 0:
                break
            yield self._take(size)
            self._take(2)
        while self._line():  # trailers
            pass

    def _line(self) -> bytes:
        while b"\r\n" not in self._data:
            self._receive()
        line, _, self._data = self._data.partition(b"\r\n")
        return line

    def _take(self, count: int) -> bytes:
        if count > BODY_MAX:
            raise NoResponse(f"the body has {count} bytes")
        while len(self._data) < count:
            self._receive()
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def _receive(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise NoResponse("the connection was closed without a complete response")
        self._data += data
        if len(self._data) > BODY_MAX + HEAD_MAX:
            raise NoResponse("the response is too long")
