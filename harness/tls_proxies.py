"""Adds TLS to servers on this machine, because the wheels have Redis and PostgreSQL without TLS."""

import contextlib
import select
import socket
import ssl
import threading

from harness.certificates import Certificate

SSL_REQUEST = bytes.fromhex("0000000804d2162f")  # PostgreSQL's request for TLS, which a server accepts with S


class TlsProxy:
    """Accepts TLS and plaintext connections on the same port, and forwards them to a server on this machine.

    Sentinels connect in plaintext and tell clients to use the same port, where the clients connect with TLS. PostgreSQL
    clients first ask whether the server supports TLS.
    """

    def __init__(self, certificate: Certificate, target: int = 0) -> None:
        """`target` is the port of the server."""
        self.present(certificate)
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.encrypted = 0  # connections with TLS so far

    def present(self, certificate: Certificate) -> None:
        """Uses this certificate for new connections."""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*certificate)

    def __enter__(self) -> "TlsProxy":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # unblocks accept
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            if client.recv(len(SSL_REQUEST), socket.MSG_PEEK) == SSL_REQUEST:
                client.recv(len(SSL_REQUEST))
                client.sendall(b"S")
            if client.recv(1, socket.MSG_PEEK) == b"\x16":  # the first byte of a TLS handshake
                client = self._context.wrap_socket(client, server_side=True)
                self.encrypted += 1
            with client, socket.create_connection(("127.0.0.1", self.target)) as server:
                client.settimeout(0.0)
                server.settimeout(0.0)
                _copy_both_ways(client, server)


def _copy_both_ways(client: socket.socket, server: socket.socket) -> None:
    """Forwards data until one side closes. Uses one thread, because two threads must not share a TLS socket."""
    while True:
        select.select([client, server], [], [])
        for source, sink in ((client, server), (server, client)):
            with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
                while True:
                    data = source.recv(65536)
                    if not data:
                        return
                    sink.setblocking(True)
                    sink.sendall(data)
                    sink.setblocking(False)
