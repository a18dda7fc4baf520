"""Creates the data for `petstore serve --demo`: animals, keys on every plan, a day of usage and some audit entries.

The data is the same each time, except for key ids and secrets. All times are relative to the current time.
"""

import csv
import io
import math
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from petstore.audit import Actor
from petstore.errors import STATUS_OF_CODE
from petstore.formats.pet_files import PetFile, format_of
from petstore.formats.pet_texts import IMPORTED
from petstore.gate import Gate
from petstore.keys import Environment, KeyChanges, mint, new_key
from petstore.operations import OPERATIONS, OperationName, deprecated_operations
from petstore.operators import DEMO_ACTOR
from petstore.pets import NewPet, PetChanges, PetQuery, PetStatus
from petstore.plans import Limits, Plan
from petstore.rate_limits import SECOND, Windows
from petstore.settings import BASES
from petstore.store import Store
from petstore.usage import (
    DAY,
    HOUR,
    MINUTE,
    SPANS,
    AnonymousMeasure,
    KeyMeasure,
    OperationUsage,
    RecentError,
    TotalUsage,
)

OPERATOR = "ada (demo)"
ANIMALS: dict[Environment, int] = {"live": 360, "staging": 120}
FILES = ("harbour-shelter.csv", "city-shelter.csv", "breeders.jsonl")
QUARTER = 15 * MINUTE
CODES: dict[KeyMeasure, str] = {
    "client_error": "invalid_body", "refused": "rate_limit_exceeded", "banned": "key_banned",
    "server_error": "unavailable",
}  # fmt: skip

# Animal names by category: dogs, cats, rabbits, birds, fish, turtles.
NAMES = {
    1: ("Rex", "Bella", "Max", "Luna", "Bruno", "Daisy", "Rocky", "Molly", "Buddy", "Sadie", "Toby", "Frida", "Argos"),
    2: ("Misty", "Felix", "Cleo", "Simba", "Nala", "Tiger", "Minka", "Oscar", "Pumpkin", "Smokey", "Mia", "Salem"),
    3: ("Thumper", "Clover", "Flopsy", "Hazel", "Pepper", "Snowball", "Cocoa"),
    4: ("Kiwi", "Rio", "Sunny", "Tweety", "Mango", "Polly", "Jade"),
    5: ("Bubbles", "Coral", "Finn", "Marlin", "Neptune"),
    6: ("Shelly", "Franklin", "Tank", "Olive"),
}
# Each new animal gets the next category in this rotation. Most animals are dogs or cats.
CATEGORIES = (1, 2, 1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 3, 2, 6, 1, 4)

# The shares of a key's requests, by operation and measure. `admitted` includes client and server errors.
Mix = Mapping[tuple[OperationName, KeyMeasure], float]
READS: Mix = {("listPets", "admitted"): 1.0}
SHOP: Mix = {("listPets", "admitted"): 0.8, ("createPet", "admitted"): 0.2, ("createPet", "client_error"): 0.05}
ABUSIVE: Mix = {("listPets", "admitted"): 0.5, ("listPets", "refused"): 0.4, ("listPets", "banned"): 0.1}


class _Key(NamedTuple):
    """A demo key. `age` is in days. `per_hour` is the number of requests in the live environment's busiest hour."""

    name: str
    plan: Plan
    age: float
    per_hour: float
    mix: Mix
    life: float | None = None  # seconds from creation to expiry
    unused: float = 0  # days since the key's last request


ANONYMOUS_PER_HOUR: dict[AnonymousMeasure, float] = {"unauthorized": 36, "anonymous_client_error": 4}


def _keys() -> tuple[_Key, ...]:
    deprecated = [each.name for each in deprecated_operations()]
    others = [each.name for each in OPERATIONS if each.name not in ("listPets", *deprecated)]
    old_client = {
        ("listPets", "admitted"): 0.48,
        **_shared(0.52, deprecated, "admitted"),
        **_shared(0.02, deprecated, "client_error"),
    }
    busy = {("listPets", "admitted"): 0.851, **_shared(0.149, others, "admitted"), ("listPets", "server_error"): 0.001}
    too_fast = {("listPets", "admitted"): 0.7, **_shared(0.2, deprecated, "admitted"), ("listPets", "refused"): 0.1}
    return (
        _Key("Summer campaign", "pro", 85, 200, READS, life=90 * DAY),
        _Key("Contractor", "pro", 60, 0, READS),
        _Key("City shelters", "enterprise", 45, 9_000, busy),
        _Key("Harbour Vets", "free", 40, 350, old_client),
        _Key("Little Paws shop", "free", 36, 60, too_fast),
        _Key("Price comparison", "free", 34, 90, ABUSIVE, unused=0.3),
        _Key("Pet finder app", "business", 32, 3_500, SHOP),
    )


