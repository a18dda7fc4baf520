"""Creates the initial data of the contenders: the same animals, and keys that cannot reach their limits."""

import os
import time
from collections.abc import Sequence

import msgspec

from petstore.backends import Backends
from petstore.data_dir import UMASK
from petstore.keys import digest_of, new_key
from petstore.pets import STATUSES, NewPet
from petstore.plans import Limits
from petstore.settings import Settings
from petstore.store import Store
from petstore.store.schema import PETS, TABLES, Row, key_row

UNLIMITED = 1_000_000_000
BATCH = 20_000


def animal(number: int) -> dict[str, str | int]:
    """Returns a new animal. The peers create the same animals themselves."""
    return {"name": f"Animal {number}", "categoryId": number % 50, "status": STATUSES[number % 3]}


async def fill(settings: Settings, animals: int, keys: Sequence[str], spent_key: str) -> None:
    """Fills Petstore's live store. `spent_key` has a limit of one request per day."""
    umask = os.umask(UMASK)  # as in every command, so that only this user can read the data
    try:
        async with Backends(settings) as backends:
            store = backends.stores["live"]
            for first in range(1, animals + 1, 1_000):
                numbers = range(first, min(first + 1_000, animals + 1))
                await store.transfer.put_rows(PETS, [_row(number) for number in numbers])
            await add_keys(store, keys, UNLIMITED)
            await add_keys(store, [spent_key], 1)
    finally:
        os.umask(umask)


def _row(number: int) -> Row:
    new = msgspec.structs.asdict(msgspec.convert(animal(number), NewPet))
    values = {"id": number, **new, "edited": 0, "added_by": 1, "added_at": int(time.time())}
    return tuple(values[column] for column in PETS.columns)


async def add_keys(store: Store, secrets: Sequence[str], limit: int) -> None:
    """Adds keys as rows, because a separate call for each of a million keys would take too long."""
    keys = [new_key("live", "enterprise", now=time.time(), limits=Limits(limit, limit)) for _ in secrets]
    added_before = await store.keys.page(limit=1)
    rows = {
        "adders": [] if added_before else [(number, "key", key.id) for number, key in enumerate(keys, 1)],
        "keys": [key_row(key) for key in keys],
        "secrets": [(digest_of(secret), key.id, 1, None) for secret, key in zip(secrets, keys, strict=True)],
    }
    for table in TABLES:
        ordered = sorted(rows.get(table.name, []), key=table.primary_key_of)
        for start in range(0, len(ordered), BATCH):
            await store.transfer.put_rows(table, ordered[start : start + BATCH])
