"""Imports and exports: work that outlasts a request, and how far each has come."""

import asyncio
import logging
import secrets
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Literal

from petstore.errors import OperatorError, Unavailable
from petstore.keys import Environment
from petstore.observability.logs import event, logger

JOBS_MAX = 20  # remembered, with their files
RUNNING_MAX = 2
FAULTS_SHOWN = 20


class Job:
    """`done` of `total` steps; at the end what came of it, or what was wrong."""

    def __init__(self, environment: Environment, title: str, total: int, name: str = "") -> None:
        self.id = secrets.token_urlsafe(12)
        self.environment = environment
        self.title = title
        self.total = max(1, total)
        self.name = name  # of the file to be downloaded
        self.done = 0
        self.state: Literal["running", "finished", "failed"] = "running"
        self.outcome = ""
        self.faults: list[str] = []
        self.file: Path | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def percent(self) -> int:
        return min(100, 100 * self.done // self.total)

    def advance(self, done: int) -> None:
        self.done = done


class Jobs:
    """To be used as a context: what is under way ends with it, and no file is left behind."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def __enter__(self) -> "Jobs":
        self._folder = tempfile.TemporaryDirectory(prefix="petstore-console-")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for job in self._jobs.values():
            if job.task is not None:
                job.task.cancel()
        self._folder.cleanup()

    def start(self, job: Job, work: Callable[[Job], Awaitable[str]]) -> Job:
        """`work` returns what came of it. Raises OperatorError when too much is under way."""
        if sum(each.state == "running" for each in self._jobs.values()) >= RUNNING_MAX:
            raise OperatorError("two imports or exports are under way; wait until one has ended")
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
        job.file = Path(self._folder.name) / job.id
        return job.file

    async def _run(self, job: Job, work: Callable[[Job], Awaitable[str]]) -> None:
        try:
            job.outcome = await work(job)
            job.done, job.state = job.total, "finished"
        except OperatorError as error:
            job.outcome, *faults = str(error).splitlines()
            job.faults = [fault.strip() for fault in faults[:FAULTS_SHOWN]]
            if len(faults) > FAULTS_SHOWN:
                job.faults.append(f"and {len(faults) - FAULTS_SHOWN:,} more")
        except Unavailable as error:
            event(logging.ERROR, "unavailable", job=job.title, cause=str(error))
            job.outcome = "The store did not answer, so nothing may have changed. Look, then try again."
        except OSError as error:
            job.outcome = f"The file could not be written: {error.strerror}."
        except Exception:
            logger.exception("internal error", extra={"fields": {"job": job.title}})
            job.outcome = "Something went wrong; the log says what."
        finally:
            if job.state == "running":
                job.state = "failed"