def _shared(share: float, operations: list[OperationName], measure: KeyMeasure) -> Mix:
    """Splits a share of the requests evenly among the operations."""
    return {(name, measure): share / len(operations) for name in operations}


async def has_data(store: Store) -> bool:
    """Returns whether the store contains any keys, animals or audit entries. Raises Unavailable."""
    keys, found = await store.keys.page(limit=1), await store.pets.newest(PetQuery(), limit=1)
    return bool(keys or found.pets or (await store.audit.find(limit=1)).entries)


async def is_demo(store: Store) -> bool:
    """Returns whether `fill` has finished filling this store. Raises Unavailable."""
    before, more = None, True
    while more:
        found, before, more = await store.audit.find(before=before, limit=1, actor=DEMO_ACTOR, action="create key")
        if found:
            return True
    return False


async def fill(stores: Mapping[Environment, Store], gate: Gate, now: float) -> dict[Environment, str]:
    """Adds demo data to both environments. Returns one new key's secret for each environment. Raises Unavailable."""
    secrets_made: dict[Environment, str] = {}
    keys = _keys()
    for environment, store in stores.items():
        # Perform acts chronologically, because the audit log lists entries in the order in which they are written.
        ids = await _add_keys(store, keys, now)
        await _add_animals(store, ANIMALS[environment], now)
        await store.keys.suspend(ids["Price comparison"], _by(now, 0.3))
        share = ANIMALS[environment] / ANIMALS["live"]
        callers = {ids[key.name]: key for key in keys}
        rows = [row for start, seconds in _intervals(now) for row in _usage(start, seconds, callers, share, now)]
        anonymous = [row for start, seconds in _intervals(now) for row in _anonymous_usage(start, seconds, share)]
        await store.usage.add(rows, {row.key_id: float(row.start) for row in rows}, anonymous)
        await gate.put_windows(_windows(rows, SPANS["day"].since(now)))
        await store.usage.add_errors([_error(row, environment) for row in rows if row.measure in CODES])
        secret = secrets_made[environment] = mint(environment)
        first = new_key(environment, "free", now=now, name="first key")
        await store.keys.create(first, secret, Actor(DEMO_ACTOR, now))
    return secrets_made


def _by(now: float, days_ago: float) -> Actor:
    return Actor(OPERATOR, now - days_ago * DAY)


async def _add_keys(store: Store, keys: Iterable[_Key], now: float) -> dict[str, str]:
    """Adds the keys and returns a mapping of names to ids."""
    ids = {}
    for key in keys:
        limits = Limits(5_000, 1_000_000) if key.plan == "enterprise" else None
        by = _by(now, key.age)
        expires = by.at + key.life if key.life else None
        made = new_key(store.environment, key.plan, now=by.at, name=key.name, limits=limits, expires=expires)
        await store.keys.create(made, mint(store.environment), by)
        ids[key.name] = made.id
    await store.keys.update(ids["Harbour Vets"], KeyChanges(plan="pro"), _by(now, 31))
    await store.keys.revoke(ids["Contractor"], _by(now, 30))
    await store.keys.rotate(ids["Pet finder app"], mint(store.environment), 1, float(DAY), _by(now, 29))
    return ids


