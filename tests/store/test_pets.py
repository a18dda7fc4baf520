"""What operators do with animals, on every backend: search, add by hand, change and remove."""

import asyncio
from typing import cast

import pytest

from harness.stores import BY, NOW, PATIENT, REFUSED_ROW, StorePlace, imported, names
from petstore.audit import Actor
from petstore.changes import Change
from petstore.errors import OperatorError
from petstore.imports import Undone
from petstore.pets import STATUSES, Added, IdempotencyKey, NewPet, Pet, PetChanges, PetQuery, PetStatus
from petstore.removals import Removed
from petstore.store import Store, StorePolicy

SHORT_STEPS = StorePolicy(bounds=PATIENT._replace(search_step=10))
ADA = Actor("ada", 9.0)


async def found_names(
    store: Store, text: str, status: PetStatus | None = None, limit: int = 100, *, newest_first: bool = False
) -> list[str]:
    """Returns the names of all animals that a search finds, however many calls it takes."""
    names: list[str] = []
    at, more = 2**63 - 1 if newest_first else 0, True
    while more:
        if newest_first:
            pets, at, more = await store.pets.newest(PetQuery(text, status), before=at, limit=limit)
        else:
            pets, at, more = await store.pets.search(PetQuery(text, status), after=at, limit=limit)
        names += [pet.name for pet in pets]
    return names


async def details(store: Store) -> list[tuple[str, str]]:
    """Returns the subject and detail of each audit entry, newest first."""
    return [(entry.subject, entry.detail) for _, entry in (await store.audit.find()).entries]


# Searching


def test_search_finds_parts_of_names_alike_on_every_backend(store_at: StorePlace) -> None:
    pets = ["Rex", "T-REX", "Ärmel", "ärmel", "ÄRMEL", "100%", "a_b", "Straße", "ǅ", "ИВАН", "иван", "Ｆ", "%", "İ"]

    async def work(store: Store) -> None:
        await imported(store, *(NewPet(name, 1) for name in pets))
        for text, found in {
            "rex": ["Rex", "T-REX"],
            "ReX": ["Rex", "T-REX"],
            "ärmel": ["Ärmel", "ärmel", "ÄRMEL"],
            "ÄRMEL": ["Ärmel", "ärmel", "ÄRMEL"],
            "иван": ["ИВАН", "иван"],
            "%": ["100%", "%"],
            "_": ["a_b"],
            "straße": ["Straße"],
            "\x00": [],
            "\ud800": [],
            "nobody": [],
        }.items():
            assert await found_names(store, text) == found, text
            assert await found_names(store, text, newest_first=True) == found[::-1], text
        await store.pets.set_status([3, 4], "sold", BY)
        assert await found_names(store, "ÄRMEL", "sold") == ["Ärmel", "ärmel"]
        assert await found_names(store, "ÄRMEL", "available") == ["ÄRMEL"]

    store_at.use(work)


