"""A gate of version 1.1, as `fixtures/1.1.0` has it: limits, bans and admissions are carried over, once."""

import asyncio
import json
import multiprocessing
import struct
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import pytest

from harness.backends import Redis
from harness.gates import FaultyLink, answers_again, ask
from harness.redis_topologies import RedisCluster
from petstore.backends import upgrade_data
from petstore.data_dir import InUse, shared_lock
from petstore.errors import Unavailable
from petstore.gate import Gate, GatePolicy, bans_in_force, open_gate
from petstore.gate.lmdb import LmdbGate
from petstore.gate.redis import RedisGate
from petstore.gate.redis_link import Link
from petstore.gate.redis_url import open_link
from petstore.gate.upgrade_from_1_1 import UpgradedLink, needs_upgrade, upgrade
from petstore.plans import Limits
from petstore.rate_limits import BANNED, LIMITED, SECOND, Windows
from petstore.settings import Settings
from petstore.usage import AdmissionTotal

T = TypeVar("T")

RELEASE = Path(__file__).parents[1] / "fixtures" / "1.1.0"
KNOWN: Mapping[str, Any] = json.loads((RELEASE / "secrets.json").read_text())
REDIS: Mapping[str, Mapping[str, Any]] = json.loads((RELEASE / "redis.json").read_text())
KEY_IDS = {each["key"]: each["key_id"] for each in KNOWN["secrets"].values()}
NOW = float(KNOWN["unix"])
POLICY = GatePolicy(outage="refuse", given_clock=True)
FILES = [("data.zip", "gate.mdb"), ("node.zip", "gate-outage.mdb")]


def unpacked(archive: str, name: str, target: Path) -> Path:
    with zipfile.ZipFile(RELEASE / archive) as files:
        return Path(files.extract(name, target))


def windows_of(file: str) -> dict[str, Windows]:
    return {KEY_IDS[key]: Windows(**fields) for key, fields in KNOWN["windows"][file].items()}


def totals_of(file: str) -> set[AdmissionTotal]:
    return {
        AdmissionTotal(each["environment"], KEY_IDS[each["key"]], each["operation"], each["epoch"], each["total"])
        for some in KNOWN["admissions"].values()
        for each in some
        if each["in"] == file
    }


async def check_all(gate: Gate, file: str) -> None:
    """Every record is there: one by one, and in the lists."""
    windows, totals = windows_of(file), totals_of(file)
    assert windows and totals
    assert dict(zip(windows, await gate.windows(list(windows)), strict=True)) == windows
    listed = {key_id: w async for rows in gate.all_windows() for key_id, w in rows}
    # A key whose windows were over has a record too, for its counts.
    assert {key_id: w for key_id, w in listed.items() if w != Windows()} == windows
    assert {each async for some in gate.admissions() for each in some} == totals
    assert {each async for some in gate.admissions(list(KEY_IDS.values())) for each in some} == totals


async def check_decisions(gate: Gate, file: str) -> None:
    """The next requests are decided under the old windows and bans, and counted where the old counts end."""
    windows, totals = windows_of(file), totals_of(file)
    now = int(NOW * SECOND)
    bans = {key_id for key_id, w in windows.items() if w.ban_start <= now < w.ban_end}
    assert {ban.key_id for ban in await bans_in_force(gate, NOW)} == bans
    for key_id, w in windows.items():
        limits = Limits(10**6, max(w.day_used, 1))
        if key_id in bans:
            assert (await ask(gate, key_id, limits, NOW)).outcome is BANNED
        elif w.day_used:
            assert (await ask(gate, key_id, limits, NOW)).outcome is LIMITED
            assert (await ask(gate, key_id, Limits(10**6, w.day_used + 1), NOW)).remaining == 0
            own = {each.operation: each for each in totals if each.key_id == key_id}
            found = {each.operation: each async for some in gate.admissions([key_id]) for each in some}
            assert found["other"].total == (own["other"].total if "other" in own else 0) + 1
            assert not own or {each.epoch for each in found.values()} == {each.epoch for each in own.values()}
            assert {**found, "other": None} == {**own, "other": None}


@pytest.mark.parametrize(("archive", "name"), FILES, ids=["data", "fallback"])
def test_a_file_of_1_1_is_carried_over(tmp_path: Path, archive: str, name: str) -> None:
    path = unpacked(archive, name, tmp_path)
    assert needs_upgrade(path)
    upgrade(path)
    assert not needs_upgrade(path)
    upgrade(path)  # nothing is left to do

    async def inside() -> None:
        gate = LmdbGate(path, GatePolicy())
        assert not needs_upgrade(path)
        await check_all(gate, name)
        await check_decisions(gate, name)
        await gate.close()

    asyncio.run(inside())
    with lmdb.open(str(path), subdir=False, readonly=True) as env, env.begin() as txn:
        assert {name[:1] for name in txn.cursor().iternext(values=False)} <= {b"a", b"k", b"s", b"v"}
    assert not needs_upgrade(path)


def test_a_file_of_1_1_grows_when_it_must(tmp_path: Path) -> None:
    """The records of version 2 are longer."""
    path, keys = tmp_path / "gate.mdb", 20_000
    with lmdb.open(str(path), subdir=False, map_size=2**26) as env, env.begin(write=True) as txn:
        for number in range(keys):
            txn.put(f"kkey_{number}".encode(), struct.pack("<4qQ4q", 1, 1, 1, 1, 0xA << 56 | 1, 0, 0, 0, 0))
            txn.put(f"tkey_{number}".encode(), struct.pack("<6q", 0, 7, 0, 0, 0, 0))
        for environment in (b"live", b"staging"):
            txn.put(b"v" + environment, bytes(16))
    upgrade(path)

    async def inside() -> int:
        gate = LmdbGate(path, GatePolicy())
        found = sum([len(rows) async for rows in gate.all_windows()])
        await gate.close()
        return found

    assert asyncio.run(inside()) == keys


