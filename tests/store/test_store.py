"""The contract of the store for client requests, on every backend."""

import asyncio
from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from harness.stores import BY, NOW, PATIENT, REFUSED_ROW, StorePlace, names
from petstore import settings
from petstore.changes import Change
from petstore.errors import IdempotencyMismatch, OperatorError
from petstore.keys import mint, new_key
from petstore.pets import Added, IdempotencyKey, NewPet, PetChanges
from petstore.store import Store, StorePolicy, check_url, close_stores, open_stores
from tests.pet_members import FIRST, SECOND, changed, with_id


def test_url_without_a_usable_scheme_or_port_is_refused_without_its_password() -> None:
    assert check_url("postgresql://pets:secret@[::1]:5433,a:5432/db") == "postgresql"
    assert check_url("postgres:///db?host=/run/postgresql") == "postgres"
    for wrong in ("mysql://secret@x/y", "secret", "postgresql://pets:se/cret@x/y", "postgresql://pets:secret@[::1/y"):
        with pytest.raises(OperatorError, match="--store") as refusal:
            check_url(wrong)
        assert "cret" not in str(refusal.value)


def test_a_port_beyond_65535_is_refused() -> None:
    for host in ("x:65536", "x:99999", "[::1]:70000", "a:5432,b:99999"):
        with pytest.raises(OperatorError, match="at most 65535"):
            settings.check_url("--store", f"postgresql://pets@{host}/db")
    settings.check_url("--store", "postgresql://pets@[::1]:65535,a,b:/db")


def test_added_animals_outlive_the_process_and_ids_grow(store_at: StorePlace) -> None:
    async def add(store: Store) -> Added:
        return await store.pets.add(NewPet("Rex", 7, "pending"), NOW)

    first, second = store_at.use(add), store_at.use(add)
    assert second.pet.id > first.pet.id
    assert store_at.use(lambda store: store.pets.get(first.pet.id)) == first.pet


