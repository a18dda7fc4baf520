"""Power cuts during writes to the store. They run on a recording disk, which can reconstruct any moment.

In each image of the disk, sectors that were not yet synced are there or missing at random. The service opens each
image. Every acknowledged animal must exist, no animal may exist twice or without having been sent, and retrying a
create request with its idempotency key must not add another animal.
"""

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.claims import hold, temporary_directory
from harness.stores import BY
from petstore.backends import Backends
from petstore.errors import OperatorError, Unavailable
from petstore.keys import mint, new_key
from petstore.pets import IdempotencyKey, NewPet, Pet
from petstore.settings import Settings
from petstore.store.sqlite.connection import FILE_PRAGMAS
from petstore.store.sqlite.doctor import check_database_file
from prove.proof import Figures, Scale
from prove.recorder import Event, after_power_cut, recording

CREATES = 300  # per recording
CUTS_PER_RECORDING = 10
# Checkpoints are the critical moments, so they run after every 40 KiB of log here, instead of every 16 MiB.
WAL_PAGES = 10


def prove(scale: Scale) -> Figures:
    dice = random.Random(2030)
    acknowledged = torn = 0
    for first in range(0, scale.cuts, CUTS_PER_RECORDING):
        cuts = min(CUTS_PER_RECORDING, scale.cuts - first)
        with temporary_directory() as recorded:
            events = asyncio.run(_live(recorded, dice, ignore_syncs=scale.plant))
        for _ in range(cuts):
            moment = dice.randrange(_beginning(events), len(events) + 1)
            files = after_power_cut(events[:moment], dice)
            torn += _differs(files, events[:moment])
            with temporary_directory() as image:
                for name, content in files.items():
                    (image / name).write_bytes(content)
                acknowledged += asyncio.run(_judge(image, events[:moment]))
    return {"power cuts": scale.cuts, "that lost unsynced writes": torn, "acknowledged": acknowledged,
            "lost": 0, "twice": 0, "phantoms": 0, "integrity_check": "ok each time"}  # fmt: skip


@contextmanager
def _short_log() -> Iterator[None]:
    usual, FILE_PRAGMAS["wal_autocheckpoint"] = FILE_PRAGMAS["wal_autocheckpoint"], WAL_PAGES
    try:
        yield
    finally:
        FILE_PRAGMAS["wal_autocheckpoint"] = usual


async def _live(data: Path, dice: random.Random, *, ignore_syncs: bool) -> list[Event]:
    """Writes animals, keys and statuses to a store concurrently."""
    with recording() as record, _short_log():
        async with Backends(Settings(data=data)) as backends:
            store = backends.stores["live"]
            record.ignore_syncs = ignore_syncs
            record.add(Event("sent", "begin"))

            async def create(number: int) -> None:
                new, idempotency_key = _animal(number)
                record.add(Event("sent", new.name))
                added = await store.pets.add(new, 1.0, idempotency_key)
                record.add(Event("acknowledged", new.name, added.pet.id))

            waiting: list[asyncio.Task[object]] = []
            for number in range(CREATES):
                waiting.append(asyncio.create_task(create(number)))
                if number % 60 == 30:
                    key = new_key("live", "free", now=1.0)
                    waiting.append(asyncio.create_task(store.keys.create(key, mint("live"), BY)))
                    waiting.append(asyncio.create_task(store.pets.set_status([number], "sold", BY)))
                if dice.random() < 0.3:
                    await asyncio.gather(*waiting)
                    waiting.clear()
            await asyncio.gather(*waiting)
        return record.events


def _animal(number: int) -> tuple[NewPet, IdempotencyKey | None]:
    """Returns an animal, every other one with an idempotency key. Names are long, so that a batch has many pages."""
    name = f"{number}.".ljust(10 + 37 * (number % 7), "x")
    idempotency_key = (
        IdempotencyKey("key", f"token-{number}", hashlib.sha256(name.encode()).digest()) if number % 2 else None
    )
    return NewPet(name, number, "available"), idempotency_key


def _beginning(events: list[Event]) -> int:
    return next(number for number, event in enumerate(events, 1) if event.file == "begin")


def _differs(files: dict[str, bytes], events: list[Event]) -> bool:
    """Returns whether the power cut lost any written data. If it did not, it has not tested anything."""
    everything = after_power_cut([*events, *(Event("sync", name) for name in files)], random.Random(0))
    return everything != files


async def _judge(image: Path, events: list[Event]) -> int:
    """Returns the number of acknowledged animals. Raises Broken."""
    sent = {event.file for event in events if event.kind == "sent"}
    acknowledged = {event.offset: event.file for event in events if event.kind == "acknowledged"}
    try:
        async with Backends(Settings(data=image)) as backends:
            store = backends.stores["live"]
            hold(check_database_file(image / "live.db").faults == [], "integrity_check is ok")
            stored = {pet.id: pet.name for pet in await _all(backends)}
            lost = {name for pet_id, name in acknowledged.items() if stored.get(pet_id) != name}
            hold(not lost, f"{len(lost)} of {len(acknowledged)} acknowledged animals are lost")
            hold(set(stored.values()) <= sent, "no animal exists that nobody sent")
            for number in range(1, CREATES, 2):  # retry the requests that have an idempotency key
                new, idempotency_key = _animal(number)
                if new.name in sent:
                    await store.pets.add(new, 2.0, idempotency_key)
            names = Counter(pet.name for pet in await _all(backends))
            hold(max(names.values(), default=1) == 1, f"{names.most_common(1)} exists twice")
    except (OperatorError, Unavailable) as error:
        hold(False, f"the store opens after a power cut: {error}")
    return len(acknowledged)


async def _all(backends: Backends) -> list[Pet]:
    return (await backends.stores["live"].pets.page(after=0, limit=10**6, status=None)).pets
