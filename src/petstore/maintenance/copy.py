"""Implements `petstore copy`, which copies a store and a gate to other backends and then compares the data."""

import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from petstore.errors import OperatorError
from petstore.gate import Gate
from petstore.keys import Environment
from petstore.store import Store
from petstore.store.schema import COUNTERS, TABLES, Row, Table

BATCH = 2_000

Stores = Mapping[Environment, Store]
Progress = Callable[[int], None]  # called after each batch with the number of animals in it


class Copied(NamedTuple):
    """The number of rows copied and their checksum. `what` is `quotas`, or an environment and a table (`live pets`)."""

    what: str
    rows: int
    checksum: str


async def size_of(source: Stores) -> int:
    """Returns the number of animals, for the progress bar. Ignores other tables, which are small.

    Raises Unavailable if the source does not respond.
    """
    return sum([sum((await store.pets.count()).values()) for store in source.values()])


async def copy_stores(source: Stores, target: Stores, name: str, progress: Progress) -> list[Copied]:
    """Copies every table in both environments.

    Marks the target as an unfinished copy of `name` until `finish` is called.
    Raises OperatorError if the source and the target differ afterwards, and Unavailable if either does not respond.
    """
    for store in target.values():
        await store.transfer.set_copying_from(name)
    copied = []
    for environment, store in source.items():
        for table in TABLES:
            await _copy(store, target[environment], table, progress)
        await target[environment].transfer.put_rows(COUNTERS, await store.transfer.rows(COUNTERS, None, BATCH))
        copied += [await _compare(store, target[environment], environment, table) for table in TABLES]
    return copied


async def finish(target: Stores) -> None:
    """Marks the copy as complete, so that the service can use it."""
    for store in target.values():
        await store.transfer.set_copying_from(None)


async def check_target(stores: Stores, gate: Gate | None, how_to_empty: str) -> None:
    """Raises OperatorError if the target is not empty."""
    for environment, store in stores.items():
        source = await store.transfer.copying_from()
        if source is not None:
            raise OperatorError(f"the target contains an unfinished copy of {source}; empty it first: {how_to_empty}")
        for table in TABLES:
            if await store.transfer.rows(table, None, 1):
                raise OperatorError(
                    f"the target already contains {table.name} in {environment}; choose an empty target"
                )
    if gate is not None:
        async for _ in gate.all_windows():
            raise OperatorError("the target gate already contains counters; choose an empty gate")


async def copy_quotas(source: Gate, target: Gate) -> Copied:
    """Copies each key's quota windows. Raises OperatorError if the source and the target differ afterwards."""
    digest, count = hashlib.sha256(), 0
    async for rows in source.all_windows():
        await target.put_windows(rows)
        written = await target.windows([key_id for key_id, _ in rows])
        if written != [windows for _, windows in rows]:
            raise _changed("the quotas")
        digest.update(repr(sorted(rows)).encode())
        count += len(rows)
    return Copied("quotas", count, digest.hexdigest()[:16])


async def _copy(source: Store, target: Store, table: Table, progress: Progress) -> None:
    after: Row | None = None
    while rows := await source.transfer.rows(table, after, BATCH):
        await target.transfer.put_rows(table, rows)
        progress(len(rows) if table.name == "pets" else 0)
        after = table.primary_key_of(rows[-1])


async def _compare(source: Store, target: Store, environment: Environment, table: Table) -> Copied:
    digest, count = hashlib.sha256(), 0
    after: Row | None = None
    while True:
        rows, written = await source.transfer.rows(table, after, BATCH), await target.transfer.rows(table, after, BATCH)
        if rows != written:
            raise _changed(f"{table.name} of {environment}")
        if not rows:
            return Copied(f"{environment} {table.name}", count, digest.hexdigest()[:16])
        digest.update(repr(rows).encode())
        count += len(rows)
        after = table.primary_key_of(rows[-1])


def _changed(what: str) -> OperatorError:
    return OperatorError(
        f"{what} changed during the copy; stop the service that uses the source, empty the target, and copy again"
    )
