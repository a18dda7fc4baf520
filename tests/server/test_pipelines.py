"""Pipelined requests over sockets whose buffers fill up in both directions."""

import asyncio
import random
import socket
from typing import Any

import pytest
import uvloop

from harness.in_process import listen
from petstore.server.asgi_bridge import AsgiBridge
from petstore.server.http_server import HttpServer
from petstore.server.messages import RequestMessage
from petstore.web.replies import Reply


class Irregular:
    """An application that sometimes waits, reads a body in pieces, and responds with its length."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    async def _perhaps_wait(self) -> None:
        if self._dice.random() < 0.4:
            await asyncio.sleep(self._dice.choice([0, 0.001]))

    async def answer(self, request: RequestMessage) -> Reply:
        await self._perhaps_wait()
        length = len(request.body)
        if request.stream is not None:
            while piece := await request.stream.read():
                length += len(piece)
                await self._perhaps_wait()
        return Reply(200, "", f"{request.path} {length} ".encode() + b"." * self._dice.choice([0, 0, 100, 150_000]))

    async def reject(self, status: int, peer: str) -> Reply:
        return Reply(status, "", b"")


@pytest.mark.parametrize("seed", range(2))
def test_pipelines_of_all_sizes_are_answered_completely_and_in_order(seed: int) -> None:
    """Reading and writing are paused frequently."""
    dice = random.Random(seed)

    def message(number: int) -> tuple[bytes, str]:
        length = dice.choice([0, 0, 0, 10, 60_000, 300_000])
        head, body = f"POST /{number} HTTP/1.1\r\nHost: here\r\n".encode(), b"x" * length
        if dice.random() < 0.5:
            return head + b"Content-Length: %d\r\n\r\n" % length + body, f"/{number} {length}"
        step = dice.choice([1_000, 65_536, 130_000])
        chunks = [b"%x\r\n%s\r\n" % (len(c), c) for c in (body[i : i + step] for i in range(0, length, step))]
        encoded = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n"
        return encoded, f"/{number} {length}"

    async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
        while data:
            size = dice.choice([50, 5_000, 500_000])
            writer.write(data[:size])
            await writer.drain()
            data = data[size:]

    async def work() -> None:
        server = HttpServer(Irregular(dice))
        async with await listen(server) as listening, asyncio.timeout(60):
            for _ in range(5):
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


def test_of_an_upload_behind_a_slow_download_little_is_taken() -> None:
    """Writing is paused after each part of a generated download, such as an export from the console."""
    parts, part = 100, b"x" * 256 * 1024
    upload = 32 * 1024 * 1024
    kernel = 64 * 1024  # the size of each kernel buffer

    async def download(scope: Any, receive: Any, send: Any) -> None:
        length = b"%d" % (parts * len(part))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        for number in range(parts):
            await asyncio.sleep(0.002)  # the client reads the previous part, and writing resumes
            await send({"type": "http.response.body", "body": part, "more_body": number < parts - 1})

    async def work() -> None:
        server = HttpServer(AsgiBridge(download, scheme="http", host="here", port=80))
        async with await listen(server) as listening, asyncio.timeout(60):
            plain = socket.socket()
            for each in (listening.sockets[0], plain):  # connections inherit the buffers of their listener
                each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, kernel)
                each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, kernel)
            plain.connect(listening.sockets[0].getsockname())
            reader, writer = await asyncio.open_connection(sock=plain, limit=1024)
            writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % upload)
            writer.write(b"x" * upload)
            await reader.readexactly(parts * len(part) * 3 // 4)
            taken = upload - writer.transport.get_write_buffer_size()
            writer.transport.abort()
            while server.connections:
                await asyncio.sleep(0)
        assert taken < 1024 * 1024

    uvloop.run(work())
