"""Connections over TLS: what a client receives, when it is disconnected, and what remains in memory."""

import asyncio
import contextlib
import gc
import socket
import ssl
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness.certificates import self_signed
from petstore.server.connection import PART_MAX, WRITE_HIGH, WRITE_TIMEOUT, Connection
from petstore.server.http_server import TLS_COST, HttpServer
from petstore.server.messages import RequestMessage
from petstore.server.tls import RECORD, TlsTransport, tls_context
from petstore.web.replies import Reply

ASKED = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
CLOSING = ASKED.replace(b"Host", b"Connection: close\r\nHost")
LARGE = b"x" * 1_500_000
OVERHEAD = 1024  # bytes that TLS adds to a part


class Echo:
    """An application that echoes the request body, or returns a large body if there is none."""

    async def answer(self, request: RequestMessage) -> Reply:
        body = request.body
        while request.stream is not None and (part := await request.stream.read()):
            body += part
        return Reply(200, "", body or LARGE)

    async def reject(self, status: int, peer: str) -> Reply:
        return Reply(status, "", b"")


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    made = self_signed(tmp_path_factory.mktemp("tls"))
    found = tls_context(made.chain, made.key)
    assert found is not None
    return found


def trusting() -> ssl.SSLContext:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    return client


@contextlib.asynccontextmanager
async def listening(server: HttpServer, context: ssl.SSLContext) -> AsyncIterator[int]:
    loop = asyncio.get_running_loop()
    async with (
        asyncio.timeout(60),
        await loop.create_server(lambda: TlsTransport(server, context), "127.0.0.1") as made,
    ):
        made.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 * 1024)  # connections inherit it
        yield made.sockets[0].getsockname()[1]


@contextlib.asynccontextmanager
async def connected(
    server: HttpServer, context: ssl.SSLContext
) -> AsyncIterator[tuple[Connection, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connects a client that reads little at a time. Yields the connection and the client's streams."""
    async with listening(server, context) as port:
        plain = socket.create_connection(("127.0.0.1", port))
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        reader, writer = await asyncio.open_connection(sock=plain, ssl=trusting(), server_hostname="here", limit=1024)
        while not server.connections:
            await asyncio.sleep(0)
        (connection,) = server.connections
        yield connection, reader, writer
        writer.transport.abort()
        while server.connections:
            await asyncio.sleep(0)


@pytest.mark.parametrize("size", [1, RECORD, RECORD + 1, 60_000])
def test_bodies_of_any_size_go_both_ways(context: ssl.SSLContext, size: int) -> None:
    async def work() -> None:
        async with connected(HttpServer(Echo()), context) as (_, reader, writer):
            body = bytes(number % 251 for number in range(size))
            head = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % size
            for _ in range(3):
                writer.write(head + body)
                await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(size) == body

    asyncio.run(work())


def test_a_large_body_goes_out_at_the_pace_of_the_client(context: ssl.SSLContext) -> None:
    async def work() -> None:
        async with connected(HttpServer(Echo()), context) as (connection, reader, writer):
            writer.write(CLOSING)
            most = 0
            for _ in range(200):
                await asyncio.sleep(0.001)
                most = max(most, connection.unsent_bytes)
            assert WRITE_HIGH < most <= WRITE_HIGH + PART_MAX + OVERHEAD
            assert (await reader.read()).endswith(b"\r\n\r\n" + LARGE)

    asyncio.run(work())


def test_a_client_that_takes_nothing_is_cut_off(context: ssl.SSLContext) -> None:
    async def work() -> None:
        server = HttpServer(Echo())
        async with connected(server, context) as (connection, _, writer):
            writer.write(ASKED * 3)
            while not connection.unsent_bytes:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # until the kernel's buffers are full
            connection.sweep(server.now + 1)
            connection.sweep(server.now + WRITE_TIMEOUT)
            assert connection in server.connections
            connection.sweep(server.now + WRITE_TIMEOUT + 2)
            await asyncio.sleep(0)
            assert not server.connections

    asyncio.run(work())


def test_a_client_that_sends_on_reads_its_last_response(context: ssl.SSLContext) -> None:
    async def work() -> None:
        server = HttpServer(Echo())
        async with connected(server, context) as (_, reader, writer):
            writer.write(b"NOT HTTP\r\n\r\n" + b"x" * 300_000)
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")

    asyncio.run(work())


def test_a_client_that_ends_its_own_side_is_answered_first(context: ssl.SSLContext) -> None:
    async def work() -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = trusting().wrap_bio(incoming, outgoing)
        async with listening(HttpServer(Echo()), context) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(65536))
            tls.write(CLOSING)
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.unwrap()
            writer.write(outgoing.read())
            writer.write_eof()
            assert len(await reader.read()) > len(LARGE)  # all of it, encrypted
            writer.close()

    asyncio.run(work())


def test_what_is_no_tls_is_closed_and_forgotten(context: ssl.SSLContext) -> None:
    async def work() -> None:
        server = HttpServer(Echo())
        async with listening(server, context) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ASKED)
            await reader.read()  # an alert
            writer.close()
            while server.held:
                await asyncio.sleep(0)

    asyncio.run(work())


def test_a_handshake_counts_from_its_first_packet(context: ssl.SSLContext) -> None:
    async def work() -> None:
        server = HttpServer(Echo(), per_address_max=1)
        async with listening(server, context) as port:
            _, first = await asyncio.open_connection("127.0.0.1", port)
            while not server.held:
                await asyncio.sleep(0)
            assert server.held == TLS_COST
            reader, second = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionError):
                assert not await reader.read()  # refused
            for each in (first, second):
                each.close()
            while server.held:
                await asyncio.sleep(0)

    asyncio.run(work())


def test_nothing_outlives_its_connection(context: ssl.SSLContext, tmp_path: Path) -> None:
    """The garbage collector is disabled, because freeing memory must not depend on it."""

    async def work() -> None:
        server = HttpServer(Echo())
        async with connected(server, context) as (connection, reader, writer):
            writer.write(ASKED)
            await reader.readexactly(1000)
            gone = weakref.ref(connection)
            del connection
        for _ in range(20):
            await asyncio.sleep(0)
        assert gone() is None

    gc.disable()
    try:
        asyncio.run(work())
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def rsa_context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """Returns a context with an RSA key, which permits more key exchanges than other kinds of keys."""
    made = self_signed(tmp_path_factory.mktemp("rsa"), rsa=True)
    found = tls_context(made.chain, made.key)
    assert found is not None
    return found


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Completes a handshake in memory. Raises SSLError if it fails."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(5):  # messages in both directions
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()


@pytest.mark.parametrize(
    ("cipher", "accepted"),
    [
        ("ECDHE-RSA-AES128-GCM-SHA256", True),
        ("ECDHE-RSA-AES256-GCM-SHA384", True),
        ("ECDHE-RSA-CHACHA20-POLY1305", True),
        ("ECDHE-RSA-AES128-SHA256", False),  # CBC
        ("ECDHE-RSA-AES256-SHA", False),
        ("AES128-GCM-SHA256", False),  # RSA key exchange
        ("AES256-SHA", False),
    ],
)
def test_tls_1_2_has_forward_secrecy_and_authenticated_encryption(
    rsa_context: ssl.SSLContext, cipher: str, accepted: bool
) -> None:
    client = trusting()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.set_ciphers(cipher)
    with contextlib.nullcontext() if accepted else pytest.raises(ssl.SSLError):
        shake_hands(rsa_context, client)
