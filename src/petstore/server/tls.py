"""TLS with bounded memory: creates the SSL context, and encrypts and decrypts a connection's data.

asyncio's own TLS transport is not used for two reasons. It takes up to 546 KiB of memory for an idle connection, and
the write buffer size it reports leaves out data that is still queued in the underlying socket transport.
"""

import asyncio
import contextlib
import os
import shlex
import ssl
import stat
from pathlib import Path
from typing import Any

from petstore.errors import OperatorError
from petstore.server.connection import HEAD_TIMEOUT, Connection
from petstore.server.http_server import HttpServer

RECORD = 16 * 1024  # maximum bytes to encrypt at a time, because OpenSSL's buffers never shrink
PIECE = 4 * 1024  # maximum bytes to decrypt at a time, because OpenSSL's buffers never shrink
# For TLS 1.2, allow only ciphers with forward secrecy and authenticated encryption, as in Mozilla's "intermediate"
# configuration.
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


def tls_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Creates the SSL context, or returns None if TLS is off. Raises OperatorError if a file is not valid."""
    if cert is None or key is None:
        return None
    for option, file in (("--tls-cert", cert), ("--tls-key", key)):
        if not os.access(file, os.R_OK):
            raise OperatorError(f"{option} {file}: the file does not exist or is not readable")
    if key.stat().st_mode & stat.S_IROTH:
        raise OperatorError(
            f"--tls-key {key}: every user of this machine can read the private key;"
            f" run `chmod 600 {shlex.quote(str(key))}`"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION  # no client needs renegotiation, and it costs CPU time
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise OperatorError(
            f"--tls-cert {cert} and --tls-key {key}: not PEM files, or the key does not match ({error})"
        ) from error
    return context


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """Sits between a socket and a `Connection`, as the socket's protocol and the connection's transport."""

    def __init__(self, server: HttpServer, tls: ssl.SSLContext) -> None:
        super().__init__()
        self._server = server
        self._connection = Connection(server)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_open = False  # whether the handshake is complete
        self._has_ended = False  # whether the server has sent its close_notify
        self._client_has_ended = False  # whether the client has sent its close_notify
        self._deadline: asyncio.TimerHandle | None = None

    # Methods called by the event loop

    def connection_made(self, transport: Any) -> None:
        self._socket: asyncio.Transport = transport
        self._connection.attach(self)
        if not self._server.begin_handshake(self._connection):
            transport.abort()
            return
        self._deadline = asyncio.get_running_loop().call_later(HEAD_TIMEOUT, transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._end_handshake()
        if self._is_open:
            self._connection.connection_lost(error)
        del self._connection  # break a reference cycle

    def eof_received(self) -> bool:
        return self._is_open and self._connection.eof_received()

    def data_received(self, data: bytes) -> None:
        if self._has_ended or self._client_has_ended:
            self._connection.data_received(data)  # the connection counts these bytes and then discards them
            return
        try:
            plain = self._decrypted(data)
        except ssl.SSLError:  # client error; not logged
            self._flush()  # send the alert
            self._socket.close()
            return
        self._flush()
        if plain and not self._socket.is_closing():
            self._connection.data_received(plain)
        if self._client_has_ended and not self.eof_received():
            self.close()

    def pause_writing(self) -> None:
        if self._is_open:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._is_open:
            self._connection.resume_writing()

    # Methods called by the connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._has_ended or self._socket.is_closing():
            return
        if len(data) <= RECORD:
            self._tls.write(data)
            self._socket.write(self._outgoing.read())
            return
        view = memoryview(data)
        records = []
        for start in range(0, len(view), RECORD):
            self._tls.write(view[start : start + RECORD])
            records.append(self._outgoing.read())
        self._socket.write(b"".join(records))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._send_close_notify()
        self._socket.write_eof()

    def close(self) -> None:
        self._send_close_notify()
        self._socket.close()

    def abort(self) -> None:
        self._socket.abort()

    def is_closing(self) -> bool:
        return self._socket.is_closing()

    def pause_reading(self) -> None:
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._socket.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.get_extra_info(name, default)

    # TLS

    def _decrypted(self, data: bytes) -> bytes:
        """Decrypts data. Continues the handshake first if it is not complete.

        Raises SSLError if the data is not valid.
        """
        plain = []
        incoming, tls = self._incoming, self._tls
        for start in range(0, len(data), PIECE):
            incoming.write(data[start : start + PIECE])
            try:
                if not self._is_open:
                    tls.do_handshake()
                    self._open()
                # Check for data first, because the exception that `read` would raise costs more than decryption.
                while incoming.pending or tls.pending():
                    part = tls.read(RECORD)
                    if not part:
                        self._client_has_ended = True
                        break
                    plain.append(part)
            except ssl.SSLWantReadError:
                pass  # the record is incomplete
        return plain[0] if len(plain) == 1 else b"".join(plain)

    def _open(self) -> None:
        self._is_open = True
        self._end_handshake()
        self._connection.connection_made(self)

    def _end_handshake(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self._server.end_handshake(self._connection)

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._socket.write(self._outgoing.read())

    def _send_close_notify(self) -> None:
        """Sends a close_notify, but does not wait for the client to send one."""
        if not self._has_ended:
            self._has_ended = True
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            self._flush()
