"""Which gate files and Redis records the gate recognises, and what a killed start leaves behind."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from redis import Redis as Client

from harness.backends import Redis
from harness.commands import Processes
from harness.gates import REFUSE, ask, use_lmdb
from harness.servers import Server
from harness.stores import GatePlace
from petstore.errors import OperatorError
from petstore.gate import Gate, GatePolicy, fallback, open_gate
from petstore.gate import lmdb as lmdb_gate
from petstore.gate.doctor import check_gate_file
from petstore.gate.recovery import FORMAT, FORMAT_RECORD, mark_in_use, recover
from petstore.plans import Limits

NEWER = b"%d" % (int(FORMAT) + 1)


def write(path: Path, records: dict[bytes, bytes]) -> None:
    """Creates an LMDB file and deletes its lock file."""
    with lmdb.open(str(path), subdir=False, map_size=1 << 20) as env, env.begin(write=True) as txn:
        for name, value in records.items():
            txn.put(name, value)
    path.with_name(path.name + "-lock").unlink()


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Returns the content and modification time of each file, by name."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}


def open_and_close(data: Path) -> None:
    async def inside() -> None:
        await open_gate(None, data, GatePolicy()).close()

    asyncio.run(inside())


USES: dict[str, Callable[[Path], object]] = {
    "recovery": lambda data: recover(data / "gate.mdb"),
    "opening": open_and_close,
}
UNRECOGNISED = {
    "other records": {b"name": b"value"},
    # Records as development builds wrote them.
    "development build": {b"vlive": bytes(24), b"vstaging": bytes(24), b"kkey_1": bytes(72)},
    "odd format": {FORMAT_RECORD: b"one"},
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("records", UNRECOGNISED.values(), ids=UNRECOGNISED)
def test_an_unrecognised_file_is_refused_and_left_untouched(
    tmp_path: Path, records: dict[bytes, bytes], use: Callable[[Path], object]
) -> None:
    write(tmp_path / "gate.mdb", records)
    before = contents(tmp_path)
    with pytest.raises(OperatorError, match="not a gate file that this version of Petstore recognises") as refused:
        use(tmp_path)
    assert "\n" not in str(refused.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_file_of_a_newer_version_is_refused_and_left_untouched(tmp_path: Path, use: Callable[[Path], object]) -> None:
    write(tmp_path / "gate.mdb", {FORMAT_RECORD: NEWER, b"vlive": bytes(24)})
    before = contents(tmp_path)
    with pytest.raises(OperatorError, match="was written by a newer Petstore"):
        use(tmp_path)
    assert contents(tmp_path) == before


def test_a_file_that_is_not_lmdb_and_was_never_used_is_refused_and_left_untouched(tmp_path: Path) -> None:
    """After its first use, such a file counts as damaged (see test_recovery.py)."""
    (tmp_path / "gate.mdb").write_bytes(os.urandom(100_000))
    before = contents(tmp_path)
    with pytest.raises(OperatorError, match="not a gate file that this version of Petstore recognises"):
        recover(tmp_path / "gate.mdb")
    assert contents(tmp_path) == before


def test_the_health_check_names_a_file_that_is_not_recognised(tmp_path: Path) -> None:
    path = tmp_path / "gate.mdb"
    path.write_bytes(os.urandom(100_000))
    faults = check_gate_file(path, in_use=False).faults
    path.unlink()
    write(path, {b"name": b"value"})
    faults += check_gate_file(path, in_use=False).faults
    assert ["recognises" in fault for fault in faults] == [True, True]


@pytest.mark.parametrize("words", [("serve",), ("keys", "create", "--plan", "free")], ids=" ".join)
def test_a_command_refuses_an_unrecognised_file_in_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    server = Server(tmp_path / "data")
    server.data.mkdir(mode=0o700)
    write(server.data / "gate.mdb", {b"name": b"value"})
    (server.data / "gate.mdb").chmod(0o600)
    before = contents(server.data)
    assert "not a gate file that this version of Petstore recognises" in Processes(server).fails_in_one_line(*words)
    found = contents(server.data)
    del found["lock"]
    assert found == before


def test_a_refused_fallback_file_is_left_untouched(tmp_path: Path) -> None:
    write(tmp_path / "gate-outage.mdb", {b"name": b"value"})
    before = contents(tmp_path)

    async def inside() -> None:
        gate = open_gate("redis://127.0.0.1:1", tmp_path, GatePolicy())
        assert isinstance(gate, fallback.FallbackGate)
        with pytest.raises(OperatorError, match="recognises"):
            await anext(gate.admissions())
        await gate.close()

    asyncio.run(inside())
    assert contents(tmp_path) == before


# Killed during the start


def kill(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KilledAtCommit:
    """Wraps an LMDB environment. Kills the process just before the first transaction commits."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def begin(self, **options: Any) -> "KilledAtCommit":
        self._transaction = self._env.begin(**options)
        return self

    def __enter__(self) -> Any:
        return self._transaction.__enter__()

    def __exit__(self, *_: object) -> None:
        kill()


def before_the_note(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lmdb_gate, "mark_in_use", kill)


def after_the_note(patch: pytest.MonkeyPatch) -> None:
    def marked(path: Path) -> None:
        mark_in_use(path)
        kill()

    patch.setattr(lmdb_gate, "mark_in_use", marked)


def before_the_allocation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "posix_fallocate", kill)


def before_the_first_commit(patch: pytest.MonkeyPatch) -> None:
    opened = lmdb.open
    patch.setattr(lmdb, "open", lambda *args, **options: KilledAtCommit(opened(*args, **options)))


def after_the_first_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lmdb_gate.LmdbGate, "keys_version", kill)


MOMENTS = [before_the_note, after_the_note, before_the_allocation, before_the_first_commit, after_the_first_commit]


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_the_next_start_works_after_one_that_was_killed(
    tmp_path: Path, moment: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            moment(monkeypatch)
            use_lmdb(tmp_path, lambda gate: gate.keys_version("live"))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert (tmp_path / "gate.mdb").exists()
    assert check_gate_file(tmp_path / "gate.mdb", in_use=False).faults == []
    assert recover(tmp_path / "gate.mdb") is None
    assert use_lmdb(tmp_path, lambda gate: ask(gate, "key_1", Limits(5, 5))).remaining == 4
    assert list(tmp_path.glob("*.damaged-*")) == []


# Redis


def test_records_of_other_names_are_ignored_and_left_untouched(redis: Redis, tmp_path: Path) -> None:
    """Development builds used these names."""
    url = redis.url()
    others: dict[str, bytes] = {
        "petstore:key:{key_1}": bytes(72),
        "petstore:v2:key:{key_1}": b"\1" * 120,
        "petstore:{versions}": bytes(32),
        "petstore:v2:{versions}": bytes(48),
        "petstore:address:{live-c0000201}": b"\1" * 16,
        "petstore:valid:" + "01" * 16: b"1",
    }

    async def work(gate: Gate) -> None:
        assert [each async for some in gate.all_windows() for each in some] == []
        assert (await ask(gate, "key_1", Limits(5, 5))).remaining == 4
        assert (await gate.peek_address("live", "192.0.2.1", 0)).remaining == 600
        assert not await gate.was_valid(b"\1" * 32)
        await gate.sweep(1e12)

    with contextlib.closing(Client.from_url(url)) as client:
        for name, value in others.items():
            client.set(name, value)
        GatePlace(tmp_path, url).use(work, REFUSE)
        assert {name: client.get(name) for name in others} == others
