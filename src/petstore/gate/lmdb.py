"""The gate for a single machine: a memory-mapped LMDB file shared by the workers and the command line.

LMDB's write lock makes each transaction atomic across processes, and is released if its holder is killed. The file is
not synced while it is in use. The kernel keeps the written pages, so counters can be lost only in a power cut or a
kernel crash (see recovery.py). Disk space is allocated in advance, so that a full disk causes an error instead of a
SIGBUS. The gate is not thread-safe.
"""

import asyncio
import contextlib
import errno
import fcntl
import itertools
import math
import os
import struct
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import msgspec

from petstore.changes import CHANGES, Change
from petstore.errors import DiskFull, Unavailable
from petstore.files import open_file
from petstore.gate import DIGEST_LENGTH, VALID_SECONDS, CatalogueVersion, GatePolicy, bucket_of
from petstore.gate.records import EMPTY, admissions_in, unpack_fields, unpack_windows, with_admission, with_windows
from petstore.gate.recovery import FORMAT, FORMAT_RECORD, check_format, mark_in_use
from petstore.job_control import unstoppable
from petstore.keys import ENVIRONMENTS, Environment
from petstore.observability.health import Health
from petstore.operations import OperationName
from petstore.plans import Limits
from petstore.rate_limits import ADMITTED, MINUTE, SECOND, Decision, Windows, admit, admit_address, lifted
from petstore.usage import AdmissionTotal

INITIAL_SIZE = 16 * 1024 * 1024
SWEEP_BATCH = 250  # records to check per transaction; each transaction blocks the event loop for about 0.5 ms
SWEEP_BATCHES_MAX = 40  # maximum batches per sweep
SWEEP_PERIOD = 120  # how many sweeps it takes to check every record once; there is about one sweep per second
READ_BATCH = 1_000
STEPS_MAX = 100  # maximum steps per transaction; 100 steps block other workers for about 300 µs

# The first byte of a record's name says what kind of record it is. Only address records and marks expire (see _sweep).
ADDRESS, KEY, VALID, VERSION = b"a", b"k", b"s", b"v"
_address = struct.Struct("<2q")
_versions = struct.Struct(f"<{len(CHANGES)}Q")  # one version number for each kind of change
_valid = struct.Struct("<q")  # when the mark expires
_NEW_ADDRESS = _address.pack(0, 0)

T = TypeVar("T")


