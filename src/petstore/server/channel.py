"""The channel between the main process and a worker: a socket pair, whose end in the worker is standard input.

The main process sends an `Order` as one line of JSON, and later commands. The worker sends reports. Each command and
each report is one line. Each process learns from the end of the channel that the other one has died.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from petstore.settings import Settings

ORDER_MAX = 16 * 1024 * 1024  # maximum bytes of a line

# Commands
DRAIN = "drain"  # close each connection after its next response, because the service is about to stop
RETIRE = "retire"  # stop accepting connections, because another worker accepts them, and exit within about a minute
STOP = "stop"  # with a number of seconds: stop accepting connections, and finish all requests within that time

# Reports
OPENING = "opening"  # still opening the store, for example because the schema is being migrated; sent repeatedly
READY = "ready"  # accepts connections
FAILED = "failed"  # with the reason: cannot start
CONNECTIONS = "connections"  # with the number of open connections; the reply to DRAIN


class Order(msgspec.Struct):
    """The first message to a worker."""

    settings: Settings
    running: Settings | None  # the settings of the workers that already serve requests, if any
    sockets: list[int]  # file descriptors

    def line(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=str) + b"\n"


class Channel:
    """The worker's end of the channel."""

    def __init__(self, reader: asyncio.StreamReader, reports: socket.socket) -> None:
        self._reader = reader
        self._reports = reports

    @classmethod
    async def open(cls) -> "Channel":
        channel = socket.socket(fileno=0)
        reports = channel.dup()  # can be used while the event loop is blocked
        reader, _ = await asyncio.open_unix_connection(sock=channel, limit=ORDER_MAX)
        return cls(reader, reports)

    async def order(self) -> Order:
        return msgspec.json.decode(await self._reader.readline(), type=Order, dec_hook=lambda _, path: Path(path))

    async def commands(self) -> AsyncIterator[tuple[str, str]]:
        """Yields each command with its argument. Ends if the main process dies."""
        async for line in self._reader:
            yield split(line)

    def report(self, name: str, argument: str = "") -> None:
        with contextlib.suppress(OSError):  # the main process is dead, so this worker is about to exit
            self._reports.send(joined(name, argument))


def joined(name: str, argument: str) -> bytes:
    """Returns the line for a command or a report. Line breaks in the argument become spaces."""
    return f"{name} {' '.join(argument.split())}\n".encode(errors="backslashreplace")


def split(line: bytes) -> tuple[str, str]:
    name, _, argument = line.decode().rstrip("\n").partition(" ")
    return name, argument
