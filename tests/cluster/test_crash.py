"""`kill -9` of the whole process group under concurrent creates, again and again.

PETSTORE_TEST_KILLS sets how often: 4 by default, 200 and more for a long run.
"""

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import httpx

from harness.servers import Key, Server
from petstore.backends import Backends
from petstore.pets import Pet
from petstore.plans import Limits
from petstore.store.sqlite.doctor import check_file

KILLS = int(os.environ.get("PETSTORE_TEST_KILLS", "4"))
READY_WITHIN = 5.0  # a hang is a failure; the second that is promised is measured by the bench
CLIENTS = 6
LIMITS = Limits(10**9, 10**9)


class Creator(threading.Thread):
    """Adds animals with unique names until the connection breaks, and remembers every 201."""

    def __init__(self, server: Server, key: Key, prefix: str) -> None:
        super().__init__(daemon=True)
        self.server, self.key, self.prefix = server, key, prefix
        self.acknowledged: dict[int, str] = {}
        self.answered = 0
        self.wrong: list[int] = []

    def run(self) -> None:
        with httpx.Client(timeout=10, verify=False) as client:
            for number in range(100_000):
                name = f"{self.prefix}.{number}"
                try:
                    answer = client.post(
                        self.server.url("/pets"), headers=self.key.headers, json={"name": name, "categoryId": number}
                    )
                except httpx.TransportError:
                    return
                self.answered += 1
                if answer.status_code != 201:
                    self.wrong.append(answer.status_code)
                    return
                self.acknowledged[answer.json()["id"]] = name


async def _all_pets(backends: Backends) -> list[Pet]:
    found: list[Pet] = []
    more = True
    while more:
        after = found[-1].id if found else 0
        page, more = await backends.stores["live"].pets.page(after=after, limit=5_000, status=None)
        found += page
    return found


def test_kill_nine_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    dice = random.Random(9)
    server = Server(tmp_path / "data", workers=2)
    server.start()
    key = server.key(limits=LIMITS)
    acknowledged: dict[int, str] = {}
    answered = 0
    for kill in range(KILLS):
        creators = [Creator(server, key, f"{kill}.{number}") for number in range(CLIENTS)]
        for creator in creators:
            creator.start()
        time.sleep(dice.uniform(0.05, 0.25))  # a random moment to be killed at, not a wait for anything
        server.kill()
        for creator in creators:
            creator.join(timeout=15)
            assert creator.wrong == []
            acknowledged |= creator.acknowledged
            answered += creator.answered
        server.start(wait=False)
        assert server.wait_until_ready() < READY_WITHIN
        answer = httpx.get(server.url("/pets?limit=1"), headers=key.headers, verify=False)
        answered += 1
        used = LIMITS.per_day - int(answer.headers["x-ratelimit-remaining"])
        assert used >= answered, "counters are lower than the acknowledged requests imply"
    assert server.stop() == 0

    pets = server.act(_all_pets)
    stored = {pet.id: pet.name for pet in pets}
    assert {pet_id: name for pet_id, name in acknowledged.items() if stored.get(pet_id) != name} == {}
    assert [name for name, times in Counter(stored.values()).items() if times > 1] == []
    assert len(acknowledged) > KILLS
    for environment in ("live", "staging"):
        assert check_file(server.data / f"{environment}.db").faults == []
