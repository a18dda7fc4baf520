"""Pools of workers that share one client of a real server with low limits cause no ban and send no early request."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fakes import Kind
from fast_time import FastTime
from harness.servers import Key, Server, serving
from petstore.plans import Limits
from petstore_client import AsyncPetstore, Attempt, Petstore, RateLimited
from recording import Recorder, sent_too_early


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server for one test, which may move the server's clock."""
    with serving(tmp_path / "data") as server:
        yield server


class Result(NamedTuple):
    recorder: Recorder
    attempts: list[Attempt]
    errors: list[Exception]


def add_animals(kind: Kind, server: Server, key: Key, workers: int, each: int, **options: Any) -> Result:
    """Lets workers that share one client add animals. Each adds its own one after another."""
    result = Result(Recorder(FastTime(server.clock_file)), [], [])
    options |= {"base_url": server.url(""), "transport": result.recorder, "on_attempt": result.attempts.append}

    def run_threads() -> None:
        with Petstore(key.secret, **options) as client:

            def work(worker: int) -> None:
                for number in range(each):
                    client.create_pet(f"{worker}-{number}", worker)

            with ThreadPoolExecutor(workers) as pool:
                futures = [pool.submit(work, worker) for worker in range(workers)]
            result.errors.extend(error for future in futures if (error := future.exception()) is not None)  # type: ignore[misc]  # only Exceptions here

    async def run_tasks() -> None:
        async with AsyncPetstore(key.secret, **options) as client:

            async def work(worker: int) -> None:
                for number in range(each):
                    await client.create_pet(f"{worker}-{number}", worker)

            outcomes = await asyncio.gather(*map(work, range(workers)), return_exceptions=True)
            result.errors.extend(outcome for outcome in outcomes if isinstance(outcome, Exception))

    if kind == "sync":
        run_threads()
    else:
        asyncio.run(run_tasks())
    return result


def names(server: Server) -> Counter[str]:
    with Petstore(server.key().secret, base_url=server.url("")) as client:
        return Counter(pet.name for pet in client.list_pets())


@pytest.mark.thorough
def test_8_workers_add_200_animals_with_a_free_key_and_default_options(kind: Kind, own_server: Server) -> None:
    result = add_animals(kind, own_server, own_server.key("free"), workers=8, each=25)
    assert result.errors == []
    assert names(own_server) == Counter({f"{worker}-{number}": 1 for worker in range(8) for number in range(25)})
    codes = Counter(attempt.code for attempt in result.attempts)
    assert codes["key_banned"] == 0
    assert codes[None] == 200
    assert codes["rate_limit_exceeded"] <= 12, "about one refusal at the end of each of three windows"
    assert sent_too_early(result.recorder.events) == []


@pytest.mark.thorough
def test_a_pool_far_larger_than_the_limit_is_not_banned(kind: Kind, own_server: Server) -> None:
    """Seven refusals in a row cause a ban. Forty workers with separate clients would reach it immediately."""
    key = own_server.key("enterprise", Limits(6, 1_000_000))
    result = add_animals(kind, own_server, key, workers=40, each=1, total_timeout=3600.0)
    assert result.errors == []
    assert len(names(own_server)) == 40
    assert "key_banned" not in {attempt.code for attempt in result.attempts}
    assert sent_too_early(result.recorder.events) == []


def test_all_workers_raise_at_once_when_the_day_is_used_up(kind: Kind, own_server: Server) -> None:
    result = add_animals(kind, own_server, own_server.key("enterprise", Limits(100, 20)), workers=8, each=21)
    assert len(result.errors) == 8
    assert {type(error) for error in result.errors} == {RateLimited}
    assert len(names(own_server)) == 20
    refusals = [attempt for attempt in result.attempts if attempt.code == "rate_limit_exceeded"]
    assert 1 <= len(refusals) <= 8
    for error in result.errors:
        assert isinstance(error, RateLimited)
        assert error.limit == 20
        assert error.retry_after is not None
        assert 86_000 < error.retry_after <= 86_408, "with the jitter of the pause"
