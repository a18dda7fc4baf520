"""The main process: starts workers, replaces workers that die, reloads without dropping requests, and stops.

A reload (SIGHUP) starts new workers next to the current ones. When all new workers are ready, the main process retires
the old ones. If a new worker cannot start, the main process ends the new workers and keeps the old ones.

If a worker cannot be restarted, the main process keeps trying while the other workers serve requests. It gives up and
exits only if workers keep crashing and none is ready.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

from petstore.errors import OperatorError, PetstoreError
from petstore.observability.logs import event, logger
from petstore.server.channel import Order
from petstore.server.notify import Notifier
from petstore.server.sockets import Sockets
from petstore.server.worker_process import Worker
from petstore.settings import Settings

STOP_TIMEOUT = 4.5
EXTENSION = 30  # seconds until systemd's next timeout, while the store is still opening
DRAIN_SECONDS = 2.5  # longer than the supplied proxies' health checks take to notice that the service is not ready
FLUSH_SECONDS = 0.5  # on shutdown, time for a worker to write its usage after its last response
CRASHES_MAX = 5
PAUSE_MIN, PAUSE_MAX = 0.1, 30.0  # seconds


def pause_after(crashes: int) -> float:
    """Returns how many seconds to wait before restarting a worker that has crashed this many times in succession."""
    return min(PAUSE_MAX, PAUSE_MIN * 2.0 ** min(crashes - 1, 16)) if crashes else 0.0


class Supervisor:
    def __init__(self, sockets: list[Sockets], count: int, settings: Settings, reread: Callable[[], Settings]) -> None:
        """`sockets` has a group of sockets for each of `count` workers, or one group for all workers.

        `reread` returns the settings for a reload, and raises OperatorError if they are not valid.
        """
        self._sockets = sockets
        self._count = count
        self._settings = settings  # of the current workers
        self._reread = reread
        self._workers: dict[int, Worker] = {}  # the current worker of each slot
        self._keepers: dict[int, asyncio.Task[None]] = {}
        self._alive: set[Worker] = set()  # including retired workers, and the new workers of a reload
        self._crashes = 0  # since the last time a worker died after running for at least a second
        self._notifier = Notifier()
        self._is_opening = False  # whether a start or a reload takes long because the store is still opening
        self._is_reloading = False
        self._stopping = asyncio.Event()
        self._interrupted = asyncio.Event()  # whether to stop without a drain
        self._reload_requested = asyncio.Event()
        self._failed = False

    async def run(self, greet: Callable[[], Awaitable[None]]) -> int:
        """Runs until SIGTERM or SIGINT. Returns the exit code, which is 1 if the workers kept dying.

        Calls `greet` when all workers are ready for the first time. Raises OperatorError if a worker cannot start.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stopping.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGHUP, self._request_reload)
        serving = asyncio.create_task(self._serve(greet))
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        self._stopping.set()
        serving.cancel()
        stopping.cancel()
        await self._stop()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        event(logging.INFO, "stopped")
        return 1 if self._failed else 0

    async def _serve(self, greet: Callable[[], Awaitable[None]]) -> None:
        self._install(await self._start_workers(self._settings, None))
        await greet()
        event(logging.INFO, "started", workers=self._count)
        self._notifier.ready(self._status)
        while True:
            await self._reload_requested.wait()
            self._reload_requested.clear()
            await self._reload()

    @property
    def _status(self) -> str:
        return f"Serving requests with {self._count} worker{'s' if self._count > 1 else ''}"

    # Workers

    async def _start_workers(self, settings: Settings, running: Settings | None) -> list[Worker]:
        """Starts a worker in each slot and waits until all are ready. Raises OperatorError if one cannot start."""
        self._is_opening = False
        workers = [self._start(slot, settings, running) for slot in range(self._count)]
        try:
            await asyncio.gather(*(worker.wait_until_ready() for worker in workers))
        except OperatorError:
            for worker in workers:
                worker.retire()  # a worker that is ready may have accepted requests, so let it finish
            raise
        return workers

    def _start(self, slot: int, settings: Settings, running: Settings | None) -> Worker:
        order = Order(settings, running, [each.fileno() for each in self._group_of(slot)])
        worker = Worker(slot, order, self._opening)
        self._alive = {worker, *(each for each in self._alive if not each.ended.is_set())}
        return worker

    def _opening(self) -> None:
        """Logs once that the store takes long to open, and tells systemd to wait. Called every few seconds."""
        if not self._is_opening:
            event(logging.INFO, "store opening", hint="the schema is being upgraded; the service will start afterwards")
        self._is_opening = True
        self._notifier.waiting(EXTENSION, "Waiting until the schema is up to date")

    def _group_of(self, slot: int) -> Sockets:
        return self._sockets[slot % len(self._sockets)]

    def _install(self, workers: list[Worker]) -> None:
        """Makes these the current workers, and retires the previous ones."""
        for worker in workers:
            if worker.slot in self._workers:
                self._keepers[worker.slot].cancel()
                self._workers[worker.slot].retire()
            self._workers[worker.slot] = worker
            self._keepers[worker.slot] = asyncio.create_task(self._keep(worker))

    async def _keep(self, worker: Worker) -> None:
        """Replaces a worker when it dies: immediately if it has worked, and otherwise after a pause that grows."""
        crashes = 0
        while True:
            await worker.ended.wait()
            crashes = 0 if worker.has_worked else crashes + 1
            self._crashes = 0 if worker.has_worked else self._crashes + 1
            pause = pause_after(crashes)
            retries = {"retry_seconds": pause} if pause else {}
            if worker.failure:
                event(logging.ERROR, "worker failed", cause=worker.failure, **retries)
            else:
                event(logging.ERROR, "worker died", worker=worker.pid, status=worker.status, **retries)
            if crashes:
                self._survive_crash(worker.slot)
            await asyncio.sleep(pause)
            worker = self._workers[worker.slot] = self._start(worker.slot, self._settings, self._settings)

    def _survive_crash(self, slot: int) -> None:
        """Shuts down the sockets of a slot whose worker cannot start, so that the kernel uses other workers' sockets.

        The next worker's `listen` reopens the sockets. If no worker is ready, stops the service after five crashes.
        """
        served = [self._group_of(worker.slot) for worker in self._alive if worker.accepts]
        if served and self._group_of(slot) not in served:
            for each in self._group_of(slot):
                # A second `shutdown` would also close the connections that the next worker accepts.
                if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    each.shutdown(socket.SHUT_RDWR)
        elif not served and self._crashes >= CRASHES_MAX and not self._is_reloading:
            event(logging.ERROR, "workers keep dying", hint="see the lines above")
            self._failed = True
            self._stopping.set()

    # Reload

    def _request_reload(self) -> None:
        if self._stopping.is_set():
            event(logging.WARNING, "reload ignored", cause="the service is stopping")
        else:
            if self._is_reloading and not self._reload_requested.is_set():
                event(logging.INFO, "reload queued")
            self._reload_requested.set()  # the reload in progress may have read the files before the latest change

    async def _reload(self) -> None:
        event(logging.INFO, "reload begins")
        self._notifier.reloading()
        self._is_reloading, status = True, "the last reload failed"
        try:
            settings = await self._read_settings()
            workers = await self._start_workers(settings, self._settings)
        except PetstoreError as error:
            event(logging.ERROR, "reload failed", cause=str(error), effect="the current workers keep running")
            status += f": {error}"
        except Exception:
            logger.exception("reload failed")
        else:
            self._settings = settings
            self._install(workers)
            event(logging.INFO, "reloaded", workers=len(workers))
            status = ""
        self._is_reloading = False
        self._notifier.ready(", but ".join(filter(None, (self._status, status))))

    async def _read_settings(self) -> Settings:
        """Rereads files in a daemon thread, because a named pipe or a hung disk could block this process forever."""
        settings: Future[Settings] = Future()

        def read() -> None:
            try:
                settings.set_result(self._reread())
            except Exception as error:
                settings.set_exception(error)

        settings.set_running_or_notify_cancel()
        threading.Thread(target=read, daemon=True).start()
        return await asyncio.wrap_future(settings)

    # Stop

    def _interrupt(self) -> None:
        self._interrupted.set()
        self._stopping.set()

    async def _stop(self) -> None:
        """Stops all workers, after a drain. Kills those that have not exited within STOP_TIMEOUT."""
        self._notifier.stopping("Finishing requests")
        deadline = asyncio.get_running_loop().time() + STOP_TIMEOUT
        for keeper in self._keepers.values():
            keeper.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drain(), DRAIN_SECONDS)
        # Each worker now has the only copy of its sockets. When it closes them, the kernel refuses connections.
        for each in (each for group in self._sockets for each in group):
            each.close()
        left = deadline - asyncio.get_running_loop().time()
        for worker in self._alive:
            worker.stop(left - FLUSH_SECONDS)
        ended = [asyncio.create_task(worker.ended.wait()) for worker in self._alive]
        if ended:
            await asyncio.wait(ended, timeout=left)
        for worker in self._alive:
            worker.kill()
            await worker.ended.wait()

    async def _drain(self) -> None:
        """Keeps serving while load balancers notice that the service is about to stop.

        Meanwhile, `/readyz` returns 503, each response closes its connection, and idle connections stay open. Returns
        immediately if no connection is open, and on SIGINT.
        """
        draining = [worker for worker in self._alive if worker.is_ready]
        if not draining or self._interrupted.is_set():
            return
        await asyncio.gather(*(worker.drain() for worker in draining))
        connections = sum(worker.connections or 0 for worker in draining)
        if connections:
            event(logging.INFO, "draining", connections=connections, seconds=DRAIN_SECONDS)
            await self._interrupted.wait()
