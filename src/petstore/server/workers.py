"""The main process: forks the workers, replaces those that die, reloads without a refused request, stops them all.

A reload (SIGHUP) first tries the start in a process of its own. Then the main process replaces itself by the program
that is on disk now (`exec`), with the listening sockets and the process ids of its workers. It starts new workers on
the same sockets and retires the old ones when all new ones are ready. If these cannot start, the old ones stay.
"""

import contextlib
import json
import logging
import math
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from petstore.observability.logs import event
from petstore.server.sockets import activated_sockets, inherited, open_sockets

STOP_TIMEOUT = 4.5
WORKERS_MAX = 8  # by default
CRASH_SECONDS = 1.0  # a worker that dies sooner after its start did not really start
CRASHES_MAX = 5
READY_TIMEOUT = 60.0  # for all new workers of a reload
POLL = 0.02  # seconds, while a worker is starting
SUCCESSION = "PETSTORE_SUCCESSION"  # what a main process leaves to its successor
TRIAL = "PETSTORE_TRIAL"  # set in the process that tries the start
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
RETIRE = signal.SIGUSR1  # tells a worker to finish what it has, without hurry

Sockets = list[socket.socket]
# What a worker does: it is given its sockets, and what to call when it accepts connections.
Work = Callable[[Sockets, Callable[[], None]], None]


class Succession(NamedTuple):
    """What a main process takes over from its predecessor, itself before the `exec`."""

    sockets: list[Sockets]
    workers: list[int]

    @classmethod
    def from_environment(cls) -> "Succession | None":
        left = os.environ.pop(SUCCESSION, None)
        if left is None:
            return None
        state = json.loads(left)
        return cls([[inherited(fd) for fd in fds] for fds in state["sockets"]], state["workers"])


