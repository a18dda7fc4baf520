"""Usage, the audit log and operators in the store, on every backend."""

import pytest

from harness.stores import BY, NOW, PATIENT, StorePlace
from petstore.audit import Action, Actor, AuditEntry
from petstore.errors import OperatorError
from petstore.keys import digest_of, mint, new_key
from petstore.operations import OperationName
from petstore.operators import Operator
from petstore.store import Store, StorePolicy
from petstore.usage import (
    DAY,
    HOUR,
    MINUTE,
    MINUTES_KEPT,
    RECENT_ERRORS,
    USAGE_DAYS,
    Interval,
    KeyMeasure,
    KeyTotal,
    KeyUsage,
    OperationUsage,
    RecentError,
    TotalUsage,
)

INTERVALS: tuple[Interval, ...] = (MINUTE, HOUR, DAY)


def used(
    key_id: str, start: int, measure: KeyMeasure, requests: int, operation: OperationName = "listPets"
) -> OperationUsage:
    return OperationUsage(key_id, start, measure, requests, operation)


# KeyUsage


def test_usage_adds_up_and_last_use_never_goes_back(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        key = new_key("live", "free", now=NOW)
        await store.keys.create(key, mint("live"), BY)
        await store.usage.add([used(key.id, 3600, "admitted", 2), used(key.id, 3600, "refused", 1)], {key.id: 9_000.0})
        await store.usage.add([used(key.id, 3600, "admitted", 5), used(key.id, 7200, "admitted", 1)], {key.id: 8_000.0})
        assert sorted(await store.usage.of_keys([key.id], HOUR, [0, 3600, 7200])) == [
            KeyUsage(key.id, 3600, "admitted", 7),
            KeyUsage(key.id, 3600, "refused", 1),
            KeyUsage(key.id, 7200, "admitted", 1),
        ]
        assert await store.usage.of_keys([key.id], HOUR, [7200]) == [KeyUsage(key.id, 7200, "admitted", 1)]
        shown = await store.keys.get(key.id)
        assert shown is not None and shown.last_used == 9_000.0
        await store.usage.add([], {})

    store_at.use(work)


def test_usage_is_kept_by_minute_hour_and_day_and_for_all_keys_together(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        rows = [
            used("key_a", NOW + 30, "admitted", 5),
            used("key_a", NOW + 90, "admitted", 2),
            used("key_a", NOW + HOUR, "refused", 3),
            used("key_b", NOW + 31, "banned", 7),
        ]
        await store.usage.add(rows, {}, [TotalUsage(NOW + 30, "unauthorized", 11)])
        await store.usage.add([used("key_a", NOW + 59, "admitted", 1)], {})
        assert sorted(await store.usage.of_keys(["key_a"], MINUTE, [NOW, NOW + 60])) == [
            KeyUsage("key_a", NOW, "admitted", 6),
            KeyUsage("key_a", NOW + 60, "admitted", 2),
        ]
        assert sorted(await store.usage.of_keys(["key_a", "key_b"], HOUR, [NOW])) == [
            KeyUsage("key_a", NOW, "admitted", 8),
            KeyUsage("key_b", NOW, "banned", 7),
        ]
        assert len(await store.usage.of_keys(["key_a"], DAY, [NOW // DAY * DAY])) == 2
        assert set(await store.usage.totals(interval=MINUTE, since=NOW)) == {
            TotalUsage(NOW, "admitted", 6),
            TotalUsage(NOW, "banned", 7),
            TotalUsage(NOW, "unauthorized", 11),
            TotalUsage(NOW + 60, "admitted", 2),
            TotalUsage(NOW + HOUR, "refused", 3),
        }
        assert sum(row.requests for row in await store.usage.totals(interval=HOUR, since=NOW)) == 29
        assert [row.requests for row in await store.usage.totals(interval=HOUR, since=NOW + HOUR)] == [3]

    store_at.use(work)


def test_usage_is_kept_by_operation(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        rows = [
            used("key_a", NOW, "admitted", 5, "listPets"),
            used("key_a", NOW, "admitted", 2, "createPet"),
            used("key_a", NOW, "client_error", 1, "createPet"),
            used("key_b", NOW, "admitted", 9, "getPet"),
        ]
        for _ in range(2):
            await store.usage.add(rows, {})
        for interval in INTERVALS:
            start = NOW // interval * interval
            assert sorted(await store.usage.of_keys(["key_a", "key_b"], interval, [start], "createPet")) == [
                KeyUsage("key_a", start, "admitted", 4),
                KeyUsage("key_a", start, "client_error", 2),
            ]
            assert await store.usage.of_keys(["key_b"], interval, [start], "listPets") == []
            assert await store.usage.busiest(interval=interval, since=start, limit=9, operation="listPets") == [
                KeyTotal("key_a", 10, 0, 0, start)
            ]
            assert await store.usage.busiest(interval=interval, since=start, limit=9) == [
                KeyTotal("key_b", 18, 0, 0, start),
                KeyTotal("key_a", 14, 0, 0, start),
            ]

    store_at.use(work)


@pytest.mark.parametrize("of_key", [True, False], ids=["of a key", "without a key"])
def test_no_measure_can_be_negative(store_at: StorePlace, of_key: bool) -> None:
    async def work(store: Store) -> None:
        await store.usage.add([used("key_a", NOW, "admitted", 5)], {}, [TotalUsage(NOW, "unauthorized", 5)])
        rows = [used("key_a", NOW, "admitted", -1)] if of_key else []
        anonymous = [] if of_key else [TotalUsage(NOW, "unauthorized", -1)]
        with pytest.raises(Exception, match=r"(?i)check constraint"):
            await store.usage.add(rows, {}, anonymous)
        assert await store.usage.of_keys(["key_a"], HOUR, [NOW]) == [KeyUsage("key_a", NOW, "admitted", 5)]
        totals = await store.usage.totals(interval=HOUR, since=NOW)
        assert {row.measure: row.requests for row in totals} == {"admitted": 5, "unauthorized": 5}

    store_at.use(work)


def test_the_newest_errors_of_each_key_are_kept(store_at: StorePlace) -> None:
    def error(key_id: str, number: int) -> RecentError:
        return RecentError(key_id, NOW + number, f"request_{number:02}", "listPets", 429, "key_banned", "/v1/pets")

    async def work(store: Store) -> None:
        await store.usage.add_errors([])
        await store.usage.add_errors([error("key_a", number) for number in range(15)] + [error("key_b", 1)])
        await store.usage.add_errors([error("key_a", number) for number in range(12, 30)])
        newest = [error("key_a", number) for number in range(29, 29 - RECENT_ERRORS, -1)]
        assert await store.usage.recent_errors("key_a") == newest
        assert await store.usage.recent_errors("key_b") == [error("key_b", 1)]
        assert await store.usage.recent_errors("key_c") == []

    store_at.use(work)


def test_busiest_keys_come_first_page_by_page(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        rows = [used(f"key_{i}", NOW, "admitted", i // 2 + 1) for i in range(6)]
        await store.usage.add([*rows, used("key_5", NOW, "refused", 4), used("key_5", NOW, "banned", 9)], {})
        await store.usage.add([used("key_old", NOW - 2 * DAY, "admitted", 99)], {})
        for interval in INTERVALS:
            since = NOW // interval * interval
            everything = [
                KeyTotal("key_5", 3, 4, 9, since),
                KeyTotal("key_4", 3, 0, 0, since),
                KeyTotal("key_3", 2, 0, 0, since),
                KeyTotal("key_2", 2, 0, 0, since),
                KeyTotal("key_1", 1, 0, 0, since),
                KeyTotal("key_0", 1, 0, 0, since),
            ]
            assert await store.usage.busiest(interval=interval, since=since, limit=10) == everything
            last = ""
            for page in (everything[:2], everything[2:4], everything[4:], []):
                assert await store.usage.busiest(interval=interval, since=since, limit=2, after=last) == page
                last = page[-1].key_id if page else ""
        assert await store.usage.busiest(interval=DAY, since=NOW, limit=2, after="key_nobody") == []

    store_at.use(work)


def test_old_minutes_and_hours_are_deleted_and_days_stay(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        old_minute, old_hour = NOW - MINUTES_KEPT - HOUR, NOW - USAGE_DAYS * DAY - DAY
        for start in (old_hour, old_minute, NOW):
            await store.usage.add([used("key_a", start, "admitted", 1)], {})
        for operation in (None, "listPets"):
            minutes = await store.usage.of_keys(["key_a"], MINUTE, [old_hour, old_minute, NOW], operation)
            assert [row.start for row in minutes] == [NOW]
            hours = await store.usage.of_keys(["key_a"], HOUR, [old_hour, old_minute, NOW], operation)
            assert sorted(row.start for row in hours) == [old_minute, NOW]
            days = [old_hour // DAY * DAY, NOW // DAY * DAY]
            assert len(await store.usage.of_keys(["key_a"], DAY, days, operation)) == 2
        assert [row.start for row in await store.usage.totals(interval=MINUTE, since=0)] == [old_minute, NOW]
        assert len(await store.usage.totals(interval=HOUR, since=0)) == 3

    store_at.use(work)


# The audit log


def test_entries_are_found_by_actor_action_and_text(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        for i in range(35):
            actor = "Ada Lovelace" if i % 10 == 0 else "grace"
            action: Action = "set status" if i % 2 else "create key"
            await store.audit.record(AuditEntry(i / 1000, actor, action, f"key_{i}", f"Detail {i}"))

        async def found(**wanted: str) -> list[str]:
            subjects: list[str] = []
            before, more = None, True
            while more:
                entries, before, more = await store.audit.find(before=before, limit=2, **wanted)
                subjects += [entry.subject for _, entry in entries]
            return subjects

        assert await found(actor="ADA") == ["key_30", "key_20", "key_10", "key_0"]
        assert await found(actor="a", action="set status") == [f"key_{i}" for i in range(33, 0, -2)]
        assert await found(text="key_7") == ["key_7"]
        assert await found(text="detail 3", action="create key") == ["key_34", "key_32", "key_30"]
        assert await found(actor="lovelace", text="Detail 1") == ["key_10"]
        assert await found(action="nothing") == []
        assert await found(actor="\x00") == []
        assert len(await found()) == 35

    store_at.use(work, policy=StorePolicy(bounds=PATIENT._replace(search_step=10)))


def test_search_of_entries_knows_whether_more_can_be_found(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        for number in range(3):
            await store.audit.record(AuditEntry(float(number), "ada", "backup", f"key_{number}"))
        entries, before, more = await store.audit.find(limit=2, actor="ada")
        assert ([number for number, _ in entries], more) == ([before + 1, before], True)
        entries, _, more = await store.audit.find(limit=3, actor="ada")
        assert ([entry.subject for _, entry in entries], more) == (["key_2", "key_1", "key_0"], False)

    store_at.use(work)


def test_hundred_entries_are_listed_by_default(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        for number in range(101):
            await store.audit.record(AuditEntry(float(number), "ada", "backup", f"key_{number}"))
        entries = (await store.audit.find()).entries
        assert [entry.subject for _, entry in entries] == [f"key_{number}" for number in range(100, 0, -1)]
        rest = await store.audit.find(before=entries[-1][0])
        assert [entry.subject for _, entry in rest.entries] == ["key_0"]
        assert len((await store.audit.find(action="backup")).entries) == 100

    store_at.use(work)


# Operators


async def owner_of(store: Store, token: str) -> Operator | None:
    return await store.operators.find(digest_of(token))


def test_name_of_an_operator_is_free_again_after_a_revocation(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        await store.operators.add(Operator("ada", 1.0), "old", BY)
        with pytest.raises(OperatorError, match="operator ada already exists; revoke that operator first"):
            await store.operators.add(Operator("ada", 2.0), "new", BY)
        assert await owner_of(store, "old") == Operator("ada", 1.0)
        assert await owner_of(store, "new") is None
        await store.operators.revoke("ada", Actor("x", 3.0))
        for name in ("ada", "nobody", "\0"):
            with pytest.raises(OperatorError, match="no active operator is named"):
                await store.operators.revoke(name, BY)
        assert await owner_of(store, "old") is None
        assert await store.operators.get("ada") == Operator("ada", 1.0, 3.0)
        await store.operators.add(Operator("ada", 4.0), "new", BY)
        assert await owner_of(store, "new") == Operator("ada", 4.0)
        assert await owner_of(store, "old") is None
        assert await store.operators.all() == [Operator("ada", 4.0)]
        assert len((await store.audit.find()).entries) == 3

    store_at.use(work)


def test_operator_has_the_role_of_the_latest_token(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        viewer = Operator("ada", 1.0, role="viewer")
        await store.operators.add(viewer, "first", BY)
        assert await owner_of(store, "first") == viewer == await store.operators.get("ada")
        await store.operators.revoke("ada", BY)
        await store.operators.add(Operator("ada", 2.0), "second", BY)
        assert await store.operators.all() == [Operator("ada", 2.0, role="operator")]
        await store.operators.add(Operator("bob", 3.0, role="viewer"), "third", BY)
        assert [each.role for each in await store.operators.all()] == ["operator", "viewer"]

    store_at.use(work)
