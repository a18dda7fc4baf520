"""Sends the console endless forms, contradictory lengths and unfinished heads before sign-in. It must serve others."""

import contextlib
import socket
import time

import httpx

from harness.claims import hold, temporary_directory
from harness.consoles import Console
from harness.servers import Server
from prove.attacks.altered import program
from prove.attacks.processes import MEBIBYTE, Process, megabytes
from prove.proof import Figures, Scale

MEMORY_MAX = 10 * MEBIBYTE
ANSWERED_WITHIN = 1.0
HEADS = 1_100
ENDLESS = 32 * MEBIBYTE
TIMEOUT = 15.0
LINES_MAX = 20
_CHUNK = b"10000\r\n" + b"token=" + b"a" * (0x10000 - 6) + b"\r\n"


def prove(scale: Scale) -> Figures:
    heads, endless = (HEADS, ENDLESS) if scale.full else (110, 8 * MEBIBYTE)
    with temporary_directory() as data:
        server = Server(data / "data")
        server.program = program("memory_grows") if scale.plant else program()
        console = Console(server)
        try:
            console.wait_until_ready()
            process = Process(console.process.pid)
            _page(console)
            before = process.memory
            lines = _lines(console)
            took: dict[str, float] = {}
            most = 0
            for name, attack in (("form", _form), ("lengths", _lengths)):
                took[name] = attack(console, endless)
                most = max(most, process.memory - before)
            with contextlib.ExitStack() as opened:
                for _ in range(heads):
                    connection = opened.enter_context(_connected(console))
                    connection.sendall(b"GET /sign-in HTTP/1.1\r\nHost: x\r\nX-Slow: ")
                time.sleep(0.5)
                slowest = max(_page(console) for _ in range(5))
                most = max(most, process.memory - before)
            time.sleep(0.5)
            _page(console)
            lines = _lines(console) - lines
        finally:
            console.stop()
    hold(most <= MEMORY_MAX, f"memory grew by {megabytes(most)} MiB")
    hold(lines <= LINES_MAX, f"the log grew by {lines} lines")
    if scale.full:
        hold(slowest <= ANSWERED_WITHIN, f"another client waited {slowest:.2f} s")
    return {"endless form answered or closed after s": round(took["form"], 1),
            "contradictory lengths after s": round(took["lengths"], 1), "unfinished heads": heads,
            "slowest page during the attack ms": round(1000 * slowest), "memory growth MiB": megabytes(max(0, most)),
            "lines in the log": lines}  # fmt: skip


def _connected(console: Console) -> socket.socket:
    return socket.create_connection(("127.0.0.1", console.port), timeout=TIMEOUT)


def _lines(console: Console) -> int:
    return len(console.output.read_text().splitlines())


def _page(console: Console) -> float:
    """Returns how many seconds the sign-in page takes to load. Raises Broken."""
    began = time.monotonic()
    try:
        answer = httpx.get(console.origin + "/sign-in", timeout=TIMEOUT)
    except httpx.TransportError as error:
        hold(False, f"the sign-in page loads: {error!r}")
    else:
        hold(answer.status_code == 401, f"the sign-in page has the status 401, not {answer.status_code}")
    return time.monotonic() - began


def _form(console: Console, endless: int) -> float:
    return _stopped(console, "Transfer-Encoding: chunked", endless)


def _lengths(console: Console, endless: int) -> float:
    return _stopped(console, "Content-Length: 5\r\nTransfer-Encoding: chunked", endless)


def _stopped(console: Console, framing: str, endless: int) -> float:
    """Returns how many seconds the console takes to close the connection. Raises Broken if it reads everything."""
    head = (
        f"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1:{console.port}\r\nOrigin: {console.origin}\r\n"
        f"Content-Type: application/x-www-form-urlencoded\r\n{framing}\r\n\r\n"
    )
    began = time.monotonic()
    with _connected(console) as connection:
        try:
            connection.sendall(head.encode())
            for _ in range(endless // len(_CHUNK)):
                connection.sendall(_CHUNK)
            hold(False, f"the console stops reading before {megabytes(endless)} MiB")
        except TimeoutError:
            hold(False, f"the console closes the connection within {TIMEOUT:.0f} s")
        except OSError:
            pass  # closed by the console
    return time.monotonic() - began
