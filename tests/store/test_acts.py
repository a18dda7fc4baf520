"""Two operators perform the same act at once, on every backend. One succeeds, and the other gets an error."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import NamedTuple

import asyncpg
import pytest

from harness.stores import BY, NOW, StorePlace
from petstore.audit import Action, Actor
from petstore.changes import Change
from petstore.errors import OperatorError
from petstore.keys import new_key
from petstore.operators import new_operator
from petstore.pets import NewPet
from petstore.store import Store
from petstore.store.sqlite.connection import connect

OPERATORS = (Actor("ada", NOW + 1.0), Actor("bob", NOW + 2.0))


async def add_key(store: Store, secret: str) -> str:
    key = new_key("live", "free", now=NOW)
    await store.keys.create(key, secret, BY)
    return key.id


async def add_suspended_key(store: Store, secret: str) -> str:
    key_id = await add_key(store, secret)
    await store.keys.suspend(key_id, BY)
    return key_id


async def add_rotated_key(store: Store, secret: str) -> str:
    key_id = await add_key(store, secret)
    await store.keys.rotate(key_id, f"new {secret}", 1, 60.0, Actor("carl", NOW))
    return key_id


async def add_operator(store: Store, token: str) -> str:
    await store.operators.add(new_operator(token, NOW), token, BY)
    return token


async def add_removed_pet(store: Store, name: str) -> str:
    pet = await store.pets.add_by_hand(NewPet(name, 1), BY)
    await store.removals.remove([pet.id], BY)
    return str(pet.id)


async def add_pet(store: Store, name: str) -> str:
    return str((await store.pets.add_by_hand(NewPet(name, 1), BY)).id)


class Act(NamedTuple):
    """An act that only one of several operators can perform.

    `prepare` creates its subject and returns the subject's id. `refusal` is the message for the other operator.
    """

    action: Action
    prepare: Callable[[Store, str], Awaitable[str]]
    perform: Callable[[Store, str, Actor], Awaitable[object]]
    refusal: str


ACTS = [
    Act("suspend key", add_key, lambda s, x, by: s.keys.suspend(x, by), "is already suspended"),
    Act("resume key", add_suspended_key, lambda s, x, by: s.keys.resume(x, by), "is not suspended, so there is"),
    Act("revoke key", add_key, lambda s, x, by: s.keys.revoke(x, by), "is already revoked"),
    Act(
        "rotate key", add_key, lambda s, x, by: s.keys.rotate(x, f"{x} {by.name}", 1, 0.0, by),
        "someone else has just rotated",
    ),
    Act(
        "end old secret", add_rotated_key, lambda s, x, by: s.keys.end_old_secret(x, by),
        "has no old secret that still works",
    ),
    Act("revoke operator", add_operator, lambda s, x, by: s.operators.revoke(x, by), "no active operator is named"),
    Act("remove animal", add_pet, lambda s, x, by: s.removals.remove([int(x)], by), "no animal has the id"),
    Act("restore animal", add_removed_pet, lambda s, x, by: s.removals.restore([int(x)], by), "has not been removed"),
]  # fmt: skip


@asynccontextmanager
async def writes_held(place: StorePlace, waiting: int) -> AsyncIterator[None]:
    """Holds back all writes. At the end, waits until this many transactions wait for a lock, and then lets them go."""
    if place.url is None:
        with closing(connect(place.data / "live.db")) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")
        return
    connection = await asyncpg.connect(place.url)
    async with connection.transaction():
        await connection.execute("LOCK TABLE petstore_live.keys, petstore_live.operators, petstore_live.pets,"
                                 " petstore_live.removed_pets IN EXCLUSIVE MODE")  # fmt: skip
        yield
        async with asyncio.timeout(30):
            while await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") < waiting:
                await asyncio.sleep(0.01)
    await connection.close()


@pytest.mark.parametrize("act", ACTS, ids=[act.action for act in ACTS])
def test_of_two_operators_at_once_one_succeeds_and_the_other_learns_why(store_at: StorePlace, act: Act) -> None:
    announced: list[Change] = []

    async def work(store: Store) -> None:
        async with store_at.open(announced) as other:
            subject = await act.prepare(store, "Rex")
            announced.clear()
            async with writes_held(store_at, waiting=2):
                both: list[asyncio.Task[object]] = [
                    asyncio.create_task(act.perform(each, subject, by))  # type: ignore[arg-type]  # it is a coroutine
                    for each, by in zip((store, other), OPERATORS, strict=True)
                ]
                await asyncio.sleep(0)  # both acts begin
            results = await asyncio.gather(*both, return_exceptions=True)
            (refusal,) = [result for result in results if isinstance(result, BaseException)]
            assert isinstance(refusal, OperatorError) and act.refusal in str(refusal), refusal
            (winner,) = [by.name for by, result in zip(OPERATORS, results, strict=True) if result is not refusal]
            found = [(entry.actor, entry.action) for _, entry in (await store.audit.find(limit=2)).entries]
            assert found[0] == (winner, act.action) != found[1]

    store_at.use(work, announced)
    assert len(announced) <= 1, "the act that changed nothing was announced"


@pytest.mark.parametrize("rounds", [20])
def test_of_many_rotations_at_once_exactly_one_new_secret_works(store_at: StorePlace, rounds: int) -> None:
    async def work(store: Store) -> None:
        async with store_at.open() as other:
            await other.database.ping()
            for number in range(rounds):
                key_id = await add_key(store, f"first {number}")
                rotate = partial(lambda s, by, x: s.keys.rotate(x, f"{x} {by.name}", 1, 60.0, by), x=key_id)
                results = await asyncio.gather(*map(rotate, (store, other), OPERATORS), return_exceptions=True)
                assert sum(isinstance(result, OperatorError) for result in results) == 1
                secrets = await store.keys.secrets(key_id)
                assert [each.number for each in secrets] == [2, 1] and secrets[0].expires is None

    store_at.use(work)
