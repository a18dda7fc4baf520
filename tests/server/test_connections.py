"""Connections of clients that send too many requests, do not read responses, or send too much data."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from harness.in_process import Running, Slow, connected, listen, until, use_app
from harness.wire import split
from petstore.server import http_server
from petstore.server.bodies import BUFFER_MAX
from petstore.server.connection import (
    HEAD_TIMEOUT,
    IDLE_TIMEOUT,
    PART_MAX,
    UNCOUNTED_MAX,
    WRITE_HIGH,
    WRITE_LEAST,
    WRITE_TIMEOUT,
    Connection,
)
from petstore.server.http_server import HttpServer
from petstore.server.messages import EMPTY_BYTES_MAX, HEAD_MAX, PIPELINE_MAX, RequestMessage
from petstore.web.replies import Reply

ALIVE = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"


class Large:
    """An application with large responses."""

    async def answer(self, request: RequestMessage) -> Reply:
        return Reply(200, "", b"x" * 1_500_000)

    async def reject(self, status: int, peer: str) -> Reply:
        return Reply(status, "", b"")


def closing(message: bytes) -> bytes:
    return message.replace(b"Host", b"Connection: close\r\nHost")


@contextlib.asynccontextmanager
async def over_a_socket(server: HttpServer) -> AsyncIterator[tuple[Connection, asyncio.StreamReader]]:
    """Connects a client that reads little at a time. Yields the connection and the client's reader."""
    async with await listen(server) as listening, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname(), limit=1024)
        while not server.connections:
            await asyncio.sleep(0)
        (connection,) = server.connections
        yield connection, reader
        writer.close()
        while server.connections:
            await asyncio.sleep(0)


async def sent(server: HttpServer, data: bytes) -> list[int]:
    """Returns the statuses of the responses to these bytes, which arrive at once."""
    async with over_a_socket(server) as (connection, reader):
        connection.data_received(data)
        return [response.status for response in split(await reader.read())]


class SlowToReject(Large):
    def __init__(self) -> None:
        self.may_go = asyncio.Event()

    async def reject(self, status: int, peer: str) -> Reply:
        await self.may_go.wait()
        return await super().reject(status, peer)


@pytest.mark.parametrize("meanwhile", ["the client half-closes", "the server drains", "a second passes"])
def test_a_rejected_message_is_answered_also_when_the_answer_takes_time(meanwhile: str) -> None:
    async def work() -> None:
        app = SlowToReject()
        server = HttpServer(app)
        connection, transport = connected(server)
        connection.data_received(b"NOT HTTP\r\n\r\n")
        await asyncio.sleep(0)
        if meanwhile == "the client half-closes":
            assert connection.eof_received()
        elif meanwhile == "the server drains":
            connection.close_if_idle()
        else:
            connection.sweep(server.now + 3600)
        assert not transport.closed
        app.may_go.set()
        await until(lambda: transport.closed)
        assert transport.data.startswith(b"HTTP/1.1 400 ")

    asyncio.run(work())


@pytest.mark.parametrize("connection_field", [b"", b"Connection: close\r\n"])
def test_a_client_that_waits_for_a_100_gets_it(tmp_path: Path, connection_field: bytes) -> None:
    async def work(running: Running) -> None:
        connection, transport = connected(HttpServer(running.app))
        key = f"Authorization: Bearer {running.secret}\r\n".encode()
        head = b"POST /v1/pets HTTP/1.1\r\nHost: here\r\nContent-Length: 29\r\nExpect: 100-continue\r\n"
        connection.data_received(head + key + connection_field + b"\r\n")
        await until(lambda: transport.data)
        assert transport.data == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.data_received(b'{"name":"Rex","categoryId":1}')
        await until(lambda: b"201 Created" in transport.data)

    use_app(tmp_path, work)


def test_a_connection_that_is_accepted_during_a_drain_is_waited_for() -> None:
    async def work() -> None:
        server = HttpServer(app := Slow(Large()))
        first, _ = connected(server)
        draining = asyncio.create_task(server.drain(5.0, idle=5.0))
        await asyncio.sleep(0)
        first.connection_lost(None)
        last, transport = connected(server)  # its handshake is complete now
        last.data_received(ALIVE)
        await asyncio.sleep(0.05)
        assert not draining.done()
        app.may_go.set()
        await until(lambda: transport.closed)
        last.connection_lost(None)
        await draining
        assert transport.data.startswith(b"HTTP/1.1 200 OK")

    asyncio.run(work())


