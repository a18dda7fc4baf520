"""One address opens as many connections as it can, and keeps them open. Another address is not affected."""

import contextlib
import resource
import socket
import time

from harness.claims import hold, temporary_directory
from harness.scraping import scrape
from harness.servers import Server, started
from prove.attacks.processes import worker_of
from prove.proof import Figures, Scale

OTHER_ADDRESS = "127.0.0.2"
TIMEOUT = 10.0
ANSWERED_WITHIN = 1.0  # seconds
COUNT, PER_ADDRESS = 10_000, 4_096  # PER_ADDRESS is the default of --connections-per-address
SPARE = 200  # descriptors that this process needs for other purposes


def prove(scale: Scale) -> Figures:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    count, bound = (min(COUNT, most - SPARE), PER_ADDRESS) if scale.full else (60, 20)
    options = [] if scale.full else ["--connections-per-address", str(bound)]
    if scale.plant:  # a bound that this machine cannot reach
        options = ["--connections-per-address", "1000000"]
    with (
        temporary_directory() as data,
        started(Server(data / "data", "own", *options)) as server,
        contextlib.ExitStack() as opened,
    ):
        line = f"Host: x\r\nAuthorization: Bearer {server.key().secret}\r\nConnection: close\r\n\r\n"
        request = f"GET /v1/pets HTTP/1.1\r\n{line}".encode()
        worker = worker_of(server)
        before, began = worker.sockets, time.monotonic()
        _seconds_until_answered(server.port, request)
        connections = [opened.enter_context(_connected(server.port)) for _ in range(count)]
        time.sleep(1.0)  # until the worker has accepted or refused all of them
        kept = worker.sockets - before
        slowest = max(_seconds_until_answered(server.port, request) for _ in range(20))
        refused = sum(map(_is_refused, connections))
        opened.close()
        lines, seconds = server.log.read_text().count("connection refused"), time.monotonic() - began
        time.sleep(1.0)  # until the worker has closed them and serves this address again
        counted = int(scrape(server).value("petstore_refused_connections_total", reason="per_address"))
    hold(kept <= bound, f"{kept} connections from one address are open, but only {bound} may be")
    hold(refused >= count - bound, f"only {refused} of {count} connections were refused")
    hold(counted >= refused, f"the metric says {counted}, but {refused} connections were refused")
    hold(1 <= lines <= seconds + 1, f"the log has {lines} lines about refused connections after {seconds:.1f} s")
    if scale.full:
        hold(slowest <= ANSWERED_WITHIN, f"a client of another address waited {slowest:.2f} s")
    return {"connections": count, "kept": kept, "refused": refused, "lines in the log": lines,
            "slowest list from another address ms": round(1000 * slowest, 1)}  # fmt: skip


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)


def _is_refused(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def _seconds_until_answered(port: int, request: bytes) -> float:
    """Returns how long a client at another address waits for its response. Raises Broken unless it is a 200."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), TIMEOUT, (OTHER_ADDRESS, 0)) as connection:
        connection.sendall(request)
        answer = connection.recv(65536)
    hold(answer.startswith(b"HTTP/1.1 200"), f"a client of another address is served, not {answer[:40]!r}")
    return time.monotonic() - began
