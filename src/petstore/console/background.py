"""Background work: values that are slow to compute, and jobs that take too long for a single request."""

import asyncio
import contextlib
import logging
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec

from petstore.console.outages import failed_change
from petstore.errors import OperatorError, Unavailable
from petstore.keys import Environment
from petstore.observability.logs import event, logger

T = TypeVar("T")

WAIT_TIMEOUT = 0.08  # seconds that a page waits for a new result
FRESH_SECONDS = 2.0  # minimum seconds between two computations
PAUSE_FACTOR = 50  # a computation that takes 1 s is followed by a pause of 50 s, to limit the load on the store
JOBS_MAX = 20  # beyond this number, the oldest finished jobs and their files are deleted
RUNNING_MAX = 2
WAITING_MAX = 10  # limited because each waiting job keeps its uploaded file on disk
ANSWER_TIMEOUT = 600.0  # seconds that a job waits for an operator's answer


class Result(NamedTuple, Generic[T]):
    value: T
    age: float  # seconds


class BackgroundValue(Generic[T]):
    """A value that is computed in the background.

    Computations never overlap. The slower a computation is, the longer the pause before the next one.
    """

    def __init__(self, compute: Callable[[], Awaitable[T]], *, wait_timeout: float = WAIT_TIMEOUT) -> None:
        self._compute = compute
        self._wait_timeout = wait_timeout
        self._task: asyncio.Task[None] | None = None
        self._value: T | None = None
        self._computed_at = float("-inf")
        self._due = float("-inf")

    async def latest(self, *, first_timeout: float = 0.0) -> Result[T] | None:
        """Returns a new result if one is ready in time, otherwise the previous result, or None if there is none yet.

        A page that would be wrong without a result can set `first_timeout` to wait longer for the first one.
        """
        if time.monotonic() >= self._due and self._task is None:
            self._task = asyncio.create_task(self._run())
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                timeout = max(first_timeout, self._wait_timeout) if self._value is None else self._wait_timeout
                await asyncio.wait_for(asyncio.shield(self._task), timeout)
        return None if self._value is None else Result(self._value, time.monotonic() - self._computed_at)

    def invalidate(self) -> None:
        """Makes the next call to `latest` recompute the value. Call this after an operator changes the data."""
        self._due = float("-inf")

    async def _run(self) -> None:
        began = time.monotonic()
        self._due = float("inf")
        try:
            self._value = await self._compute()
            self._computed_at = time.monotonic()
        except Unavailable as error:  # pages continue to show the previous result and its age
            event(logging.WARNING, "background value failed", cause=str(error))
        finally:
            self._task = None
            if self._due == float("inf"):  # the value was not invalidated during the computation
                took = time.monotonic() - began
                self._due = time.monotonic() + max(FRESH_SECONDS, PAUSE_FACTOR * took)


class Job(msgspec.Struct):
    """A background job: an import, export, undo or restore. `done` and `total` show its current step's progress."""

    environment: Environment
    title: str
    total: int
    file_name: str = ""  # the name under which the browser saves an exported file
    link: str = ""  # the path of the import's page, if this job performs or undoes an import
    done: int = 0
    step: str = ""  # a description of the current step, if the job has several steps
    state: Literal["running", "waiting", "finished", "failed"] = "running"
    question: str = ""  # shown to the operator while the job is `waiting`
    answered: asyncio.Future[bool] | None = None
    result: str = ""
    errors: list[str] = []
    file: Path | None = None
    task: asyncio.Task[None] | None = None
    id: str = msgspec.field(default_factory=partial(secrets.token_urlsafe, 12))

    @property
    def percent(self) -> int:
        return min(100, 100 * self.done // max(1, self.total))

    def advance(self, done: int) -> None:
        self.done = done

    def begin(self, step: str, total: int) -> None:
        self.step, self.done, self.total = step, 0, total

    async def confirm(self, question: str, timeout_seconds: float = ANSWER_TIMEOUT) -> None:
        """Asks the operator a question. Raises OperatorError if the answer is no or does not arrive in time."""
        self.answered = asyncio.get_running_loop().create_future()
        self.state, self.question = "waiting", question
        try:
            async with asyncio.timeout(timeout_seconds):
                confirmed = await self.answered
        except TimeoutError:
            raise OperatorError("No answer within ten minutes. Nothing was changed.") from None
        finally:
            self.state = "running"
        if not confirmed:
            raise OperatorError("Cancelled. Nothing was changed.")


class Jobs:
    """Runs background jobs. On exit, cancels the running jobs, waits for them to stop and deletes all job files."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    async def __aenter__(self) -> "Jobs":
        self._directory = tempfile.TemporaryDirectory(prefix="petstore-console-")
        return self

    async def __aexit__(self, *_: object) -> None:
        running = [job.task for job in self._jobs.values() if job.task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._directory.cleanup()

    def start(self, job: Job, work: Callable[[Job], Awaitable[str]]) -> Job:
        """Starts a job. `work` returns a message for the operator. Raises OperatorError if there are too many jobs."""
        self._check_running()
        if self._count("waiting") >= WAITING_MAX:
            raise OperatorError(f"{WAITING_MAX} imports are waiting for confirmation. Confirm one, or try again later.")
        ended = [each for each in self._jobs.values() if each.state in ("finished", "failed")]
        for old in ended[: max(0, len(self._jobs) + 1 - JOBS_MAX)]:
            del self._jobs[old.id]
            if old.file is not None:
                old.file.unlink(missing_ok=True)
        self._jobs[job.id] = job
        job.task = asyncio.create_task(self._run(job, work))
        return job

    def answer(self, job: Job, confirmed: bool) -> None:
        """Passes the operator's answer to a job, if the job is still waiting for one.

        Raises OperatorError if the answer is yes but too many jobs are already running.
        """
        if job.state != "waiting" or job.answered is None or job.answered.done():
            return
        if confirmed:
            self._check_running()
            job.state = "running"
        job.answered.set_result(confirmed)

    def _check_running(self) -> None:
        if self._count("running") >= RUNNING_MAX:
            raise OperatorError("Two jobs are already running. Wait for one to finish.")

    def _count(self, state: str) -> int:
        return sum(job.state == state for job in self._jobs.values())

    def find(self, job_id: str, environment: Environment) -> Job | None:
        job = self._jobs.get(job_id)
        return job if job is not None and job.environment == environment else None

    def new_file(self, job: Job) -> Path:
        job.file = Path(self._directory.name) / job.id
        return job.file

    async def _run(self, job: Job, work: Callable[[Job], Awaitable[str]]) -> None:
        try:
            job.result = await work(job)
            job.done, job.state = job.total, "finished"
        except OperatorError as error:
            job.result, *errors = str(error).splitlines()
            job.errors = [each.strip() for each in errors]
        except Unavailable as error:
            event(logging.ERROR, "unavailable", job=job.title, cause=str(error))
            job.result = failed_change(error)
        except OSError as error:
            job.result = f"The file could not be written: {error.strerror}."
        except Exception:
            logger.exception("internal error", extra={"fields": {"job": job.title}})
            job.result = "An internal error occurred. See the log for details."
        finally:
            if job.state == "running":
                job.state = "failed"
