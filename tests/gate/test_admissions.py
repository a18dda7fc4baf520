"""How the gate totals the admitted requests of each key, and how totals become usage, on every backend."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.backends import Redis
from harness.commands import Commands
from harness.gates import NOW, PLENTY, REFUSE, answers_again
from harness.servers import Key, Server, started
from harness.stores import GatePlace, StorePlace
from petstore.backends import Backends
from petstore.errors import Unavailable
from petstore.gate import Gate, GatePolicy
from petstore.gate.fallback import FallbackGate
from petstore.gate.redis import RedisGate
from petstore.gate.redis_url import open_link
from petstore.keys import Environment
from petstore.operations import COUNTED, OperationName
from petstore.plans import Limits
from petstore.rate_limits import ADMITTED
from petstore.store import Store
from petstore.usage import DAY, HOUR, MINUTE, AdmissionTotal, KeyUsage

AT = 1_800_000_000  # on the hour


async def admit(
    gate: Gate, key_id: str, operation: OperationName = "listPets", limits: Limits = PLENTY, now: float = NOW,
    environment: Environment = "live",
) -> bool:  # fmt: skip
    admitted = await gate.admit(environment, key_id, limits, await gate.keys_version(environment), now, operation)
    assert admitted is not None
    return admitted[0].outcome is ADMITTED


async def totals(gate: Gate, key_ids: Sequence[str] | None = None) -> dict[tuple[str, str], int]:
    return {(each.key_id, each.operation): each.total for each in await rows(gate, key_ids)}


async def rows(gate: Gate, key_ids: Sequence[str] | None = None) -> list[AdmissionTotal]:
    found = {each async for some in gate.admissions(key_ids) for each in some}
    return sorted(found)


# The gate


def test_totals_grow_with_admissions_only(gate_at: GatePlace) -> None:
    async def work(gate: Gate) -> None:
        assert await totals(gate) == {}
        admitted = [await admit(gate, "key_a", "listPets", Limits(3, 9)) for _ in range(5)]
        assert admitted == [True, True, True, False, False]
        for operation in COUNTED:
            await admit(gate, "key_b", operation, environment="staging")
        version = await gate.keys_version("live")
        assert await gate.admit("live", "key_a", PLENTY, version - 1, NOW, "getPet") is None
        await gate.admit_address("live", "192.0.2.1", NOW)
        await gate.lift("key_a")
        expected = {("key_a", "listPets"): 3} | {("key_b", operation): 1 for operation in COUNTED}
        assert await totals(gate) == expected
        assert await totals(gate, ["key_a", "key_nobody"]) == {("key_a", "listPets"): 3}
        assert {row.key_id: row.environment for row in await rows(gate)} == {"key_a": "live", "key_b": "staging"}

    gate_at.use(work)


def test_totals_outlive_windows_and_a_new_opening(gate_at: GatePlace) -> None:
    async def first(gate: Gate) -> list[AdmissionTotal]:
        for _ in range(3):
            await admit(gate, "key_a", "getPet")
        for _ in range(3):
            await gate.sweep(NOW + 3 * DAY)
        return await rows(gate)

    async def then(gate: Gate) -> list[AdmissionTotal]:
        await admit(gate, "key_a", "getPet", now=NOW + 3 * DAY)
        return await rows(gate)

    (before,), (after,) = gate_at.use(first), gate_at.use(then)
    assert before.total == 3
    assert after == before._replace(total=4)


def test_a_node_counts_what_it_admits_while_redis_is_down(own_redis: Redis, tmp_path: Path) -> None:
    """The node counts in its own file, where a process that starts later finds the counts."""
    path = tmp_path / "fallback.mdb"

    def gate_of() -> FallbackGate:
        shared = RedisGate(open_link(own_redis.url().rpartition("/")[0] + "/0"), REFUSE)
        return FallbackGate(shared, path, GatePolicy())

    async def before() -> None:
        gate = gate_of()
        await admit(gate, "key_a")
        own_redis.kill()
        for _ in range(2):
            await admit(gate, "key_a")
        with pytest.raises(Unavailable):
            await rows(gate)
        await gate.close()

    async def after() -> list[int]:
        gate = gate_of()
        assert await answers_again(gate, "key_b")
        found = [row.total for row in await rows(gate, ["key_a"])]
        await gate.close()
        return found

    asyncio.run(before())
    own_redis.start()
    assert sorted(asyncio.run(after())) == [1, 2]


# The store


def total(n: int, *, key_id: str = "key_a", operation: OperationName = "listPets", epoch: int = 7) -> AdmissionTotal:
    return AdmissionTotal("live", key_id, operation, epoch, n)


async def used(store: Store, key_id: str = "key_a", operation: OperationName | None = None) -> int:
    found = await store.usage.of_keys([key_id], DAY, [AT // DAY * DAY], operation)
    return sum(row.requests for row in found)


def test_a_total_is_added_once_in_whatever_order_it_is_given(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        for n, expected in ((5, 5), (5, 5), (9, 9), (7, 9), (0, 9), (10, 10)):
            await store.usage.add_admissions([total(n)], AT)
            assert await used(store) == expected
        await store.usage.add_admissions([], AT)
        await store.usage.add_admissions([total(3, operation="getPet"), total(2, operation="getPet")], AT + HOUR)
        assert await store.usage.of_keys(["key_a"], HOUR, [AT, AT + HOUR]) == [
            KeyUsage("key_a", AT, "admitted", 10),
            KeyUsage("key_a", AT + HOUR, "admitted", 3),
        ]
        assert await used(store, operation="getPet") == 3
        assert [row.requests for row in await store.usage.totals(interval=HOUR, since=AT)] == [10, 3]
        assert await store.usage.of_keys(["key_a"], MINUTE, [AT]) == [KeyUsage("key_a", AT, "admitted", 10)]

    store_at.use(work)


def test_a_gate_that_begins_again_is_counted_from_zero(store_at: StorePlace) -> None:
    async def work(store: Store) -> None:
        await store.usage.add_admissions([total(100, epoch=1)], AT)
        await store.usage.add_admissions([total(4, epoch=2)], AT)
        assert await used(store) == 104
        await store.usage.add_admissions([total(101, epoch=1), total(4, epoch=2)], AT)  # epoch 1's total arrives late
        assert await used(store) == 105

    store_at.use(work)


def test_two_collectors_add_each_admission_once(store_at: StorePlace) -> None:
    async def work() -> None:
        async with store_at.open() as one, store_at.open() as other:
            keys = [f"key_{n}" for n in range(20)]
            for round_ in range(1, 11):
                given = [total(round_ * 10, key_id=key, operation=op) for key in keys for op in COUNTED]
                late = [each._replace(total=each.total - 5) for each in reversed(given)]
                await asyncio.gather(*(
                    store.usage.add_admissions(some, AT) for store in (one, other) for some in (given, late)
                ))  # fmt: skip
            assert [await used(one, key) for key in keys] == [100 * len(COUNTED)] * 20

    asyncio.run(work())


# From the gate to the store


def test_the_usage_of_each_environment_equals_what_the_gate_admitted(petstore: Commands) -> None:
    live, staging = petstore.server.key(), petstore.server.key(environment="staging")

    async def work(backends: Backends) -> None:
        for _ in range(4):
            await admit(backends.gate, live.id, "getPet", now=time.time())
        await admit(backends.gate, staging.id, "other", now=time.time(), environment="staging")
        for _ in range(3):
            await backends.collect_admissions(AT)
        await admit(backends.gate, live.id, "getPet", now=time.time())
        await backends.collect_admissions(AT, [live.id])
        assert await used(backends.stores["live"], live.id, "getPet") == 5
        assert await used(backends.stores["staging"], staging.id) == 1
        assert await used(backends.stores["staging"], live.id) == 0

    petstore.server.act(work)


@pytest.mark.on("sqlite-lmdb")
def test_the_command_counts_what_a_killed_service_left(petstore: Commands) -> None:
    key = petstore.server.key()

    async def work(backends: Backends) -> None:
        for _ in range(4):
            await admit(backends.gate, key.id, now=time.time())

    petstore.server.act(work)
    shown = petstore.json("usage", key.id)
    assert sum(interval["ok"] for interval in shown["steps"]) == 4
    petstore.server.act(work)
    assert [row["requests"] for row in petstore.json("usage")] == [8]


def test_errors_are_a_part_of_what_was_admitted(tmp_path: Path, client: Any) -> None:
    with started(Server(tmp_path / "data", workers=2)) as server:
        key = server.key(limits=Limits(12, 10**6))
        for path in ["/pets", "/pets/7"] * 8:
            client.get(server.url(path), headers=key.headers)
        server.stop()
        assert measures_of(server, key) == {"admitted": 12, "client_error": 6, "refused": 4}
        assert measures_of(server, key, "getPet") == {"admitted": 6, "client_error": 6, "refused": 2}


def measures_of(server: Server, key: Key, operation: OperationName | None = None) -> Mapping[str, int]:
    days = [(int(time.time()) // DAY - back) * DAY for back in (0, 1)]
    found: Counter[str] = Counter()
    for row in server.act(lambda backends: backends.stores["live"].usage.of_keys([key.id], DAY, days, operation)):
        found[row.measure] += row.requests
    return dict(found)


@pytest.mark.on("sqlite-lmdb")
def test_a_copy_continues_where_the_usage_of_the_source_ended(petstore: Commands, tmp_path: Path) -> None:
    """The copy includes admissions that only the source's gate had counted, and counts nothing twice."""
    key = petstore.server.key()

    async def use(backends: Backends) -> None:
        for _ in range(4):
            await admit(backends.gate, key.id, now=time.time())
        await backends.collect_admissions(time.time())
        for _ in range(3):
            await admit(backends.gate, key.id, now=time.time())

    petstore.server.act(use)
    target = Server(tmp_path / "copy")
    petstore.run("copy", "--to-store", str(target.data))
    assert measures_of(target, key) == {"admitted": 7}
    shown = Commands(target).json("usage", key.id)
    assert sum(interval["ok"] for interval in shown["steps"]) == 7


def test_after_a_restore_a_new_gate_counts_on_from_the_usage_of_the_backup(tmp_path: Path) -> None:
    old, new = (Commands(Server(tmp_path / name)) for name in ("old", "new"))
    old.server.create()
    key = old.server.key()

    async def use(backends: Backends) -> None:
        for _ in range(4):
            await admit(backends.gate, key.id, now=time.time())
            await backends.collect_admissions(time.time())
        await admit(backends.gate, key.id, now=time.time())

    old.server.act(use)
    old.text("backup", str(tmp_path / "backup.zip"))
    new.run("restore", str(tmp_path / "backup.zip"))
    assert [row["requests"] for row in new.json("usage")] == [4]  # only the gate had counted the fifth
    new.server.act(use)
    assert [row["requests"] for row in new.json("usage")] == [4 + 5]
