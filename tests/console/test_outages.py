"""The console while the service, PostgreSQL or Redis is unavailable. It shows the outage and recovers automatically."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.backends import Postgres, Redis
from harness.consoles import Console, cells, running_console, text_of
from harness.served import wait_for
from harness.servers import Server, serving
from petstore.console.background import Job, Jobs
from petstore.errors import Unavailable
from petstore.wording import when
from tests.console.outages import away


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    with running_console(Server(tmp_path / "data", "cluster")) as running:
        yield running


def test_without_redis_the_console_shows_what_it_can(console: Console, redis: Redis) -> None:
    operator, key = console.sign_in("ada"), console.server.key(environment="staging")
    assert cells(operator.get("/staging/keys"), "Today") == ["0 of 1,000,000"]
    with away(redis):
        page = operator.get("/staging/keys")
        assert (cells(page, "Id"), cells(page, "Today")) == ([key.id], ["unknown"])
        assert re.search(
            r"Redis has not responded since at least 20\S+ \S+Z\. Until it responds, each node applies the limits",
            text_of(page),
        )
        assert "unknown" in text_of(operator.get(f"/staging/keys/{key.id}"))
        assert operator.get("/staging/overview").status_code == 200
        assert "the console cannot show bans" in text_of(operator.get("/staging/bans"))
    assert wait_for(lambda: cells(operator.get("/staging/keys"), "Today") == ["0 of 1,000,000"])


def test_without_postgres_the_console_shows_an_error_and_recovers(console: Console, postgres: Postgres) -> None:
    operator, new_client = console.sign_in("ada"), console.client()
    with away(postgres):
        page = operator.get("/live/animals")
        assert page.status_code == 503
        since = re.search(r"The store or the gate has not responded since at least (20\S+ \S+Z)\.", text_of(page))
        assert since is not None and "petstore check" in text_of(page)
        assert since[1] in text_of(operator.get("/live/keys")), "the outage began with the first page that failed"
        assert (page.headers["retry-after"], page.headers["refresh"]) == ("5", "5")
        part = operator.get("/live/animals/rows", **{"HX-Request": "true"})
        assert (part.status_code, part.headers["content-type"]) == (503, "text/plain; charset=utf-8")
        failed = operator.post("/live/operators/role", name="bo", role="viewer")
        assert failed.status_code == 503 and "refresh" not in failed.headers
        assert "Check whether the change was made" in text_of(failed)
        assert new_client.get(console.link).status_code == 503
        assert operator.get("/static/base.css").status_code == 200
    assert wait_for(lambda: operator.get("/live/animals").status_code == 200)
    assert new_client.get(console.link).status_code == 303  # the failed attempt did not use up the link


@pytest.mark.thorough
def test_a_page_that_reads_much_is_an_error_too_while_postgres_hangs(tmp_path: Path, postgres: Postgres) -> None:
    """Signs in with the link, because the lookup of a named operator would fail before the page reads anything."""
    server = Server(tmp_path / "data", "cluster")
    server.create()
    with running_console(server) as running:
        client = running.client()
        assert client.get(running.link).status_code == 303
        for path in ("/live/animals", "/live/audit"):
            assert client.get(path).status_code == 200
            with away(postgres):
                assert client.get(path).status_code == 503


PAGES = ["overview", "animals", "animals/imports", "keys", "keys/new", "keys/identify", "bans", "deprecated", "audit",
         "operators", "health", "nowhere"]  # fmt: skip
SILENT = re.compile(r"The service on this machine has not responded since (20\S+ \S+Z)\. .* systemctl start petstore")


def heartbeats(server: Server) -> list[Path]:
    return list((server.data / "metrics").glob("*.lock"))


def age(server: Server, seconds: float) -> str:
    """Backdates the last heartbeats by `seconds`. Returns their time, as the console shows it."""
    at = int(time.time() - seconds)
    for path in heartbeats(server):
        os.utime(path, (at, at))
    return when(at)


def test_every_page_says_that_the_service_does_not_respond(tmp_path: Path) -> None:
    with running_console(Server(tmp_path / "data")) as console:
        operator = console.sign_in("ada")
        key_id, _ = operator.create_key()
        pages = [f"/live/{page}" for page in (*PAGES, f"keys/{key_id}")]
        for page in pages:
            assert "The service has not run with this data directory yet" in text_of(operator.get(page)), page
        with serving(tmp_path / "data") as server:
            assert wait_for(lambda: heartbeats(server))
            for page in pages:
                assert "The service" not in text_of(operator.get(page)), page
                assert "No service" not in text_of(operator.get(page)), page
            server.kill()
            assert "has not responded" not in text_of(operator.get("/live/keys")), "the service may be about to restart"
            stopped = age(server, 11)
            for page in pages:
                found = SILENT.search(text_of(operator.get(page)))
                assert found is not None and found[1] == stopped, page
            part = operator.get("/live/overview/refresh", **{"HX-Request": "true"})
            assert stopped in text_of(part) and 'hx-swap-oob="innerHTML"' in part.text


def test_a_service_that_hangs_is_noticed(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server, running_console(server) as console:
        operator = console.sign_in("ada")
        assert wait_for(lambda: heartbeats(server))
        assert server.process is not None
        os.killpg(server.process.pid, signal.SIGSTOP)
        try:
            stopped = age(server, 11)
            assert stopped in text_of(operator.get("/live/keys"))
        finally:
            os.killpg(server.process.pid, signal.SIGCONT)
        assert wait_for(lambda: stopped not in text_of(operator.get("/live/keys")))


def test_a_console_without_a_service_on_its_machine_reports_no_trouble(tmp_path: Path) -> None:
    with running_console(Server(tmp_path / "data", "cluster")) as console:
        assert "No service" not in text_of(console.sign_in("ada").get("/live/keys"))


def test_a_job_that_lost_the_store_does_not_claim_to_know_its_result() -> None:
    """The response to a commit may have been lost, so the change may have been made."""

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
        "failed", "The store or the gate did not respond. Check whether the change was made before you try again."
    )  # fmt: skip