def test_a_client_that_takes_no_responses_is_sent_no_more() -> None:
    async def work() -> None:
        server = HttpServer(Large())
        async with over_a_socket(server) as (connection, reader):
            connection.data_received(ALIVE * 20 + closing(ALIVE))
            await asyncio.sleep(0.1)
            assert connection.unsent_bytes <= WRITE_HIGH + PART_MAX
            assert (await reader.read()).count(b"HTTP/1.1 200 OK") == 21

    asyncio.run(work())


@pytest.mark.parametrize("behind", [b"", b"POST /v1/pets HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\n"])
def test_a_client_that_takes_no_responses_is_cut_off(behind: bytes) -> None:
    async def work() -> None:
        server = HttpServer(Large())
        async with over_a_socket(server) as (connection, _):
            connection.data_received(ALIVE * 8 + behind)
            for waited in (0, WRITE_TIMEOUT + 1, 2 * WRITE_TIMEOUT + 2):
                await asyncio.sleep(0.05)  # until the kernel's buffers are full
                if connection in server.connections:
                    connection.sweep(server.now + waited)
            await asyncio.sleep(0)
            assert not server.connections

    asyncio.run(work())


def test_a_client_that_takes_its_response_slowly_gets_it() -> None:
    async def work() -> None:
        server = HttpServer(Large())
        connection, transport = connected(server)
        connection.data_received(ALIVE)
        await until(lambda: transport.data)
        left, now = len(transport.data), server.now
        while left > WRITE_LEAST:
            transport.unsent = left
            connection.sweep(now)
            left, now = left - WRITE_LEAST, now + WRITE_TIMEOUT
            connection.sweep(now - 1)
            assert not transport.aborted
        connection.sweep(now + 2)
        assert transport.aborted

    asyncio.run(work())


def test_a_client_that_only_asks_for_more_is_cut_off() -> None:
    async def work() -> None:
        server = HttpServer(Large())
        connection, transport = connected(server)
        for second in range(int(WRITE_TIMEOUT) + 3):
            transport.unsent += 1_000  # one more response each second, and the client reads none
            connection.write(b"x" * 1_000)
            connection.sweep(server.now + second)
        assert transport.aborted

    asyncio.run(work())


@pytest.mark.parametrize("unsent", [0, 100_000])
def test_what_a_connection_holds_is_counted_and_given_back(tmp_path: Path, unsent: int) -> None:
    async def work(running: Running) -> None:
        slow = Slow(running.app)
        server = HttpServer(slow)
        connection, transport = connected(server)
        idle = server.held
        connection.data_received(ALIVE.replace(b"Host", b"X: " + b"x" * 20_000 + b"\r\nHost") + b"GET")
        assert server.held - idle >= 20_000
        transport.unsent = unsent
        connection.pause_writing()
        assert server.held - idle >= 20_000 + unsent
        transport.unsent = 0
        connection.resume_writing()
        slow.may_go.set()
        await until(lambda: transport.data)
        assert server.held == idle > UNCOUNTED_MAX
        connection.connection_lost(None)
        assert server.held == 0

    use_app(tmp_path, work)


def upload(length: int) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % length


def test_all_that_waits_of_a_body_is_counted() -> None:
    async def work() -> None:
        server = HttpServer(Slow(Large()))
        connection, _ = connected(server)
        connection.data_received(upload(9_000_000))
        for _ in range(9):
            connection.data_received(b"x" * 500_000)
        assert server.held >= 4_500_000

    asyncio.run(work())


class Reading(Large):
    """An application that reads request bodies and discards them."""

    def __init__(self) -> None:
        self.read = 0

    async def answer(self, request: RequestMessage) -> Reply:
        while request.stream is not None and (part := await request.stream.read()):
            self.read += len(part)
        return Reply(200, "", b"")


def test_of_an_upload_only_what_may_be_in_memory_is_counted() -> None:
    async def work() -> None:
        server = HttpServer(app := Reading())
        connection, _ = connected(server)
        connection.data_received(upload(9_000_000))
        for turn in range(1, 10):
            connection.data_received(b"x" * 500_000)
            await until(lambda: app.read == turn * 500_000)  # noqa: B023  # awaited in the same iteration
        connection.sweep(server.now)
        assert server.held < 300_000

    asyncio.run(work())


def test_a_full_body_is_not_read_on_when_a_response_before_it_is_taken() -> None:
    async def work() -> None:
        server = HttpServer(app := Slow(Reading()))
        connection, transport = connected(server)
        connection.data_received(ALIVE + upload(300_000) + b"x" * (BUFFER_MAX + 1))
        assert not transport.reading
        for _ in range(3):  # the client reads parts of the first response
            connection.pause_writing()
            connection.resume_writing()
            assert not transport.reading
        app.may_go.set()
        await until(lambda: transport.reading)

    asyncio.run(work())


