"""A server that sends whatever a test chooses, as slowly and for as long as the client reads."""

import contextlib
import socket
import threading
from collections.abc import Iterable, Iterator
from itertools import repeat

Piece = bytes | float
"""Bytes to send, or seconds to wait."""


@contextlib.contextmanager
def sending(*pieces: Iterable[Piece]) -> Iterator[str]:
    """Runs a server that sends these pieces in response to each request. Yields its base URL."""
    stopped = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def respond(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                for part in pieces:
                    for piece in part:
                        if isinstance(piece, bytes):
                            connection.sendall(piece)
                        elif stopped.wait(piece):
                            return

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=respond, args=[connection], daemon=True).start()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            stopped.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def endless(piece: bytes, seconds: float = 0.0) -> Iterator[Piece]:
    """Repeats a piece, with a wait after each."""
    for _ in repeat(None):
        yield piece
        if seconds:
            yield seconds


def head(status: str = "200 OK", **headers: object) -> list[Piece]:
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return ["\r\n".join([*lines, "", ""]).encode()]
