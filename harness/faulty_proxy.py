"""Runs proxies in front of a service on this machine, with faults that real proxies have."""

import contextlib
import gzip
import re
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote

from harness.backends import free_port
from harness.wire import receive

Headers = list[tuple[str, str]]


class Forwarded(NamedTuple):
    """A request as forwarded by the proxy."""

    method: str
    target: str
    headers: Headers
    body: bytes


class Passed(NamedTuple):
    """A response as returned by the proxy."""

    status: str  # code and reason
    headers: Headers
    body: bytes

    def without(self, *names: str) -> Headers:
        return [(name, value) for name, value in self.headers if name.lower() not in names]


class Fault:
    """The base class of all faults. By itself, it forwards everything unchanged."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream

    def handle(self, request: Forwarded) -> Passed:
        return self.change(self.send(request))

    def change(self, response: Passed) -> Passed:
        return response

    def send(self, request: Forwarded) -> Passed:
        length = [("Content-Length", str(len(request.body)))] if request.body or request.method == "POST" else []
        fields = [*request.headers, *length, ("Connection", "close")]
        lines = [f"{request.method} {request.target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
        with socket.create_connection(("127.0.0.1", self._upstream), timeout=60) as upstream:
            # The service may respond and close the connection before it has read everything.
            with contextlib.suppress(ConnectionError):
                upstream.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + request.body)
            head, _, body = receive(upstream).data.partition(b"\r\n\r\n")
        first, *rest = head.decode("latin-1").split("\r\n")
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in rest)]
        return Passed(first[9:], [pair for pair in headers if pair[0].lower() != "connection"], body)


class RemovesHeader(Fault):
    def change(self, response: Passed) -> Passed:
        return response._replace(headers=response.without("x-ratelimit-reset"))


class DoublesHeader(Fault):
    def change(self, response: Passed) -> Passed:
        return response._replace(headers=[*response.headers, ("X-RateLimit-Limit", "60")])


class CachesLists(Fault):
    SECONDS = 5
    age = True  # whether to send an Age header

    def __init__(self, upstream: int) -> None:
        super().__init__(upstream)
        self._kept: dict[str, tuple[float, Passed]] = {}

    def handle(self, request: Forwarded) -> Passed:
        if request.method != "GET" or "/pets?" not in request.target:
            return self.send(request)
        kept_at, kept = self._kept.get(request.target, (0.0, None))
        if kept is not None and time.monotonic() - kept_at < self.SECONDS:
            age = [("Age", str(int(time.monotonic() - kept_at)))] if self.age else []
            return kept._replace(headers=[*kept.headers, *age])
        response = self.send(request)
        if response.status.startswith("200"):
            self._kept[request.target] = time.monotonic(), response
        return response


class CachesListsInSilence(CachesLists):
    age = False


class DecodesSlashes(Fault):
    def handle(self, request: Forwarded) -> Passed:
        path, mark, query = request.target.partition("?")
        return self.send(request._replace(target=unquote(path) + mark + query))


class MergesSlashes(Fault):
    def handle(self, request: Forwarded) -> Passed:
        path, mark, query = request.target.partition("?")
        return self.send(request._replace(target=re.sub("/+", "/", path) + mark + query))


class RepeatsPosts(Fault):
    def handle(self, request: Forwarded) -> Passed:
        if request.method == "POST":
            self.send(request)
        return self.send(request)


class DropsIdempotencyKey(Fault):
    def handle(self, request: Forwarded) -> Passed:
        kept = [(name, value) for name, value in request.headers if name.lower() != "idempotency-key"]
        return self.send(request._replace(headers=kept))


class WeakensTags(Fault):
    def change(self, response: Passed) -> Passed:
        weakened = [(name, f"W/{value}" if name.lower() == "etag" else value) for name, value in response.headers]
        return response._replace(headers=weakened)


class Compresses(Fault):
    def handle(self, request: Forwarded) -> Passed:
        response = self.send(request)
        if not response.body or not any(name.lower() == "accept-encoding" for name, _ in request.headers):
            return response
        body = gzip.compress(response.body)
        headers = [
            *response.without("content-length"),
            ("Content-Encoding", "gzip"),
            ("Content-Length", str(len(body))),
        ]
        return Passed(response.status, headers, body)


class AnswersWithHtml(Fault):
    def change(self, response: Passed) -> Passed:
        if response.status < "400" or not response.body:
            return response
        body = f"<html><h1>{response.status}</h1></html>".encode()
        headers = [("Server", "careless"), ("Content-Type", "text/html"), ("Content-Length", str(len(body)))]
        return Passed(response.status, headers, body)


class _Handler(socketserver.StreamRequestHandler):
    server: "_Server"

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            while (request := self._read()) is not None:
                response = self.server.fault.handle(request)
                lines = [f"HTTP/1.1 {response.status}", *(f"{name}: {value}" for name, value in response.headers)]
                self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1") + response.body)

    def _read(self) -> Forwarded | None:
        words = self.rfile.readline().decode("latin-1").split(" ")
        if len(words) != 3:
            return None
        headers: Headers = []
        while line := self.rfile.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers.append((name, value.strip()))
        framing = [(name.lower(), value) for name, value in headers if name.lower() in FRAMING]
        if sum(name == "content-length" for name, _ in framing) > 1:
            self.wfile.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            return None
        if ("expect", "100-continue") in framing:
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = b"".join(self._chunks()) if "transfer-encoding" in dict(framing) else self._sized(dict(framing))
        return Forwarded(words[0], words[1], [pair for pair in headers if pair[0].lower() not in FRAMING], body)

    def _sized(self, framing: dict[str, str]) -> bytes:
        return self.rfile.read(int(framing.get("content-length", 0)))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()


FRAMING = ("content-length", "transfer-encoding", "expect", "connection")


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    fault: Fault


@contextlib.contextmanager
def faulty_proxy(upstream: int, kind: type[Fault]) -> Iterator[int]:
    """Starts a proxy with this kind of fault in front of the service on port `upstream`. Yields the proxy's port."""
    with _Server(("127.0.0.1", free_port()), _Handler) as server:
        server.fault = kind(upstream)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
