"""Carries limits, bans and admissions of a gate of version 1.1 over into records of version 2. To be deleted in 3.0.

1.1 counted four operations, in this order: listPets, createPet, getPet, other. The file had the latest counts packed in
the record of a key, and totals in a second record. Redis had the totals in a hash.
"""

import asyncio
import contextlib
import logging
import os
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb

from petstore.errors import Unavailable
from petstore.gate import redis_script as script
from petstore.gate.records import EMPTY, pack_counts, pack_windows, unpack_windows
from petstore.keys import ENVIRONMENTS
from petstore.observability.logs import event

if TYPE_CHECKING:
    from petstore.gate.redis_link import Link

_VERSIONS_SIZE = 16  # of the catalogue and the keys
_packed = struct.Struct("<Q")  # in the middle of the windows: a mark, then a counter for each operation
_PACKED, _BITS, _MARK = 32, 14, 0xA
_totals = struct.Struct("<6q")  # the environment's number, the epoch, a total for each operation
_SEND_TIMEOUT = 1.0  # seconds
_KEY, _TOTALS = "petstore:key:", "petstore:admitted:"  # before the id in braces


def _upgraded(windows: bytes, environment: int, epoch: int, totals: Sequence[int]) -> bytes:
    """The record of version 2. It is the windows alone when nothing was counted."""
    *named, other = totals
    counts = pack_counts(environment, epoch, [other, *named]) if epoch else b""
    return pack_windows(unpack_windows(windows)) + counts


# The file


def needs_upgrade(path: Path) -> bool:
    """Whether the file is of version 1.1."""
    if not os.access(path, os.R_OK):
        return False
    try:
        with lmdb.open(str(path), subdir=False, readonly=True, mode=0o600) as env, env.begin() as txn:
            return len(txn.get(b"v" + ENVIRONMENTS[0].encode(), b"")) == _VERSIONS_SIZE
    except lmdb.Error:
        return False  # the gate reports the error when it opens the file


def upgrade(path: Path) -> None:
    """Upgrade a file of version 1.1, all of it or nothing. Must be called only when no process uses the file.

    Raises Unavailable.
    """
    if not needs_upgrade(path):
        return
    try:
        size = 4 * path.stat().st_size  # of the map; the file grows as needed
        with lmdb.open(str(path), subdir=False, map_size=size, mode=0o600) as env, env.begin(write=True) as txn:
            keys = {name[1:] for name in txn.cursor().iternext(values=False) if name[:1] in (b"k", b"t")}
            for key in keys:
                txn.put(b"k" + key, _from_file(txn.get(b"k" + key, EMPTY), txn.get(b"t" + key, bytes(_totals.size))))
                txn.delete(b"t" + key)
            for environment in ENVIRONMENTS:
                txn.delete(b"v" + environment.encode())  # the gate makes new ones
    except (lmdb.Error, OSError) as error:
        raise Unavailable(f"{path}: cannot be upgraded: {error}") from error
    event(logging.WARNING, "gate upgraded", file=str(path), keys=len(keys))


def _from_file(record: bytes, stored: bytes) -> bytes:
    (packed,) = _packed.unpack_from(record, _PACKED)
    environment, epoch, *totals = _totals.unpack(stored)
    if packed >> _BITS * len(totals) == _MARK:
        totals = [total + (packed >> _BITS * n & (1 << _BITS) - 1) for n, total in enumerate(totals)]
    return _upgraded(record, environment, epoch, totals)


# Redis


class UpgradedLink:
    """A link that upgrades the records of 1.1 before it sends anything else. See `Link` for each method.

    Version 2 has records of other names, so an overlooked node of 1.1 cannot change them. Several processes may upgrade
    at the same time: a record of version 2 is made once, before those of 1.1 are deleted. Where the versions of
    version 2 are, some process has finished.
    """

    def __init__(self, link: "Link") -> None:
        self._link = link
        self._finished = False
        self._upgrading: asyncio.Task[None] | None = None  # goes on when its callers no longer wait

    async def run_script(self, *arguments: Any) -> script.ScriptReply:
        await self._ensure_finished()
        return await self._link.run_script(*arguments)

    async def names(self, pattern: str) -> AsyncIterator[list[bytes]]:
        await self._ensure_finished()
        async for names in self._link.names(pattern):
            yield names

    async def send(self, commands: Sequence[script.Command]) -> list[Any]:
        await self._ensure_finished()
        return await self._link.send(commands)

    async def close(self) -> None:
        if self._upgrading is not None:
            self._upgrading.cancel()
            with contextlib.suppress(asyncio.CancelledError, Unavailable):
                await self._upgrading
        await self._link.close()

    async def _ensure_finished(self) -> None:
        if self._finished:
            return
        if self._upgrading is None or self._upgrading.done():
            self._upgrading = asyncio.get_running_loop().create_task(self._upgrade())
            self._upgrading.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._upgrading)

    async def _upgrade(self) -> None:
        """Raises Unavailable; the next call then begins again."""
        upgraded = 0
        if not (await self._send([("EXISTS", script.VERSIONS_RECORD)]))[0]:
            for prefix in (_KEY, _TOTALS):
                async for names in self._link.names(prefix + "{*}"):
                    await self._upgrade_keys([script.key_id_of(name) for name in names])
                    upgraded += len(names)
        self._finished = True
        if upgraded:
            event(logging.WARNING, "gate upgraded", records=upgraded)

    async def _upgrade_keys(self, key_ids: Sequence[str]) -> None:
        old = [(f"{_KEY}{{{key_id}}}", f"{_TOTALS}{{{key_id}}}") for key_id in key_ids]
        fields = ("environment", "epoch", 1, 2, 3, 4)
        windows = await self._send([("GET", key) for key, _ in old])
        totals = await self._send([("HMGET", counted, *fields) for _, counted in old])
        made = [
            ("SET", script.key_record(key_id), _upgraded(record or EMPTY, *_numbers(found)), "NX")
            for key_id, record, found in zip(key_ids, windows, totals, strict=True)
        ]
        await self._send(made)
        await self._send([("DEL", name) for names in old for name in names])

    async def _send(self, commands: Sequence[script.Command]) -> list[Any]:
        from petstore.gate.redis_link import time_limit  # needs a package that a gate in a file does not

        async with time_limit(_SEND_TIMEOUT):
            return await self._link.send(commands)


def _numbers(found: Sequence[bytes | None]) -> tuple[int, int, list[int]]:
    environment, epoch, *totals = (int(each or 0) for each in found)
    return environment, epoch, totals
