"""The LMDB gate: sweeping, reading, a full disk, and its file."""

import asyncio
import itertools
import os
import resource
from pathlib import Path

import pytest

from harness.gates import NOW, PLENTY, ask, use_lmdb
from petstore.errors import Unavailable
from petstore.gate import VALID_SECONDS, GatePolicy
from petstore.gate.lmdb import LmdbGate
from petstore.rate_limits import DAY, SECOND, Windows

TOMORROW = NOW + DAY / SECOND


def test_sweeping_removes_addresses_and_keeps_what_was_counted(tmp_path: Path) -> None:
    async def work(gate: LmdbGate) -> int:
        for number in range(2_000):
            await ask(gate, f"key_{number}", PLENTY)
            await gate.admit_address("live", f"192.0.{number // 250}.{number % 250}", NOW)
        await gate.admit_address("live", "192.0.2.1", TOMORROW)
        for _ in range(20):
            await gate.sweep(TOMORROW)
        assert (await gate.peek_address("live", "192.0.2.1", TOMORROW)).remaining == 599
        return gate.records

    assert use_lmdb(tmp_path, work) == 4 + 2_000  # the format, two versions, the busy address, the keys


def test_marks_of_valid_keys_are_removed_after_30_days(tmp_path: Path) -> None:
    async def work(gate: LmdbGate) -> list[bool]:
        for number in range(2):
            await gate.mark_valid(bytes([number]) * 32, NOW + number, valid=True)
        await gate.sweep(NOW + VALID_SECONDS + 0.5)
        return [await gate.was_valid(bytes([number]) * 32) for number in range(2)]

    assert use_lmdb(tmp_path, work) == [False, True]


def test_a_sweep_continues_where_the_last_one_ended(tmp_path: Path) -> None:
    async def work(gate: LmdbGate) -> None:
        for number in range(1_200):  # the first 600 addresses stay
            address = f"192.0.{number // 250}.{number % 250}"
            await gate.admit_address("live", address, TOMORROW if number < 600 else NOW)
        for number in range(1_200):
            await gate.mark_valid(number.to_bytes(32, "little"), 0, valid=True)
            await ask(gate, f"key_{number}", PLENTY)
        left = []
        for _ in range(10):
            await gate.sweep(TOMORROW)
            left.append(gate.records - 3 - 1200)  # without the format, the versions and the keys
        # A sweep examines 250 records: current addresses, then old addresses, then marks. It skips all keys at once.
        assert left == [2400, 2400, 2250, 2000, 1751, 1501, 1251, 1001, 751, 600]

    use_lmdb(tmp_path, work)


@pytest.mark.thorough
def test_sweeping_keeps_up_with_ever_new_addresses(tmp_path: Path) -> None:
    """Adds addresses at 1/25 of the rate that the default batch size is designed for."""
    each_second = 40

    async def work(gate: LmdbGate) -> int:
        networks, most = itertools.count(), 0
        for second in range(600):
            for number in itertools.islice(networks, each_second):
                await gate.admit_address("live", f"2001:db8:{number >> 16:x}:{number & 0xFFFF:x}::1", NOW + second)
            await gate.sweep(NOW + second)
            most = max(most, gate.records)
        return most

    # A record is needed for 60 s, and then sweeping may take 150 s to reach it.
    assert use_lmdb(tmp_path, work, sweep_batch=10) < each_second * (60 + 150)


def test_a_large_sweep_is_bounded_and_lets_other_tasks_run(tmp_path: Path) -> None:
    turns = 0

    async def other_task() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def work(gate: LmdbGate) -> int:
        nonlocal turns
        for number in range(20_000):
            await gate.mark_valid(number.to_bytes(32, "little"), 0, valid=True)
        before, other = gate.records, asyncio.create_task(other_task())
        await asyncio.sleep(0)
        turns = 0
        await gate.sweep(NOW)
        other.cancel()
        return before - gate.records

    assert use_lmdb(tmp_path, work, sweep_batch=25, sweep_batches_max=4) == 100
    assert turns >= 3


def test_all_keys_are_read_a_thousand_at_a_time(tmp_path: Path) -> None:
    async def work(gate: LmdbGate) -> list[int]:
        await gate.put_windows((f"key_{number}", Windows(1)) for number in range(2_500))
        return [len(rows) async for rows in gate.all_windows()]

    assert use_lmdb(tmp_path, work) == [1_000, 1_000, 500]


def test_the_file_is_allocated_so_that_a_full_disk_is_an_error_and_no_signal(tmp_path: Path) -> None:
    use_lmdb(tmp_path, lambda gate: gate.keys_version("live"))
    made = (tmp_path / "gate.mdb").stat()
    assert made.st_size == 16 * 1024 * 1024
    assert made.st_blocks * 512 >= made.st_size


def test_a_file_that_cannot_grow_is_an_outage_until_it_can(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def events() -> list[str]:
        return [record.message for record in caplog.records]

    async def work(gate: LmdbGate) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
        try:
            with pytest.raises(Unavailable, match="cannot grow"):
                for number in range(10_000):
                    await ask(gate, f"key_{number}", PLENTY)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert events() == ["gate down"]
        for number in range(10_000):
            await ask(gate, f"key_{number}", PLENTY)
        for _ in range(500):
            await gate.sweep(NOW)
            if "gate back" in events():
                break
            await asyncio.sleep(0.01)  # polls for at most five seconds
        assert events() == ["gate down", "gate back"]

    use_lmdb(tmp_path, work, initial_size=256 * 1024)


def test_a_closed_gate_has_unmapped_its_file(tmp_path: Path) -> None:
    gate = LmdbGate(tmp_path / "gate.mdb", GatePolicy())
    assert str(tmp_path / "gate.mdb") in Path("/proc/self/maps").read_text()
    asyncio.run(gate.close())
    assert str(tmp_path / "gate.mdb") not in Path("/proc/self/maps").read_text()


def test_a_file_that_cannot_be_opened_is_an_outage(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be opened"):
        LmdbGate(tmp_path / "no such directory" / "gate.mdb", GatePolicy())


def test_a_file_that_cannot_be_allocated_is_an_outage_and_is_unmapped(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * 1024, hard))
    try:
        with pytest.raises(Unavailable, match="cannot be opened"):
            LmdbGate(tmp_path / "gate.mdb", GatePolicy())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(tmp_path / "gate.mdb") not in Path("/proc/self/maps").read_text()


def test_only_the_user_of_the_service_may_read_the_file(tmp_path: Path) -> None:
    earlier = os.umask(0)
    try:
        use_lmdb(tmp_path, lambda gate: ask(gate, "key_1", PLENTY))
    finally:
        os.umask(earlier)
    for name in ("gate.mdb", "gate.mdb-lock"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
