"""The store's contract, on every backend."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from petstore.audit import AuditEntry
from petstore.errors import IdempotencyConflict, IdempotencyMismatch, OperatorError, Unavailable
from petstore.keys import digest_of, mint, new_key
from petstore.pets import Added, IdempotencyKey, NewPet
from petstore.settings import Settings
from petstore.store import Store, StorePolicy, Subject, check_url
from petstore.usage import HOUR, Usage
from tests.places import StorePlace

DEED = AuditEntry(5.0, "a test", "test", "x")
NOW = 1_800_000_000.0


async def batches(*names: str) -> AsyncIterator[list[NewPet]]:
    for name in names:
        yield [NewPet(name, 1)]


def test_a_url_names_its_scheme_or_is_refused_without_its_password() -> None:
    assert check_url("postgresql://pets:secret@a:5432,[::1]:5433/db") == "postgresql"
    assert check_url("postgres:///db?host=/run/postgresql") == "postgres"
    for wrong in ("mysql://secret@x/y", "secret", "postgresql://pets:se/cret@x/y", "postgresql://pets:secret@[::1/y"):
        with pytest.raises(OperatorError, match="--store") as told:
            check_url(wrong)
        assert "cret" not in str(told.value)


def test_added_animals_outlive_the_process_and_ids_grow(store_at: StorePlace) -> None:
    async def add(store: Store) -> Added:
        return await store.add(NewPet("Rex", 7, "pending"), NOW)

    first, second = store_at.use(add), store_at.use(add)
    assert second.pet.id > first.pet.id
    found = store_at.use(lambda store: store.pet(first.pet.id))
    assert found == first.pet


def test_a_write_that_fails_takes_no_other_with_it(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        good = asyncio.gather(*(store.add(NewPet(f"Pet {i}", i), NOW) for i in range(20)))
        key, secret = new_key("live", "free", now=NOW), digest_of(mint("live"))
        twice = asyncio.gather(
            store.add_key(key, secret, DEED), store.add_key(key, secret, DEED), return_exceptions=True
        )
        first, second = await twice
        assert first is True and isinstance(second, Unavailable)
        assert len(await good) == 20
        assert sum((await store.count()).values()) == 20

    store_at.use(work)


def test_what_waits_to_be_added_is_added_before_the_store_closes(store_at: StorePlace) -> None:
    async def work() -> list[Added]:
        store = store_at.open()
        adding = [asyncio.ensure_future(store.add(NewPet("Rex", i), NOW)) for i in range(1_200)]  # several batches
        await asyncio.sleep(0)
        await store.close()
        return await asyncio.gather(*adding)

    assert len({added.pet.id for added in asyncio.run(work())}) == 1_200


def test_a_store_knows_its_newest_animal_and_that_others_have_written(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        assert await store.newest() == 0
        before = await store.stamp()
        assert before is not None and await store.stamp() == before
        other = store_at.open()
        added = await other.add(NewPet("Rex", 1), NOW)
        await other.close()
        assert await store.stamp() != before
        assert await store.newest() == added.pet.id

    store_at.use(work)


def test_a_token_is_free_again_after_exactly_a_day(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        idempotency_key = IdempotencyKey("key_a", "token", b"digest")
        first = await store.add(NewPet("Rex", 1), NOW, idempotency_key)
        await store.add(NewPet("Max", 1), NOW + 86_370, IdempotencyKey("key_a", "another", b"digest"))
        assert (await store.add(NewPet("Rex", 1), NOW + 86_399.9, idempotency_key)) == Added(first.pet, replayed=True)
        assert not (await store.add(NewPet("Rex", 1), NOW + 86_400, idempotency_key)).replayed

    store_at.use(work)


def test_what_nobody_has_set_is_the_same_everywhere() -> None:
    assert StorePolicy(Settings().postgres_pool, Settings().pgbouncer) == StorePolicy()


def test_commit_tells_what_has_changed_before_the_caller_hears(store_at: StorePlace) -> None:
    changes: list[Subject] = []

    async def work(store: Store) -> None:
        await store.add(NewPet("Rex", 1), NOW)
        assert changes == ["catalogue"]
        await store.add_key(new_key("live", "free", now=NOW), digest_of(mint("live")), DEED)
        assert changes == ["catalogue", "keys"]
        await store.add_usage([Usage("key_a", 0, "ok", 3)], {"key_a": NOW})
        assert changes == ["catalogue", "keys"]

    store_at.use(work, changes)


def test_a_status_that_there_is_not_is_never_stored(store_at: StorePlace) -> None:
    """The tables themselves see to it, so that nobody has to look when reading."""
    lost: Any = "lost"

    async def work(store: Store) -> None:
        added = await store.add(NewPet("Rex", 1), NOW)
        with pytest.raises(Unavailable, match=r"(?i)constraint"):
            await store.add(NewPet("Mia", 1, lost), NOW)
        with pytest.raises(Unavailable, match=r"(?i)constraint"):
            await store.set_status([added.pet.id], lost, DEED)
        assert (await store.page(after=0, limit=9, status=None)).pets == [added.pet]

    store_at.use(work)


def test_when_readers_cannot_be_told_the_caller_hears_of_it(store_at: StorePlace) -> None:
    class Broken(list[Subject]):
        def append(self, subject: Subject) -> None:
            raise ValueError(f"a fault in telling of the {subject}")

    async def work(store: Store) -> None:
        with pytest.raises(ValueError, match="a fault in telling of the catalogue"):
            await asyncio.wait_for(store.add(NewPet("Rex", 1), NOW), 5)
        assert (await store.page(after=0, limit=9, status=None)).pets  # it is there, whoever asks

    store_at.use(work, Broken())


def test_an_animal_under_an_idempotency_key_is_told_of_once(store_at: StorePlace) -> None:
    changes: list[Subject] = []

    async def work(store: Store) -> None:
        for replayed in (False, True):
            added = await store.add(NewPet("Rex", 1), NOW, IdempotencyKey("key_a", "token", b"digest"))
            assert added.replayed is replayed
            assert changes == ["catalogue"]

    store_at.use(work, changes)


def test_pages_are_keyset_pages(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        for i in range(7):
            await store.add(NewPet(f"Pet {i}", i, "sold" if i % 2 else "available"), NOW)
        page = await store.page(after=2, limit=3, status=None)
        assert ([p.id for p in page.pets], page.more) == ([3, 4, 5], True)
        page = await store.page(after=0, limit=3, status="sold")
        assert ([p.id for p in page.pets], page.more) == ([2, 4, 6], False)

    store_at.use(work)


def test_idempotency(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        new = NewPet("Rex", 1)
        first = await store.add(new, NOW, IdempotencyKey("key_a", "t", b"body"))
        await store.set_status([first.pet.id], "sold", DEED)
        again = await store.add(new, NOW + 5, IdempotencyKey("key_a", "t", b"body"))
        assert again == Added(first.pet, replayed=True)
        with pytest.raises(IdempotencyMismatch):
            await store.add(new, NOW, IdempotencyKey("key_a", "t", b"other"))
        other_key = await store.add(new, NOW, IdempotencyKey("key_b", "t", b"body"))
        assert other_key.pet.id != first.pet.id and not other_key.replayed
        day_later = await store.add(new, NOW + 86_400, IdempotencyKey("key_a", "t", b"body"))
        assert day_later.pet.id != first.pet.id and not day_later.replayed

    store_at.use(work)


def test_a_second_request_while_the_first_runs_is_a_conflict(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        idempotency_key = IdempotencyKey("key_a", "t", b"body")
        first, second = await asyncio.gather(
            store.add(NewPet("Rex", 1), NOW, idempotency_key),
            store.add(NewPet("Rex", 1), NOW, idempotency_key),
            return_exceptions=True,
        )
        assert isinstance(first, Added) and isinstance(second, IdempotencyConflict)

    store_at.use(work)


def test_an_import_that_fails_leaves_nothing(store_at: StorePlace) -> None:
    async def broken() -> AsyncIterator[list[NewPet]]:
        yield [NewPet("Rex", 1)] * 5_000
        raise OperatorError("line 5001: bad")

    async def work(store: Store) -> None:
        with pytest.raises(OperatorError):
            await store.import_pets(broken(), DEED)
        assert sum((await store.count()).values()) == 0
        assert changes == []
        assert await store.import_pets(batches("a", "b"), DEED) == 2
        assert changes == ["catalogue"]
        assert [entry.detail for _, entry in (await store.find_entries()).entries] == ["2 animals"]

    changes: list[Subject] = []
    store_at.use(work, changes)


def test_a_second_process_writing_at_the_same_time_is_normal(store_at: StorePlace) -> None:
    async def work(store: Store) -> int:
        other = store_at.open()
        both = [store, other] * 200
        await asyncio.gather(*(one.add(NewPet("Rex", 1), NOW) for one in both))
        await other.close()
        return sum((await store.count()).values())

    assert store_at.use(work) == 400


def test_usage_adds_up_and_last_use_never_goes_back(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        key = new_key("live", "free", now=NOW)
        await store.add_key(key, digest_of(mint("live")), DEED)
        await store.add_usage([Usage(key.id, 3600, "ok", 2), Usage(key.id, 3600, "refused", 1)], {key.id: 9_000.0})
        await store.add_usage([Usage(key.id, 3600, "ok", 5), Usage(key.id, 7200, "ok", 1)], {key.id: 8_000.0})
        assert sorted(await store.usage_of([key.id], HOUR, [0, 3600, 7200])) == [
            Usage(key.id, 3600, "ok", 7),
            Usage(key.id, 3600, "refused", 1),
            Usage(key.id, 7200, "ok", 1),
        ]
        assert await store.usage_of([key.id], HOUR, [7200]) == [Usage(key.id, 7200, "ok", 1)]
        shown = await store.key(key.id)
        assert shown is not None and shown.last_used == 9_000.0

    store_at.use(work)
