"""A load at a fixed rate. Requests are sent when they are due, even if earlier ones have not been answered.

Latency is measured from the moment a request was due, so a stall affects all requests that were due during it.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Answer(NamedTuple):
    due: float  # by time.monotonic
    seconds: float
    status: int


class _Line(asyncio.Protocol):
    """A connection that sends requests and receives their responses in the same order."""

    def __init__(self) -> None:
        self.waiting: list[float] = []
        self.answers: list[Answer] = []
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while True:
            head, end, rest = self._data.partition(b"\r\n\r\n")
            if not end:
                return
            at = head.lower().find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(rest) < length:
                return
            self._data = rest[length:]
            due = self.waiting.pop(0)
            self.answers.append(Answer(due, time.monotonic() - due, int(head[9:12])))


async def steady(
    port: int, make: Callable[[int], bytes], *, per_second: int, seconds: float, lines: int = 16
) -> list[Answer]:
    """Sends requests at a fixed rate and returns the responses. A request without a response has the status 0."""
    with _no_garbage_collection():
        return await _steady(port, make, per_second, seconds, lines)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disables garbage collection, because a full collection in this process takes up to 40 ms and distorts latency."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _steady(port: int, make: Callable[[int], bytes], per_second: int, seconds: float, lines: int) -> list[Answer]:
    loop = asyncio.get_running_loop()
    opened = [(await loop.create_connection(_Line, "127.0.0.1", port))[1] for _ in range(lines)]
    began = time.monotonic()
    sent, total = 0, int(per_second * seconds)
    while sent < total:
        while sent < total and began + sent / per_second <= time.monotonic():
            line = opened[sent % lines]
            line.waiting.append(began + sent / per_second)
            line.transport.write(make(sent))
            sent += 1
        await asyncio.sleep(max(0.0, began + sent / per_second - time.monotonic()))
    deadline = time.monotonic() + 10
    while any(line.waiting for line in opened) and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
    answers = [answer for line in opened for answer in line.answers]
    answers += [Answer(due, time.monotonic() - due, 0) for line in opened for due in line.waiting]
    for line in opened:
        line.transport.abort()
        await line.lost
    return answers


def percentile(answers: list[Answer], share: float) -> float:
    """Returns a percentile of the latencies in milliseconds."""
    ordered = sorted(answer.seconds for answer in answers)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]
