"""Accepts connections with TLS, and lets `HttpServer` count them from their first packet on."""

import asyncio
import contextlib
import socket
import ssl

from petstore.server.connection import HEAD_TIMEOUT, WRITE_TIMEOUT, Connection
from petstore.server.http_server import HttpServer

NO_DESCRIPTOR_PAUSE = 0.1  # seconds until the next attempt to accept, when no descriptor is free


class TlsListener:
    """The event loop's own listener calls a protocol only after the handshake: until then, nothing would be counted."""

    def __init__(self, server: HttpServer, listening: socket.socket, tls: ssl.SSLContext) -> None:
        self._server = server
        self._listening = listening
        self._tls = tls
        self._handshakes: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        listening.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept no more connections, and close the socket. Handshakes that have begun go on."""
        self._closed = True
        self._loop.remove_reader(self._listening)
        self._listening.close()

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """Accept one connection; the event loop calls again while others wait."""
        try:
            accepted, peer = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):  # another process was first, or the client has gone
            return
        except OSError as error:
            self._server.refuse("descriptors", f"no connection can be accepted: {error.strerror}", "")
            self._loop.remove_reader(self._listening)
            self._loop.call_later(NO_DESCRIPTOR_PAUSE, self._listen)
            return
        accepted.setblocking(False)
        connection = Connection(self._server)
        connection.peer = str(peer[0]) if peer else ""
        if not self._server.begin_handshake(connection):
            accepted.close()
            return
        task = self._loop.create_task(self._handshake(connection, accepted))
        self._handshakes.add(task)  # the event loop has only weak references to its tasks
        task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, connection: Connection, accepted: socket.socket) -> None:
        try:
            # What the client does wrong, and that it goes away, is no concern of the log.
            with contextlib.suppress(OSError, ssl.SSLError):
                await self._loop.connect_accepted_socket(
                    lambda: connection,
                    accepted,
                    ssl=self._tls,
                    ssl_handshake_timeout=HEAD_TIMEOUT,
                    ssl_shutdown_timeout=WRITE_TIMEOUT,
                )
        finally:
            self._server.end_handshake(connection)
