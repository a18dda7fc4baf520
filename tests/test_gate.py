"""The gate's contract, and what is special about the local one: many processes, damage, growth."""

import asyncio
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TypeVar

import pytest

from petstore.errors import Unavailable
from petstore.gate import Gate, GatePolicy, open_gate
from petstore.gate import local as local_gate
from petstore.gate.local import INITIAL_SIZE, LocalGate, bucket_of, set_aside_if_damaged
from petstore.plans import Limits
from petstore.windows import ADMITTED, BANNED, DAY, LIMITED, SECOND, BanPolicy, Decision

NOW = 1_800_000_000.0
PLENTY = Limits(10**9, 10**9)
T = TypeVar("T")


def with_gate(data: Path, work: Callable[[Gate], Awaitable[T]], policy: GatePolicy | None = None) -> T:
    async def inside() -> T:
        gate = open_gate(None, data, policy or GatePolicy())
        try:
            return await work(gate)
        finally:
            await gate.close()

    return asyncio.run(inside())


async def ask(gate: Gate, key_id: str, limits: Limits, now: float = NOW) -> Decision:
    passed = await gate.admit("live", key_id, limits, await gate.keys_version("live"), now)
    assert passed is not None
    return passed[0]


def test_limits_hold_and_counters_outlive_the_process(tmp_path: Path) -> None:
    async def three(gate: Gate) -> list[Decision]:
        return [await ask(gate, "key_a", Limits(5, 100)) for _ in range(3)]

    first, second = with_gate(tmp_path, three), with_gate(tmp_path, three)
    assert [d.outcome for d in first + second] == [ADMITTED] * 5 + [LIMITED]
    assert [d.remaining for d in first + second] == [4, 3, 2, 1, 0, 0]


