"""The console while PostgreSQL or Redis does not respond: it shows an error and recovers by itself."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.backends import Postgres, Process, Redis
from harness.consoles import Console, cells, running_console, text_of
from harness.served import wait_for
from harness.servers import Server
from petstore.console.jobs import Job, Jobs
from petstore.errors import Unavailable


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    with running_console(Server(tmp_path / "data", "cluster")) as running:
        yield running


@contextlib.contextmanager
def away(server: Process) -> Iterator[None]:
    """A server that hangs: a harder case than a closed port."""
    server.hang()
    try:
        yield
    finally:
        server.go_on()


def test_without_redis_the_console_shows_what_it_can(console: Console, redis: Redis) -> None:
    operator, key = console.sign_in("ada"), console.server.key(environment="staging")
    assert cells(operator.get("/staging/keys"), "Today") == ["0 of 1,000,000"]
    with away(redis):
        page = operator.get("/staging/keys")
        assert (cells(page, "Id"), cells(page, "Today")) == ([key.id], ["not known"])
        assert "The gate does not respond" in text_of(page)
        assert "not known" in text_of(operator.get(f"/staging/keys/{key.id}"))
        assert operator.get("/staging/overview").status_code == 200
        assert "bans are not known" in text_of(operator.get("/staging/bans"))
    assert wait_for(lambda: cells(operator.get("/staging/keys"), "Today") == ["0 of 1,000,000"])


def test_without_postgres_the_console_shows_an_error_and_recovers(console: Console, postgres: Postgres) -> None:
    operator, new_client = console.sign_in("ada"), console.client()
    with away(postgres):
        page = operator.get("/live/animals")
        assert page.status_code == 503
        assert "does not respond" in text_of(page)
        assert (page.headers["retry-after"], page.headers["refresh"]) == ("5", "5")
        part = operator.get("/live/animals/rows", **{"HX-Request": "true"})
        assert (part.status_code, part.headers["content-type"]) == (503, "text/plain; charset=utf-8")
        failed = operator.post("/live/operators/role", name="bo", role="viewer")
        assert failed.status_code == 503 and "refresh" not in failed.headers
        assert "Check whether the change was made" in text_of(failed)
        assert new_client.get(console.link).status_code == 503
    assert wait_for(lambda: operator.get("/live/animals").status_code == 200)
    assert new_client.get(console.link).status_code == 303  # the link was not used up by the outage


def test_a_job_that_lost_the_store_does_not_claim_to_know_its_result() -> None:
    """The response to a commit may be lost: the change may have been made."""

    async def work(_: Job) -> str:
        raise Unavailable("the connection was lost")

    async def run() -> Job:
        async with Jobs() as jobs:
            job = jobs.start(Job("live", "Importing animals.jsonl", 1, "animals.jsonl"), work)
            assert job.task is not None
            await job.task
            return job

    job = asyncio.run(run())
    assert (job.state, job.result) == (
        "failed", "The store did not respond. Check whether the change was made, then try again."
    )  # fmt: skip
