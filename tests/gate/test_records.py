"""The bytes of a key's record, and one gate shared by versions of the service with more or fewer operations."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import TypeVar

import lmdb
import pytest

from harness.gates import NOW, PLENTY, ask
from harness.stores import GatePlace
from petstore.gate import Gate, GatePolicy
from petstore.gate.records import admissions_in, unpack_windows
from petstore.gate.redis_script import key_record
from petstore.gate.redis_url import open_link
from petstore.operations import COUNTED, OPERATIONS, OperationName
from petstore.plans import Limits
from petstore.rate_limits import BANNED, SECOND, Decision, Windows
from petstore.usage import AdmissionTotal

T = TypeVar("T")

FOUR: tuple[OperationName, ...] = ("other", "listPets", "createPet", "getPet")
FIVE: tuple[OperationName, ...] = (*FOUR, "deletePet")
START = int(NOW * SECOND)
UNKNOWN = bytes(range(240, 256)) * 2 + b"odd"  # data that a later version might append


def put(place: GatePlace, key_id: str, record: bytes) -> None:
    """Stores the bytes of a record in a gate that has been opened before."""
    if place.url is not None:
        _send(place.url, ("SET", key_record(key_id), record))
        return
    path = place.data / "gate.mdb"
    with lmdb.open(str(path), subdir=False, map_size=path.stat().st_size) as env, env.begin(write=True) as txn:
        txn.put(b"k" + key_id.encode(), record)


def stored(place: GatePlace, key_id: str) -> bytes:
    if place.url is not None:
        return _send(place.url, ("GET", key_record(key_id)))
    with lmdb.open(str(place.data / "gate.mdb"), subdir=False, readonly=True) as env, env.begin() as txn:
        return bytes(txn.get(b"k" + key_id.encode(), b""))


def _send(url: str, command: tuple[str | bytes, ...]) -> bytes:
    async def inside() -> bytes:
        link = open_link(url)
        try:
            (reply,) = await link.send([command])
            return bytes(reply)
        finally:
            await link.close()

    return asyncio.run(inside())


async def admit(gate: Gate, key_id: str, operation: OperationName, limits: Limits = PLENTY) -> Decision:
    admitted = await gate.admit("staging", key_id, limits, await gate.keys_version("staging"), NOW, operation)
    assert admitted is not None
    return admitted[0]


async def totals(gate: Gate, *key_ids: str) -> list[AdmissionTotal]:
    return [each async for some in gate.admissions(key_ids or None) for each in some]


def use(place: GatePlace, names: tuple[OperationName, ...], work: Callable[[Gate], Awaitable[T]]) -> T:
    """Runs `work` with a version of the service that counts these operations."""
    return place.use(work, GatePolicy(outage="refuse", counted=names))


def test_each_operation_is_counted_at_its_number() -> None:
    assert COUNTED[0] == "other"
    assert {each.number: each.name for each in OPERATIONS} == dict(enumerate(COUNTED[1:], 1))


def test_a_record_has_the_same_bytes_in_every_gate(gate_at: GatePlace) -> None:
    async def work(gate: Gate) -> None:
        for operation in ("getPet", "getPet", "other"):
            await admit(gate, "key_a", operation, Limits(3, 9))
        for _ in range(4):
            await admit(gate, "key_a", "getPet", Limits(3, 9))

    use(gate_at, FOUR, work)
    fields = struct.unpack("<14q", stored(gate_at, "key_a"))
    assert fields[:8] == (START, 3, START, 3, 0, START, START + 60_000, 1)
    assert fields[8] == 1 and fields[9] > 0  # staging, the epoch
    assert fields[10:] == (1, 0, 0, 2)


def test_a_shorter_record_reads_as_zeros(gate_at: GatePlace) -> None:
    windows = struct.pack("<8q", START, 2, START, 5, 0, 0, 0, 0)

    async def work(gate: Gate) -> list[AdmissionTotal]:
        assert await totals(gate) == [] and await totals(gate, "key_a", "key_none") == []
        assert (await admit(gate, "key_a", "listPets", Limits(9, 99))).remaining == 6
        return await totals(gate)

    use(gate_at, FOUR, lambda gate: gate.keys_version("live"))
    put(gate_at, "key_a", windows)
    (found,) = use(gate_at, FOUR, work)
    assert (found.environment, found.operation, found.total) == ("staging", "listPets", 1)
    assert unpack_windows(stored(gate_at, "key_a")) == Windows(START, 3, START, 6)


def test_what_a_later_version_stored_is_kept(gate_at: GatePlace) -> None:
    async def first(gate: Gate) -> None:
        for operation in FOUR:
            await admit(gate, "key_a", operation)

    async def then(gate: Gate) -> None:
        await admit(gate, "key_a", "getPet")
        for _ in range(3):
            await admit(gate, "key_a", "getPet", Limits(1, 1))
        assert (await ask(gate, "key_a", PLENTY)).outcome is BANNED
        assert await gate.lift("key_a")
        await gate.put_windows([("key_a", Windows(START, 7))])
        await gate.sweep(NOW + 1e9)

    use(gate_at, FOUR, first)
    before = stored(gate_at, "key_a")
    put(gate_at, "key_a", before + UNKNOWN)
    use(gate_at, FOUR, then)
    after = stored(gate_at, "key_a")
    assert after[len(before) :] == UNKNOWN
    assert [each.total for each in admissions_in("key_a", after, FOUR)] == [1, 1, 1, 2]
    assert unpack_windows(after) == Windows(START, 7)


@pytest.mark.parametrize("turns", [(FOUR, FIVE), (FIVE, FOUR)], ids=["four first", "five first"])
def test_two_versions_on_one_gate_lose_neither_limits_nor_counts(
    gate_at: GatePlace, turns: tuple[tuple[OperationName, ...], ...]
) -> None:
    limits = Limits(30, 10**6)

    def admit_each(names: tuple[OperationName, ...]) -> list[int]:
        async def work(gate: Gate) -> list[int]:
            return [(await admit(gate, "key_a", operation, limits)).remaining for operation in reversed(names)]

        return use(gate_at, names, work)

    async def use_up(gate: Gate) -> list[int]:
        return [(await admit(gate, "key_a", "listPets", limits)).remaining for _ in range(5)]

    remaining = [each for _ in range(3) for names in turns for each in admit_each(names)]
    assert remaining == list(range(29, 2, -1))
    assert use(gate_at, FOUR, use_up) == [2, 1, 0, 0, 0]
    known_to_four, known_to_five = use(gate_at, FOUR, totals), use(gate_at, FIVE, totals)
    assert [each.total for each in known_to_five] == [6, 9, 6, 6, 3]
    assert known_to_four == known_to_five[:4]
    assert len({each.epoch for each in known_to_five}) == 1
