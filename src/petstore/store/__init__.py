"""The store: animals, keys, the audit log, usage and operators of one environment, behind one protocol, by URL."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

from petstore.audit import AuditLog
from petstore.errors import MissingPackage, OperatorError
from petstore.keys import Environment, KeyStore
from petstore.operators import Operators
from petstore.pets import Catalogue
from petstore.store.limits import StoreLimits
from petstore.store.schema import Row, Table
from petstore.usage import UsageStore

Subject = Literal["catalogue", "keys"]
# Called after a commit and before its caller gets an answer, with what has changed.
OnCommit = Callable[[Subject], Awaitable[None]]


class Transfer(Protocol):
    """Rows as they are, for `petstore copy` and for the data of a demo."""

    async def rows(self, table: Table, after: Row | None, limit: int) -> list[Row]:
        """In the order of the table's key, from behind `after` on."""

    async def last_row(self, table: Table) -> Row | None: ...

    async def put_rows(self, table: Table, rows: Sequence[Row]) -> None:
        """Adds all or nothing. Rows come in the order of their key; ids that are given out later are higher."""

    async def put_all(self, rows: Mapping[Table, Sequence[Row]]) -> bool:
        """Adds the rows of all tables in one transaction, if the store is empty.

        False when it has an animal, a key or an audit entry. Of several processes, one fills the store.
        """

    async def copying_from(self) -> str | None:
        """The source of a copy into this store that is not finished."""

    async def set_copying_from(self, source: str | None) -> None: ...


class Store(Catalogue, KeyStore, AuditLog, UsageStore, Operators, Transfer, Protocol):
    """One environment's store. Every method raises Unavailable when it cannot answer."""

    @property
    def environment(self) -> Environment: ...

    async def ping(self) -> None:
        """Returns when the store can be read."""

    async def drain(self) -> None:
        """Returns when every write that was accepted is answered."""

    async def close(self) -> None:
        """Drains and closes. Stores that were opened together share connections: use `close_stores`."""


class StorePolicy(NamedTuple):
    """What the operator may set for PostgreSQL. `serving`: the callers are clients, not an operator."""

    pool_size: int = 8
    pgbouncer: bool = False
    serving: bool = False
    limits: StoreLimits = StoreLimits()


def open_stores(
    url: str | None, data: Path, policy: StorePolicy, on_commit: Callable[[Environment], OnCommit]
) -> dict[Environment, Store]:
    """The stores behind a URL; without one, SQLite files in the data directory. To be called inside the event loop.

    Raises OperatorError for a URL that it cannot understand, or for a store that a newer version has written; then
    nothing is left open.
    """
    if url is None:
        from petstore.store import sqlite

        return sqlite.open_stores(data, policy.limits, on_commit)
    scheme = check_url(url)
    try:
        from petstore.store import postgres
    except ImportError as error:
        raise MissingPackage(f"--store {scheme}", error.name, "cluster") from None
    return postgres.open_stores(url, policy, on_commit)


async def close_stores(stores: Iterable[Store]) -> None:
    """Close stores that were opened together: no connection is closed while one of them has a write in flight."""
    each = list(stores)
    await asyncio.gather(*(store.drain() for store in each))
    await asyncio.gather(*(store.close() for store in each))


def check_url(url: str) -> str:
    """The URL's scheme. Raises OperatorError, with a message that never contains the password."""
    scheme = url.partition("://")[0] if "://" in url else "without a scheme"
    if scheme not in ("postgresql", "postgres"):
        raise OperatorError(f"--store {scheme}: not a store that Petstore knows; give postgresql://user@host/database")
    for host in _hosts(url):
        port = host.rpartition("]")[2].partition(":")[2]
        if port and not port.isdigit():
            raise OperatorError("--store: the port must be a number; write / and ? in a password as %2F and %3F")
    return scheme


def _hosts(url: str) -> list[str]:
    """Raises OperatorError."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].split(",")
    except ValueError:  # whose text may contain the password
        raise OperatorError("--store: cannot be understood; give postgresql://user@host/database") from None
