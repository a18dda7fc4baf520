"""Implements `petstore copy`, which fills a new store and a gate with the data of others and then compares the data."""

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from petstore.errors import OperatorError, Unavailable
from petstore.gate import Gate
from petstore.keys import Environment
from petstore.rate_limits import Windows
from petstore.store import Store
from petstore.store.schema import COUNTERS, KEYS, TABLES, Row, Table

BATCH = 2_000

Stores = Mapping[Environment, Store]
Progress = Callable[[int], None]  # called after each batch with the number of animals in it


class Copied(NamedTuple):
    """The number of rows copied and their checksum. `what` is `quotas`, or an environment and a table (`live pets`)."""

    what: str
    rows: int
    checksum: str


class Source:
    """The data to copy. If it cannot be read, all methods raise OperatorError with `name` in its message."""

    def __init__(self, name: str, stores: Stores, gate: Gate) -> None:
        self.name = name
        self._stores = stores
        self._gate = gate

    async def rows(self, environment: Environment, table: Table, after: Row | None) -> list[Row]:
        with naming(self.name):
            return await self._stores[environment].transfer.rows(table, after, BATCH)

    async def key_ids(self) -> set[str]:
        found: set[str] = set()
        for environment in self._stores:
            after: Row | None = None
            while rows := await self.rows(environment, KEYS, after):
                after = KEYS.primary_key_of(rows[-1])
                found.update(key_id for (key_id,) in map(KEYS.primary_key_of, rows))
        return found

    async def windows(self) -> AsyncIterator[list[tuple[str, Windows]]]:
        with naming(self.name):
            async for rows in self._gate.all_windows():
                yield rows

    async def size(self) -> int:
        """Returns the number of animals, for the progress bar. Ignores other tables, which are small."""
        with naming(self.name):
            return sum([sum((await store.pets.count()).values()) for store in self._stores.values()])


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Converts Unavailable to OperatorError, with the name of what failed in its message."""
    try:
        yield
    except Unavailable as error:
        raise OperatorError(f"{name}: {error}") from error


async def copy_stores(source: Source, target: Stores, progress: Progress) -> list[Copied]:
    """Copies every table in both environments to empty stores.

    Raises OperatorError if the source cannot be read, or if the source and the target differ afterwards. Raises
    Unavailable if the target does not respond.
    """
    copied = []
    for environment, store in target.items():
        for table in TABLES:
            await _copy(source, store, table, progress)
        await store.transfer.put_rows(COUNTERS, await source.rows(environment, COUNTERS, None))
        copied += [await _compare(source, store, table) for table in TABLES]
    return copied


async def check_gate(source: Source, gate: Gate) -> None:
    """Raises OperatorError if the target gate contains counters of keys that the source does not have.

    A copy that failed may have left counters of the source's keys.
    """
    own = await source.key_ids()
    async for rows in gate.all_windows():
        if others := sorted(key_id for key_id, _ in rows if key_id not in own):
            raise OperatorError(f"the target gate already contains counters of other keys: {_first(others)}")


async def copy_quotas(source: Source, target: Gate) -> Copied:
    """Copies each key's quota windows. Raises the same exceptions as `copy_stores`."""
    digest, count = hashlib.sha256(), 0
    async for rows in source.windows():
        await target.put_windows(rows)
        written = await target.windows([key_id for key_id, _ in rows])
        if written != [windows for _, windows in rows]:
            raise _changed("the quotas")
        digest.update(repr(sorted(rows)).encode())
        count += len(rows)
    return Copied("quotas", count, digest.hexdigest()[:16])


async def _copy(source: Source, target: Store, table: Table, progress: Progress) -> None:
    after: Row | None = None
    while rows := await source.rows(target.environment, table, after):
        await target.transfer.put_rows(table, rows)
        progress(len(rows) if table.name == "pets" else 0)
        after = table.primary_key_of(rows[-1])


async def _compare(source: Source, target: Store, table: Table) -> Copied:
    environment = target.environment
    digest, count = hashlib.sha256(), 0
    after: Row | None = None
    while True:
        rows = await source.rows(environment, table, after)
        if rows != await target.transfer.rows(table, after, BATCH):
            raise _changed(f"{table.name} of {environment}")
        if not rows:
            return Copied(f"{environment} {table.name}", count, digest.hexdigest()[:16])
        digest.update(repr(rows).encode())
        count += len(rows)
        after = table.primary_key_of(rows[-1])


def _changed(what: str) -> OperatorError:
    return OperatorError(f"{what} changed during the copy; stop the service that uses the source, and copy again")


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
