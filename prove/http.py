"""A strict HTTP/1.1 client that raises Broken if a response is malformed."""

import re
import select
import socket
import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from harness.claims import Broken, hold

_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9]{2}) [\t \x21-\x7e]*")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t \x21-\x7e\x80-\xff]*?)[ \t]*")
_DATE = re.compile(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT")
_ONCE = ("date", "content-length", "content-type", "etag", "location", "x-request-id", "x-ratelimit-limit")


class Response(NamedTuple):
    status: int
    fields: list[tuple[str, str]]  # names in lower case
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key == name]

    def field(self, name: str) -> str | None:
        values = self.all(name)
        return values[0] if values else None


class Conversation(NamedTuple):
    """All responses on one connection."""

    responses: list[Response]
    closed: bool  # whether the server closed the connection in time

    @property
    def final(self) -> list[Response]:
        return [response for response in self.responses if response.status >= 200]


def converse(
    port: int,
    pieces: Sequence[bytes],
    methods: Sequence[str],
    *,
    half_close: bool = False,
    waits: bool = False,
    silence: float = 4.0,
) -> Conversation:
    """Sends the pieces with short pauses in between, then reads until the server closes or stops sending.

    `methods` has the method of each request. With `waits`, sends the second piece only after the server has responded.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=silence) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for number, piece in enumerate(pieces):
                if number == 1 and waits:
                    select.select([connection], [], [], silence)
                elif number:
                    time.sleep(0.03)  # so that the pieces arrive separately
                connection.sendall(piece)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the server has stopped reading, but its response must still be read
        data, closed = b"", False
        try:
            while piece := connection.recv(65536):
                data += piece
            closed = True
        except TimeoutError:
            pass
        except OSError:
            closed = True
    return Conversation(read(data, methods), closed)


def read(data: bytes, methods: Sequence[str], *, age: float = 5.0) -> list[Response]:
    """Parses a stream of responses. Their Date header must be at most `age` seconds off.

    Raises Broken for anything that RFC 9112 does not allow a server to send.
    """
    responses: list[Response] = []
    waiting = list(methods)
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        hold(end, f"a response head ends with a blank line: {head[:80]!r}")
        first, *lines = head.split(b"\r\n")
        line = _STATUS_LINE.fullmatch(first)
        if line is None:
            raise Broken(f"not a status line: {first[:80]!r}")
        status = int(line[1])
        fields = [_field(text) for text in lines]
        method = "GET" if not waiting else waiting[0] if status < 200 else waiting.pop(0)
        length = _check(status, fields, age)
        body = b""
        if status >= 200 and status not in (204, 304) and method != "HEAD":
            body, data = data[:length], data[length:]
            hold(len(body) == length, f"a body of {length} bytes is complete, not cut off after {len(body)}")
        responses.append(Response(status, fields, body))
    return responses


def _field(text: bytes) -> tuple[str, str]:
    found = _FIELD.fullmatch(text)
    if found is None:
        raise Broken(f"not a field line: {text[:80]!r}")
    return found[1].decode().lower(), found[2].decode("latin-1")


def _check(status: int, fields: list[tuple[str, str]], age: float) -> int:
    """Checks the rules that apply to every response, whatever the request was. Returns its Content-Length."""
    names = [name for name, _ in fields]
    values = dict(fields)
    for name in _ONCE:
        hold(names.count(name) <= 1, f"{name} is sent at most once (RFC 9110, 5.3)")
    if status < 200 or status == 204:
        hold("content-length" not in values, f"no Content-Length in a {status} (RFC 9110, 8.6)")
        hold("transfer-encoding" not in values, f"no Transfer-Encoding in a {status} (RFC 9112, 6.1)")
    elif status != 304:
        hold("content-length" in values, f"a {status} has a Content-Length (RFC 9112, 6.3)")
    hold("transfer-encoding" not in values, "this service sends no chunked responses")
    if 200 <= status < 500:
        hold(_DATE.fullmatch(values.get("date", "")), f"a {status} has a Date in the standard format (RFC 9110, 6.6.1)")
        drift = abs(parsedate_to_datetime(values["date"]).timestamp() - time.time())
        hold(drift < age, "Date is the time of the message (RFC 9110, 6.6.1)")
    if status == 401:
        hold("www-authenticate" in values, "a 401 has a challenge (RFC 9110, 15.5.2)")
    if status == 405:
        hold("allow" in values, "a 405 has Allow (RFC 9110, 15.5.6)")
    length = values.get("content-length", "0")
    hold(re.fullmatch("[0-9]+", length), "Content-Length consists of digits (RFC 9110, 8.6)")
    return int(length)
