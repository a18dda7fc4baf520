"""Stops and reloads the service while clients send requests, directly and through HAProxy and nginx.

A client that connects directly may be refused once the service has stopped, but an accepted connection gets its
response. Behind HAProxy, which has other nodes, every request succeeds. Behind nginx, which has no other node, a
request fails only if nginx cannot connect. A reload drops no request at all.

Figures: the requests that succeeded and those that were dropped, for each way and for stops and reloads.
"""

import contextlib
import os
import signal
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from harness.backends import Missing, running
from harness.claims import Skipped, hold, progress, temporary_directory
from harness.proxies import HaProxy, Nginx
from harness.served import wait_for
from harness.servers import READY_WITHIN, Server
from prove.attacks.altered import program
from prove.proof import Figures, Parts, Scale
from prove.reloads import response_from

CLIENTS = 8
LOAD_SECONDS = 0.5  # before and after each stop or reload
NOTICED_SECONDS = 2.0  # until HAProxy uses a node again that has been started
REFUSED = "refused"  # no connection; the client can safely try elsewhere
BODY = b'{"name":"Rex","categoryId":1}'

Count = Counter[str]  # outcomes: "ok", REFUSED, or what went wrong


class Load:
    """Clients that list and add animals through a port. Half of them open a connection for each request."""

    def __init__(self, port: int, secret: str, *, tls: bool = False, keeps: bool = True) -> None:
        """If `keeps` is false, all clients open a connection for each request."""
        head = f" HTTP/1.1\r\nHost: api.example.com\r\nAuthorization: Bearer {secret}\r\n"
        create = f"POST /v1/pets{head}Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
        self._requests = [f"GET /v1/pets?limit=1{head}\r\n".encode(), create.encode() + BODY]
        self._port = port
        self._trust = ssl.create_default_context() if tls else None
        if self._trust is not None:
            self._trust.check_hostname, self._trust.verify_mode = False, ssl.CERT_NONE
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number, keeps and number % 2 == 0)) for number in range(CLIENTS)
        ]
        self._lock = threading.Lock()
        self.count: Count = Counter()

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        time.sleep(LOAD_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(LOAD_SECONDS)
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _connect(self) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self._port), timeout=READY_WITHIN)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return plain if self._trust is None else self._trust.wrap_socket(plain)

    def _run(self, number: int, keeps: bool) -> None:
        request = self._requests[number // 2 % 2]
        connection: socket.socket | None = None
        while not self._stop.is_set():
            closes, outcome = True, "ok"
            try:
                connection = connection or self._connect()
                connection.sendall(request)
                status, closes = response_from(connection)
                if status not in (200, 201):
                    outcome = f"status {status}"
            except ConnectionRefusedError:
                outcome = REFUSED
                time.sleep(0.01)  # the service is restarting
            except OSError as error:
                outcome = type(error).__name__
            if connection is not None and (closes or not keeps):
                connection.close()
                connection = None
            with self._lock:
                self.count[outcome] += 1
        if connection is not None:
            connection.close()


def prove(scale: Scale) -> Figures:
    figures: Figures = {"stops": scale.stops, "reloads": scale.stops}
    parts = Parts(scale)
    with temporary_directory() as place:
        for name, way in (("directly", _directly), ("HAProxy", _behind_haproxy), ("nginx", _behind_nginx)):
            with parts.part(), _missing_is_skipped():
                (place / name).mkdir()
                figures |= {f"{name}, {what}": figure for what, figure in way(place / name, scale).items()}
            if scale.full:
                progress(f"stops: {name} done")
    parts.judge()
    return figures


@contextlib.contextmanager
def _missing_is_skipped() -> Iterator[None]:
    try:
        yield
    except Missing as missing:
        raise Skipped(str(missing)) from missing


def _directly(place: Path, scale: Scale) -> Figures:
    """All connections are short, because a client cannot know whether an idle connection is about to be closed."""
    server = _server(place / "data", scale, workers=2)
    with _all_running([server]):
        secret = server.key().secret
        stopped = _repeat(scale.stops, lambda: _stop(server, Load(server.port, secret, keeps=False)))
        reloaded = _reload([server], Load(server.port, secret), scale)
    figures = _figures(stopped, reloaded)
    dropped = sum(stopped.values()) - stopped["ok"] - stopped[REFUSED]
    allowed = 1 + scale.stops // 10  # a connection can arrive at the moment when the kernel closes the listener
    hold(dropped <= allowed, f"{scale.stops} stops drop at most {allowed} accepted connections: {stopped}")
    return figures


def _behind_haproxy(place: Path, scale: Scale) -> Figures:
    nodes = [_server(place / "data", scale, workers=1) for _ in range(3)]
    with _all_running(nodes), running(HaProxy(nodes)) as proxy:
        secret = nodes[0].key().secret
        load = Load(proxy.port, secret, tls=True)
        time.sleep(NOTICED_SECONDS)
        with load:
            for number in range(scale.stops):
                _terminate(node := nodes[number % len(nodes)])
                node.start()
                time.sleep(NOTICED_SECONDS)
        hold(not _dropped(load.count), f"behind HAProxy, a stop drops no request: {load.count}")
        reloaded = _reload(nodes, Load(proxy.port, secret, tls=True), scale)
    return _figures(load.count, reloaded)


def _behind_nginx(place: Path, scale: Scale) -> Figures:
    server = _server(place / "data", scale, workers=2)
    with _all_running([server]), running(nginx := Nginx(server.port)):
        secret = server.key().secret
        stopped = _repeat(scale.stops, lambda: _stop(server, Load(nginx.port, secret, tls=True)))
        failed = [line for line in nginx.errors.read_text().splitlines() if "[error]" in line]
        other = [line for line in failed if "Connection refused" not in line]
        hold(not other, f"nginx reports nothing but refused connections: {other[:1]}")
        hold(_dropped(stopped) == Counter({"status 502": len(failed)}), f"a request fails if nginx says so: {stopped}")
        reloaded = _reload([server], Load(nginx.port, secret, tls=True), scale)
    return _figures(stopped - Counter({"status 502": len(failed)}), reloaded)


def _server(data: Path, scale: Scale, *, workers: int) -> Server:
    limits = ("--address-per-minute", "1000000", "--trusted-proxy", "127.0.0.1")
    server = Server(data, "own", *limits, workers=workers)
    server.log = data.parent / f"{server.port}.log"  # several nodes can have the same data directory
    server.program = program("resets_while_stopping") if scale.plant else program()
    return server


@contextlib.contextmanager
def _all_running(servers: Sequence[Server]) -> Iterator[None]:
    try:
        for server in servers:
            server.start()
        yield
    finally:
        for server in servers:
            server.kill()


def _repeat(times: int, stop: Callable[[], Count]) -> Count:
    total: Count = Counter()
    for _ in range(times):
        total += stop()
    return total


def _stop(server: Server, load: Load) -> Count:
    """Stops the service under load, and starts it again."""
    with load:
        _terminate(server)
    server.start()
    return load.count


def _terminate(server: Server) -> None:
    """Sends SIGTERM, as service managers do. Raises Broken if the service does not shut down cleanly."""
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGTERM)
    hold(server.process.wait(READY_WITHIN) == 0, "the service shuts down cleanly")


def _reload(servers: Sequence[Server], load: Load, scale: Scale) -> Count:
    """Reloads the services under load, one after the other. Raises Broken if a request is dropped."""
    with load:
        for number in range(scale.stops):
            server = servers[number % len(servers)]
            before = server.log.read_text().count('"reloaded"')
            assert server.process is not None
            os.kill(server.process.pid, signal.SIGHUP)
            hold(wait_for(lambda: server.log.read_text().count('"reloaded"') > before), "a reload ends")  # noqa: B023  # called here
    hold(not _dropped(load.count), f"a reload drops no request: {load.count}")
    return load.count


def _dropped(count: Count) -> Count:
    return count - Counter({"ok": count["ok"]})


def _figures(stopped: Count, reloaded: Count) -> Figures:
    return {
        "requests during stops": stopped["ok"],
        "dropped": sum(stopped.values()) - stopped["ok"] - stopped[REFUSED],
        "requests during reloads": reloaded["ok"],
        "dropped by reloads": 0,
    }
