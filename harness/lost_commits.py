"""Loses connections to PostgreSQL while they commit."""

import contextlib
import socket
import threading
from urllib.parse import urlsplit

COMMIT = b"COMMIT;\0"


class LosesCommits:
    """Forwards connections to a server, and closes a connection when its client sends COMMIT."""

    def __init__(self, url: str, *, delivered: bool) -> None:
        """If `delivered` is true, the server commits before the connection is lost."""
        parts = urlsplit(url)
        self._server = (parts.hostname, parts.port)
        self._delivered = delivered
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.lost = 0  # connections
        port = self._listener.getsockname()[1]
        self.url = parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}").geturl()

    def __enter__(self) -> "LosesCommits":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # unblocks accept
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                losing = threading.Event()
                threading.Thread(target=self._send, args=(client, server, losing), daemon=True).start()
                threading.Thread(target=_receive, args=(server, client, losing), daemon=True).start()

    def _send(self, client: socket.socket, server: socket.socket, losing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if data.endswith(COMMIT):
                    self.lost += 1
                    if not self._delivered:
                        break
                    losing.set()
                server.sendall(data)
        _drop(client, server)


def _receive(server: socket.socket, client: socket.socket, losing: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while (data := server.recv(65536)) and not losing.is_set():
            client.sendall(data)
    _drop(client, server)


def _drop(*connections: socket.socket) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # unblocks the other thread
        connection.close()
