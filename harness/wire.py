"""Sends many requests on one connection, and parses the responses."""

import contextlib
import socket
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec


class Response(NamedTuple):
    """One response as received. Header names are in lower case. If a header is repeated, the last value is kept."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The code of an `Error` body, or an empty string."""
        if self.headers.get("content-type") != "application/json" or not self.body:
            return ""
        value = msgspec.json.decode(self.body)
        return str(value.get("code", "")) if isinstance(value, dict) else ""

    @property
    def remaining(self) -> int:
        return int(self.headers["x-ratelimit-remaining"])


def request(
    method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None, *, close: bool = False
) -> bytes:
    fields = {"Host": "petstore.test", **(headers or {})}
    if body is not None:
        fields["Content-Length"] = str(len(body))
    if close:
        fields["Connection"] = "close"
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


def pipelined(port: int, requests: Iterable[bytes]) -> list[Response]:
    """Sends all requests on one connection, then returns the responses. The last request must close the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"".join(requests))
        return split(receive(connection).data)


def asking(port: int, times: int, headers: Mapping[str, str], path: str = "/v1/pets?limit=1") -> list[Response]:
    """Sends the same GET request `times` times on one connection."""
    return pipelined(port, [request("GET", path, headers, close=i == times - 1) for i in range(times)])


class Received(NamedTuple):
    data: bytes
    closed: bool  # whether the server closed the connection, rather than just stopped sending
    seconds: float


def receive(connection: socket.socket, silence: float = 30.0) -> Received:
    """Reads until the server closes the connection or stops sending."""
    began = time.monotonic()
    connection.settimeout(silence)
    data, closed = b"", False
    with contextlib.suppress(TimeoutError):
        try:
            while chunk := connection.recv(65536):
                data += chunk
        except (ConnectionResetError, BrokenPipeError):
            pass
        closed = True
    return Received(data, closed, time.monotonic() - began)


def split(data: bytes) -> list[Response]:
    """Parses the responses in a stream of bytes."""
    responses: list[Response] = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(first.split(" ")[1])
        if status in (204, 304):
            body = b""
        elif "content-length" in headers:
            length = int(headers["content-length"])
            body, data = data[:length], data[length:]
        elif headers.get("transfer-encoding") == "chunked":
            body, data = _unchunked(data)
        else:  # the body ends when the connection is closed
            body, data = data, b""
        responses.append(Response(status, headers, body))
    return responses


def _unchunked(data: bytes) -> tuple[bytes, bytes]:
    """Returns a decoded chunked body, and the bytes after it."""
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        body += data[:length]
        data = data[length + 2 :]
        if not length:
            return body, data