def test_a_body_that_is_taken_is_not_read_on_while_the_client_takes_no_responses() -> None:
    async def work() -> None:
        server = HttpServer(app := Slow(reading := Reading()))
        connection, transport = connected(server)
        connection.data_received(upload(300_000) + b"x" * (BUFFER_MAX + 1))
        connection.pause_writing()
        app.may_go.set()
        await until(lambda: reading.read)
        assert not transport.reading
        connection.resume_writing()
        assert transport.reading

    asyncio.run(work())


def test_the_address_that_holds_most_is_closed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MEMORY_MAX", 500_000)
    monkeypatch.setattr(http_server, "MEMORY_AFTER", 400_000)
    unfinished = b"GET / HTTP/1.1\r\nX: " + b"x" * 25_000

    async def work(running: Running) -> None:
        server = HttpServer(Slow(running.app))
        modest, its_transport = connected(server, "192.0.2.1")
        modest.data_received(unfinished)
        greedy = [connected(server, "192.0.2.2") for _ in range(9)]
        for connection, _ in greedy:
            connection.data_received(unfinished)
        assert server.held <= 500_000 and not its_transport.aborted
        closed = [transport.aborted for _, transport in greedy]
        assert 1 <= closed.count(True) < 9
        for connection, transport in greedy:
            if transport.aborted:
                connection.data_received(b"x" * 5_000)  # data that had already arrived
                connection.connection_lost(None)
        assert len(server.connections) == 1 + closed.count(False)
        others = [connected(server, f"198.51.100.{number}") for number in range(60)]  # idle, from many addresses
        assert server.held <= 500_000 and not others[-1][1].aborted

    use_app(tmp_path, work)


def test_a_client_that_sends_ahead_is_not_read_until_it_is_answered(tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        slow = Slow(running.app)
        connection, transport = connected(HttpServer(slow))
        asked = 0
        while transport.reading and asked < 1_000:
            connection.data_received(ALIVE)
            asked += 1
        assert PIPELINE_MAX <= asked < PIPELINE_MAX + 3
        connection.pause_writing()
        connection.resume_writing()
        assert not transport.reading
        slow.may_go.set()
        await until(lambda: transport.data.count(b"HTTP/1.1 200 OK") == asked)
        assert transport.reading

    use_app(tmp_path, work)


def test_thousands_of_requests_in_one_read_do_not_keep_others_waiting(tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        server = HttpServer(running.app)
        (greedy, much), (modest, little) = connected(server), connected(server)
        greedy.data_received(ALIVE * 1_000)
        modest.data_received(ALIVE)
        await until(lambda: little.data)
        assert much.data.count(b"HTTP/1.1 200 OK") < 10
        await until(lambda: much.data.count(b"HTTP/1.1 200 OK") == 1_000)

    use_app(tmp_path, work)


@pytest.mark.parametrize("last", [b"GET /healthz HTTP/1.0\r\n\r\n", closing(ALIVE)], ids=["1.0", "close"])
def test_what_comes_behind_the_last_request_is_not_answered(tmp_path: Path, last: bytes) -> None:
    async def work(running: Running) -> None:
        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        assert await sent(HttpServer(running.app), ALIVE + last + b"x") == [200, 200]
        assert not errors

    use_app(tmp_path, work)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: here\r\nX-Note: " + b"x" * HEAD_MAX + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * HEAD_MAX + b"x HTTP/1.1\r\nHost: here\r\n\r\n", 414),
    ],
    ids=["431", "414"],
)
def test_a_head_is_too_large_behind_another_message_too(tmp_path: Path, head: bytes, status: int) -> None:
    async def work(running: Running) -> None:
        assert await sent(HttpServer(running.app), ALIVE + head) == [200, status]

    use_app(tmp_path, work)


