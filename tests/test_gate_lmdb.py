"""What is special about the local gate: many processes, damage, growth."""

import asyncio
import errno
import itertools
import multiprocessing
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from petstore.errors import Unavailable
from petstore.gate import Gate, GatePolicy
from petstore.gate import lmdb as local_gate
from petstore.gate.lmdb import LmdbGate, copy_out, renew_versions
from petstore.gate.recovery import SYNCED, mark_clean, readable, recover
from petstore.plans import Limits
from petstore.rate_limits import DAY, SECOND, Windows
from tests.places import GatePlace
from tests.test_gate import NOW, PLENTY, ask


def test_idle_records_are_removed_and_others_stay(tmp_path: Path) -> None:
    async def work(gate: Gate) -> int:
        for number in range(2_000):
            await ask(gate, f"key_{number}", PLENTY)
            await gate.admit_address("live", f"192.0.{number // 250}.{number % 250}", NOW)
        await ask(gate, "key_busy", Limits(3, 3), NOW + DAY / SECOND)
        for _ in range(20):
            await gate.sweep(NOW + DAY / SECOND)
        assert (await ask(gate, "key_busy", Limits(3, 3), NOW + DAY / SECOND)).remaining == 1
        assert isinstance(gate, LmdbGate)
        return gate.records

    assert GatePlace(tmp_path).use(work) == 3  # two environments' versions and the busy key


def test_a_sweep_looks_at_some_records_and_the_next_goes_on_behind_them(tmp_path: Path) -> None:
    later = NOW + DAY / SECOND

    async def work(gate: Gate) -> None:
        assert isinstance(gate, LmdbGate)
        for number in range(600):
            await ask(gate, f"key_a{number:03}", PLENTY, later)  # these stay
        for number in range(600):
            await ask(gate, f"key_b{number:03}", PLENTY)
        left = []
        for _ in range(5):
            await gate.sweep(later)
            left.append(gate.records - 2)  # without the versions
        assert left == [1200, 1200, 1050, 800, 600]
        await gate.sweep(later)  # from the beginning again: nothing more to find
        assert gate.records - 2 == 600

    GatePlace(tmp_path).use(work)


