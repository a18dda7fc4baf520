"""No reader is shown a change before it was announced, whichever process has made it. On every backend.

Another process may have committed a change a moment ago, and not raised the catalogue's version yet. If this process
showed the change, a client could see it here, and not see it afterwards in a page that a third process has cached.
"""

from collections.abc import Awaitable, Callable

import pytest

from petstore.changes import Change
from petstore.errors import Unavailable
from petstore.pets import IdempotencyKey, NewPet, PetChanges
from petstore.store import Store
from tests.places import ENTRY, NOW, StorePlace, batches

Change = Callable[[Store], Awaitable[object]]
IDEMPOTENCY_KEY = IdempotencyKey("key_a", "token", b"digest")


async def first_page(store: Store) -> object:
    return await store.pets.page(after=0, limit=2, status=None)


async def sold(store: Store) -> object:
    return await store.pets.page(after=0, limit=2, status="sold")


async def second_animal(store: Store) -> object:
    return await store.pets.get(2)


@pytest.mark.parametrize("read", [first_page, sold, second_animal])
@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.pets.set_status([2], "sold", ENTRY),
        lambda store: store.pets.update(2, PetChanges(name="Max"), ENTRY),
        lambda store: store.pets.remove([2], ENTRY),
    ],
    ids=["status", "update", "removal"],
)
def test_change_of_another_process_is_announced_before_it_is_shown(
    store_at: StorePlace, change: Change, read: Callable[[Store], Awaitable[object]]
) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        for i in range(2):
            await store.pets.add(NewPet(f"Pet {i}", i), NOW)
        await read(store)
        async with store_at.open() as other:
            await change(other)
        changes.clear()
        await read(store)
        assert changes == ["catalogue"]
        await read(store)
        assert changes == ["catalogue"]

    store_at.use(work, changes)


@pytest.mark.parametrize(
    "add",
    [
        lambda store: store.pets.add(NewPet("Rex", 1), NOW),
        lambda store: store.pets.add_by_hand(NewPet("Rex", 1), ENTRY),
        lambda store: store.import_pets(batches("Rex"), ENTRY),
    ],
    ids=["create", "by hand", "import"],
)
def test_animal_of_another_process_is_announced_before_it_is_shown(store_at: StorePlace, add: Change) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        await store.pets.page(after=0, limit=9, status=None)
        async with store_at.open() as other:
            await add(other)
        changes.clear()
        assert (await store.pets.page(after=0, limit=9, status=None)).pets
        assert changes == ["catalogue"]
        await store.pets.get(1)
        assert changes == ["catalogue"]

    store_at.use(work, changes)


def test_link_to_the_next_page_is_announced_before_it_is_shown(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        await store.pets.add(NewPet("Rex", 1), NOW)
        assert not (await store.pets.page(after=0, limit=1, status=None)).more
        async with store_at.open() as other:
            await other.pets.add(NewPet("Mia", 1), NOW)
        changes.clear()
        assert (await store.pets.page(after=0, limit=1, status=None)).more
        assert changes == ["catalogue"]

    store_at.use(work, changes)


def test_replayed_animal_of_another_process_is_announced_before_it_is_shown(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        async with store_at.open() as other:
            await other.pets.add(NewPet("Rex", 1), NOW, IDEMPOTENCY_KEY)
        assert (await store.pets.add(NewPet("Rex", 1), NOW, IDEMPOTENCY_KEY)).replayed
        assert changes == ["catalogue"]

    store_at.use(work, changes)


def test_own_changes_are_announced_once(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        await store.pets.page(after=0, limit=9, status=None)
        for change in (
            lambda: store.pets.add(NewPet("Rex", 1), NOW),
            lambda: store.pets.set_status([1], "sold", ENTRY),
            lambda: store.pets.remove([1], ENTRY),
        ):
            changes.clear()
            await change()
            await store.pets.page(after=0, limit=9, status=None)
            await store.pets.get(1)
            assert changes == ["catalogue"]

    store_at.use(work, changes)


def test_traversal_announces_once_and_not_page_by_page(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        async with store_at.open() as other:
            for i in range(20):
                await other.pets.add(NewPet(f"Pet {i}", i), NOW)
        for after in range(0, 20, 2):
            await store.pets.page(after=after, limit=2, status=None)
        assert changes == ["catalogue"]

    store_at.use(work, changes)


def test_change_that_cannot_be_announced_is_not_shown(store_at: StorePlace) -> None:
    class GateAway(list[Change]):
        away = True

        def append(self, subject: Change) -> None:
            if self.away:
                raise Unavailable("the gate does not answer")
            super().append(subject)

    changes = GateAway()

    async def work(store: Store) -> None:
        async with store_at.open() as other:
            await other.pets.add(NewPet("Rex", 1), NOW)
        for _ in range(2):
            with pytest.raises(Unavailable, match="the gate"):
                await store.pets.page(after=0, limit=9, status=None)
        changes.away = False
        assert (await store.pets.page(after=0, limit=9, status=None)).pets
        assert changes == ["catalogue"]

    store_at.use(work, changes)