def default_count() -> int:
    """One worker per core that this process may use, by its affinity and its cgroup's quota; at most 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, math.ceil(int(quota) / int(period)))  # "max" is no number: no quota
    return max(1, min(cores, WORKERS_MAX))


def is_trial() -> bool:
    """Whether this process only tries whether the service could start."""
    return TRIAL in os.environ


def is_reload() -> bool:
    """Whether another main process, or this one before its `exec`, serves already."""
    return is_trial() or SUCCESSION in os.environ


class Worker:
    def __init__(self, pid: int, slot: int, ready: int) -> None:
        self.pid = pid
        self.slot = slot  # the index of its sockets
        self.started = time.monotonic()
        self.is_ready = False
        self._ready_pipe = ready

    def check_ready(self) -> None:
        if not self.is_ready and select.select([self._ready_pipe], [], [], 0)[0]:
            self.is_ready = os.read(self._ready_pipe, 1) == b"1"
            os.close(self._ready_pipe)
            self._ready_pipe = -1


class Supervisor:
    def __init__(self, host: str, port: int, count: int, work: Work, left: Succession | None) -> None:
        """Raises OperatorError when it cannot listen."""
        self._work = work
        self._count = count
        self._workers: dict[int, Worker] = {}
        self._old = set(left.workers) if left else set()
        self._retired: set[int] = set()
        self._stopping = False
        self._crashes = 0
        self._trial: subprocess.Popen[bytes] | None = None
        self._reload_deadline = time.monotonic() + READY_TIMEOUT
        self._sockets = left.sockets if left else _given(activated_sockets()) or open_sockets(host, port, count)

    def run(self) -> int:
        """Until SIGTERM or SIGINT. Returns the exit code: 1 when workers keep dying at their start."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for slot in range(self._count):
            self._start(slot)
        while self._workers or self._old or self._retired:
            starting = any(not worker.is_ready for worker in self._workers.values())
            wait = POLL if starting or self._trial is not None or self._stopping else 3600.0
            received = signal.sigtimedwait(SIGNALS, wait)
            if received is not None:
                self._handle(received.si_signo)
            self._look()
        return 1 if self._crashes >= CRASHES_MAX else 0

    def _handle(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number == signal.SIGHUP:
            self._begin_reload()
        elif not self._stopping:
            self._stop()

    def _look(self) -> None:
        """What time brings: workers that become ready, a trial that ends, a stop that takes too long."""
        for worker in self._workers.values():
            worker.check_ready()
        if self._old and self._workers and all(worker.is_ready for worker in self._workers.values()):
            self._retire(self._old)
            self._old = set()
            event(logging.INFO, "reloaded", workers=len(self._workers))
        elif self._old and time.monotonic() > self._reload_deadline and not self._stopping:
            self._give_up_reload("the new workers were not ready in time")
        if self._trial is not None and self._trial.poll() is not None:
            self._end_trial(self._trial)
        if self._stopping and time.monotonic() > self._stop_deadline:
            self._signal({*self._workers, *self._old, *self._retired}, signal.SIGKILL)

    # Workers

    def _start(self, slot: int) -> None:
        ready, written = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ready)
            _run(self._work, self._sockets_of(slot), written)
        os.close(written)
        self._workers[pid] = Worker(pid, slot, ready)

    def _sockets_of(self, slot: int) -> Sockets:
        """Every socket has a worker, also when a reload changes the number of workers."""
        groups = len(self._sockets)
        if slot >= groups:
            return self._sockets[slot % groups]
        mine = range(slot, groups, self._count)
        for number in set(range(groups)) - set(mine):
            for each in self._sockets[number]:
                each.close()  # in this process alone
        return [each for number in mine for each in self._sockets[number]]

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
            was_old = pid in self._old
            self._old.discard(pid)
            if self._stopping or (worker is None and not was_old):
                continue
            event(logging.ERROR, "worker died", worker=pid, status=os.waitstatus_to_exitcode(status))
            if worker is not None:
                self._replace(worker)

    def _replace(self, worker: Worker) -> None:
        if self._old and not worker.is_ready:
            self._give_up_reload("a new worker died at its start; the lines above say why")
            return
        self._crashes = self._crashes + 1 if time.monotonic() - worker.started < CRASH_SECONDS else 0
        if self._crashes >= CRASHES_MAX:
            event(logging.ERROR, "workers keep dying", hint="the lines above say why")
            self._stop()
        else:
            self._start(worker.slot)

    def _retire(self, pids: set[int]) -> None:
        self._retired |= pids
        self._signal(pids, RETIRE)

    def _stop(self) -> None:
        self._stopping = True
        self._stop_deadline = time.monotonic() + STOP_TIMEOUT
        self._signal({*self._workers, *self._old, *self._retired}, signal.SIGTERM)

    def _signal(self, pids: set[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    # Reload

    def _begin_reload(self) -> None:
        if self._stopping or self._trial is not None or self._old:
            event(logging.WARNING, "reload ignored", cause="the service is stopping, or a reload is under way")
            return
        event(logging.INFO, "reload begins")
        self._trial_output = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the trial ends
        self._trial = subprocess.Popen(  # noqa: S603 # nosec B603  # the command line of this very process
            [sys.executable, *sys.orig_argv[1:]],
            env={**os.environ, TRIAL: "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._trial_output,
            preexec_fn=_unblock_signals,
        )

    def _end_trial(self, trial: subprocess.Popen[bytes]) -> None:
        self._trial = None
        with self._trial_output as output:
            output.seek(0)
            said = output.read(64 * 1024).decode(errors="replace").strip().splitlines()
        if trial.returncode != 0:
            cause = said[-1].removeprefix("petstore: ") if said else f"exit code {trial.returncode}"
            event(logging.ERROR, "reload failed", cause=cause, effect="the present workers stay")
            return
        self._exec()

    def _exec(self) -> None:
        """Replace this process by the program on disk. Does not return."""
        for sockets in self._sockets:
            for each in sockets:
                os.set_inheritable(each.fileno(), True)
        left = {
            "sockets": [[each.fileno() for each in sockets] for sockets in self._sockets],
            "workers": sorted({*self._workers}),
        }
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(  # noqa: S606 # nosec B606  # the command line of this very process
            sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, SUCCESSION: json.dumps(left)}
        )

    def _give_up_reload(self, cause: str) -> None:
        """The old workers stay, and the new ones go."""
        event(logging.ERROR, "reload failed", cause=cause, effect="the previous workers stay")
        self._signal(set(self._workers), signal.SIGKILL)
        self._retired |= set(self._workers)
        self._workers = {pid: self._kept(pid, slot) for slot, pid in enumerate(sorted(self._old))}
        self._old = set()

    @staticmethod
    def _kept(pid: int, slot: int) -> Worker:
        worker = Worker(pid, slot, -1)
        worker.is_ready = True
        worker.started = 0.0
        return worker


def _given(sockets: Sequence[socket.socket]) -> list[Sockets]:
    """Sockets of systemd serve all workers alike."""
    return [list(sockets)] if sockets else []


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _run(work: Work, sockets: Sockets, written: int) -> None:
    """A worker process, from the fork to its end. Does not return."""

    def ready() -> None:
        os.write(written, b"1")
        os.close(written)

    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, RETIRE):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)
        _unblock_signals()
        work(sockets, ready)
        code = 0
    except BaseException:
        logging.getLogger("petstore").exception("worker failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