def test_a_connect_ends_its_connection(tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        server = HttpServer(running.app)
        for _ in range(2):
            assert await sent(server, b"CONNECT here:80 HTTP/1.1\r\nHost: here:80\r\n\r\n") == [405]

    use_app(tmp_path, work)


def test_an_unfinished_head_is_answered_with_408_and_an_idle_connection_just_closed(tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        server = HttpServer(running.app)
        (slow, trickle), (idle, silence) = connected(server), connected(server)
        slow.data_received(b"GET /healthz HTTP/1.1\r\n")
        for connection in (slow, idle):
            connection.sweep(server.now + HEAD_TIMEOUT + 1)
        await until(lambda: trickle.closed)
        assert trickle.data.startswith(b"HTTP/1.1 408") and not silence.closed
        idle.sweep(server.now + IDLE_TIMEOUT + 1)
        assert silence.closed and not silence.data

    use_app(tmp_path, work)


def test_empty_lines_keep_no_connection_open(tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        server = HttpServer(running.app)
        (idle, silence), (noisy, noise), (usual, answer) = connected(server), connected(server), connected(server)
        idle.data_received(b"\r\n")
        server.now += IDLE_TIMEOUT
        idle.data_received(b"\r\n")
        idle.sweep(server.now + 1)
        assert silence.closed and not silence.data
        for _ in range(EMPTY_BYTES_MAX // 2 + 1):
            noisy.data_received(b"\r\n")
        await until(lambda: noise.closed)
        assert noise.data.startswith(b"HTTP/1.1 400")
        for _ in range(EMPTY_BYTES_MAX):
            usual.data_received(b"\r\n" + ALIVE)
            await until(lambda: answer.data.endswith(b"}"))
            answer.data = b""
        assert not answer.closed

    use_app(tmp_path, work)


@pytest.mark.parametrize(
    "message",
    [b"HEAD /" + b"x" * 9_000 + b" HTTP/1.1\r\n\r\n", b"HEAD / HTTP/1.1\r\nHost: two words\r\n\r\n", b"HEAD / HTTP"],
)
def test_a_rejected_head_request_gets_no_body(tmp_path: Path, message: bytes) -> None:
    async def work(running: Running) -> None:
        server = HttpServer(running.app)
        connection, transport = connected(server)
        connection.data_received(message)
        if not message.endswith(b"\r\n\r\n"):
            connection.sweep(server.now + HEAD_TIMEOUT + 1)
        await until(lambda: transport.closed)
        assert transport.data.startswith(b"HTTP/1.1 4") and transport.data.endswith(b"\r\n\r\n")

    use_app(tmp_path, work)


def test_a_head_that_trickles_in_has_one_time_limit(tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        server = HttpServer(running.app)
        connection, transport = connected(server)
        for octet in b"GET /healthz":
            connection.data_received(bytes([octet]))
            server.now += 1
            connection.sweep(server.now)
            for _ in range(9):
                await asyncio.sleep(0)
        await until(lambda: transport.closed)
        assert transport.data.startswith(b"HTTP/1.1 408")

    use_app(tmp_path, work)


def test_a_connection_that_outlasts_the_drain_is_lost_like_any_other(tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        server = HttpServer(Slow(running.app))
        connection, _ = connected(server)
        connection.data_received(ALIVE)
        await server.drain(0.01)
        assert server.connections == {connection}
        connection.connection_lost(None)
        assert not server.connections

    use_app(tmp_path, work)


def test_connections_are_bounded_per_address_and_in_all(tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        server = HttpServer(
            running.app, connections_max=5, per_address_max=2, is_exempt=lambda address: address == "10.0.0.1"
        )
        peers = ["192.0.2.1"] * 3 + ["192.0.2.2"] + ["10.0.0.1"] * 3
        opened = [connected(server, peer) for peer in peers]
        assert [transport.aborted for _, transport in opened] == [False, False, True, False, False, False, True]
        opened[0][0].connection_lost(None)
        assert not connected(server, "192.0.2.1")[1].aborted  # there is room again

    use_app(tmp_path, work)


@pytest.mark.parametrize("message", [ALIVE * 2, b"\x00\r\n\r\n"], ids=["a request", "no request"])
def test_a_bug_of_the_application_ends_its_connection(message: bytes, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Large):
        async def answer(self, request: RequestMessage) -> Reply:
            raise ZeroDivisionError

        async def reject(self, status: int, peer: str) -> Reply:
            raise ZeroDivisionError

    async def work() -> None:
        async with over_a_socket(HttpServer(Broken())) as (connection, reader):
            connection.data_received(message)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""

    asyncio.run(work())
    assert [(each.getMessage(), each.exc_info and each.exc_info[0]) for each in caplog.records] == [
        ("internal error", ZeroDivisionError)
    ]


def test_nothing_outlives_its_connection(tmp_path: Path) -> None:
    """The garbage collector is disabled, because freeing memory must not depend on it."""

    async def work(running: Running) -> None:
        server = HttpServer(running.app)
        gone = []
        for data in (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 9_000, ALIVE, ALIVE * 3 + b"GET", b"POST / HTTP/1.1\r\n"
                     b"Host: here\r\nContent-Length: 9\r\n\r\nx"):  # fmt: skip
            connection, transport = connected(server)
            connection.data_received(data)
            for _ in range(20):
                await asyncio.sleep(0)
            connection.connection_lost(None)
            gone.append(weakref.ref(connection))
            del connection, transport
        for _ in range(20):
            await asyncio.sleep(0)
        assert [each() for each in gone] == [None] * 4

    gc.disable()
    try:
        use_app(tmp_path, work)
    finally:
        gc.enable()
