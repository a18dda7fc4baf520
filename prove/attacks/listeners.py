"""The targets of attacks: the service or the console, over plain TCP or TLS, served by a single process."""

import contextlib
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx

from harness.certificates import self_signed
from harness.claims import Broken, hold
from harness.consoles import running_console
from harness.servers import Server, started
from prove.attacks.altered import program
from prove.attacks.processes import Process, worker_of

TIMEOUT = 10.0
READ_BUFFER = 4096  # bytes that a client can receive without reading them
KINDS = tuple((name, scheme) for name in ("service", "console") for scheme in ("http", "https"))


class Listener(NamedTuple):
    name: str
    port: int
    process: Process
    tls: ssl.SSLContext | None
    fields: bytes  # header fields of every request, such as Host
    form: bytes  # additional header fields that a POST to `posts` needs so that its body is read
    posts: bytes  # a path
    largest: bytes  # the path of the largest file
    staging_key: bytes = b""  # the header field with a staging key, if there is one

    def connect(self, number: int = 0) -> socket.socket:
        """Opens a connection from one of 40 addresses, which `number` selects. Raises OSError."""
        plain = socket.socket()
        try:
            plain.settimeout(TIMEOUT)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ_BUFFER)
            plain.bind((f"127.0.0.{2 + number % 40}", 0))
            plain.connect(("127.0.0.1", self.port))
            return plain if self.tls is None else self.tls.wrap_socket(plain)
        except BaseException:
            plain.close()
            raise

    def request(self, method: bytes, path: bytes, *lines: bytes, body: bytes = b"") -> bytes:
        return method + b" " + path + b" HTTP/1.1\r\n" + self.fields + b"".join(lines) + b"\r\n" + body

    def status(self, message: bytes, number: int = 0) -> int:
        """Sends a message on a new connection, and returns the status of the response. Raises Broken."""
        with self.connect(number) as connection:
            send(connection, message)
            try:
                answer = connection.recv(65536)
            except OSError as error:
                raise Broken(f"{self.name}: {message[:40]!r}… is answered, not {error!r}") from None
        hold(answer.startswith(b"HTTP/1.1 "), f"{self.name}: {message[:40]!r}… is answered, not {answer[:40]!r}")
        return int(answer[9:12])


def send(connection: socket.socket, data: bytes) -> None:
    """Sends as much as the other side accepts within half a second."""
    connection.settimeout(0.5)
    with contextlib.suppress(OSError):
        connection.sendall(data)
    connection.settimeout(TIMEOUT)


@contextlib.contextmanager
def listening(place: Path, name: str, scheme: str, *alterations: str) -> Iterator[Listener]:
    place.mkdir()
    options: list[str] = []
    tls = None
    if scheme == "https":
        made = self_signed(place)
        options = ["--tls-cert", str(made.chain), "--tls-key", str(made.key)]
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    server = Server(place / "data", "own", "--address-per-minute", "1000000", *options)
    server.program = program(*alterations)
    title = f"{name} over {'TLS' if tls else 'TCP'}"
    if name == "console":
        server.create()
        with running_console(server, *options, scheme=scheme) as console:
            form = f"Origin: {console.origin}\r\nContent-Type: application/x-www-form-urlencoded\r\n".encode()
            file = _file(console.origin, "/sign-in", r"/static/\w+\.css")
            host = f"Host: 127.0.0.1:{console.port}\r\n".encode()
            yield Listener(title, console.port, Process(console.process.pid), tls, host, form, b"/sign-in", file)
        return
    server.origin = f"{scheme}://127.0.0.1:{server.port}"
    with started(server):
        key = f"Authorization: Bearer {server.key().secret}\r\n".encode()
        file = b"/" + _file(server.origin, "/docs", r"docs/assets/\w+/swagger-ui-bundle.js")
        staging_key = f"Authorization: Bearer {server.key(environment='staging').secret}\r\n".encode()
        yield Listener(title, server.port, worker_of(server), tls, b"Host: x\r\n", key, b"/v1/pets", file, staging_key)


def _file(origin: str, page: str, pattern: str) -> bytes:
    """Returns the path of a file that a page uses, after requesting the file with and without compression."""
    with httpx.Client(base_url=origin, verify=False, timeout=TIMEOUT, headers={"Accept": "text/html"}) as client:
        found = re.search(pattern, client.get(page).text)
        hold(found, f"{page} has a {pattern}")
        assert found is not None
        client.get(found[0])
        client.get(found[0], headers={"Accept-Encoding": "identity"})
    return found[0].encode()
