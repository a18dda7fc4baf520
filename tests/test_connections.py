"""What a connection does for clients that ask too much, take nothing, or say more than they should."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from petstore.server import server as http_server
from petstore.server.connection import WRITE_LEAST, WRITE_SECONDS, Connection
from petstore.server.framing import HEAD_MAX, PIPELINE_MAX
from petstore.server.server import HttpServer
from petstore.store import Store
from petstore.web.app import App
from petstore.web.replies import Reply
from petstore.web.requests import Request
from tests.connections import Slow, connected, only
from tests.test_web_in_process import use_app
from tests.wire import split

ALIVE = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"
LARGE = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: here\r\n\r\n"


def closing(message: bytes) -> bytes:
    return message.replace(b"Host", b"Connection: close\r\nHost")


async def listen(server: HttpServer) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(lambda: Connection(server), "127.0.0.1", 0)


@contextlib.asynccontextmanager
async def connection_over(server: HttpServer) -> AsyncIterator[tuple[Connection, asyncio.StreamReader]]:
    """One over a socket, and what its client can read. The client takes little at a time, and closes at the end."""
    async with await listen(server) as listening, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname(), limit=1024)
        while not server.connections:
            await asyncio.sleep(0)
        yield only(server), reader
        writer.close()
        while server.connections:
            await asyncio.sleep(0)


async def sent(server: HttpServer, data: bytes) -> list[int]:
    """What one read of these bytes is answered with, until the connection is closed."""
    async with connection_over(server) as (connection, reader):
        connection.data_received(data)
        return [response.status for response in split(await reader.read())]


def test_a_client_that_takes_no_answers_is_given_no_more(tmp_path: Path) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        async with connection_over(HttpServer(app)) as (connection, reader):
            connection.data_received(LARGE * 20 + closing(LARGE))
            await asyncio.sleep(0.1)
            assert len(connection._messages.waiting) > 10 and connection._transport.get_write_buffer_size() < 8_000_000
            assert (await reader.read()).count(b"HTTP/1.1 200 OK") == 21

    use_app(tmp_path, work)


@pytest.mark.parametrize("behind", [b"", b"POST /v1/pets HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\n"])
def test_nor_is_it_kept_for_long_whatever_it_has_begun_to_say(tmp_path: Path, behind: bytes) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        server = HttpServer(app)
        async with connection_over(server) as (connection, _):
            connection.data_received(LARGE * 8 + behind)
            for waited in (0, WRITE_SECONDS + 1, 2 * WRITE_SECONDS + 2):
                await asyncio.sleep(0.05)  # until the kernel takes no more
                if connection in server.connections:
                    connection.sweep(server.now + waited)
            await asyncio.sleep(0)
            assert not server.connections

    use_app(tmp_path, work)


def test_a_client_that_takes_its_answer_slowly_gets_it(tmp_path: Path) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        server = HttpServer(app)
        connection, end = connected(server)
        connection.data_received(LARGE)
        left, now = len(end.data), server.now
        while left > WRITE_LEAST:
            end.unsent = left
            connection.sweep(now)
            left, now = left - WRITE_LEAST, now + WRITE_SECONDS
            connection.sweep(now - 1)
            assert not end.aborted
        connection.sweep(now + 2)
        assert end.aborted

    use_app(tmp_path, work)


def test_a_client_that_asks_on_and_on_is_not_read_until_it_is_answered(tmp_path: Path) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        slow = Slow(app)
        server = HttpServer(slow)  # type: ignore[arg-type]  # the one method that a server calls
        connection, end = connected(server)
        asked = 0
        while end.reading and asked < 1_000:  # one by one, so that the head is known from the second on
            connection.data_received(ALIVE)
            asked += 1
        assert PIPELINE_MAX < asked < PIPELINE_MAX + 3
        connection.pause_writing()
        connection.resume_writing()
        assert not end.reading
        slow.may_go.set()
        async with asyncio.timeout(20):
            while end.data.count(b"HTTP/1.1 200 OK") < asked:
                await asyncio.sleep(0)
        assert end.reading

    use_app(tmp_path, work)


def test_thousands_of_requests_in_one_read_do_not_keep_others_waiting(tmp_path: Path) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        server = HttpServer(app)
        (greedy, much), (modest, little) = connected(server), connected(server)
        greedy.data_received(ALIVE * 1_000)
        assert much.data.count(b"HTTP/1.1 200 OK") == PIPELINE_MAX
        assert len(greedy._messages.waiting) < 200  # the others were not even looked at
        modest.data_received(ALIVE)
        assert little.data.count(b"HTTP/1.1 200 OK") == 1
        async with asyncio.timeout(20):
            while greedy._messages.waiting:
                await asyncio.sleep(0)
        assert much.data.count(b"HTTP/1.1 200 OK") == 1_000

    use_app(tmp_path, work)


@pytest.mark.parametrize("last", [b"GET /healthz HTTP/1.0\r\n\r\n", closing(ALIVE)], ids=["1.0", "close"])
def test_what_comes_behind_the_last_request_is_not_answered(tmp_path: Path, last: bytes) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
        assert await sent(HttpServer(app), ALIVE + last + b"x") == [200, 200]
        assert not complaints

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
    async def work(app: App, store: Store, secret: str) -> None:
        assert await sent(HttpServer(app), ALIVE + head) == [200, status]

    use_app(tmp_path, work)


def test_each_connect_ends_its_connection(tmp_path: Path) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        server = HttpServer(app)
        for _ in range(2):
            assert await sent(server, b"CONNECT here:80 HTTP/1.1\r\nHost: here:80\r\n\r\n") == [404]

    use_app(tmp_path, work)


def test_a_connection_that_outlasts_the_end_is_lost_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "DRAIN_SECONDS", 0.01)

    async def work(app: App, store: Store, secret: str) -> None:
        server = HttpServer(Slow(app))  # type: ignore[arg-type]  # the one method that a server calls
        connection, _ = connected(server)
        connection.data_received(ALIVE)
        await server.drain()
        assert server.connections == {connection}
        connection.connection_lost(None)
        assert not server.connections

    use_app(tmp_path, work)


class Whimsical:
    """An app that now waits and now does not, reads a body in pieces, and says how long it was."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    async def _perhaps_wait(self) -> None:
        if self._dice.random() < 0.4:
            await asyncio.ensure_future(asyncio.sleep(self._dice.choice([0, 0.001])))

    async def answer(self, request: Request) -> Reply:
        await self._perhaps_wait()
        length = 0
        async for piece in request.body():
            length += len(piece)
            await self._perhaps_wait()
        return Reply(200, "", f"{request.path} {length} ".encode() + b"." * self._dice.choice([0, 0, 100, 150_000]))


