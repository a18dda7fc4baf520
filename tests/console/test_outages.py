"""The console while PostgreSQL or Redis does not answer: it says so, keeps what was typed, and heals by itself."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from petstore.console.jobs import Job, Jobs
from petstore.errors import Unavailable
from tests.backends import Postgres, Process, Redis
from tests.consoles import Console, cells, running_console, shown
from tests.served import wait_for
from tests.servers import Server


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    with running_console(Server(tmp_path / "data", "cluster")) as running:
        yield running


@contextlib.contextmanager
def away(server: Process) -> Iterator[None]:
    """It hangs: the worst way to be away."""
    server.hang()
    try:
        yield
    finally:
        server.go_on()


def test_without_redis_the_console_shows_what_it_can(console: Console, redis: Redis) -> None:
    ada, key = console.signed_in("ada"), console.server.key(environment="staging")
    assert cells(ada.get("/staging/keys"), "Today") == ["0 of 1,000,000"]
    with away(redis):
        page = ada.get("/staging/keys")
        assert (cells(page, "Id"), cells(page, "Today")) == ([key.id], ["not known"])
        assert "The gate does not answer" in shown(page)
        assert "not known" in shown(ada.get(f"/staging/keys/{key.id}"))
        assert ada.get("/staging/overview").status_code == 200
        assert "who is banned is not known" in shown(ada.get("/staging/bans"))
    assert wait_for(lambda: cells(ada.get("/staging/keys"), "Today") == ["0 of 1,000,000"])


def test_without_postgres_the_console_says_so_and_heals(console: Console, postgres: Postgres) -> None:
    ada, guest = console.signed_in("ada"), console.visitor()
    with away(postgres):
        page = ada.get("/live/animals")
        assert page.status_code == 503
        assert "does not answer" in shown(page)
        assert (page.headers["retry-after"], page.headers["refresh"]) == ("5", "5")
        part = ada.get("/live/animals/rows", **{"HX-Request": "true"})
        assert (part.status_code, part.headers["content-type"]) == (503, "text/plain; charset=utf-8")
        assert guest.get(console.link).status_code == 503
    assert wait_for(lambda: ada.get("/live/animals").status_code == 200)
    assert guest.get(console.link).status_code == 303  # the link was not used up by the outage


def test_a_job_that_met_an_outage_does_not_claim_to_know_what_came_of_it() -> None:
    """The answer to a commit may be what was lost."""

    async def work(_: Job) -> str:
        raise Unavailable("the connection was lost")

    async def run() -> Job:
        with Jobs() as jobs:
            job = jobs.start(Job("live", "Importing animals.jsonl", 1), work)
            assert job.task is not None
            await job.task
            return job

    job = asyncio.run(run())
    assert (job.state, job.outcome) == (
        "failed", "The store did not answer, so nothing may have changed. Look, then try again."
    )  # fmt: skip
