"""A worker process, as the main process sees it."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from petstore.errors import OperatorError
from petstore.server.channel import CONNECTIONS, DRAIN, FAILED, OPENING, READY, RETIRE, STOP, Order, joined, split

WORKER: tuple[str, ...] = ("petstore.worker",)  # the module that a worker runs, and its arguments
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # only the main process handles these
READY_TIMEOUT = 60.0  # seconds, not counting the time until the store is open
CRASH_SECONDS = 1.0  # a worker that dies within this many seconds is considered to have crashed on startup


class Worker:
    """A worker, from its start until its process has exited.

    If the process cannot be started, the worker counts as one that exited immediately.
    """

    def __init__(self, slot: int, order: Order, opening: Callable[[], None]) -> None:
        """Calls `opening` every few seconds while the worker opens the store."""
        self.slot = slot  # the index of the worker's sockets
        self.pid = 0
        self.status = 0  # the exit code, or a negative signal number
        self.failure = ""  # why the worker could not start, in its own words
        self.is_ready = False
        self.accepts = False  # whether it is ready and has not been retired or stopped
        self.connections: int | None = None  # the number of open connections, after `drain` has returned
        self.ended = asyncio.Event()
        self._opening = opening
        self._started = time.monotonic()
        self._progress = asyncio.Event()  # set by each report, and when the worker has ended
        try:
            channel, theirs = socket.socketpair()
            with theirs:
                self._process = _start_process(theirs, order.sockets)
        except OSError as error:  # too many processes or files, or out of memory
            self.failure = f"cannot start a process: {error.strerror}"
            self.ended.set()
            return
        self.pid = self._process.pid
        self._task = asyncio.create_task(self._attend(channel, order))

    @property
    def has_worked(self) -> bool:
        return self.is_ready and time.monotonic() - self._started >= CRASH_SECONDS

    async def wait_until_ready(self) -> None:
        """Raises OperatorError if the worker cannot start or is not ready in time."""
        while not self.is_ready:
            if self.ended.is_set():
                raise OperatorError(self.failure or f"a worker exited on startup with status {self.status}")
            try:
                await asyncio.wait_for(self._next_report(), READY_TIMEOUT)
            except TimeoutError:
                raise OperatorError(f"a worker was not ready within {READY_TIMEOUT:.0f} seconds") from None

    async def drain(self) -> None:
        """Tells the worker to close each connection after its next response, and waits for its reply."""
        self._tell(DRAIN)
        while self.connections is None and not self.ended.is_set():
            await self._next_report()

    async def _next_report(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    def retire(self) -> None:
        """Tells the worker to finish its requests and exit. Kills it if it is not ready."""
        self.accepts = False
        if self.is_ready:
            self._tell(RETIRE)
        else:
            self.kill()

    def stop(self, seconds: float) -> None:
        """Tells the worker to finish its requests within this time and exit. Kills it if it is not ready."""
        self.accepts = False
        if self.is_ready:
            self._tell(STOP, str(seconds))
        else:
            self.kill()

    def kill(self) -> None:
        if self.pid and not self.ended.is_set():
            os.kill(self.pid, signal.SIGKILL)

    def _tell(self, command: str, argument: str = "") -> None:
        self._writer.write(joined(command, argument))

    async def _attend(self, channel: socket.socket, order: Order) -> None:
        """Sends the order, reads the worker's reports, and waits until the process has exited."""
        reader, self._writer = await asyncio.open_unix_connection(sock=channel)
        self._writer.write(order.line())
        with contextlib.suppress(OSError):
            async for line in reader:
                self._note(*split(line))
        self._writer.close()
        self.status = self._process.wait()  # returns almost immediately, because the kernel has closed the channel
        self.accepts = False
        self.ended.set()
        self._progress.set()

    def _note(self, report: str, argument: str) -> None:
        if report == READY:
            self.is_ready = self.accepts = True
        elif report == FAILED:
            self.failure = argument
        elif report == CONNECTIONS:
            self.connections = int(argument)
        elif report == OPENING:
            self._opening()
        self._progress.set()


def _start_process(channel: socket.socket, sockets: Sequence[int]) -> "subprocess.Popen[bytes]":
    """Starts a fresh interpreter that finds the same modules as this process. Raises OSError.

    The interpreter inherits blocked signals, so that Ctrl-C and a closed terminal reach only the main process.
    """
    isolation = "-I" if sys.flags.isolated else "-P"  # neither adds the working directory to the module path
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        return subprocess.Popen(  # noqa: S603 # nosec B603  # runs this interpreter
            [sys.executable, isolation, "-m", *WORKER], stdin=channel.fileno(), pass_fds=sockets, env=environment
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