@pytest.mark.parametrize("seed", range(3))
def test_pipelines_of_all_sizes_are_answered_whole_and_in_order(seed: int) -> None:
    """Over sockets whose buffers run full in both directions, so that reading and writing pause all the time."""
    dice = random.Random(seed)

    def message(number: int) -> tuple[bytes, str]:
        length = dice.choice([0, 0, 0, 10, 60_000, 300_000])
        head, body = f"POST /{number} HTTP/1.1\r\nHost: here\r\n".encode(), b"x" * length
        if dice.random() < 0.5:
            return head + b"Content-Length: %d\r\n\r\n" % length + body, f"/{number} {length}"
        step = dice.choice([1_000, 65_536, 130_000])
        chunks = [b"%x\r\n%s\r\n" % (len(c), c) for c in (body[i : i + step] for i in range(0, length, step))]
        whole = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n"
        return whole, f"/{number} {length}"

    async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
        while data:
            size = dice.choice([50, 5_000, 500_000])
            writer.write(data[:size])
            await writer.drain()
            data = data[size:]

    async def work() -> None:
        server = HttpServer(Whimsical(dice))  # type: ignore[arg-type]  # the one method that a server calls
        async with await listen(server) as listening, asyncio.timeout(60):
            for _ in range(8):
                reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname(), limit=4_096)
                messages = [message(number) for number in range(dice.choice([3, 30, 300]))]
                async with asyncio.TaskGroup() as sending:
                    sending.create_task(send(writer, b"".join(sent for sent, _ in messages)))
                    for _, expected in messages:
                        head = await reader.readuntil(b"\r\n\r\n")
                        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                        assert (await reader.readexactly(length)).decode().rstrip(".").rstrip() == expected
                writer.close()

    uvloop.run(work())
