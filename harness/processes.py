"""Starts service processes, either with the command or by forking a process that has already imported everything."""

import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_forks = multiprocessing.get_context("forkserver")
_forking = False


def fork_from_now_on() -> None:
    """Makes `launched` fork, because in tests, imports would take half of a server's time. Proofs do not call this."""
    global _forking
    _forking = True
    _forks.set_forkserver_preload(
        [__name__, "petstore.cli.serve", "petstore.console.app", "petstore.store.sqlite",
         "petstore.store.postgres.pool", "petstore.gate.lmdb", "petstore.gate.redis_url",
         "uvloop"]
    )  # fmt: skip


def let_ctrl_c_through() -> None:
    """Restores SIGINT, which shells ignore for background processes. Child processes would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Forked:
    """A forked process that runs `python -m` with `words`. Has the `subprocess.Popen` methods that tests use."""

    def __init__(self, words: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        log.touch()
        self._process = _forks.Process(target=_run, args=(words, variables, log))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


Running = subprocess.Popen[bytes] | Forked


def launched(words: Sequence[str], variables: Mapping[str, str], log: Path) -> Running:
    """Runs `python -m` with `words` in a new session, with `variables` added to the environment."""
    variables = {**os.environ, **variables}
    if _forking:
        return Forked(words, variables, log)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *words], stdout=output, stderr=output, env=variables, start_new_session=True
        )


def _run(words: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
    gc.freeze()  # imported modules are never freed, so the garbage collector can skip them
    os.setsid()
    with log.open("ab") as output:
        for standard in (1, 2):
            os.dup2(output.fileno(), standard)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = list(words)  # run_module replaces the first word with the path of the module
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