def test_pages_are_keyset_pages(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        for i in range(7):
            await store.pets.add(NewPet(f"Pet {i}", i, "sold" if i % 2 else "available"), NOW)
        page = await store.pets.page(after=2, limit=3, status=None)
        assert ([p.id for p in page.pets], page.more) == ([3, 4, 5], True)
        page = await store.pets.page(after=0, limit=3, status="sold")
        assert ([p.id for p in page.pets], page.more) == ([2, 4, 6], False)
        assert await store.pets.page(after=7, limit=3, status=None) == ([], False)
        assert await store.pets.page(after=0, limit=3, status="pending") == ([], False)

    store_at.use(work)


def test_second_process_writing_at_the_same_time_loses_nothing(store_at: StorePlace) -> None:
    async def work(store: Store) -> int:
        async with store_at.open() as other:
            await asyncio.gather(*(one.pets.add(NewPet("Rex", 1), NOW) for one in [store, other] * 200))
        return sum((await store.pets.count()).values())

    assert store_at.use(work) == 400


# Commits


def test_when_announcing_fails_the_caller_gets_the_error(store_at: StorePlace) -> None:
    class Broken(list[Change]):
        def append(self, subject: Change) -> None:
            raise ValueError(f"cannot announce {subject}")

    async def work(store: Store) -> None:
        with pytest.raises(ValueError, match="cannot announce added"):
            await asyncio.wait_for(store.pets.add(NewPet("Rex", 1), NOW), 30)
        assert sum((await store.pets.count()).values()) == 1  # it was written anyway

    store_at.use(work, Broken())


def test_write_that_fails_takes_no_other_with_it(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        good = asyncio.gather(*(store.pets.add(NewPet(f"Pet {i}", i), NOW) for i in range(20)))
        key, secret = new_key("live", "free", now=NOW), mint("live")
        both = await asyncio.gather(
            store.keys.create(key, secret, BY), store.keys.create(key, secret, BY), return_exceptions=True
        )
        assert both.count(None) == 1 and sum(isinstance(each, REFUSED_ROW) for each in both) == 1
        assert len(await good) == 20
        assert sum((await store.pets.count()).values()) == 20

    store_at.use(work)


def test_status_outside_the_enumeration_is_refused_by_the_tables(store_at: StorePlace) -> None:
    lost: Any = "lost"

    async def work(store: Store) -> None:
        added = await store.pets.add(NewPet("Rex", 1), NOW)
        with pytest.raises(REFUSED_ROW):
            await store.pets.add(NewPet("Mia", 1, lost), NOW)
        with pytest.raises(REFUSED_ROW):
            await store.pets.set_status([added.pet.id], lost, BY)
        assert (await store.pets.page(after=0, limit=9, status=None)).pets == [added.pet]

    store_at.use(work)


def test_closing_both_stores_first_writes_what_waits_in_either(store_at: StorePlace) -> None:
    async def announce(_: Collection[Change]) -> None: ...

    async def work() -> list[Added]:
        stores = open_stores(store_at.url, store_at.data, StorePolicy(pool_size=1, bounds=PATIENT), lambda _: announce)
        await asyncio.gather(*(store.database.ping() for store in stores.values()))
        adding = [
            asyncio.ensure_future(store.pets.add(NewPet("Rex", i), NOW))
            for i in range(1_200)
            for store in stores.values()
        ]
        await asyncio.sleep(0)
        await close_stores(stores.values())
        return await asyncio.gather(*adding)

    assert len(asyncio.run(work())) == 2_400


# Idempotency keys


def test_repeated_request_gets_the_animal_as_it_was_added(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        new = FIRST
        first = await store.pets.add(new, NOW, IdempotencyKey("key_a", "t", b"body"))
        assert changed(with_id(first.pet.id, new), first.pet) == [], "a create loses these members"
        await store.pets.update(first.pet.id, PetChanges(**msgspec.structs.asdict(SECOND)), BY)
        again = await store.pets.add(new, NOW + 5, IdempotencyKey("key_a", "t", b"body"))
        assert again.replayed and changed(first.pet, again.pet) == [], "a replay loses these members"
        with pytest.raises(IdempotencyMismatch):
            await store.pets.add(new, NOW, IdempotencyKey("key_a", "t", b"other"))
        other_key = await store.pets.add(new, NOW, IdempotencyKey("key_b", "t", b"body"))
        assert other_key.pet.id != first.pet.id and not other_key.replayed

    store_at.use(work)


def test_idempotency_key_is_free_again_after_exactly_a_day(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        idempotency_key = IdempotencyKey("key_a", "token", b"digest")
        first = await store.pets.add(NewPet("Rex", 1), NOW, idempotency_key)
        await store.pets.add(NewPet("Max", 1), NOW + 86_370, IdempotencyKey("key_a", "another", b"digest"))
        assert (await store.pets.add(NewPet("Rex", 1), NOW + 86_399.9, idempotency_key)) == Added(
            first.pet, replayed=True
        )
        assert not (await store.pets.add(NewPet("Rex", 1), NOW + 86_400, idempotency_key)).replayed

    store_at.use(work)


async def added_at_once(
    store: Store, *adds: tuple[str, IdempotencyKey | None], now: float = NOW
) -> list[tuple[str, bool] | type[BaseException]]:
    """Adds animals with these names in one batch, because calls in the same iteration of the event loop share one.

    Returns the name in each result and whether it is a replay, or the type of the error.
    """
    adding = (store.pets.add(NewPet(name, 1), now, key) for name, key in adds)
    results = await asyncio.gather(*adding, return_exceptions=True)
    return [type(each) if isinstance(each, BaseException) else (each.pet.name, each.replayed) for each in results]


def test_one_batch_adds_one_animal_for_each_idempotency_key(store_at: StorePlace) -> None:
    """The first use of a key is written. The others are replays, or refused if their body differs."""
    body, other_body = IdempotencyKey("key_a", "t", b"body"), IdempotencyKey("key_a", "t", b"other")
    other_token, other_api_key = IdempotencyKey("key_a", "u", b"body"), IdempotencyKey("key_b", "t", b"body")

    async def work(store: Store) -> None:
        assert await added_at_once(
            store,
            ("Unrelated 1", None),
            ("Rex", body),
            ("Rex", body),
            ("Max", other_body),
            ("Other token", other_token),
            ("Unrelated 2", None),
            ("Rex", body),
            ("Other API key", other_api_key),
        ) == [
            ("Unrelated 1", False),
            ("Rex", False),
            ("Rex", True),
            IdempotencyMismatch,
            ("Other token", False),
            ("Unrelated 2", False),
            ("Rex", True),
            ("Other API key", False),
        ]
        assert await names(store) == ["Unrelated 1", "Rex", "Other token", "Unrelated 2", "Other API key"]

    store_at.use(work)


def test_each_use_of_a_recorded_idempotency_key_is_compared_with_the_record(store_at: StorePlace) -> None:
    """A use is not compared with the first use in its batch, which might have a different body."""
    body, other_body = IdempotencyKey("key_a", "t", b"body"), IdempotencyKey("key_a", "t", b"other")

    async def work(store: Store) -> None:
        await store.pets.add(NewPet("Rex", 1), NOW, body)
        assert await added_at_once(store, ("Max", other_body), ("Rex", body), ("New", None)) == [
            IdempotencyMismatch,
            ("Rex", True),
            ("New", False),
        ]
        # A day later the record has expired, and the first use in the batch replaces it.
        assert await added_at_once(
            store, ("Max", other_body), ("Rex", body), ("Max", other_body), now=NOW + 86_400
        ) == [
            ("Max", False),
            IdempotencyMismatch,
            ("Max", True),
        ]
        assert await names(store) == ["Rex", "New", "Max"]

    store_at.use(work)


def test_1000_creates_at_once_on_two_workers_add_one_animal(store_at: StorePlace) -> None:
    """These requests are spread over several batches, together with unrelated creates."""
    key = IdempotencyKey("key_a", "t", b"body")
    policy = StorePolicy(bounds=PATIENT._replace(batch=300))

    async def work() -> None:
        async with store_at.open(policy=policy) as one, store_at.open(policy=policy) as other:
            results = await asyncio.gather(
                *(store.pets.add(NewPet("Rex", 1), NOW, key) for store in (one, other) for _ in range(500)),
                *(store.pets.add(NewPet("Max", 1), NOW) for store in (one, other) for _ in range(10)),
            )
            same = results[:1_000]
            assert len({each.pet.id for each in same}) == 1
            assert sum(each.replayed for each in same) == 999
            assert sorted(await names(one)) == ["Max"] * 20 + ["Rex"]

    asyncio.run(work())


def test_replayed_request_is_not_announced_again(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        for replayed in (False, True):
            added = await store.pets.add(NewPet("Rex", 1), NOW, IdempotencyKey("key_a", "token", b"digest"))
            assert added.replayed is replayed
            assert changes == ["added"]

    store_at.use(work, changes)
