"""A minimal HTTP/1.1 client. Sends requests byte for byte, and returns responses exactly as received.

The other end can be any server, so a budget limits how much it can send and how long it can take.
"""

import functools
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from petstore.errors import OperatorError
from petstore.verify.responses import Headers, Response, shown

EXCHANGE_SECONDS = 10.0  # to open a connection, and then for each request and its response
EXCHANGE_BYTES = 2**20  # as received, including TLS, interim responses, headers and trailers
HEAD_MAX = 32 * 1024
FIELD_MAX = 8 * 1024
FIELDS_MAX = 100
RECEIVED_MAX = 64 * 1024  # bytes to read from the socket at a time

_STATUS = re.compile("HTTP/1[.][01] ([1-9][0-9][0-9])(?: .*)?").fullmatch
_LENGTH = {10: re.compile("[0-9]{1,16}").fullmatch, 16: re.compile("[0-9A-Fa-f]{1,16}").fullmatch}

T = TypeVar("T")


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
    """The server sent nothing, too much, too slowly, or something that is not an HTTP response."""


class Closed(NoResponse):
    """The server closed the connection."""

    def __init__(self) -> None:
        super().__init__("the connection was closed without a complete response")


class Budget:
    """How many bytes may still be received, and until when."""

    def __init__(self, name: str, size: int, seconds: float, whole: "Budget | None" = None) -> None:
        """`name` is used in error messages. What is charged to this budget is also charged to `whole`."""
        self._name, self._size, self._seconds, self._whole = name, size, seconds, whole
        self._received = 0
        self._end = time.monotonic() + seconds
        self._lock = threading.Lock()

    def for_exchange(self) -> "Budget":
        """Returns the part of this budget for one request and its response."""
        return Budget("the response", EXCHANGE_BYTES, EXCHANGE_SECONDS, self)

    def seconds_left(self) -> float:
        """Raises NoResponse if no time is left."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise NoResponse(f"{self._name} took longer than {self._seconds:g} s")
        return min(left, self._whole.seconds_left()) if self._whole else left

    def charge(self, received: int) -> None:
        """Raises NoResponse if too many bytes were received."""
        with self._lock:
            self._received += received
        if self._received > self._size:
            raise NoResponse(f"{self._name} exceeded {self._size // 1024:,} KiB")
        if self._whole:
            self._whole.charge(received)


@functools.cache
def _tls() -> ssl.SSLContext:
    """Returns a TLS context that trusts the system's certificate authorities, or those in SSL_CERT_FILE if set."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Connection:
    """One connection to an address."""

    def __init__(self, address: Address, run: Budget) -> None:
        """Opens the connection, within a part of the run's budget. Raises NoResponse or OSError on failure."""
        self.address = address
        self._run = run
        self._budget = run.for_exchange()
        self._data = bytearray()  # received, but not yet read
        self._tls: ssl.SSLObject | None = None
        self._socket = socket.create_connection((address.host, address.port), self._budget.seconds_left())
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.secure:
            self._encrypted, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = _tls().wrap_bio(self._encrypted, self._to_send, server_hostname=address.host)
            try:
                self._through_tls(self._tls.do_handshake)
            except (NoResponse, OSError):
                self.close()
                raise

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def write(self, data: bytes) -> None:
        """Sends data. This begins an exchange with a new budget. Raises NoResponse or OSError on failure."""
        self._budget, self._began = self._run.for_exchange(), time.monotonic()
        if self._tls:
            self._through_tls(partial(self._tls.write, data))
        else:
            self._send(data)

    def read(self, request: str, *, interim: bool = False) -> Response:
        """Reads a response. Skips interim responses (1xx) unless `interim` is true.

        Raises NoResponse or OSError on failure.
        """
        status, headers = self._read_head()
        while status < 200 and not interim:
            status, headers = self._read_head()
        without_body = request.startswith("HEAD ") or status < 200 or status in (204, 304)
        body = b"" if without_body else self._read_body(headers)
        took = time.monotonic() - self._began
        return Response(request, self.address.url, time.time(), took, status, headers, body)

    def is_closed(self) -> bool:
        """Whether the server closes the connection without sending more data."""
        try:
            self._receive()
        except (Closed, OSError):
            return not self._data
        except NoResponse:
            pass
        return False

    def _read_head(self) -> tuple[int, Headers]:
        first, *lines = self._read_to(b"\r\n\r\n").split("\r\n")
        status = _STATUS(first)
        if status is None:
            raise NoResponse(f"not an HTTP response: {shown(first)}")
        if len(lines) > FIELDS_MAX or any(len(line) > FIELD_MAX for line in lines):
            raise NoResponse(f"the response has more than {FIELDS_MAX} headers, or one that exceeds {FIELD_MAX} bytes")
        pairs = (line.partition(":") for line in lines)
        return int(status[1]), tuple((name.strip().lower(), value.strip()) for name, _, value in pairs)

    def _read_body(self, headers: Headers) -> bytes:
        if ("transfer-encoding", "chunked") in ((name, value.lower()) for name, value in headers):
            return self._read_chunks()
        if lengths := {value for name, value in headers if name == "content-length"}:
            return self._read(_parse_length(" and ".join(lengths), 10))
        with suppress(Closed):
            while True:
                self._receive()
        return self._read(len(self._data))

    def _read_chunks(self) -> bytes:
        body = bytearray()
        while size := _parse_length(self._read_to(b"\r\n").partition(";")[0].rstrip(), 16):
            body += self._read(size + 2)[:-2]
        while self._read_to(b"\r\n"):  # trailers
            pass
        return bytes(body)

    def _read_to(self, end: bytes) -> str:
        while (length := self._data.find(end)) < 0 and len(self._data) <= HEAD_MAX:
            self._receive()
        if not 0 <= length <= HEAD_MAX:
            raise NoResponse(f"the headers, or a line of the response, exceed {HEAD_MAX // 1024} KiB")
        return self._read(length + len(end))[:length].decode("latin-1")

    def _read(self, count: int) -> bytes:
        while len(self._data) < count:
            self._receive()
        data = bytes(self._data[:count])
        del self._data[:count]
        return data

    def _receive(self) -> None:
        data = self._through_tls(partial(self._tls.read, RECEIVED_MAX)) if self._tls else self._receive_raw()
        if not data:
            raise Closed
        self._data += data

    def _through_tls(self, step: Callable[[], T]) -> T:
        """Calls a method of the TLS object, and sends and receives the encrypted data that it needs."""
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                pass
            finally:
                self._send(self._to_send.read())
            self._encrypted.write(self._receive_raw())

    def _send(self, data: bytes) -> None:
        self._socket.settimeout(self._budget.seconds_left())
        self._socket.sendall(data)

    def _receive_raw(self) -> bytes:
        """Waits for data from the socket, and charges it to the budget. Nothing else reads from the socket."""
        while True:
            self._socket.settimeout(self._budget.seconds_left())
            with suppress(TimeoutError):
                data = self._socket.recv(RECEIVED_MAX)
                if not data:
                    raise Closed
                self._budget.charge(len(data))
                return data


def _parse_length(text: str, base: int) -> int:
    if not _LENGTH[base](text):
        raise NoResponse(f"not a length: {shown(text)}")
    return int(text, base)
