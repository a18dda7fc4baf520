"""The main process: starts and stops workers, restarts workers that die, and reloads without dropping requests.

A reload (SIGHUP) first starts the service in a separate process as a trial. If the trial succeeds, the main process
replaces itself with the program on disk (`exec`), but keeps its listening sockets and its workers. It then starts new
workers on the same sockets. When all new workers are ready, it retires the old ones. If the new workers cannot start,
it keeps the old ones.

If a worker cannot be restarted, the main process keeps trying while the other workers serve requests. It gives up and
exits only if workers keep crashing and none is ready.
"""

import contextlib
import itertools
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial

from petstore.observability.logs import event
from petstore.server.reload_variables import Digests, Handover, trial_environment
from petstore.server.sockets import Sockets, inherited, worker_sockets
from petstore.server.worker_process import COVER, RETIRE, SIGNALS, Restarts, Work, Worker, run_worker

STOP_TIMEOUT = 4.5
CRASH_SECONDS = 1.0  # a worker that dies within this many seconds is considered to have crashed on startup
READY_TIMEOUT = 60.0  # a reload fails if its new workers are not ready within this many seconds
POLL = 0.02  # seconds between checks while a worker is starting


class Supervisor:
    def __init__(
        self, host: str, port: int, count: int, work: Work, predecessor: Handover | None, digests: Digests | None = None
    ) -> None:
        """A reload's trial start compares `digests` with the digests of the new settings.

        Raises OperatorError if the listening sockets cannot be opened.
        """
        self._work = work
        self._count = count
        self._digests = digests or {}
        found = predecessor or Handover([], {}, set(), self._digests, reload_again=False)
        self._running_digests = found.digests
        self._workers: dict[int, Worker] = {}
        self._previous = found.workers
        self._retired = found.retired
        self._taking_over = predecessor is not None
        self._reload_again = found.reload_again
        self._stopping = False
        self._failed = False
        self._restarts = Restarts()
        self._trial: subprocess.Popen[bytes] | None = None
        self._reload_deadline = time.monotonic() + READY_TIMEOUT
        sockets = [[inherited(fd) for fd in group] for group in found.sockets]
        self._sockets = sockets or worker_sockets(host, port, count)

    def run(self) -> int:
        """Runs until SIGTERM or SIGINT. Returns the exit code, which is 1 if the workers kept dying."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for slot in range(self._count):
            self._start(slot)
        self._reap()  # if a worker died during the `exec`, its SIGCHLD was lost
        while self._workers or self._restarts.due or self._previous or self._retired:
            received = signal.sigtimedwait(SIGNALS, self._wait())
            if received is not None:
                self._handle(received.si_signo)
            self._poll()
        return 1 if self._failed else 0

    def _wait(self) -> float:
        """Returns how many seconds to wait for a signal before calling `_poll`."""
        starting = any(not worker.is_ready for worker in self._workers.values())
        if starting or self._trial is not None or self._stopping:
            return POLL
        return min(3600.0, self._restarts.seconds_to_next(time.monotonic()))

    def _handle(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number == signal.SIGHUP:
            self._begin_reload()
        elif not self._stopping:
            self._stop()

    def _poll(self) -> None:
        """Starts due workers, checks which workers are ready and whether a trial has ended, and enforces timeouts."""
        now = time.monotonic()
        for slot in self._restarts.take_due(now):
            self._start(slot)
        for worker in self._workers.values():
            worker.check_ready()
        if self._taking_over and not self._restarts.due and all(worker.is_ready for worker in self._workers.values()):
            self._finish_reload()
        elif self._previous and now > self._reload_deadline and not self._stopping:
            self._give_up_reload("the new workers were not ready in time")
        if self._trial is not None and self._trial.poll() is not None:
            self._end_trial(self._trial)
        if self._reload_again and not self._is_reloading:
            self._reload_again = False
            self._begin_reload()
        if self._stopping and now > self._stop_deadline:
            self._signal({*self._workers, *self._previous, *self._retired}, signal.SIGKILL)

    # Workers

    def _start(self, slot: int) -> None:
        ready, written = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:  # out of memory, or too many processes
            os.close(ready)
            os.close(written)
            pause = self._restarts.crashed(slot, time.monotonic())
            event(logging.ERROR, "worker failed", cause=f"fork: {error.strerror}", retry_seconds=pause)
            self._survive_crash()
            return
        if pid == 0:
            os.close(ready)
            own, others = self._sockets_of(slot)
            run_worker(self._work, own, others, written)
        os.close(written)
        self._workers[pid] = Worker(pid, slot, ready)

    def _sockets_of(self, slot: int) -> Iterator[Sockets]:
        """Returns two lists of sockets: the worker's own, and all others.

        Every socket is assigned to a worker, even if a reload has changed the number of workers.
        """
        groups = len(self._sockets)
        mine = [slot % groups] if slot >= groups else range(slot, groups, self._count)
        others = [number for number in range(groups) if number not in mine]
        return ([each for number in numbers for each in self._sockets[number]] for numbers in (mine, others))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._trial is not None and pid == self._trial.pid:
                self._trial.returncode = os.waitstatus_to_exitcode(status)
                continue
            self._retired.discard(pid)
            worker = self._workers.pop(pid, None)
            was_old = self._previous.pop(pid, None) is not None
            if worker is not None:
                worker.check_ready()
                worker.close()
            if self._stopping or (worker is None and not was_old):
                continue
            code = os.waitstatus_to_exitcode(status)
            if worker is None:
                event(logging.ERROR, "worker died", worker=pid, status=code)
            else:
                self._replace(worker, code)

    def _replace(self, worker: Worker, code: int) -> None:
        now = time.monotonic()
        has_worked = worker.is_ready and now - worker.started >= CRASH_SECONDS
        gives_up = self._previous and not worker.is_ready
        pause = 0.0 if has_worked or gives_up else self._restarts.crashed(worker.slot, now)
        waits = {"retry_seconds": pause} if pause else {}
        event(logging.ERROR, "worker died", worker=worker.pid, status=code, **waits)
        if gives_up:
            self._give_up_reload("a new worker died on startup; see the lines above")
        elif has_worked:
            self._restarts.worked(worker.slot)
            self._start(worker.slot)
        else:
            self._survive_crash()

    def _survive_crash(self) -> None:
        """Tells a ready worker to cover for one that crashed on startup.

        If no worker is ready, stops the service after five crashes.
        """
        ready = [worker.pid for worker in self._workers.values() if worker.is_ready]
        if ready:
            self._signal({min(ready)}, COVER)
        elif self._restarts.keep_failing and not self._previous and not self._stopping:
            event(logging.ERROR, "workers keep dying", hint="see the lines above")
            self._failed = True
            self._stop()

    def _retire(self, pids: set[int]) -> None:
        self._retired |= pids
        self._signal(pids, RETIRE)

    def _stop(self) -> None:
        self._stopping = True
        self._taking_over = self._reload_again = False
        self._restarts.due.clear()
        self._stop_deadline = time.monotonic() + STOP_TIMEOUT
        self._signal({*self._workers, *self._previous, *self._retired}, signal.SIGTERM)

    def _signal(self, pids: set[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    # Reload

    @property
    def _is_reloading(self) -> bool:
        return self._trial is not None or self._taking_over

    def _begin_reload(self) -> None:
        if self._stopping:
            event(logging.WARNING, "reload ignored", cause="the service is stopping")
            return
        if self._is_reloading:  # the reload in progress may have read the files before the latest change
            if not self._reload_again:
                event(logging.INFO, "reload queued")
            self._reload_again = True
            return
        event(logging.INFO, "reload begins")
        try:
            self._trial_output = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the trial ends
            self._trial = subprocess.Popen(  # noqa: S603 # nosec B603  # runs this process's own command line
                [sys.executable, *sys.orig_argv[1:]],
                env=trial_environment(self._running_digests),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._trial_output,
                preexec_fn=partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, SIGNALS),
            )
        except OSError as error:
            _log_refusal(f"cannot run the trial start: {error.strerror}")

    def _end_trial(self, trial: subprocess.Popen[bytes]) -> None:
        self._trial = None
        with self._trial_output as output:
            output.seek(0)
            said = output.read(64 * 1024).decode(errors="replace").strip().splitlines()
        if trial.returncode != 0 and not self._stopping:
            _log_refusal(said[-1].removeprefix("petstore: ") if said else f"exit code {trial.returncode}")
        elif not self._stopping:
            self._exec()

    def _exec(self) -> None:
        """Replaces this process with the program on disk. Returns only on failure."""
        workers = {pid: worker.slot for pid, worker in self._workers.items()}
        descriptors = [[each.fileno() for each in group] for group in self._sockets]
        for descriptor in itertools.chain(*descriptors):
            os.set_inheritable(descriptor, True)
        handover = Handover(descriptors, workers, self._retired, self._running_digests, self._reload_again)
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            os.execve(  # noqa: S606 # nosec B606  # runs this process's own command line
                sys.executable, [sys.executable, *sys.orig_argv[1:]], handover.in_environment()
            )
        except OSError as error:
            _log_refusal(f"cannot start the new program: {error.strerror}")

    def _finish_reload(self) -> None:
        self._retire(set(self._previous))
        self._previous = {}
        self._taking_over = False
        self._running_digests = self._digests
        event(logging.INFO, "reloaded", workers=len(self._workers))

    def _give_up_reload(self, cause: str) -> None:
        """Logs the cause, stops the new workers and keeps the old ones."""
        _log_refusal(cause)
        for worker in self._workers.values():
            worker.check_ready()
        ready = {worker.pid for worker in self._workers.values() if worker.is_ready}
        self._retire(ready)  # these workers may have accepted requests, so let them finish
        self._signal(set(self._workers) - ready, signal.SIGKILL)
        self._retired |= set(self._workers)
        for worker in self._workers.values():
            worker.close()
        self._workers = {pid: Worker(pid, slot, None) for pid, slot in self._previous.items()}
        # Restart old workers that died during the reload.
        self._restarts.due.clear()
        missing = set(range(self._count)) - set(self._previous.values())
        self._restarts.due = dict.fromkeys(missing, time.monotonic())
        self._previous = {}
        self._taking_over = False


def _log_refusal(cause: str) -> None:
    event(logging.ERROR, "reload failed", cause=cause, effect="the current workers keep running")
