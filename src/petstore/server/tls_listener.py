"""Accepts connections with TLS. A connection counts from its first packet on, not from the end of its handshake."""

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
        listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Accept no more connections, and close the socket. Handshakes that have begun go on."""
        self._accepting.cancel()
        self._listening.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(self._listening)
            except OSError as error:
                self._server.refuse("descriptors", f"no connection can be accepted: {error.strerror}", "")
                await asyncio.sleep(NO_DESCRIPTOR_PAUSE)
                continue
            connection = Connection(self._server)
            connection.peer = str(peer[0]) if peer else ""
            if self._server.begin_handshake(connection):
                task = asyncio.create_task(self._handshake(connection, accepted))
                self._handshakes.add(task)  # the event loop has only weak references to its tasks
                task.add_done_callback(self._handshakes.discard)
            else:
                accepted.close()
            await asyncio.sleep(0)  # others have their turn between two connections

    async def _handshake(self, connection: Connection, accepted: socket.socket) -> None:
        try:
            # What the client does wrong, and that it goes away, is no concern of the log.
            with contextlib.suppress(OSError, ssl.SSLError):
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection,
                    accepted,
                    ssl=self._tls,
                    ssl_handshake_timeout=HEAD_TIMEOUT,
                    ssl_shutdown_timeout=WRITE_TIMEOUT,
                )
        finally:
            self._server.end_handshake(connection)
