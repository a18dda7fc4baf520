"""Three nodes with two workers each act as one service, although their clocks differ by ten seconds."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from harness.backends import Postgres, Redis, shared
from harness.nodes import Node, nodes_running
from harness.stores import BY
from harness.wire import asking
from petstore.backends import Backends
from petstore.keys import Environment
from petstore.plans import Limits, Plan
from petstore.settings import Settings

TRIALS = 40
CASES = 30


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    directory = tmp_path_factory.mktemp("nodes")
    # With the default limit per address, refused requests would soon get 429 instead of 401.
    options = ("--address-per-minute", "1000000")
    with nodes_running(directory, shared(Postgres), shared(Redis), *options, skews=(-5.0, 0.0, 5.0)) as three:
        yield three


def generated_case(number: int) -> tuple[Plan, Limits | None, int, int]:
    """Returns a plan, its custom limits if any, the number of clients, and the number of requests that each sends."""
    dice = random.Random(number)
    plan: Plan = dice.choice(["free", "free", "pro", "enterprise", "enterprise", "enterprise"])
    limits = Limits(dice.randint(1, 120), dice.randint(1, 240)) if plan == "enterprise" else None
    return plan, limits, dice.randint(2, 12), dice.randint(5, 40)


@pytest.mark.parametrize("number", range(CASES))
def test_a_limit_admits_exactly_its_number_over_all_nodes(nodes: list[Node], number: int) -> None:
    plan, limits, clients, each = generated_case(number)
    environment: Environment = "staging" if number % 5 == 0 else "live"
    key = nodes[0].key(plan, limits, environment=environment)
    path = "/v1/pets?limit=1" if environment == "live" else "/staging/v1/pets?limit=1"
    with ThreadPoolExecutor(clients) as pool:
        asked = [
            pool.submit(asking, nodes[client % len(nodes)].port, each, key.headers, path) for client in range(clients)
        ]
        answers = [answer for future in asked for answer in future.result()]
    assert len(answers) == clients * each
    allowed = min(key.record.per_minute, key.record.per_day, clients * each)
    assert Counter(answer.status == 200 for answer in answers)[True] == allowed
    assert {answer.status for answer in answers} <= {200, 429}
    # No two responses have the same number of remaining requests, because each request decrements the counter by one.
    remaining = [answer.remaining for answer in answers if answer.status == 200]
    assert len(set(remaining)) == len(remaining)
    assert len({answer.headers["x-ratelimit-reset"] for answer in answers if answer.status == 200}) <= 2


def test_the_clients_wait_is_the_same_on_every_node(nodes: list[Node]) -> None:
    """Retry-After is based on Redis' clock, so a node whose clock is off by five seconds returns the same value."""
    key = nodes[0].key(limits=Limits(3, 1_000))
    asking(nodes[0].port, 3, key.headers)
    waits = [int(asking(node.port, 1, key.headers)[0].headers["retry-after"]) for node in nodes]
    assert max(waits) <= 60 and max(waits) - min(waits) <= 1


def test_every_node_refuses_a_revoked_key_with_the_next_request(nodes: list[Node]) -> None:
    keys = [nodes[0].key() for _ in range(TRIALS)]

    async def trials() -> int:
        refused = 0
        async with (
            Backends(Settings(data=nodes[0].data, store=nodes[0].store, gate=nodes[0].gate)) as backends,
            httpx.AsyncClient(verify=False) as client,
        ):
            for key in keys:
                for node in nodes:
                    assert (await client.get(node.url("/pets?limit=1"), headers=key.headers)).status_code == 200
                await backends.stores["live"].keys.revoke(key.id, BY)
                for node in nodes:
                    answer = await client.get(node.url("/pets?limit=1"), headers=key.headers)
                    refused += answer.status_code == 401
        return refused

    assert asyncio.run(trials()) == len(keys) * len(nodes)


def test_ten_nodes_may_start_at_once_on_an_empty_database(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PETSTORE_SHOW_FIRST_KEY", "1")
    directory = tmp_path_factory.mktemp("ten")
    with nodes_running(directory, shared(Postgres), shared(Redis), skews=[0.0] * 10, workers=1) as ten:
        # Only one of the nodes created and printed a first key.
        assert len(ten[0].act(lambda backends: backends.stores["live"].keys.page())) == 1
        key = ten[0].key()
        assert {asking(node.port, 1, key.headers)[0].status for node in ten} == {200}
