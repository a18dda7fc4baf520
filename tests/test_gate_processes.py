"""The gate's file when several processes use it at once, and when they are killed meanwhile."""

import fcntl
import multiprocessing
import os
import random
import signal
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import lmdb
import pytest

from petstore.gate import Gate, GatePolicy
from petstore.gate import lmdb as local_gate
from petstore.gate.lmdb import LmdbGate
from petstore.gate.recovery import recover
from petstore.plans import Limits
from petstore.rate_limits import ADMITTED, BanPolicy
from tests.places import GatePlace
from tests.test_gate import NOW, PLENTY, ask


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

    GatePlace(tmp_path).use(work)
    grown = (tmp_path / "gate.mdb").stat()
    assert grown.st_blocks * 512 >= grown.st_size > 1024 * 1024


def test_processes_that_make_room_at_the_same_time_do_not_cut_it_off_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_gate, "INITIAL_SIZE", 64 * 1024)
    real = local_gate.allocate

    def slowly(file: int, size: int) -> None:
        real(file, size)
        time.sleep(0.002)  # between making room and using it

    monkeypatch.setattr(local_gate, "allocate", slowly)
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

    assert GatePlace(tmp_path).use(count) == 16_000


def test_nobody_else_opens_or_enlarges_the_file_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "gate.mdb"
    path.touch()
    with path.open() as other:
        with local_gate.sizing(path), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _hold_the_lock(path: Path, begin: Event, held: Event, over: Event) -> None:
    begin.wait(timeout=30)
    env = lmdb.open(str(path), subdir=False, map_size=path.stat().st_size)
    with env.begin(write=True):
        held.set()
        over.wait(timeout=5)
        over.set()  # before the lock is free


def test_who_only_reads_does_not_wait_for_who_writes(tmp_path: Path) -> None:
    begin, held, over = (multiprocessing.Event() for _ in range(3))
    writer = multiprocessing.Process(target=_hold_the_lock, args=(tmp_path / "gate.mdb", begin, held, over))
    writer.start()

    async def work(gate: Gate) -> None:
        await ask(gate, "key_1", PLENTY)
        begin.set()
        assert held.wait(timeout=30)
        await gate.keys_version("live")
        await gate.peek_address("live", "192.0.2.1", NOW)
        assert (await gate.windows(["key_1"]))[0].day_used == 1
        assert [key_id async for rows in gate.all_windows() for key_id, _ in rows] == ["key_1"]
        assert not over.is_set()
        over.set()

    GatePlace(tmp_path).use(work)
    writer.join()


def _spend(data: Path, tries: int, ready: Event, admitted: "multiprocessing.Queue[int]") -> None:
    ready.wait()

    async def work(gate: Gate) -> int:
        return sum([(await ask(gate, "key_a", Limits(1_000, 10**6))).outcome is ADMITTED for _ in range(tries)])

    admitted.put(GatePlace(data).use(work, GatePolicy(BanPolicy(threshold=10**9))))


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


def _fill(data: Path, count: int, go: Event, whose: str = "") -> None:
    go.wait()

    async def work(gate: Gate) -> None:
        for number in range(count):
            await ask(gate, f"key_{number}{whose}", PLENTY)

    GatePlace(data).use(work)


def _spend_for_ever(data: Path, counting: Event) -> None:
    async def work(gate: Gate) -> None:
        while True:
            await ask(gate, "key_a", PLENTY)
            counting.set()

    GatePlace(data).use(work)


def test_processes_killed_while_counting_leave_a_gate_that_works(tmp_path: Path) -> None:
    dice = random.Random(7)
    used = []
    for _ in range(20):
        counting = multiprocessing.Event()
        process = multiprocessing.Process(target=_spend_for_ever, args=(tmp_path, counting))
        process.start()
        assert counting.wait(timeout=60)
        time.sleep(dice.uniform(0, 0.02))  # a random moment to be killed at, not a wait for anything
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert recover(tmp_path / "gate.mdb") is None
        remaining = GatePlace(tmp_path).use(lambda gate: ask(gate, "key_a", PLENTY)).remaining
        used.append(PLENTY.per_day - remaining)
    assert used == sorted(used)


def _read_for_ever(path: Path, reading: Event) -> None:
    env = lmdb.open(str(path), subdir=False, map_size=path.stat().st_size)
    with env.begin():
        reading.set()
        time.sleep(60)  # until it is killed


def test_a_reader_that_was_killed_does_not_hold_on_to_old_pages(tmp_path: Path) -> None:
    """Its place in the table of readers would keep every page since from being used again: the file would grow."""
    GatePlace(tmp_path).use(lambda gate: ask(gate, "key_1", PLENTY))
    reading = multiprocessing.Event()
    reader = multiprocessing.Process(target=_read_for_ever, args=(tmp_path / "gate.mdb", reading))
    reader.start()
    assert reading.wait(timeout=30)

    async def work(gate: Gate) -> None:
        assert isinstance(gate, LmdbGate)
        assert str(reader.pid) in gate._env.readers()
        reader.kill()
        reader.join()
        await gate.sweep(NOW)
        assert str(reader.pid) not in gate._env.readers()

    GatePlace(tmp_path).use(work)
