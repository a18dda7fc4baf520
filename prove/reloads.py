"""Reloads the service under load. Clients use open and new connections while the service replaces its workers.

Figures: reloads, requests, requests per second, failed and miscounted requests, and the time of the slowest request.
"""

import os
import re
import signal
import socket
import ssl
import threading
import time
from pathlib import Path

from harness.certificates import self_signed
from harness.claims import hold, temporary_directory
from harness.gates import use_lmdb
from harness.served import Served, wait_for
from harness.servers import Key
from petstore.plans import Limits
from prove.next_version import add_migration, copy_code
from prove.proof import Figures, Parts, Scale

CLIENTS = 8
PER_SECOND = 2_000
SLOWEST = 1.0
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *([0-9]+)")
_CLOSES = re.compile(rb"(?i)\r\nconnection: *close")


class Load:
    """Clients that send requests at a fixed rate, either all on one connection or each on a new connection.

    Half of the clients open new connections. With TLS, only one in eight does, because handshakes use much CPU time.
    """

    def __init__(self, server: Served, key: Key, *, tls: bool) -> None:
        self._server, self._tls = server, tls
        self._request = (
            f"GET /v1/pets?limit=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {key.headers['Authorization']}\r\n\r\n"
        ).encode()
        self._trust = ssl.create_default_context()
        self._trust.check_hostname, self._trust.verify_mode = False, ssl.CERT_NONE
        self._stop = threading.Event()
        every = 8 if tls else 2
        self._threads = [threading.Thread(target=self._run, args=(number % every != 0,)) for number in range(CLIENTS)]
        self._lock = threading.Lock()
        self.answered = 0
        self.slowest = 0.0
        self.failures: list[str] = []

    def __enter__(self) -> "Load":
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.per_second = self.answered / (time.monotonic() - self._began)

    def _connect(self) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self._server.port), timeout=10)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._trust.wrap_socket(plain) if self._tls else plain

    def _run(self, keeps: bool) -> None:
        connection: socket.socket | None = None
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due += CLIENTS / PER_SECOND  # a client that falls behind sends its next requests immediately
            began = time.monotonic()
            closes = True
            try:
                connection = connection or self._connect()
                connection.sendall(self._request)
                status, closes = response_from(connection)
                fault = "" if status == 200 else f"status {status}"
            except OSError as error:
                fault = repr(error)
            if connection is not None and (closes or not keeps):
                connection.close()
                connection = None
            took = time.monotonic() - began
            with self._lock:
                self.answered += not fault
                self.slowest = max(self.slowest, took)
                if fault:
                    self.failures.append(fault)
        if connection is not None:
            connection.close()


def response_from(connection: socket.socket) -> tuple[int, bool]:
    """Returns the status, and whether the server closes the connection. Raises OSError.

    http.client would be too slow for 2,000 requests a second.
    """
    received = b""
    while True:
        head, end, body = received.partition(b"\r\n\r\n")
        if end and len(body) >= int(_LENGTH.findall(head)[0]):
            return int(head[9:12]), _CLOSES.search(head) is not None
        chunk = connection.recv(65536)
        if not chunk:
            raise ConnectionError(f"the server closed after {received!r}")
        received += chunk


def reload(server: Served) -> None:
    """Reloads the service, and waits until the new workers serve. Raises Broken."""
    assert server.process is not None
    before = events(server, "reloaded")
    os.kill(server.process.pid, signal.SIGHUP)
    hold(wait_for(lambda: events(server, "reloaded") > before, 60), f"a reload ends: {server.log.read_text()[-1500:]}")


def events(server: Served, name: str) -> int:
    return sum(entry["event"] == name for entry in server.events)


def prove(scale: Scale) -> Figures:
    figures: Figures = {}
    parts = Parts(scale)
    with temporary_directory() as data:
        with parts.part():
            figures |= _under_load(data / "plain", scale.reloads, scale)
        with parts.part():
            renewed = _under_load(data / "tls", max(2, scale.reloads // 10), scale, tls=True)
            figures |= {f"{name}, with a new certificate each time": value for name, value in renewed.items()}
        with parts.part():
            migrated = _under_load(data / "migrated", max(2, scale.reloads // 10), scale, migrates=True)
            figures |= {f"{name}, with a migration each time": value for name, value in migrated.items()}
    parts.judge()
    return figures


def _under_load(place: Path, reloads: int, scale: Scale, *, tls: bool = False, migrates: bool = False) -> Figures:
    place.mkdir()
    options: tuple[str, ...] = ()
    if tls:
        made = self_signed(place)
        options = ("--tls-cert", str(made.chain), "--tls-key", str(made.key))
    server = Served(place / "data", *options, workers=2, scheme="https" if tls else "http")
    server.code = code = copy_code(place / "code")
    server.start()
    try:
        key = server.key(limits=Limits(10**9, 10**9))
        with Load(server, key, tls=tls) as load:
            for _ in range(reloads):
                if tls:
                    self_signed(place)
                if migrates:
                    add_migration(code)
                reload(server)
            if scale.plant:
                server.kill()
        counted = used_by(server, key)
    finally:
        server.stop()
    hold(not load.failures, f"no request fails: {len(load.failures)} failed, such as {load.failures[:3]}")
    hold(counted == load.answered, f"each request is counted once: {load.answered} were answered, {counted} counted")
    if scale.full:
        hold(load.slowest < SLOWEST, f"no request takes {SLOWEST} s: one took {load.slowest:.2f} s")
    return {
        "reloads": reloads,
        "requests": load.answered,
        "a second": round(load.per_second),
        "failed": 0,
        "slowest seconds": round(load.slowest, 3),
    }


def used_by(server: Served, key: Key) -> int:
    """Returns a key's count from the gate file. Does not open the store, which the next version may have migrated."""
    (windows,) = use_lmdb(server.data, lambda gate: gate.windows([key.id]))
    return int(windows.day_used)
