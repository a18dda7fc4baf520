"""Several processes share the gate's file: growth, the shared quota, and killed processes."""

import fcntl
import multiprocessing
import os
import random
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import lmdb
import pytest

from harness.gates import NOW, PLENTY, ask, use_lmdb
from petstore.gate import Gate, GatePolicy
from petstore.gate.lmdb import LmdbGate, size_lock
from petstore.gate.recovery import readable
from petstore.plans import Limits
from petstore.rate_limits import ADMITTED, SECOND, BanPolicy, Windows

SMALL = 64 * 1024  # bytes


def test_the_file_grows_and_other_processes_use_the_new_size(tmp_path: Path) -> None:
    go = multiprocessing.Event()
    filler = multiprocessing.Process(target=_fill, args=(tmp_path, 4_000, go))
    filler.start()

    async def work(gate: LmdbGate) -> None:
        go.set()
        filler.join()
        assert (tmp_path / "gate.mdb").stat().st_size >= 512 * 1024
        assert (await ask(gate, "key_3999", PLENTY)).remaining == PLENTY.per_day - 2
        for number in range(4_000, 12_000):
            await ask(gate, f"key_{number}", PLENTY)
        assert (await ask(gate, "key_0", PLENTY)).remaining == PLENTY.per_day - 2

    use_lmdb(tmp_path, work, initial_size=SMALL)
    grown = (tmp_path / "gate.mdb").stat()
    assert grown.st_blocks * 512 >= grown.st_size > 1024 * 1024


@pytest.mark.thorough
def test_processes_that_grow_the_file_at_the_same_time_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = os.posix_fallocate

    def allocate_slowly(file: int, start: int, size: int) -> None:
        allocate(file, start, size)
        time.sleep(0.002)  # gives other processes time between the allocation and the use of the new size

    monkeypatch.setattr(os, "posix_fallocate", allocate_slowly)
    go = multiprocessing.Event()
    fillers = [multiprocessing.Process(target=_fill, args=(tmp_path, 4_000, go, f"of {n}")) for n in range(4)]
    for filler in fillers:
        filler.start()
    go.set()
    for filler in fillers:
        filler.join()
    assert [filler.exitcode for filler in fillers] == [0, 0, 0, 0]
    grown = (tmp_path / "gate.mdb").stat()
    assert grown.st_blocks * 512 >= grown.st_size > 1024 * 1024

    async def count(gate: Gate) -> int:
        return sum([len(rows) async for rows in gate.all_windows()])

    assert use_lmdb(tmp_path, count) == 16_000


def test_the_size_lock_excludes_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "gate.mdb"
    path.touch()
    with path.open() as other:
        with size_lock(path), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _write_slowly(path: Path, begin: Event, writing: Event, over: Event) -> None:
    begin.wait(timeout=30)
    env = lmdb.open(str(path), subdir=False, map_size=path.stat().st_size)
    with env.begin(write=True):
        writing.set()
        over.wait(timeout=5)
        over.set()  # before the write lock is released


def test_reading_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    begin, writing, over = (multiprocessing.Event() for _ in range(3))
    writer = multiprocessing.Process(target=_write_slowly, args=(tmp_path / "gate.mdb", begin, writing, over))
    writer.start()

    async def work(gate: Gate) -> None:
        await ask(gate, "key_1", PLENTY)
        begin.set()
        assert writing.wait(timeout=30)
        await gate.keys_version("live")
        await gate.peek_address("live", "192.0.2.1", NOW)
        assert (await gate.windows(["key_1"]))[0].day_used == 1
        assert [key_id async for rows in gate.all_windows() for key_id, _ in rows] == ["key_1"]
        assert not over.is_set()
        over.set()

    use_lmdb(tmp_path, work)
    writer.join()


def _spend(data: Path, tries: int, ready: Event, admitted: "multiprocessing.Queue[int]") -> None:
    ready.wait()

    async def work(gate: Gate) -> int:
        return sum([(await ask(gate, "key_a", Limits(1_000, 10**6))).outcome is ADMITTED for _ in range(tries)])

    admitted.put(use_lmdb(data, work, GatePolicy(BanPolicy(threshold=10**9))))


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


def _fill(data: Path, count: int, go: Event, suffix: str = "") -> None:
    go.wait()
    for first in range(0, count, 100):  # opens the file repeatedly

        async def work(gate: Gate, first: int = first) -> None:
            for number in range(first, first + 100):
                await ask(gate, f"key_{number}{suffix}", PLENTY)

        use_lmdb(data, work, initial_size=SMALL)


def _read_until_killed(path: Path, reading: Event) -> None:
    env = lmdb.open(str(path), subdir=False, map_size=path.stat().st_size)
    with env.begin():
        reading.set()
        time.sleep(60)  # until it is killed


def test_the_file_does_not_grow_on_behalf_of_a_killed_reader(tmp_path: Path) -> None:
    """LMDB keeps every page that a reader might still need. A sweep detects readers whose process has ended."""
    path = tmp_path / "gate.mdb"
    use_lmdb(tmp_path, lambda gate: ask(gate, "key_1", PLENTY), initial_size=SMALL)
    reading = multiprocessing.Event()
    reader = multiprocessing.Process(target=_read_until_killed, args=(path, reading))
    reader.start()
    assert reading.wait(timeout=30)

    async def work(gate: Gate) -> None:
        for _ in range(100):
            await ask(gate, "key_1", PLENTY)
        kept = path.stat().st_size
        assert kept > SMALL
        reader.kill()
        reader.join()
        await gate.sweep(NOW)
        for _ in range(1_000):
            await ask(gate, "key_1", PLENTY)
        assert path.stat().st_size == kept

    use_lmdb(tmp_path, work, initial_size=SMALL)


@pytest.mark.thorough
def test_a_file_is_readable_while_others_write(tmp_path: Path) -> None:
    many = [(f"key_{number}", Windows(int(NOW * SECOND), 1)) for number in range(100_000)]
    use_lmdb(tmp_path, lambda gate: gate.put_windows(many))
    over = multiprocessing.get_context("fork").Event()

    def write() -> None:
        async def work(gate: Gate) -> None:
            while not over.is_set():
                await gate.put_windows(random.sample(many, 100))

        use_lmdb(tmp_path, work)

    writer = multiprocessing.get_context("fork").Process(target=write)
    writer.start()
    try:
        assert [readable(tmp_path / "gate.mdb", in_use=True) for _ in range(10)] == [True] * 10
    finally:
        over.set()
        writer.join()
