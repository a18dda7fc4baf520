"""Runs a server that tries to exhaust its clients: its responses never end, arrive slowly or take long to parse."""

import contextlib
import functools
import gzip
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator

from harness.certificates import Certificate

Response = Callable[[str], Iterator[bytes]]  # yields the parts of the response to a request for this target

PAUSE = 0.05  # seconds between the parts of a slow response
PETS = [b'{"id":%d,"name":"Rex","categoryId":1,"status":"available"}' % number for number in (1, 2)]
LIST = b"[" + b",".join(PETS) + b"]"
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
LIMITS = b"X-RateLimit-Limit: 100000\r\nX-RateLimit-Remaining: 99999\r\nX-RateLimit-Reset: 4102444800\r\n"
CHUNKED = JSON + b"Transfer-Encoding: chunked\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </docs>; rel=preload\r\n\r\n"


def _slowly(parts: Iterator[bytes]) -> Iterator[bytes]:
    for part in parts:
        time.sleep(PAUSE)
        yield part


def _endlessly(first: bytes, part: bytes) -> Iterator[bytes]:
    yield first
    while True:
        yield part


def _sized(body: bytes, more: bytes = b"") -> bytes:
    return JSON + LIMITS + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


def plausible(target: str) -> Iterator[bytes]:
    yield _sized(LIST)


def endless_chunks(target: str) -> Iterator[bytes]:
    return _endlessly(CHUNKED, b"10000\r\n" + b"x" * 65_536 + b"\r\n")


def endless_body(target: str) -> Iterator[bytes]:
    return _endlessly(JSON + b"\r\n", b"x" * 65_536)  # a body without a length, which ends with the connection


def trickled_body(target: str) -> Iterator[bytes]:
    return _slowly(_endlessly(JSON + b"Content-Length: 1000000\r\n\r\n", b"x"))


def trickled_head(target: str) -> Iterator[bytes]:
    return _slowly(_endlessly(JSON, b"X"))


def endless_interim_responses(target: str) -> Iterator[bytes]:
    return _endlessly(HINTS, HINTS)


def trickled_interim_responses(target: str) -> Iterator[bytes]:
    return _slowly(endless_interim_responses(target))


def endless_trailers(target: str) -> Iterator[bytes]:
    return _endlessly(CHUNKED + b"0\r\n", b"X-Note: 1\r\n")


def trickled_trailers(target: str) -> Iterator[bytes]:
    return _slowly(endless_trailers(target))


def gibibyte(target: str) -> Iterator[bytes]:
    yield JSON + b"Content-Length: %d\r\n\r\n" % 2**30
    for _ in range(2**14):
        yield b"x" * 65_536


@functools.cache
def _compressed() -> bytes:
    """Returns a response of about 1 MiB. Several gzip members in a row decompress to one body."""
    return _sized(gzip.compress(bytes(2**24)) * 64, b"Content-Encoding: gzip\r\n")


def compressed_gibibyte(target: str) -> Iterator[bytes]:
    yield _compressed()


def angle_brackets(target: str) -> Iterator[bytes]:
    yield _sized(LIST, b"Link: " + b"<" * 60_000 + b"\r\n")


@functools.cache
def _values() -> bytes:
    return _sized(b"[" + b"[]," * 345_000 + b"[]]")


def many_values(target: str) -> Iterator[bytes]:
    yield _values()


def long_name(target: str) -> Iterator[bytes]:
    yield _sized(LIST.replace(b"Rex", b"Rex" * 10_000))


def many_fields(target: str) -> Iterator[bytes]:
    yield _sized(LIST, b"A:\r\n" * 15_000)


def unmoving_cursor(target: str) -> Iterator[bytes]:
    """Every page leads to an empty page, which leads to itself."""
    pets = [] if "cursor" in target else PETS[:1] if target.endswith("limit=1") else PETS
    yield _sized(b"[" + b",".join(pets) + b"]", b'Link: </v1/pets?limit=2&cursor=AAAA>; rel="next"\r\n')


def silence(target: str) -> Iterator[bytes]:
    while True:
        time.sleep(PAUSE)
        yield b""


HOSTILE: tuple[Response, ...] = (
    endless_chunks, endless_body, trickled_body, trickled_head, endless_interim_responses, trickled_interim_responses,
    endless_trailers, trickled_trailers, gibibyte, compressed_gibibyte, angle_brackets, many_values, long_name,
    many_fields, unmoving_cursor, silence,
)  # fmt: skip


class _Handler(socketserver.StreamRequestHandler):
    server: "_Server"

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            while target := self._target():
                for part in self.server.next_response()(target):
                    self.wfile.write(part)
                    if self.server.stopping:
                        return

    def _target(self) -> str:
        """Reads the head of a request, and ignores its body. Returns the target, or "" if the connection was closed."""
        words = self.rfile.readline(65_536).decode("latin-1").split()
        while self.rfile.readline(65_536).strip():
            pass
        return words[1] if len(words) == 3 else ""


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    stopping = False
    plausible: int
    response: Response
    requests = 0

    def next_response(self) -> Response:
        self.requests += 1
        return plausible if self.requests <= self.plausible else self.response


@contextlib.contextmanager
def hostile_server(response: Response, *, after: int = 0, certificate: Certificate | None = None) -> Iterator[int]:
    """Starts a server that sends this response to every request, after `after` plausible responses. Yields its port."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.response, server.plausible = response, after
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.stopping = True
            server.shutdown()
            thread.join()