class LmdbGate:
    """Implements `Gate`, which documents the methods."""

    immediate = True

    def __init__(
        self,
        path: Path,
        policy: GatePolicy,
        *,
        initial_size: int = INITIAL_SIZE,
        sweep_batch: int = SWEEP_BATCH,
        sweep_batches_max: int = SWEEP_BATCHES_MAX,
    ) -> None:
        """Opens or creates the file.

        Raises OperatorError if this version does not recognise the file, or Unavailable if it cannot be opened.
        """
        self._bans = policy.bans
        self._address_per_minute = policy.address_per_minute
        self._counted = policy.counted
        self._number = {name: number for number, name in enumerate(policy.counted)}
        self._path = path
        self._sweep_batch = sweep_batch
        self._sweep_batches_max = sweep_batches_max
        self._health = Health("gate")
        self._sweep_from = b""
        self._group = GroupCommit(self._transact)
        self._env: Any = None
        self._version_names: dict[Environment, bytes] = {each: VERSION + each.encode() for each in ENVIRONMENTS}
        try:
            with unstoppable, size_lock(path) as file:
                check_format(path)
                mark_in_use(path)
                size = max(initial_size, os.fstat(file).st_size)
                unsynced = {"sync": False, "metasync": False, "writemap": True, "map_async": True}
                self._env = lmdb.open(str(path), subdir=False, map_size=size, mode=0o600, **unsynced)
                os.posix_fallocate(file, 0, size)
                with self._env.begin(write=True) as txn:
                    if txn.get(FORMAT_RECORD) is None:  # a new file
                        txn.put(FORMAT_RECORD, FORMAT)
                        for name in self._version_names.values():
                            txn.put(name, new_versions())
        except (lmdb.Error, OSError) as error:
            if self._env is not None:
                self._env.close()
            raise Unavailable(f"{path}: cannot be opened: {error}; run `petstore check`") from error
        self._begin: Callable[..., Any] = self._env.begin

    def admit(
        self,
        environment: Environment,
        key_id: str,
        limits: Limits,
        keys_version: int,
        now: float,
        operation: OperationName,
    ) -> "asyncio.Future[tuple[Decision, CatalogueVersion] | None]":
        name = KEY + key_id.encode()
        return self._group.run(
            self._admit, environment, name, limits, keys_version, int(now * SECOND), self._number[operation]
        )

    def _admit(
        self,
        txn: Any,
        environment: Environment,
        name: bytes,
        limits: Limits,
        keys_version: int,
        now: int,
        number: int,
    ) -> tuple[Decision, CatalogueVersion] | None:
        added, edited, keys = _versions.unpack(txn.get(self._version_names[environment]))
        if keys != keys_version:
            return None
        record = txn.get(name, EMPTY)
        before: Windows = unpack_fields(record)  # type: ignore[assignment]  # `admit` accepts any tuple
        after, decision = admit(before, limits, self._bans, now)
        if after is not before:
            if decision.outcome is ADMITTED:
                txn.put(name, with_admission(record, after, environment, number))
            else:
                txn.put(name, with_windows(record, after))
        return decision, (added, edited)

    def admit_address(self, environment: Environment, address: str, now: float) -> "asyncio.Future[Decision]":
        return self._group.run(self._admit_address, environment, address, int(now * SECOND))

    def _admit_address(self, txn: Any, environment: Environment, address: str, now: int) -> Decision:
        name = _address_name(environment, address)
        start, used = _address.unpack(txn.get(name, _NEW_ADDRESS))
        start, used, decision = admit_address(start, used, self._address_per_minute, now)
        if decision.outcome is ADMITTED:
            txn.put(name, _address.pack(start, used))
        return decision

    async def peek_address(self, environment: Environment, address: str, now: float) -> Decision:
        name = _address_name(environment, address)
        start, used = _address.unpack(self._transact(lambda txn: txn.get(name, _NEW_ADDRESS), write=False))
        decision = admit_address(start, used, self._address_per_minute, int(now * SECOND))[2]
        if decision.outcome is ADMITTED:
            decision = msgspec.structs.replace(decision, remaining=decision.remaining + 1)
        return decision

    async def keys_version(self, environment: Environment) -> int:
        name = self._version_names[environment]
        return self._transact(lambda txn: int(_versions.unpack(txn.get(name))[2]), write=False)

    async def announce(self, environment: Environment, changes: Collection[Change]) -> None:
        name = self._version_names[environment]

        def work(txn: Any) -> None:
            before = zip(CHANGES, _versions.unpack(txn.get(name)), strict=True)
            txn.put(name, _versions.pack(*(version + (change in changes) for change, version in before)))

        self._write(work)

    async def mark_valid(self, digest: bytes, now: float, *, valid: bool) -> None:
        name, until = VALID + digest[:DIGEST_LENGTH], int((now + VALID_SECONDS) * SECOND)
        self._write(lambda txn: txn.put(name, _valid.pack(until)) if valid else txn.delete(name))

    async def was_valid(self, digest: bytes) -> bool:
        name = VALID + digest[:DIGEST_LENGTH]
        return self._transact(lambda txn: txn.get(name) is not None, write=False)

    async def lift(self, key_id: str) -> bool:
        name = KEY + key_id.encode()

        def work(txn: Any) -> bool:
            record = txn.get(name, EMPTY)
            before = unpack_windows(record)
            if before.bans:
                txn.put(name, with_windows(record, lifted(before)))
            return before.bans > 0

        return self._write(work)

    async def windows(self, key_ids: Sequence[str]) -> list[Windows]:
        return [unpack_windows(record) for _, record in self._records_of(key_ids)]

    async def all_windows(self) -> AsyncIterator[list[tuple[str, Windows]]]:
        for rows in self._all_records():
            yield [(key_id, unpack_windows(record)) for key_id, record in rows]

    async def put_windows(self, rows: Iterable[tuple[str, Windows]]) -> None:
        named = [(KEY + key_id.encode(), w) for key_id, w in rows]

        def work(txn: Any) -> None:
            for name, w in named:
                txn.put(name, with_windows(txn.get(name, EMPTY), w))

        self._write(work)

    async def admissions(self, key_ids: Sequence[str] | None = None) -> AsyncIterator[list[AdmissionTotal]]:
        batches = self._all_records()
        if key_ids is not None:
            starts = range(0, len(key_ids), READ_BATCH)
            batches = (self._records_of(key_ids[start : start + READ_BATCH]) for start in starts)
        for rows in batches:
            yield [each for key_id, record in rows for each in admissions_in(key_id, record, self._counted)]
            await asyncio.sleep(0)  # handle requests between batches

    def _records_of(self, key_ids: Sequence[str]) -> list[tuple[str, bytes]]:
        return self._transact(
            lambda txn: [(key_id, txn.get(KEY + key_id.encode(), EMPTY)) for key_id in key_ids], write=False
        )

    def _all_records(self) -> Iterator[list[tuple[str, bytes]]]:
        """Yields all keys' records in batches."""
        start = KEY

        def work(txn: Any) -> list[tuple[str, bytes]]:
            with txn.cursor() as cursor:
                rows = itertools.islice(cursor, READ_BATCH) if cursor.set_range(start) else ()
                return [(name[1:].decode(), record) for name, record in rows if name[:1] == KEY]

        while rows := self._transact(work, write=False):
            yield rows
            start = KEY + rows[-1][0].encode() + b"\0"

    def degraded(self) -> bool:
        return False

    async def sweep(self, now: float) -> None:
        try:
            # Requests without a key can create many address records, so the number of batches grows with the file.
            batches = math.ceil(self.records / self._sweep_batch / SWEEP_PERIOD)
            self._env.reader_check()  # frees pages that LMDB keeps for readers that were killed
        except lmdb.Error as error:
            raise self._failed(Unavailable(f"the gate file cannot be used: {error}")) from error
        for _ in range(min(batches, self._sweep_batches_max)):
            work = partial(_sweep, self._sweep_from, self._sweep_batch, int(now * SECOND))
            self._sweep_from = self._transact(work)
            await asyncio.sleep(0)
            if not self._sweep_from:
                break  # all records have been checked
        if self._health.down:
            self._health.worked()

    async def close(self) -> None:
        self._env.close()

    @property
    def records(self) -> int:
        """Returns the number of records in the file."""
        return int(self._env.stat()["entries"])

    def _write(self, work: Callable[[Any], T]) -> T:
        """Runs a transaction of an operator's command, which must not be stopped while it holds the lock."""
        with unstoppable:
            return self._transact(work)

    def _transact(self, work: Callable[[Any], T], *, write: bool = True) -> T:
        try:
            with self._begin(write=write) as txn:
                return work(txn)
        except lmdb.Error as error:
            self._resize(error)
            return self._transact(work, write=write)

    def _resize(self, error: Exception) -> None:
        """Enlarges the file if it is full. If another process has already enlarged it, maps the new size.

        Raises DiskFull if the disk is full, and Unavailable for any other error.
        """
        if not isinstance(error, lmdb.MapFullError | lmdb.MapResizedError):
            raise self._failed(Unavailable(f"the gate file cannot be used: {error}")) from error
        try:
            with size_lock(self._path) as file:
                size = os.fstat(file).st_size
                if size <= self._env.info()["map_size"]:
                    size *= 2
                    os.posix_fallocate(file, 0, size)
                self._env.set_mapsize(size)
        except OSError as full:
            cause = f"the gate file cannot grow: {full}"
            if full.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._failed(DiskFull(str(self._path.absolute().parent), cause)) from full
            raise self._failed(Unavailable(cause)) from full

    def _failed(self, error: Unavailable) -> Unavailable:
        self._health.failed(error)
        return error


