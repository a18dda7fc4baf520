"""The data of `petstore serve --demo`: animals, keys of every plan, a day of usage and some audit entries.

The data are the same each time, apart from the ids and the secrets of keys. The times count back from now.
"""

import math
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from petstore.admin.actions import Admin, KeyUpdate, newest_entry
from petstore.gate import Gate
from petstore.keys import Environment
from petstore.pets import NewPet, PetChanges, PetStatus
from petstore.plans import Limits
from petstore.store import Store
from petstore.store.schema import COUNTERS, TABLES, Row, Table
from petstore.usage import ANONYMOUS, DAY, HOUR, MINUTE, Operation, OperationUsage, RecentError, ResponseClass

ACTOR = "petstore serve --demo"  # creates the keys that are printed
OPERATORS = ("ada (demo)", "grace (demo)")
ANIMALS: dict[Environment, int] = {"live": 360, "staging": 120}
FILES = ("harbour-shelter.csv", "city-shelter.csv", "breeders.jsonl")
QUARTER = 15 * MINUTE
STATUSES: dict[ResponseClass, int] = {"client_error": 404, "refused": 429, "banned": 429, "server_error": 503}
CONTENT_MAX = 100_000  # rows of one table, more than any has

# The category → names of its animals: dogs, cats, rabbits, birds, fish, turtles.
NAMES = {
    1: ("Rex", "Bella", "Max", "Luna", "Bruno", "Daisy", "Rocky", "Molly", "Buddy", "Sadie", "Toby", "Frida", "Argos"),
    2: ("Misty", "Felix", "Cleo", "Simba", "Nala", "Tiger", "Minka", "Oscar", "Pumpkin", "Smokey", "Mia", "Salem"),
    3: ("Thumper", "Clover", "Flopsy", "Hazel", "Pepper", "Snowball", "Cocoa"),
    4: ("Kiwi", "Rio", "Sunny", "Tweety", "Mango", "Polly", "Jade"),
    5: ("Bubbles", "Coral", "Finn", "Marlin", "Neptune"),
    6: ("Shelly", "Franklin", "Tank", "Olive"),
}
CATEGORIES = (1, 2, 1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 3, 2, 6, 1, 4)  # repeated: more dogs and cats than turtles

Mix = Mapping[tuple[Operation, ResponseClass], float]
READS: Mix = {("listPets", "ok"): 1.0}
SHOP: Mix = {("listPets", "ok"): 0.8, ("createPet", "ok"): 0.15, ("createPet", "client_error"): 0.05}
OLD_CLIENT: Mix = {("getPet", "ok"): 0.5, ("getPet", "client_error"): 0.02, ("listPets", "ok"): 0.48}
BUSY: Mix = {("listPets", "ok"): 0.85, ("createPet", "ok"): 0.149, ("listPets", "server_error"): 0.001}
ABUSIVE: Mix = {("listPets", "ok"): 0.5, ("listPets", "refused"): 0.4, ("listPets", "banned"): 0.1}
TOO_FAST: Mix = {("listPets", "ok"): 0.7, ("getPet", "ok"): 0.2, ("listPets", "refused"): 0.1}
NO_KEY: Mix = {("listPets", "unauthorized"): 0.9, ("other", "client_error"): 0.1}


class _Caller(NamedTuple):
    """A key that is used: its requests in the busiest hour, and what they are."""

    key_id: str
    per_hour: float
    mix: Mix
    suspended_days: float = 0  # how many days ago it was suspended; 0: it is not


async def has_data(store: Store) -> bool:
    """Raises Unavailable."""
    keys, found = await store.keys(limit=1), await store.newest_pets(limit=1)
    return bool(keys or found.pets or (await store.find_entries(limit=1)).entries)


async def is_demo(store: Store) -> bool:
    """Whether the data were made by `fill`. Raises Unavailable."""
    return await newest_entry(store, actor=ACTOR, action="create key") is not None


async def content_of(store: Store) -> dict[Table, list[Row]]:
    """All rows of a store that `fill` has filled, for `put_all` of another. Raises Unavailable."""
    return {table: await store.rows(table, None, CONTENT_MAX) for table in (*TABLES, COUNTERS)}


async def fill(stores: Mapping[Environment, Store], gate: Gate, now: float) -> dict[Environment, str]:
    """Fill both environments, in many transactions. Raises Unavailable.

    Returns the secret of a new free key of each.
    """

    def admin(environment: Environment, days_ago: float, actor: str = OPERATORS[0]) -> Admin:
        return Admin(stores[environment], gate, actor, lambda: now - days_ago * DAY)

    # In the order of their times: the audit log lists its entries in the order in which they were written.
    add_keys = {"live": _live_keys, "staging": _staging_keys}
    for environment, store in stores.items():
        callers = await add_keys[environment](partial(admin, environment, actor=OPERATORS[1]))
        await _add_animals(partial(admin, environment), ANIMALS[environment])
        for caller in callers:
            if caller.suspended_days:
                await admin(environment, caller.suspended_days).suspend_key(caller.key_id)
        await _add_usage(store, now, callers)
    created = {each: await admin(each, 0, ACTOR).create_key("free", name="first key") for each in stores}
    return {environment: secret for environment, (_, secret) in created.items()}