def test_search_reads_a_bounded_number_of_animals_and_says_how_far_it_came(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        pets = [NewPet(f"Pet {i}{' the needle' if i % 13 == 0 else ''}", 1, STATUSES[i % 3]) for i in range(100)]
        await imported(store, *pets)
        needles = [pet.name for pet in pets if "needle" in pet.name]
        assert await found_names(store, "NEEDLE") == needles
        assert await found_names(store, "needle", limit=1) == needles
        assert await found_names(store, "needle", limit=1, newest_first=True) == needles[::-1]
        sold = [pet.name for pet in pets if "needle" in pet.name and pet.status == "sold"]
        assert await found_names(store, "needle", "sold") == sold
        assert await store.pets.search(PetQuery("nobody"), after=0, limit=5) == ([], 10, True)
        assert await store.pets.search(PetQuery("nobody"), after=95, limit=5) == ([], 95, False)
        assert await store.pets.newest(PetQuery("nobody"), before=100, limit=5) == ([], 90, True)
        assert await store.pets.newest(PetQuery("nobody"), before=5, limit=5) == ([], 5, False)
        assert await store.pets.count_below(PetQuery("needle"), before=100) == (1, True)
        assert await store.pets.count_below(PetQuery("needle", "sold"), before=10) == (0, False)
        assert await store.pets.count_below(PetQuery("NEEDLE"), before=10) == (1, False)
        assert await store.pets.count_below(PetQuery("pet"), before=1) == (0, False)

    store_at.use(work, policy=SHORT_STEPS)


def test_search_knows_whether_more_can_be_found(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        await imported(store, *(NewPet(f"Rex {number}", 1) for number in range(4)))
        pets, after, more = await store.pets.search(PetQuery("rex"), after=0, limit=3)
        assert ([pet.id for pet in pets], after, more) == ([1, 2, 3], 3, True)
        pets, _, more = await store.pets.search(PetQuery("rex"), after=0, limit=4)
        assert ([pet.id for pet in pets], more) == ([1, 2, 3, 4], False)
        pets, before, more = await store.pets.newest(PetQuery("rex"), limit=3)
        assert ([pet.id for pet in pets], before, more) == ([4, 3, 2], 2, True)

    store_at.use(work)


def test_newest_animals_come_first_without_a_text(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        await imported(store, *(NewPet(f"Pet {i}", i, STATUSES[i % 3]) for i in range(1, 10)))
        assert await found_names(store, "", limit=2, newest_first=True) == [f"Pet {i}" for i in range(9, 0, -1)]
        assert await found_names(store, "", "sold", newest_first=True) == ["Pet 8", "Pet 5", "Pet 2"]

    store_at.use(work)


# Changing


def test_animal_is_added_together_with_its_audit_entry_or_not_at_all(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        rex = await store.pets.add_by_hand(NewPet("Rex", 7, "sold"), ADA)
        assert changes == ["added"]
        assert await store.pets.get(rex.id) == Pet(rex.id, "Rex", 7, "sold")
        assert await details(store) == [(str(rex.id), "Rex, category 7, sold")]
        with pytest.raises(REFUSED_ROW):
            await store.pets.add_by_hand(NewPet("Mia", 7), Actor(cast(str, None), 9.0))
        assert await names(store) == ["Rex"]
        assert (await store.pets.add(NewPet("Ada", 7), NOW)).pet.id > rex.id

    store_at.use(work, changes)


def test_statuses_change_together_with_an_audit_entry_for_each(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        ids = [(await store.pets.add(NewPet(f"Pet {i}", i), NOW)).pet.id for i in range(3)]
        changes.clear()
        changed = await store.pets.set_status([ids[2], 999_999, ids[0]], "sold", ADA)
        assert [pet.id for pet in changed] == [ids[0], ids[2]]
        assert {pet.status for pet in changed} == {"sold"}
        assert changes == ["edited"]
        assert await details(store) == [(str(ids[2]), "available → sold"), (str(ids[0]), "available → sold")]
        assert (await store.pets.count())["sold"] == 2

    store_at.use(work, changes)


def test_status_that_an_animal_has_already_is_no_change_of_it(store_at: StorePlace) -> None:
    """The animal gets no audit entry, and undoing its import still removes it."""

    async def work(store: Store) -> None:
        pets = NewPet("Rex", 1, "sold"), NewPet("Mia", 1, "pending"), NewPet("Bo", 1, "pending")
        added = await imported(store, *pets)
        changed = await store.pets.set_status([1, 2], "sold", ADA)
        assert [(pet.id, pet.status) for pet in changed] == [(1, "sold"), (2, "sold")]
        assert (await details(store))[0] == ("2", "pending → sold")
        assert len(await details(store)) == 2
        assert await store.imports.undo(added.id, BY)
        assert await store.imports.undone(added.id) == Undone(removed=2, kept=1, left=0)
        assert await names(store) == ["Mia"]

    store_at.use(work)


def test_update_changes_the_given_fields_and_leaves_the_others(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        rex = (await store.pets.add(NewPet("Rex", 7), NOW)).pet
        changes.clear()
        assert await store.pets.update(rex.id, PetChanges(name="Max"), ADA) == Pet(rex.id, "Max", 7, "available")
        changed = await store.pets.update(rex.id, PetChanges(category_id=-8, status="sold"), ADA)
        assert changed == await store.pets.get(rex.id) == Pet(rex.id, "Max", -8, "sold")
        assert changes == ["edited"] * 2
        with pytest.raises(OperatorError, match="no animal has the id 999 in live"):
            await store.pets.update(999, PetChanges(name="Nobody"), ADA)
        with pytest.raises(OperatorError, match="name must not be empty"):
            await store.pets.update(rex.id, PetChanges(name=" "), ADA)
        assert await store.pets.update(rex.id, PetChanges(name="Max"), ADA) == changed
        second, first = "category id 7 → -8; status available → sold", "name Rex → Max"
        assert await details(store) == [(str(rex.id), second), (str(rex.id), first)]
        assert changes == ["edited"] * 2

    store_at.use(work, changes)


def test_removed_animals_are_gone_and_their_ids_are_never_used_again(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        ids = [(await store.pets.add(NewPet(f"Pet {i}", i), NOW)).pet.id for i in range(4)]
        changes.clear()
        removed = await store.removals.remove([ids[3], 999, ids[1]], ADA)
        assert [pet.name for pet in removed.pets] == ["Pet 1", "Pet 3"]
        assert changes == ["edited"]
        assert await names(store) == ["Pet 0", "Pet 2"]
        assert await store.pets.get(ids[3]) is None
        assert sum((await store.pets.count()).values()) == 2
        assert await details(store) == [(removed.removal_id, f"2 animals: {ids[1]}, {ids[3]}")]
        assert len((await store.removals.remove(ids, BY)).pets) == 2
        assert await store.removals.remove(ids, BY) == Removed(None, [])
        assert len(await details(store)) == 2

    async def add(store: Store) -> int:
        return (await store.pets.add(NewPet("Next", 1), NOW)).pet.id

    store_at.use(work, changes)
    assert store_at.use(add) == 5  # in another process, after the newest animal was removed


def test_traversal_continues_behind_animals_that_are_removed_meanwhile(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        for i in range(9):
            await store.pets.add(NewPet(f"Pet {i}", i), NOW)
        first = await store.pets.page(after=0, limit=3, status=None)
        await store.removals.remove([2, 3, 4], BY)
        second = await store.pets.page(after=first.pets[-1].id, limit=3, status=None)
        third = await store.pets.page(after=second.pets[-1].id, limit=3, status=None)
        assert [pet.id for page in (first, second, third) for pet in page.pets] == [1, 2, 3, 5, 6, 7, 8, 9]
        assert not third.more

    store_at.use(work)


def test_repeated_create_of_a_removed_or_changed_animal_gets_the_original(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        async def add(name: str) -> Added:
            return await store.pets.add(NewPet(name, 7, "pending"), NOW, IdempotencyKey("key_a", name, name.encode()))

        removed, renamed, both = [(await add(name)).pet for name in ("removed", "renamed", "both")]
        await store.pets.update(renamed.id, PetChanges(name="another", category_id=8), BY)
        await store.pets.update(both.id, PetChanges(name="another"), BY)
        await store.pets.update(both.id, PetChanges(name="a third"), BY)
        await store.removals.remove([removed.id, both.id], BY)
        for original in (removed, renamed, both):
            assert await add(original.name) == Added(original, replayed=True)
        assert await names(store) == ["another"]

    store_at.use(work)


def test_operators_who_change_the_same_animals_at_once_do_not_deadlock(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        ids = [(await store.pets.add(NewPet(f"Pet {i}", i), NOW)).pet.id for i in range(50)]
        orders = [ids, ids[::-1]] * 5
        changed = await asyncio.gather(*(store.pets.set_status(order, "sold", BY) for order in orders))
        assert [len(each) for each in changed] == [50] * 10
        assert len((await store.removals.remove(ids, BY)).pets) == 50

    store_at.use(work)