def new_versions() -> bytes:
    """Returns the initial versions. Each version is the current time, so that it differs from all earlier versions."""
    return _versions.pack(*[time.time_ns()] * len(CHANGES))


class GroupCommit:
    """Combines the steps requested in one iteration of the event loop into a single transaction.

    If each request had its own transaction, workers would often wait for each other, and a worker that was preempted
    while holding the write lock would block the others. A group commit takes the lock only once per iteration.
    """

    def __init__(
        self, transact: Callable[[Callable[[Any], list[Any]]], list[Any]], *, steps_max: int = STEPS_MAX
    ) -> None:
        """`transact` runs a function in a transaction, retries it if necessary, and returns its result."""
        self._transact = transact
        self._steps_max = steps_max
        self._waiting: list[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def run(self, step: Callable[..., T], *values: Any) -> "asyncio.Future[T]":
        """Schedules `step` to run with a transaction and the values. Returns a future for its result.

        If the transaction is retried, `step` is called again.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._waiting.append((future, step, values))
        if len(self._waiting) == 1:
            loop.call_soon(self._run_waiting)
        return future

    def _run_waiting(self) -> None:
        steps, self._waiting = self._waiting[: self._steps_max], self._waiting[self._steps_max :]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._run_waiting)
        try:
            results = self._transact(lambda txn: [step(txn, *values) for _, step, values in steps])
        except Exception as error:
            for future, _, _ in steps:
                if not future.done():
                    future.set_exception(error)
            return
        for (future, _, _), result in zip(steps, results, strict=True):
            if not future.done():  # the future is already done if the request was cancelled
                future.set_result(result)


def _address_name(environment: Environment, address: str) -> bytes:
    return ADDRESS + environment.encode() + bucket_of(address)


def _sweep(start: bytes, count: int, now: int, txn: Any) -> bytes:
    """Checks up to `count` records, starting with the record named `start`, and removes those that have expired.

    Returns the name of the next record to check, or an empty name if there are no more records.
    """
    with txn.cursor() as cursor:
        found = cursor.set_range(start) if start else cursor.first()
        while found and count:
            name, value = cursor.item()
            kind, old = name[:1], False
            if kind == ADDRESS:
                old = now - _address.unpack(value)[0] >= MINUTE
            elif kind == VALID:
                old = _valid.unpack(value)[0] <= now
            if kind == KEY:  # skip all key records; they contain counts and never expire
                found = cursor.set_range(VALID)
            else:
                found = cursor.delete() if old else cursor.next()  # delete() moves the cursor to the next record
            count -= 1
        return bytes(cursor.key()) if found else b""


@contextlib.contextmanager
def size_lock(path: Path) -> Iterator[int]:
    """Opens or creates the file, and locks it so that no other process opens or enlarges it. Raises OSError.

    LMDB truncates the file to the size that it maps. Without the lock, another process could enlarge the file after
    this process reads its size, and LMDB would then truncate the file to its old size.
    """
    file = open_file(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)