def test_a_sweep_keeps_up_with_callers_from_ever_new_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a tenth of the numbers that hold outside tests."""
    monkeypatch.setattr(local_gate, "SWEEP_STEP", 25)
    each_second = 100

    async def work(gate: Gate) -> int:
        assert isinstance(gate, LmdbGate)
        networks, most = itertools.count(), 0
        for second in range(600):
            for number in itertools.islice(networks, each_second):
                await gate.admit_address("live", f"2001:db8:{number >> 16:x}:{number & 0xFFFF:x}::1", NOW + second)
            await gate.sweep(NOW + second)
            most = max(most, gate.records)
        return most

    assert GatePlace(tmp_path).use(work) < each_second * (60 + 150)  # the minute that matters, and a round of sweeping


def test_a_large_sweep_has_an_end_and_lets_others_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_gate, "SWEEP_TURNS", 4)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def work(gate: Gate) -> int:
        nonlocal turns
        assert isinstance(gate, LmdbGate)
        await gate.put_windows((f"key_{number}", Windows(1)) for number in range(150_000))
        before, beside = gate.records, asyncio.create_task(others())
        await asyncio.sleep(0)
        turns = 0
        await gate.sweep(NOW)
        beside.cancel()
        return before - gate.records

    assert GatePlace(tmp_path).use(work) == 1_000
    assert turns >= 3


def test_all_keys_are_read_a_thousand_at_a_time(tmp_path: Path) -> None:
    async def work(gate: Gate) -> list[int]:
        await gate.put_windows((f"key_{number}", Windows(1)) for number in range(2_500))
        return [len(rows) async for rows in gate.all_windows()]

    assert GatePlace(tmp_path).use(work) == [1_000, 1_000, 500]


def test_the_file_has_real_blocks_so_that_a_full_disk_is_an_error_and_not_a_signal(tmp_path: Path) -> None:
    async def nothing(gate: Gate) -> None: ...

    GatePlace(tmp_path).use(nothing)
    made = (tmp_path / "gate.mdb").stat()
    assert made.st_size == 16 * 1024 * 1024
    assert made.st_blocks * 512 >= made.st_size


def test_a_file_that_cannot_grow_is_an_outage_that_ends_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_gate, "INITIAL_SIZE", 256 * 1024)

    def full(file: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def work(gate: Gate) -> None:
        assert isinstance(gate, LmdbGate)
        with monkeypatch.context() as fault, pytest.raises(Unavailable, match="cannot grow"):
            fault.setattr(local_gate, "allocate", full)
            for number in range(10_000):
                await ask(gate, f"key_{number}", PLENTY)
        assert gate._health.down
        for number in range(10_000):
            await ask(gate, f"key_{number}", PLENTY)
        await gate.sweep(NOW)
        assert gate._health.down  # it may have worked by chance
        monkeypatch.setattr("petstore.observability.health.STEADY", 0.0)
        await gate.sweep(NOW)
        assert not gate._health.down

    GatePlace(tmp_path).use(work)


def test_a_gate_that_is_closed_holds_nothing(tmp_path: Path) -> None:
    gate = LmdbGate(tmp_path / "gate.mdb", GatePolicy())
    assert str(tmp_path / "gate.mdb") in Path("/proc/self/maps").read_text()
    asyncio.run(gate.close())
    assert str(tmp_path / "gate.mdb") not in Path("/proc/self/maps").read_text()


def test_nothing_is_synced_and_pages_are_written_in_place(tmp_path: Path) -> None:
    async def flags(gate: Gate) -> dict[str, object]:
        assert isinstance(gate, LmdbGate)
        return dict(gate._env.flags())

    chosen = GatePlace(tmp_path).use(flags)
    assert {name: chosen[name] for name in ("sync", "metasync", "writemap", "map_async")} == {
        "sync": False,
        "metasync": False,
        "writemap": True,
        "map_async": True,
    }


@pytest.mark.parametrize("attempt", [lambda path: copy_out(path, path), renew_versions], ids=["copied", "renewed"])
def test_what_is_not_there_is_neither_copied_nor_made(tmp_path: Path, attempt: Callable[[Path], None]) -> None:
    with pytest.raises(Unavailable):
        attempt(tmp_path / "gate.mdb")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["truncated", "overwritten", "empty", "holes"])
def test_a_damaged_file_is_set_aside_and_made_anew(tmp_path: Path, damage: str) -> None:
    async def fill(gate: Gate) -> None:
        for number in range(3_000):
            await ask(gate, f"key_{number}", PLENTY)

    GatePlace(tmp_path).use(fill)
    path = tmp_path / "gate.mdb"
    if damage == "truncated":
        os.truncate(path, 40_000)
    elif damage == "holes":
        content = bytearray(path.read_bytes())
        content[8192:-8192] = bytes(len(content) - 16384)
        path.write_bytes(content)
    else:
        path.write_bytes(b"" if damage == "empty" else os.urandom(100_000))
    aside = recover(path)
    assert aside is not None and aside.exists()
    assert GatePlace(tmp_path).use(lambda gate: ask(gate, "key_1", Limits(5, 5))).remaining == 4


def test_a_file_in_use_when_the_machine_went_down_is_made_anew(tmp_path: Path) -> None:
    """It may read well all the same: `make prove` tries that with pages of different ages."""
    GatePlace(tmp_path).use(lambda gate: ask(gate, "key_1", Limits(5, 5)))
    path = tmp_path / "gate.mdb"
    assert recover(path) is None  # the same boot
    mark_clean(path)
    assert (tmp_path / "gate.mdb-boot").read_text() == SYNCED
    assert recover(path) is None  # an orderly stop, whatever came after it
    (tmp_path / "gate.mdb-boot").write_text("another boot")
    assert recover(path) is not None
    assert GatePlace(tmp_path).use(lambda gate: ask(gate, "key_1", Limits(5, 5))).remaining == 4


def test_a_file_is_read_from_end_to_end_while_others_write(tmp_path: Path) -> None:
    many = [(f"key_{number}", Windows(int(NOW * SECOND), 1)) for number in range(100_000)]
    GatePlace(tmp_path).use(lambda gate: gate.put_windows(many))
    over = multiprocessing.get_context("fork").Event()

    def write() -> None:
        async def work(gate: Gate) -> None:
            while not over.is_set():
                await gate.put_windows(random.sample(many, 100))

        GatePlace(tmp_path).use(work)

    writer = multiprocessing.get_context("fork").Process(target=write)
    writer.start()
    try:
        assert [readable(tmp_path / "gate.mdb", in_use=True) for _ in range(10)] == [True] * 10
    finally:
        over.set()
        writer.join()


def test_a_file_that_cannot_be_opened_is_an_outage(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be opened"):
        LmdbGate(tmp_path / "no such folder" / "gate.mdb", GatePolicy())


def test_a_file_from_a_backup_gets_new_versions_and_is_left_alone_in_its_folder(tmp_path: Path) -> None:
    before = GatePlace(tmp_path).use(lambda gate: gate.keys_version("staging"))
    for name in ("gate.mdb-boot", "gate.mdb-lock"):
        (tmp_path / name).unlink()
    renew_versions(tmp_path / "gate.mdb")
    assert [path.name for path in tmp_path.iterdir()] == ["gate.mdb"]
    assert GatePlace(tmp_path).use(lambda gate: gate.keys_version("staging")) > before


def test_only_the_services_user_may_read_the_file(tmp_path: Path) -> None:
    earlier = os.umask(0)
    try:
        GatePlace(tmp_path).use(lambda gate: ask(gate, "key_1", PLENTY))
    finally:
        os.umask(earlier)
    for name in ("gate.mdb", "gate.mdb-lock"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