async def _add_animals(store: Store, count: int, now: float) -> None:
    def file(name: str, first: int, end: int) -> PetFile:
        animals = [_animal(number, count) for number in range(first, end)]
        content = io.StringIO()
        if format_of(name) == "csv":
            csv.writer(content).writerows([IMPORTED, *map(msgspec.structs.astuple, animals)])
        else:
            content.writelines(f"{msgspec.json.encode(pet).decode()}\n" for pet in animals)
        return PetFile(name, io.BytesIO(content.getvalue().encode()))

    share = count // len(FILES)
    for number, name in enumerate(FILES):
        animals = file(name, number * share, (number + 1) * share)
        by, checked = _by(now, 28 - 13 * number), await animals.check()
        begun = await store.imports.begin(name, checked.sha256, checked.animals, by)
        await store.imports.add_pets(begun, partial(animals.batches, checked), partial(float, by.at))
    biscuit = await store.pets.add_by_hand(NewPet("Biscuit", 1), _by(now, 1.6))
    await store.pets.update(biscuit.id, PetChanges(name="Biscuit the Brave"), _by(now, 1.5))
    await store.pets.set_status([biscuit.id - 1, biscuit.id - 2, biscuit.id - 3], "sold", _by(now, 1.2))
    await store.removals.remove([biscuit.id - 4], _by(now, 0.9))


def _animal(number: int, count: int) -> NewPet:
    """Creates an animal. Animals with lower numbers are more likely to be sold."""
    category = CATEGORIES[number % len(CATEGORIES)]
    names = NAMES[category]
    status: PetStatus = "available"
    if number * 7 % 10 > 4 + 6 * number / count:
        status = "sold"
    elif number % 6 == 0:
        status = "pending"
    return NewPet(names[number // 2 % len(names)], category, status)


def _windows(rows: Iterable[OperationUsage], start: int) -> Iterator[tuple[str, Windows]]:
    """Returns a day window for each key, covering the same period as the usage so that quotas match the charts."""
    admitted: Counter[str] = Counter()
    for row in rows:
        if row.measure == "admitted":
            admitted[row.key_id] += row.requests
    return ((key_id, Windows(day_start=start * SECOND, day_used=count)) for key_id, count in admitted.items())


def _error(row: OperationUsage, environment: Environment) -> RecentError:
    """Returns a recent error to match one of the failed requests in a usage row."""
    path = next(each.path for each in OPERATIONS if each.name == row.operation)
    code = CODES[row.measure]
    if row.measure == "client_error" and path.endswith("}"):
        code = "pet_not_found"
    shown = BASES[environment] + path.replace("{petId}", str(10 * ANIMALS[environment]))
    request_id = secrets.token_hex(16)
    return RecentError(row.key_id, float(row.start), request_id, row.operation, STATUS_OF_CODE[code], code, shown)


def _intervals(now: float) -> Iterator[tuple[int, int]]:
    """Yields the start and length of each interval in the last day, oldest first.

    The intervals are 15 minutes long, except in the last hour or so, where they are one minute long.
    """
    last_minute = int(now) // MINUTE * MINUTE
    last_hour = last_minute - HOUR
    for start in range(SPANS["day"].since(now), last_hour // QUARTER * QUARTER, QUARTER):
        yield start, QUARTER
    for start in range(last_hour // QUARTER * QUARTER, last_minute, MINUTE):
        yield start, MINUTE


def _usage(start: int, seconds: int, callers: Mapping[str, _Key], share: float, now: float) -> Iterator[OperationUsage]:
    load = _load(start)
    for key_id, key in callers.items():
        if start > now - key.unused * DAY:
            continue
        for number, ((operation, measure), part) in enumerate(key.mix.items()):
            if measure == "refused" and load < 0.7:
                continue  # clients exceed their limits only under high load
            requests = _whole(key.per_hour * share * part * load * seconds / HOUR, start, number)
            if requests:
                yield OperationUsage(key_id, start, measure, requests, operation)


def _anonymous_usage(start: int, seconds: int, share: float) -> Iterator[TotalUsage]:
    for number, (measure, per_hour) in enumerate(ANONYMOUS_PER_HOUR.items()):
        requests = _whole(per_hour * share * _load(start) * seconds / HOUR, start, number)
        if requests:
            yield TotalUsage(start, measure, requests)


def _load(start: int) -> float:
    """Returns the simulated load at a time of day, from 0 to 1. It is lowest at 3:00 UTC and highest at 15:00."""
    return 0.1 + 0.8 * (1 - math.cos(2 * math.pi * (start / HOUR - 3) / 24)) / 2


def _whole(exact: float, start: int, number: int) -> int:
    """Rounds up with a frequency that is proportional to the fractional part, and rounds down otherwise.

    Rounding to the nearest integer would turn all low request rates into 0.
    """
    return int(exact + (start // MINUTE * 0.618034 + number / 7) % 1)
