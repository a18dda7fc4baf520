"""What the store keeps for operators, on every backend: searches, figures, the audit log, operators."""

from collections.abc import AsyncIterator, Iterator
from typing import cast

import pytest

from petstore.audit import AuditEntry
from petstore.errors import Unavailable
from petstore.keys import ApiKey, digest_of, mint, new_key
from petstore.operators import Operator
from petstore.pets import STATUSES, NewPet, Pet, PetStatus
from petstore.plans import Limits
from petstore.store import Store, Subject
from petstore.store.postgres.pool import MIGRATIONS as POSTGRES
from petstore.store.schema import TABLES
from petstore.store.sqlite.file import MIGRATIONS as SQLITE
from petstore.usage import DAY, HOUR, HOURS_KEPT, MINUTE, MINUTES_KEPT, KeyTotal, TotalUsage, Usage
from tests.places import StorePlace

DEED = AuditEntry(5.0, "a test", "test", "x")
NOW = 1_800_000_000  # a whole hour


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Searches look at ten rows a time."""
    for backend in ("sqlite", "postgres"):
        for part in ("catalogue", "audit"):
            monkeypatch.setattr(f"petstore.store.{backend}.{part}.SEARCH_STEP", 10)
    yield


async def batch(*pets: NewPet) -> AsyncIterator[list[NewPet]]:
    yield list(pets)


async def found_names(store: Store, text: str, status: PetStatus | None = None, limit: int = 100) -> list[str]:
    """All that a search finds, however many looks it takes."""
    names: list[str] = []
    after, more = 0, True
    while more:
        pets, after, more = await store.search(text, after=after, limit=limit, status=status)
        names += [pet.name for pet in pets]
    return names


def test_search_finds_parts_of_names_alike_on_every_backend(store_at: StorePlace) -> None:
    names = ["Rex", "T-REX", "Ärmel", "ärmel", "ÄRMEL", "100%", "a_b", "Straße", "ǅ", "ИВАН", "иван", "Ｆ", "%", "İ"]

    async def work(store: Store) -> None:
        await store.import_pets(batch(*(NewPet(name, 1) for name in names)), DEED)
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
        await store.set_status([3, 4], "sold", DEED)
        assert await found_names(store, "ÄRMEL", "sold") == ["Ärmel", "ärmel"]
        assert await found_names(store, "ÄRMEL", "available") == ["ÄRMEL"]

    store_at.use(work)


def test_search_finds_everything_in_the_end_and_says_how_far_it_looked(store_at: StorePlace, short_looks: None) -> None:
    async def work(store: Store) -> None:
        pets = [NewPet(f"Pet {i}{' the needle' if i % 13 == 0 else ''}", 1, STATUSES[i % 3]) for i in range(100)]
        await store.import_pets(batch(*pets), DEED)
        needles = [pet.name for pet in pets if "needle" in pet.name]
        assert await found_names(store, "NEEDLE") == needles
        assert await found_names(store, "needle", limit=1) == needles
        sold = [pet.name for pet in pets if "needle" in pet.name and pet.status == "sold"]
        assert await found_names(store, "needle", "sold") == sold
        first = await store.search("nobody", after=0, limit=5, status=None)
        assert (first.pets, first.searched_to, first.more) == ([], 10, True)
        last = await store.search("nobody", after=95, limit=5, status=None)
        assert (last.pets, last.more) == ([], False)

    store_at.use(work)


def test_a_search_says_when_it_has_seen_the_last(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        await store.import_pets(batch(*(NewPet(f"Rex {number}", 1) for number in range(4))), DEED)
        ids = [pet.id for pet in (await store.page(after=0, limit=10, status=None)).pets]
        pets, after, more = await store.search("rex", after=0, limit=3, status=None)
        assert ([pet.id for pet in pets], after, more) == (ids[:3], ids[2], True)
        pets, _, more = await store.search("rex", after=0, limit=4, status=None)
        assert ([pet.id for pet in pets], more) == (ids, False)
        for number in range(3):
            await store.record(AuditEntry(float(number), "ada", "test", f"key_{number}"))
        deeds, before, more = await store.find_entries(limit=2, actor="ada")
        assert ([number for number, _ in deeds], more) == ([before + 1, before], True)
        deeds, _, more = await store.find_entries(limit=3, actor="ada")
        assert ([entry.subject for _, entry in deeds], more) == (["key_2", "key_1", "key_0"], False)

    store_at.use(work)


def test_statuses_change_together_and_each_is_a_deed(store_at: StorePlace) -> None:
    changes: list[Subject] = []

    async def work(store: Store) -> None:
        ids = [(await store.add(NewPet(f"Pet {i}", i), NOW)).pet.id for i in range(3)]
        changes.clear()
        changed = await store.set_status([ids[2], 999_999, ids[0]], "sold", AuditEntry(9.0, "ada", "set status", ""))
        assert sorted(pet.id for pet in changed) == [ids[0], ids[2]]
        assert {pet.status for pet in changed} == {"sold"}
        assert changes == ["catalogue"]
        assert sorted(entry.subject for _, entry in (await store.find_entries()).entries) == [str(ids[0]), str(ids[2])]
        assert (await store.count())["sold"] == 2

    store_at.use(work, changes)


def test_an_animal_is_added_with_its_deed_or_not_at_all(store_at: StorePlace) -> None:
    changes: list[Subject] = []

    async def work(store: Store) -> None:
        rex = await store.add_by_hand(NewPet("Rex", 7, "sold"), AuditEntry(9.0, "ada", "add animal", ""))
        assert changes == ["catalogue"]
        assert await store.pet(rex.id) == Pet(rex.id, "Rex", 7, "sold")
        assert [entry.subject for _, entry in (await store.find_entries()).entries] == [str(rex.id)]
        no_deed = AuditEntry(cast(float, None), "ada", "add animal", "")  # no store keeps one without a time
        with pytest.raises(Unavailable):
            await store.add_by_hand(NewPet("Mia", 7), no_deed)
        assert sum((await store.count()).values()) == 1
        assert (await store.add(NewPet("Ada", 7), NOW)).pet.id > rex.id

    store_at.use(work, changes)


async def some_keys(store: Store, count: int, name: str = "Key") -> list[ApiKey]:
    """The newest last; two of each age."""
    keys = [new_key("live", "free", now=NOW + i // 2, name=f"{name} {i}") for i in range(count)]
    for key in keys:
        await store.add_key(key, digest_of(mint("live")), DEED)
    return sorted(keys, key=lambda key: (key.created, key.id))


def test_keys_come_newest_first_page_by_page(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        keys = await some_keys(store, 11)
        seen: list[ApiKey] = []
        while page := await store.newest_keys(before=(seen[-1].created, seen[-1].id) if seen else None, limit=3):
            seen += page
        assert seen == keys[::-1]
        assert await store.newest_keys(text="kEY 7") == [key for key in keys if key.name == "Key 7"]
        assert await store.newest_keys(text=keys[0].id[3:].lower()) == [keys[0]]
        assert await store.newest_keys(text="%") == []
        assert await store.keys_by_id([keys[1].id, "key_nobody"]) == {keys[1].id: keys[1]}
        assert await store.keys_by_id([]) == {}

    store_at.use(work)


def test_limits_change_and_readers_are_told(store_at: StorePlace) -> None:
    changes: list[Subject] = []

    async def work(store: Store) -> None:
        key = new_key("live", "enterprise", now=NOW, limits=Limits(1, 2))
        await store.add_key(key, digest_of(mint("live")), DEED)
        changes.clear()
        await store.set_limits(key.id, Limits(30, 400), AuditEntry(9.0, "ada", "set limits", key.id))
        changed = await store.key(key.id)
        assert changed is not None and changed.limits == (30, 400)
        assert changes == ["keys"]

    store_at.use(work, changes)


def test_usage_is_kept_by_minute_hour_and_day_and_altogether(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        rows = [
            Usage("key_a", NOW + 30, "ok", 5),
            Usage("key_a", NOW + 90, "ok", 2),
            Usage("key_a", NOW + HOUR, "refused", 3),
            Usage("key_b", NOW + 31, "banned", 7),
            Usage("", NOW + 30, "unauthorized", 11),
        ]
        await store.add_usage(rows, {})
        await store.add_usage([Usage("key_a", NOW + 59, "ok", 1)], {})
        assert sorted(await store.usage_of(["key_a"], MINUTE, [NOW, NOW + 60])) == [
            Usage("key_a", NOW, "ok", 6),
            Usage("key_a", NOW + 60, "ok", 2),
        ]
        assert sorted(await store.usage_of(["key_a", "key_b"], HOUR, [NOW])) == [
            Usage("key_a", NOW, "ok", 8),
            Usage("key_b", NOW, "banned", 7),
        ]
        day = NOW // DAY * DAY
        assert len(await store.usage_of(["key_a"], DAY, [day])) == 2
        assert await store.usage_of([""], MINUTE, [NOW]) == []
        assert set(await store.total_usage(interval=MINUTE, since=NOW)) == {
            TotalUsage(NOW, "ok", 6),
            TotalUsage(NOW, "banned", 7),
            TotalUsage(NOW, "unauthorized", 11),
            TotalUsage(NOW + 60, "ok", 2),
            TotalUsage(NOW + HOUR, "refused", 3),
        }
        assert sum(row.requests for row in await store.total_usage(interval=HOUR, since=NOW)) == 29
        assert [row.requests for row in await store.total_usage(interval=HOUR, since=NOW + HOUR)] == [3]

    store_at.use(work)


def test_the_busiest_keys_come_first_page_by_page(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        rows = [Usage(f"key_{i}", NOW, "ok", i // 2 + 1) for i in range(6)]
        await store.add_usage([*rows, Usage("key_5", NOW, "refused", 4), Usage("key_5", NOW, "banned", 9)], {})
        await store.add_usage([Usage("key_old", NOW - 2 * DAY, "ok", 99)], {})
        everything = [
            KeyTotal("key_5", 16, 4, 9),
            KeyTotal("key_4", 3, 0, 0),
            KeyTotal("key_3", 2, 0, 0),
            KeyTotal("key_2", 2, 0, 0),
            KeyTotal("key_1", 1, 0, 0),
            KeyTotal("key_0", 1, 0, 0),
        ]
        for step in (MINUTE, HOUR, DAY):
            since = NOW // step * step
            assert await store.busiest(interval=step, since=since, limit=10) == everything
            pages = [everything[:2], everything[2:4], everything[4:], []]
            last = ""
            for page in pages:
                assert await store.busiest(interval=step, since=since, limit=2, after=last) == page
                last = page[-1].key_id if page else ""
        assert await store.busiest(interval=DAY, since=NOW, limit=2, after="key_nobody") == []

    store_at.use(work)


def test_old_minutes_and_hours_are_forgotten_and_days_stay(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        old_minute, old_hour = NOW - MINUTES_KEPT - HOUR, NOW - HOURS_KEPT - DAY
        for start in (old_hour, old_minute, NOW):
            await store.add_usage([Usage("key_a", start, "ok", 1)], {})
        assert await store.usage_of(["key_a"], MINUTE, [old_hour, old_minute]) == []
        assert len(await store.usage_of(["key_a"], MINUTE, [NOW])) == 1
        assert sorted(row.start for row in await store.usage_of(["key_a"], HOUR, [old_hour, old_minute, NOW])) == [
            old_minute,
            NOW,
        ]
        assert len(await store.usage_of(["key_a"], DAY, [old_hour // DAY * DAY, NOW // DAY * DAY])) == 2
        assert [row.start for row in await store.total_usage(interval=MINUTE, since=0)] == [old_minute, NOW]
        assert len(await store.total_usage(interval=HOUR, since=0)) == 3

    store_at.use(work)


def test_hours_of_an_older_version_become_days_and_traffic(
    store_at: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (usage,) = [table for table in TABLES if table.name == "usage"]
    day = NOW // DAY * DAY
    rows = [
        ("key_a", day - HOUR, "ok", 6),
        ("key_a", day, "ok", 3),
        ("key_b", day, "ok", 4),
        ("key_a", day + HOUR, "ok", 5),
    ]
    with monkeypatch.context() as older:
        older.setattr("petstore.store.sqlite.file.MIGRATIONS", SQLITE[:2])
        older.setattr("petstore.store.postgres.pool.MIGRATIONS", POSTGRES[:2])
        store_at.use(lambda store: store.put_rows(usage, rows))

    async def work(store: Store) -> None:
        days = await store.usage_of(["key_a", "key_b"], DAY, [day - DAY, day])
        assert sorted(days) == [
            Usage("key_a", day - DAY, "ok", 6),
            Usage("key_a", day, "ok", 8),
            Usage("key_b", day, "ok", 4),
        ]
        assert await store.total_usage(interval=HOUR, since=0) == [
            TotalUsage(day - HOUR, "ok", 6),
            TotalUsage(day, "ok", 7),
            TotalUsage(day + HOUR, "ok", 5),
        ]

    store_at.use(work)


def test_deeds_are_found_by_who_what_and_whom(store_at: StorePlace, short_looks: None) -> None:
    async def work(store: Store) -> None:
        for i in range(35):
            actor = "Ada Lovelace" if i % 10 == 0 else "grace"
            await store.record(
                AuditEntry(i / 1000, actor, ("create key", "set status")[i % 2], f"key_{i}", f"Detail {i}")
            )

        async def found(**wanted: str) -> list[str]:
            subjects: list[str] = []
            before, more = None, True
            while more:
                deeds, before, more = await store.find_entries(before=before, limit=2, **wanted)
                subjects += [entry.subject for _, entry in deeds]
            return subjects

        assert await found(actor="ADA") == ["key_30", "key_20", "key_10", "key_0"]
        assert await found(actor="a", action="set status") == [f"key_{i}" for i in range(33, 0, -2)]
        assert await found(text="key_7") == ["key_7"]
        assert await found(text="detail 3", action="create key") == ["key_34", "key_32", "key_30"]
        assert await found(action="nothing") == []
        assert await found(actor="\x00") == []
        assert len(await found()) == 35

    store_at.use(work)


def test_a_hundred_deeds_are_told_at_a_time(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        for number in range(101):
            await store.record(AuditEntry(float(number), "ada", "test", f"key_{number}"))
        told = (await store.find_entries()).entries
        assert [entry.subject for _, entry in told] == [f"key_{number}" for number in range(100, 0, -1)]
        rest = await store.find_entries(before=told[-1][0])
        assert [entry.subject for _, entry in rest.entries] == ["key_0"]
        assert len((await store.find_entries(action="test")).entries) == 100

    store_at.use(work)


def test_operators_are_named_once_and_revoked_for_good(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        old, new = b"o" * 32, b"n" * 32
        assert await store.add_operator(Operator("ada", 1.0), old, DEED)
        assert not await store.add_operator(Operator("ada", 2.0), new, DEED)
        assert await store.find_operator(old) == Operator("ada", 1.0)
        assert await store.find_operator(new) is None
        assert await store.revoke_operator("ada", AuditEntry(3.0, "x", "revoke operator", "ada"))
        assert not await store.revoke_operator("ada", DEED)
        assert not await store.revoke_operator("nobody", DEED)
        assert await store.find_operator(old) is None
        assert await store.operator("ada") == Operator("ada", 1.0, 3.0)
        assert await store.add_operator(Operator("ada", 4.0), new, DEED)
        assert await store.find_operator(new) == Operator("ada", 4.0)
        assert await store.find_operator(old) is None
        assert await store.operators() == [Operator("ada", 4.0)]
        assert len((await store.find_entries()).entries) == 3

    store_at.use(work)
