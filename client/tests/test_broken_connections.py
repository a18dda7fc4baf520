"""If connections are cut at random bytes of requests and responses, every animal is still added exactly once."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cutting_proxy import CuttingProxy
from fast_time import FastTime
from harness.servers import serving
from petstore_client import Attempt, Petstore
from recording import Recorder

CREATES = 800


@pytest.mark.thorough
def test_creates_through_cut_connections_are_exactly_as_many_animals(tmp_path: Path) -> None:
    attempts: list[Attempt] = []
    recorder = Recorder(FastTime(tmp_path / "clock"))
    with serving(tmp_path / "data") as server, CuttingProxy(server.port, most=4000, seed=5).running() as proxy:
        secret = server.key().secret
        with (
            Petstore(
                secret,
                base_url=f"http://127.0.0.1:{proxy.port}/v1",
                transport=recorder,
                on_attempt=attempts.append,
            ) as client,
            ThreadPoolExecutor(8) as pool,
        ):
            created = list(pool.map(lambda number: client.create_pet(f"Pet {number}", number), range(CREATES)))
        with Petstore(secret, base_url=server.url("")) as direct:
            stored = list(direct.list_pets())

    assert Counter(pet.name for pet in stored) == Counter(f"Pet {number}" for number in range(CREATES))
    assert sorted(created, key=lambda pet: pet.id) == stored, "each call must return its own animal"
    lost = sum(attempt.status is None for attempt in attempts)
    assert lost > CREATES / 20, "the proxy cut too few connections"
    assert proxy.cut_in_requests > CREATES / 100
    assert proxy.cut_in_responses > CREATES / 100
