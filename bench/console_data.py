"""Creates the data for measuring the console: 1,000,000 animals, 10,000 keys, and a month of usage."""

import random
import time
from collections import Counter
from typing import Any

import msgspec

from petstore.backends import Backends
from petstore.keys import ApiKey, new_key
from petstore.pets import STATUSES
from petstore.plans import Limits, Plan
from petstore.rate_limits import Windows
from petstore.settings import Settings
from petstore.store.schema import PETS, TABLES, key_row
from petstore.usage import DAY, HOUR, MINUTE

ANIMALS, KEYS, ENTRIES = 1_000_000, 10_000, 100_000
ACTIVE = 0.2  # the share of keys that send requests in any one hour
NAMES = ["Rex", "Mia", "Bella", "Luna", "Max", "Felix", "Oscar", "Kitty", "Shadow", "Ärmel"]
PLANS: tuple[Plan, ...] = ("enterprise", "free", "pro", "business")
ACTIONS = ("set status", "update key", "add animal", "update animal")


async def fill(settings: Settings) -> str:
    """Creates the data of a busy month. Returns the id of a key that sent requests."""
    random.seed(1)
    now = time.time()
    async with Backends(settings) as backends:
        store = backends.stores["live"]
        for first in range(0, ANIMALS, 5_000):
            numbers = range(first, first + 5_000)
            rows = [(i + 1, f"{NAMES[i % 10]} {i}", i % 50, STATUSES[i % 3], 0, None, int(now)) for i in numbers]
            await store.transfer.put_rows(PETS, rows)
        keys = [_key(number, now) for number in range(KEYS)]
        for name, rows in _history(keys, int(now)).items():
            table = next(table for table in TABLES if table.name == name)
            for start in range(0, len(rows), 20_000):
                await store.transfer.put_rows(table, rows[start : start + 20_000])
        await backends.gate.announce("live", ["keys"])
        at = int(now * 1000)
        windows = [Windows(at, 3, at, i, 0, at, at + 3_600_000 if i % 20 == 0 else at, 1) for i in range(KEYS)]
        await backends.gate.put_windows(zip((key.id for key in keys), windows, strict=True))
        await backends.gate.lift(keys[0].id)
    return keys[0].id


def _key(number: int, now: float) -> ApiKey:
    """Returns a key. Of 25 keys, one is revoked, one has expired and one is suspended. One in ten was never used."""
    plan = PLANS[number % len(PLANS)]
    key = new_key(
        "live", plan, now=now - number, name=f"{random.choice(NAMES)} {number}",
        limits=Limits(10**9, 10**9) if plan == "enterprise" else None, expires=now - 5 if number % 25 == 9 else None,
    )  # fmt: skip
    return msgspec.structs.replace(
        key,
        last_used=None if number % 10 == 3 else now - number * 60,
        revoked=now - 5 if number % 25 == 7 else None,
        suspended=now - 5 if number % 25 == 11 else None,
    )


def _history(keys: list[ApiKey], now: int) -> dict[str, list[tuple[Any, ...]]]:
    """Returns rows by table. The usage is a month of days and hours for some keys, and an hour of minutes for all."""
    ids = sorted(key.id for key in keys)
    history: dict[str, list[tuple[Any, ...]]] = {
        "keys": sorted((key_row(key) for key in keys), key=lambda row: row[0]),
    }
    totals: Counter[tuple[int, int, str]] = Counter()
    usage: list[tuple[Any, ...]] = []
    for seconds, count, share in ((DAY, 30, 0.9), (HOUR, 720, ACTIVE), (MINUTE, 60, 1)):
        for start in range(now // seconds * seconds - count * seconds, now // seconds * seconds, seconds):
            for key_id in ids:
                if random.random() < share:
                    used = {"admitted": random.randrange(1, 300), "refused": 5 if random.random() < 0.1 else 0}
                    usage += [
                        (seconds, start, key_id, operation, measure, n)
                        for operation in ("getPet", "listPets")
                        for measure, n in used.items()
                        if n
                    ]
            if seconds < DAY:
                totals[seconds, start, "admitted"] += 300 * int(share * len(ids))
    history["usage"] = sorted(usage)
    history["usage_totals"] = sorted((*cell, n) for cell, n in totals.items())
    history["audit"] = [
        (i, float(now), f"operator {i % 50}", ACTIONS[i % 4], str(i), "sold", None, None, None)
        for i in range(1, ENTRIES + 1)
    ]
    return history
