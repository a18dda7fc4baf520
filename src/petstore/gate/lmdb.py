"""The gate of one machine: a memory-mapped LMDB file that every worker and the command line share.

LMDB's write lock makes each step atomic across processes and outlives a `kill -9` of its holder. Nothing is synced:
what a process has written is the kernel's, so only a power cut can lose counters (`trust.py` sees that it was one). The
file is allocated before it is mapped, so that a full disk is an error and not a SIGBUS. All calls come from one thread.
"""

import asyncio
import contextlib
import fcntl
import itertools
import math
import os
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import msgspec

from petstore.errors import Unavailable
from petstore.gate import GatePolicy, Subject, bucket_of
from petstore.gate.recovery import mark_in_use
from petstore.keys import ENVIRONMENTS, Environment
from petstore.observability.health import Health
from petstore.plans import Limits
from petstore.rate_limits import ADMITTED, SECOND, Decision, Windows, admit, admit_address, forgettable, lifted

INITIAL_SIZE = 16 * 1024 * 1024
SWEEP_STEP = 250  # records that a sweep looks at in one turn of the event loop, which takes half a millisecond
SWEEP_SECONDS = 120  # in which a worker looks at all records once,
SWEEP_TURNS = 40  # unless that took more turns a second
SOME = 1_000

KEY, ADDRESS, VERSION = b"k", b"a", b"v"  # the first byte of a record's name tells its kind
_windows = struct.Struct("<9q")
_address = struct.Struct("<2q")
_versions = struct.Struct("<2Q")
_NEW_KEY = _windows.pack(*Windows())
_NEW_ADDRESS = _address.pack(0, 0)

T = TypeVar("T")
# A plain tuple does for the rules, which only take it apart: making it a named one would cost as much as the rules.
_unpack: Callable[[bytes], Windows] = _windows.unpack  # type: ignore[assignment]  # see above


class LmdbGate:
    """See `Gate` for what each method promises."""

    def __init__(self, path: Path, policy: GatePolicy) -> None:
        self._bans = policy.bans
        self._address_per_minute = policy.address_per_minute
        self._path = path
        self._health = Health("gate")
        self._sweep_from = b""
        self._names: dict[Environment, bytes] = {"live": VERSION + b"live", "staging": VERSION + b"staging"}
        try:
            mark_in_use(path)
            path.touch(0o600)
            with sizing(path) as file:
                size = max(INITIAL_SIZE, os.fstat(file).st_size)
                self._env = lmdb.open(
                    str(path),
                    subdir=False,
                    map_size=size,
                    sync=False,
                    metasync=False,
                    writemap=True,
                    map_async=True,
                    mode=0o600,
                )
                allocate(file, size)
                with self._env.begin(write=True) as txn:
                    for name in self._names.values():
                        if txn.get(name) is None:
                            # Starting from the time, no version of an earlier file can ever come back.
                            txn.put(name, _versions.pack(time.time_ns(), time.time_ns()))
        except (lmdb.Error, OSError) as error:
            raise Unavailable(f"{path}: cannot be opened: {error}; petstore check tells more") from error
        self._begin: Callable[..., Any] = self._env.begin

    async def admit(
        self, environment: Environment, key_id: str, limits: Limits, keys_version: int, now: float
    ) -> tuple[Decision, int] | None:
        name = b"k" + key_id.encode()
        try:
            with self._begin(None, None, True) as txn:  # for writing; by position it is faster
                catalogue, keys = _versions.unpack(txn.get(self._names[environment]))
                if keys != keys_version:
                    return None
                before = _unpack(txn.get(name, _NEW_KEY))
                after, decision = admit(before, limits, self._bans, int(now * SECOND))
                if after is not before:
                    txn.put(name, _windows.pack(*after))
        except lmdb.Error as error:
            self._mend(error)
            return await self.admit(environment, key_id, limits, keys_version, now)
        return decision, catalogue

    async def admit_address(self, environment: Environment, address: str, now: float) -> Decision:
        return self._address(environment, address, now, write=True)

    async def peek_address(self, environment: Environment, address: str, now: float) -> Decision:
        return self._address(environment, address, now, write=False)

    def _address(self, environment: Environment, address: str, now: float, *, write: bool) -> Decision:
        name = ADDRESS + environment.encode() + bucket_of(address)
        allowed = self._address_per_minute

        def step(txn: Any) -> Decision:
            start, used = _address.unpack(txn.get(name, _NEW_ADDRESS))
            start, used, decision = admit_address(start, used, allowed, int(now * SECOND))
            if decision.outcome is ADMITTED and write:
                txn.put(name, _address.pack(start, used))
            elif decision.outcome is ADMITTED:
                decision = msgspec.structs.replace(decision, remaining=decision.remaining + 1)
            return decision

        return self._step(step, write=write)

    async def keys_version(self, environment: Environment) -> int:
        name = self._names[environment]
        return self._step(lambda txn: int(_versions.unpack(txn.get(name))[1]), write=False)

    async def raise_version(self, environment: Environment, subject: Subject) -> None:
        name = self._names[environment]

        def step(txn: Any) -> None:
            catalogue, keys = _versions.unpack(txn.get(name))
            txn.put(name, _versions.pack(catalogue + (subject == "catalogue"), keys + (subject == "keys")))

        self._step(step)

    async def lift(self, key_id: str) -> bool:
        name = KEY + key_id.encode()

        def step(txn: Any) -> bool:
            before = Windows._make(_windows.unpack(txn.get(name, _NEW_KEY)))
            if before.bans:
                txn.put(name, _windows.pack(*lifted(before)))
            return before.bans > 0

        return self._step(step)

    async def windows(self, key_ids: Sequence[str]) -> list[Windows]:
        def step(txn: Any) -> list[Windows]:
            found = (txn.get(KEY + key_id.encode(), _NEW_KEY) for key_id in key_ids)
            return [Windows._make(_windows.unpack(value)) for value in found]

        return self._step(step, write=False)

    async def all_windows(self) -> AsyncIterator[list[tuple[str, Windows]]]:
        start = KEY
        while rows := self._step(partial(_some_keys, start), write=False):
            yield [(name[1:].decode(), Windows._make(_windows.unpack(value))) for name, value in rows]
            start = rows[-1][0] + b"\0"

    async def put_windows(self, rows: Iterable[tuple[str, Windows]]) -> None:
        packed = [(KEY + key_id.encode(), _windows.pack(*w)) for key_id, w in rows]

        def step(txn: Any) -> None:
            for name, value in packed:
                txn.put(name, value)

        self._step(step)

    def degraded(self) -> bool:
        return False

    async def sweep(self, now: float) -> None:
        # The more is remembered, the more has to be forgotten: callers without a key may come from ever new addresses.
        for _ in range(min(math.ceil(self.records / SWEEP_STEP / SWEEP_SECONDS), SWEEP_TURNS)):
            self._sweep_from = self._step(lambda txn: _sweep(txn, self._sweep_from, SWEEP_STEP, int(now * SECOND)))
            await asyncio.sleep(0)
        self._env.reader_check()
        if self._health.down:
            self._health.worked()

    async def close(self) -> None:
        self._env.close()

    @property
    def records(self) -> int:
        """How much is remembered at the moment."""
        return int(self._env.stat()["entries"])

    def _step(self, step: Callable[[Any], T], *, write: bool = True) -> T:
        try:
            with self._begin(write=write) as txn:
                return step(txn)
        except lmdb.Error as error:
            self._mend(error)
            return self._step(step, write=write)

    def _mend(self, error: Exception) -> None:
        """Make room, or take over room that another process made; whatever else is wrong is an outage."""
        if not isinstance(error, lmdb.MapFullError | lmdb.MapResizedError):
            raise self._failed(f"the gate file cannot be used: {error}") from error
        try:
            with sizing(self._path) as file:
                size = os.fstat(file).st_size
                if size <= self._env.info()["map_size"]:
                    size *= 2
                    allocate(file, size)
                self._env.set_mapsize(size)
        except OSError as full:
            raise self._failed(f"the gate file cannot grow: {full}") from full

    def _failed(self, cause: str) -> Unavailable:
        self._health.failed(cause)
        return Unavailable(cause)