async def _add_animals(admin: Callable[[float], Admin], count: int) -> None:
    async def batch(first: int, end: int) -> AsyncIterator[list[NewPet]]:
        yield [_animal(number, count) for number in range(first, end)]

    share = count // len(FILES)
    for number, name in enumerate(FILES):
        await admin(28 - 13 * number).import_pets(name, batch(number * share, (number + 1) * share))
    added = await admin(1.6).add_pet(NewPet("Biscuit", 1))
    await admin(1.5).update_pet(added.id, PetChanges(name="Biscuit the Brave"))
    await admin(1.2).set_status([added.id - 1, added.id - 2, added.id - 3], "sold")
    await admin(0.9).remove_pets([added.id - 4])


def _animal(number: int, count: int) -> NewPet:
    """Animals that were added first are sold more often."""
    category = CATEGORIES[number % len(CATEGORIES)]
    names = NAMES[category]
    status: PetStatus = "available"
    if number * 7 % 10 > 4 + 6 * number / count:
        status = "sold"
    elif number % 6 == 0:
        status = "pending"
    return NewPet(names[number // 2 % len(names)], category, status)


async def _staging_keys(admin: Callable[[float], Admin]) -> list[_Caller]:
    tests, _ = await admin(35).create_key("free", name="Integration tests")
    beta, _ = await admin(30).create_key("business", name="Pet finder app, beta")
    return [_Caller(tests.id, 60, OLD_CLIENT), _Caller(beta.id, 400, SHOP), _Caller(ANONYMOUS, 6, NO_KEY)]


async def _live_keys(admin: Callable[[float], Admin]) -> list[_Caller]:
    summer, _ = await admin(85).create_key("pro", name="Summer campaign", life=90 * DAY)
    contractor, _ = await admin(60).create_key("pro", name="Contractor")
    city, _ = await admin(45).create_key("enterprise", name="City shelters", limits=Limits(5_000, 1_000_000))
    vets, _ = await admin(40).create_key("free", name="Harbour Vets")
    paws, _ = await admin(36).create_key("free", name="Little Paws shop")
    scraper, _ = await admin(34).create_key("free", name="Price comparison", scopes=("read",))
    app, _ = await admin(32).create_key("business", name="Pet finder app")
    await admin(31).update_key(vets.id, KeyUpdate(plan="pro"))
    await admin(30).revoke_key(contractor.id)
    await admin(29).rotate_key(app.id, float(DAY))
    return [
        _Caller(city.id, 9_000, BUSY),
        _Caller(app.id, 3_500, SHOP),
        _Caller(vets.id, 350, OLD_CLIENT),
        _Caller(summer.id, 200, READS),
        _Caller(paws.id, 60, TOO_FAST),
        _Caller(scraper.id, 90, ABUSIVE, suspended_days=0.3),
        _Caller(ANONYMOUS, 40, NO_KEY),
    ]


async def _add_usage(store: Store, now: float, callers: list[_Caller]) -> None:
    rows = [row for start, seconds in _intervals(now) for row in _usage(start, seconds, callers, now)]
    used = {row.key_id: float(row.start) for row in rows if row.key_id != ANONYMOUS}
    await store.add_usage(rows, used)
    await store.add_errors([_error(row) for row in rows if row.key_id in used and row.response in STATUSES])


def _error(row: OperationUsage) -> RecentError:
    """One of the requests of a row."""
    return RecentError(row.key_id, float(row.start), secrets.token_hex(16), row.operation, STATUSES[row.response])


def _intervals(now: float) -> Iterator[tuple[int, int]]:
    """The start and the seconds of each interval of the last day, oldest first: the last hour in minutes."""
    last_minute = int(now) // MINUTE * MINUTE
    last_hour = last_minute - HOUR
    for start in range((last_hour - 23 * HOUR) // QUARTER * QUARTER, last_hour // QUARTER * QUARTER, QUARTER):
        yield start, QUARTER
    for start in range(last_hour // QUARTER * QUARTER, last_minute, MINUTE):
        yield start, MINUTE


def _usage(start: int, seconds: int, callers: list[_Caller], now: float) -> Iterator[OperationUsage]:
    load = _load(start)
    for caller in callers:
        if start > now - caller.suspended_days * DAY:
            continue
        for number, ((operation, response), share) in enumerate(caller.mix.items()):
            if response == "refused" and load < 0.7:
                continue  # the key stays within its limits at night
            exact = caller.per_hour * share * load * seconds / HOUR
            # Rounded up as often as the fraction says, so that few requests an hour are not lost in minutes.
            requests = int(exact + (start // MINUTE * 0.618034 + number / 7) % 1)
            if requests:
                yield OperationUsage(caller.key_id, start, response, requests, operation)


def _load(at: int) -> float:
    """From 0 to 1, by the time of day: least at 3:00 UTC, most at 15:00."""
    daily = (1 - math.cos(2 * math.pi * (at / HOUR - 3) / 24)) / 2
    ripple = math.sin(at / 1_000) * math.sin(at / 2_700)
    return min(1.0, (0.1 + 0.8 * daily) * (1 + 0.12 * ripple))
