"""Work in the background: values that are slow to compute, and jobs that take longer than a request."""

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

from petstore.console.sessions import UNCERTAIN
from petstore.errors import OperatorError, Unavailable
from petstore.keys import Environment
from petstore.observability.logs import event, logger

T = TypeVar("T")

WAIT_TIMEOUT = 0.08  # seconds that a page waits for a new result
FRESH_SECONDS = 2.0  # a result younger than this is not computed again
PAUSE_FACTOR = 50  # a computation of one second is followed by a pause of 50, so the store is rarely busy with it
JOBS_MAX = 20  # kept in memory, with their files on disk
RUNNING_MAX = 2


class Result(NamedTuple, Generic[T]):
    value: T
    age: float  # seconds


class BackgroundValue(Generic[T]):
    """One value. `compute` runs at most once at a time, and for at most a small part of the time."""

    def __init__(self, compute: Callable[[], Awaitable[T]], *, wait_timeout: float = WAIT_TIMEOUT) -> None:
        self._compute = compute
        self._wait_timeout = wait_timeout
        self._task: asyncio.Task[None] | None = None
        self._value: T | None = None
        self._computed_at = float("-inf")
        self._due = float("-inf")

    async def latest(self, *, first_timeout: float = 0.0) -> Result[T] | None:
        """The new result if it is ready in time, else the last one. None when nothing was computed yet.

        A page that would be wrong without any result waits up to `first_timeout` seconds for the first one.
        """
        if time.monotonic() >= self._due and self._task is None:
            self._task = asyncio.create_task(self._run())
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                timeout = max(first_timeout, self._wait_timeout) if self._value is None else self._wait_timeout
                await asyncio.wait_for(asyncio.shield(self._task), timeout)
        return None if self._value is None else Result(self._value, time.monotonic() - self._computed_at)

    def invalidate(self) -> None:
        """The operator changed the data: the next page computes the value again."""
        self._due = float("-inf")

    async def _run(self) -> None:
        began = time.monotonic()
        self._due = float("inf")
        try:
            self._value = await self._compute()
            self._computed_at = time.monotonic()
        except Unavailable as error:  # the page shows the age of the last result
            event(logging.WARNING, "background value failed", cause=str(error))
        finally:
            self._task = None
            if self._due == float("inf"):  # otherwise the value was invalidated while it was computed
                took = time.monotonic() - began
                self._due = time.monotonic() + max(FRESH_SECONDS, PAUSE_FACTOR * took)


class Job(msgspec.Struct):
    """One import, export or undoing: `done` of `total` steps, and at the end its result or its errors."""

    environment: Environment
    title: str
    total: int
    file_name: str = ""  # of the download
    link: str = ""  # the path of the import that it is about
    done: int = 0
    step: str = ""  # what the progress is of, where a job has several
    state: Literal["running", "finished", "failed"] = "running"
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


class Jobs:
    """A context manager: its end cancels running jobs, waits for them and deletes their files."""

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
        """Run `work`, which returns the result to show. Raises OperatorError when too many jobs are running."""
        if sum(each.state == "running" for each in self._jobs.values()) >= RUNNING_MAX:
            raise OperatorError("two jobs are running; wait until one has finished")
        ended = [each for each in self._jobs.values() if each.state != "running"]
        for old in ended[: max(0, len(self._jobs) + 1 - JOBS_MAX)]:
            del self._jobs[old.id]
            if old.file is not None:
                old.file.unlink(missing_ok=True)
        self._jobs[job.id] = job
        job.task = asyncio.create_task(self._run(job, work))
        return job

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
            job.result = UNCERTAIN
        except OSError as error:
            job.result = f"The file could not be written: {error.strerror}."
        except Exception:
            logger.exception("internal error", extra={"fields": {"job": job.title}})
            job.result = "An internal error occurred. The log has the details."
        finally:
            if job.state == "running":
                job.state = "failed"