def test_nothing_is_counted_under_an_outdated_version_of_the_keys(tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        version = await gate.keys_version("live")
        await gate.raise_version("live", "keys")
        assert await gate.admit("live", "key_a", Limits(2, 2), version, NOW) is None
        assert (await ask(gate, "key_a", Limits(2, 2))).remaining == 1

    with_gate(tmp_path, work)


def test_versions_rise_one_by_one_and_apart(tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        async def versions(environment: str) -> tuple[int, int]:
            keys = await gate.keys_version(environment)  # type: ignore[arg-type]  # one of the two
            passed = await gate.admit(environment, "key_v", PLENTY, keys, NOW)  # type: ignore[arg-type]  # the same
            assert passed is not None
            return passed[1], keys

        live, staging = await versions("live"), await versions("staging")
        await gate.raise_version("live", "catalogue")
        assert await versions("live") == (live[0] + 1, live[1])
        await gate.raise_version("live", "keys")
        assert await versions("live") == (live[0] + 1, live[1] + 1)
        assert await versions("staging") == staging

    with_gate(tmp_path, work)


def test_addresses_have_a_window_of_their_own_in_each_environment(tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        assert (await gate.peek_address("live", "192.0.2.1", NOW)).remaining == 2
        outcomes = [(await gate.admit_address("live", "192.0.2.1", NOW)).outcome for _ in range(3)]
        assert outcomes == [ADMITTED, ADMITTED, LIMITED]
        assert (await gate.peek_address("live", "192.0.2.1", NOW)).remaining == 0
        assert (await gate.admit_address("staging", "192.0.2.1", NOW)).outcome is ADMITTED
        assert (await gate.admit_address("live", "192.0.2.2", NOW)).outcome is ADMITTED
        assert (await gate.admit_address("live", "192.0.2.1", NOW + 60)).outcome is ADMITTED

    with_gate(tmp_path, work, GatePolicy(address_per_minute=2))


def test_an_ipv6_network_is_one_client() -> None:
    assert bucket_of("2001:db8::1") == bucket_of("2001:db8::ffff")
    assert bucket_of("2001:db8::1") != bucket_of("2001:db8:0:1::1")
    assert bucket_of("::ffff:192.0.2.1") == bucket_of("192.0.2.1") != bucket_of("192.0.2.2")
    assert bucket_of("no address") == bucket_of("")


def test_bans_are_listed_and_lifted(tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        outcomes = [(await ask(gate, "key_a", Limits(1, 9))).outcome for _ in range(3)]
        assert outcomes == [ADMITTED, LIMITED, BANNED]
        (ban,) = await gate.bans(NOW)
        assert (ban.key_id, ban.since, ban.until, ban.times) == ("key_a", NOW, NOW + 60, 1)
        assert await gate.bans(NOW + 60) == []
        assert not await gate.lift("key_b")
        assert await gate.lift("key_a")
        assert await gate.bans(NOW) == []

    with_gate(tmp_path, work)


def test_ban_policy_is_a_setting(tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        outcomes = [(await ask(gate, "key_a", Limits(1, 9))).outcome for _ in range(6)]
        assert outcomes == [ADMITTED, LIMITED, LIMITED, LIMITED, BANNED, BANNED]
        assert (await gate.bans(NOW))[0].until == NOW + 5

    with_gate(tmp_path, work, GatePolicy(BanPolicy(5 * SECOND, 7 * SECOND, 3)))


def test_idle_records_are_removed_and_others_stay(tmp_path: Path) -> None:
    async def work(gate: Gate) -> int:
        for number in range(2_000):
            await ask(gate, f"key_{number}", PLENTY)
            await gate.admit_address("live", f"192.0.{number // 250}.{number % 250}", NOW)
        await ask(gate, "key_busy", Limits(3, 3), NOW + DAY / SECOND)
        for _ in range(20):
            await gate.sweep(NOW + DAY / SECOND)
        assert (await ask(gate, "key_busy", Limits(3, 3), NOW + DAY / SECOND)).remaining == 1
        assert isinstance(gate, LocalGate)
        return gate.records

    assert with_gate(tmp_path, work) == 3  # two environments' versions and the busy key


def test_the_file_grows_with_the_keys_and_other_processes_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_gate, "INITIAL_SIZE", 256 * 1024)
    go = multiprocessing.Event()
    filler = multiprocessing.Process(target=_fill, args=(tmp_path, 4_000, go))
    filler.start()

    async def work(gate: Gate) -> None:
        go.set()
        filler.join()
        assert (tmp_path / "gate.mdb").stat().st_size >= 512 * 1024
        assert (await ask(gate, "key_3999", PLENTY)).remaining == PLENTY.per_day - 2
        for number in range(4_000, 12_000):
            await ask(gate, f"key_{number}", PLENTY)
        assert (await ask(gate, "key_0", PLENTY)).remaining == PLENTY.per_day - 2

    with_gate(tmp_path, work)


def test_the_file_has_real_blocks_so_that_a_full_disk_is_an_error_and_not_a_signal(tmp_path: Path) -> None:
    async def nothing(gate: Gate) -> None: ...

    with_gate(tmp_path, nothing)
    assert (tmp_path / "gate.mdb").stat().st_blocks * 512 >= INITIAL_SIZE


def _spend(data: Path, tries: int, ready: Event, admitted: "multiprocessing.Queue[int]") -> None:
    ready.wait()

    async def work(gate: Gate) -> int:
        return sum([(await ask(gate, "key_a", Limits(1_000, 10**6))).outcome is ADMITTED for _ in range(tries)])

    admitted.put(with_gate(data, work, GatePolicy(BanPolicy(threshold=10**9))))


def test_four_processes_share_one_quota_exactly(tmp_path: Path) -> None:
    ready = multiprocessing.Event()
    admitted: multiprocessing.Queue[int] = multiprocessing.Queue()
    processes = [multiprocessing.Process(target=_spend, args=(tmp_path, 700, ready, admitted)) for _ in range(4)]
    for process in processes:
        process.start()
    ready.set()
    counts = [admitted.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=60)
    assert sum(counts) == 1_000


def _fill(data: Path, count: int, go: Event) -> None:
    go.wait()

    async def work(gate: Gate) -> None:
        for number in range(count):
            await ask(gate, f"key_{number}", PLENTY)

    with_gate(data, work)


def _spend_for_ever(data: Path) -> None:
    with_gate(data, lambda gate: _endless(gate))


async def _endless(gate: Gate) -> None:
    while True:
        await ask(gate, "key_a", PLENTY)


def test_processes_killed_while_counting_leave_a_gate_that_works(tmp_path: Path) -> None:
    dice = random.Random(7)
    used = []
    for _ in range(20):
        process = multiprocessing.Process(target=_spend_for_ever, args=(tmp_path,))
        process.start()
        time.sleep(dice.uniform(0.01, 0.05))  # a random moment to be killed at, not a wait for anything
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert set_aside_if_damaged(tmp_path / "gate.mdb") is None
        remaining = with_gate(tmp_path, lambda gate: ask(gate, "key_a", PLENTY)).remaining
        used.append(PLENTY.per_day - remaining)
    assert used == sorted(used)


@pytest.mark.parametrize("damage", ["truncated", "overwritten", "empty", "holes"])
def test_a_damaged_file_is_set_aside_and_made_anew(tmp_path: Path, damage: str) -> None:
    async def fill(gate: Gate) -> None:
        for number in range(3_000):
            await ask(gate, f"key_{number}", PLENTY)

    with_gate(tmp_path, fill)
    path = tmp_path / "gate.mdb"
    if damage == "truncated":
        os.truncate(path, 40_000)
    elif damage == "holes":
        content = bytearray(path.read_bytes())
        content[8192:-8192] = bytes(len(content) - 16384)
        path.write_bytes(content)
    else:
        path.write_bytes(b"" if damage == "empty" else os.urandom(100_000))
    aside = set_aside_if_damaged(path)
    assert aside is not None and aside.exists()
    assert with_gate(tmp_path, lambda gate: ask(gate, "key_1", Limits(5, 5))).remaining == 4


def test_a_file_that_cannot_be_opened_is_an_outage(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be opened"):
        LocalGate(tmp_path / "no such folder" / "gate.mdb", GatePolicy())