def _hold(data: Path, held: Event, over: Event) -> None:
    with shared_lock(data):
        held.set()
        over.wait(timeout=30)


def test_a_file_is_upgraded_when_no_process_uses_it(tmp_path: Path) -> None:
    path, settings = unpacked("data.zip", "gate.mdb", tmp_path), Settings(data=tmp_path)
    held, over = multiprocessing.Event(), multiprocessing.Event()
    other = multiprocessing.Process(target=_hold, args=(tmp_path, held, over))
    other.start()
    assert held.wait(timeout=30)
    try:
        with pytest.raises(InUse):
            upgrade_data(settings)
        assert needs_upgrade(path)
    finally:
        over.set()
        other.join()
    upgrade_data(settings)
    assert not needs_upgrade(path)


@pytest.fixture(params=["redis", "redis-cluster"])
def url(request: pytest.FixtureRequest, redis: Redis) -> str:
    """A Redis, or a Cluster, with the records of the fixture."""
    servers: Redis | RedisCluster = redis if request.param == "redis" else request.getfixturevalue("redis_cluster")
    url = servers.url()
    commands: list[tuple[Any, ...]] = []
    for name, stored in REDIS.items():
        if stored["type"] == "hash":
            fields = [word for field, value in stored["value"].items() for word in (field, bytes.fromhex(value))]
            commands.append(("HSET", name, *fields))
        else:
            expiry = ("PX", stored["ttl_ms"]) if stored["ttl_ms"] else ()
            commands.append(("SET", name, bytes.fromhex(stored["value"]), *expiry))
    on_link(url, lambda link: link.send(commands))
    return url


def on_link(url: str, work: Callable[[Link], Awaitable[T]]) -> T:
    async def inside() -> T:
        link = open_link(url)
        try:
            return await work(link)
        finally:
            await link.close()

    return asyncio.run(inside())


def names_of_1_1(url: str) -> list[bytes]:
    async def work(link: Link) -> list[bytes]:
        patterns = ("petstore:key:*", "petstore:admitted:*")
        return [name for pattern in patterns async for names in link.names(pattern) for name in names]

    return on_link(url, work)


def test_records_of_1_1_in_redis_are_carried_over_by_processes_that_start_at_once(url: str, tmp_path: Path) -> None:
    async def inside() -> None:
        gates = [open_gate(url, tmp_path, POLICY) for _ in range(4)]
        await asyncio.gather(*(check_all(gate, "redis.json") for gate in gates))
        await check_decisions(gates[0], "redis.json")
        await asyncio.gather(*(gate.close() for gate in gates))

    assert names_of_1_1(url)
    asyncio.run(inside())
    assert names_of_1_1(url) == []


@pytest.mark.parametrize("calls", range(1, 9))
def test_an_upgrade_of_redis_that_fails_is_finished_later(url: str, calls: int) -> None:
    """After any number of exchanges."""

    async def inside() -> None:
        link = FaultyLink(open_link(url))
        send, left = link.send, calls

        async def failing(commands: Sequence[Any]) -> list[Any]:
            nonlocal left
            left -= 1
            if left == 0:
                raise Unavailable("a test")
            return await send(commands)

        link.send = failing
        gate = RedisGate(UpgradedLink(link), POLICY)
        if calls <= 5:  # one to look, two to read, one to write, one to delete; a Cluster does so for each shard
            with pytest.raises(Unavailable):
                await gate.windows(["key_a"])
        assert await answers_again(gate, "key_a")
        await gate.close()
        gate = RedisGate(open_link(url), POLICY)
        windows, totals = windows_of("redis.json"), totals_of("redis.json")
        assert dict(zip(windows, await gate.windows(list(windows)), strict=True)) == windows
        found = {each async for some in gate.admissions() for each in some if each.key_id != "key_a"}
        assert found == totals
        await gate.close()

    asyncio.run(inside())
    assert names_of_1_1(url) == []


def test_an_upgrade_of_redis_goes_on_when_its_callers_no_longer_wait(url: str) -> None:
    begun = 0

    async def inside() -> None:
        link, may_go_on = FaultyLink(open_link(url)), asyncio.Event()
        names = link.names

        async def slow(pattern: str) -> AsyncIterator[list[bytes]]:
            nonlocal begun
            begun += 1
            await may_go_on.wait()
            async for some in names(pattern):
                yield some

        link.names = slow
        gate = RedisGate(UpgradedLink(link), POLICY)
        with pytest.raises(Unavailable):
            await gate.windows(["key_a"])
        may_go_on.set()
        await check_all(gate, "redis.json")
        await gate.close()

    asyncio.run(inside())
    assert begun == 4  # keys and totals, then the two lists of `check_all`


def test_a_node_of_1_1_that_was_overlooked_changes_nothing(url: str, tmp_path: Path) -> None:
    """Nor does a later start take over what it has written."""

    async def check() -> None:
        gate = open_gate(url, tmp_path, POLICY)
        await check_all(gate, "redis.json")
        await gate.close()

    asyncio.run(check())
    stale = [("SET", name, bytes(72)) for name in REDIS if name.startswith("petstore:key:")]
    on_link(url, lambda link: link.send([*stale, ("SET", "petstore:{versions}", bytes(32))]))
    asyncio.run(check())
    on_link(url, lambda link: link.send([("DEL", "petstore:v2:{versions}")]))
    asyncio.run(check())