def _some_keys(start: bytes, txn: Any) -> list[tuple[bytes, bytes]]:
    """The next records of keys from a name on."""
    with txn.cursor() as cursor:
        rows = itertools.islice(cursor, SOME) if cursor.set_range(start) else ()
        return [(name, value) for name, value in rows if name[:1] == KEY]


def _sweep(txn: Any, start: bytes, steps: int, now: int) -> bytes:
    """Look at the next records from `start`, remove the forgettable, and return where to go on."""
    with txn.cursor() as cursor:
        found = cursor.set_range(start) if start else cursor.first()
        while found and steps:
            name, value = cursor.item()
            if name[:1] == KEY:
                old = forgettable(Windows._make(_windows.unpack(value)), now)
            elif name[:1] == ADDRESS:
                old = forgettable(Windows(*_address.unpack(value)), now)
            else:
                old = False
            found = cursor.delete() if old else cursor.next()  # either way to the next one
            steps -= 1
        return bytes(cursor.key()) if found else b""


@contextlib.contextmanager
def sizing(path: Path) -> Iterator[int]:
    """The file, while nobody else opens it or makes it larger.

    LMDB cuts a file to the size of the map it makes: a size that was read before another process made room would cut
    that room off under its feet. Raises OSError.
    """
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def allocate(file: int, size: int) -> None:
    """Give the file at least this size, with real blocks behind it. Raises OSError when the disk is full."""
    os.posix_fallocate(file, 0, size)


def copy_out(path: Path, target: Path) -> None:
    """A copy of one moment, while others go on. Raises Unavailable."""
    try:
        with _beside(path, readonly=True) as env:
            env.copy(str(target))
    except (lmdb.Error, OSError) as error:
        raise Unavailable(f"the gate file cannot be copied: {error}") from error


def renew_versions(path: Path) -> None:
    """Give a file that has come back from a backup versions that nobody can remember. Raises Unavailable."""
    try:
        with _beside(path, readonly=False) as env, env.begin(write=True) as txn:
            for environment in ENVIRONMENTS:
                txn.put(VERSION + environment.encode(), _versions.pack(time.time_ns(), time.time_ns()))
    except (lmdb.Error, OSError) as error:
        raise Unavailable(f"the gate file cannot be written: {error}") from error
    path.with_name(path.name + "-lock").unlink()


def _beside(path: Path, *, readonly: bool) -> Any:
    """The file, opened by a process that is no worker."""
    size = max(INITIAL_SIZE, path.stat().st_size)
    return lmdb.open(str(path), subdir=False, map_size=size, readonly=readonly)
