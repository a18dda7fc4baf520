"""The store: animals, keys, deeds, usage and operators of one environment, behind one contract and chosen by URL."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

from petstore.audit import AuditLog
from petstore.errors import MissingPackage, OperatorError
from petstore.keys import ENVIRONMENTS, Environment, KeyStore
from petstore.operators import Operators
from petstore.pets import Catalogue
from petstore.store.schema import Row, Table
from petstore.usage import UsageStore

Subject = Literal["catalogue", "keys"]
# Called after a commit and before anyone is told of it, with what has changed.
OnCommit = Callable[[Subject], Awaitable[None]]

PRUNE_MAX = 1_000  # records of idempotency keys that are forgotten at once
IDEMPOTENCY_LIFE = 86_400.0
PATIENCE = 1.5  # seconds a write may wait for its turn: an answer is due within two
COMMIT_SECONDS = 0.3  # and so long it may take then, before it is given up
TICK = 0.1  # seconds between two looks at who has waited too long


class Transfer(Protocol):
    """Rows as they are, for `petstore copy`."""

    async def rows(self, table: Table, after: Row | None, limit: int) -> list[Row]:
        """In the order of the table's key, from behind `after` on."""

    async def last_row(self, table: Table) -> Row | None: ...

    async def put_rows(self, table: Table, rows: Sequence[Row]) -> None:
        """Adds all or nothing. Rows come in the order of their key; ids that are given out later are higher."""

    async def copying_from(self) -> str | None:
        """The source of a copy into this store that is not finished."""

    async def set_copying_from(self, source: str | None) -> None: ...


class Store(Catalogue, KeyStore, AuditLog, UsageStore, Operators, Transfer, Protocol):
    """One environment's store. Every method raises Unavailable when it cannot answer."""

    @property
    def environment(self) -> Environment: ...

    async def ping(self) -> None:
        """Returns when the store can be read."""

    async def close(self) -> None: ...


class StorePolicy(NamedTuple):
    """What the operator may set for PostgreSQL. `serving`: those who call are clients, not an operator."""

    pool_size: int = 8
    pgbouncer: bool = False
    serving: bool = False


def open_stores(
    url: str | None, data: Path, policy: StorePolicy, on_commit: Callable[[Environment], OnCommit]
) -> dict[Environment, Store]:
    """The stores behind a URL; without one, SQLite files in the data folder. To be called inside the event loop.

    Raises OperatorError for a URL that it cannot understand, or for a store that a newer version has written.
    """
    if url is None:
        from petstore.store.sqlite import SqliteStore

        return {each: SqliteStore(data / f"{each}.db", each, on_commit(each)) for each in ENVIRONMENTS}
    scheme = check_url(url)
    try:
        from petstore.store.postgres import PostgresStore
        from petstore.store.postgres.base import schema_of
        from petstore.store.postgres.pool import PostgresPool
    except ImportError as error:
        raise MissingPackage(f"--store {scheme}", error.name, "cluster") from None
    schemas = [schema_of(each) for each in ENVIRONMENTS]
    pool = PostgresPool(url, size=policy.pool_size, pgbouncer=policy.pgbouncer, schemas=schemas, serving=policy.serving)
    return {each: PostgresStore(pool, each, on_commit(each)) for each in ENVIRONMENTS}


def check_url(url: str) -> str:
    """Its scheme. Raises OperatorError, without the password: whoever else reads such a URL may tell part of it."""
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
    except ValueError:  # its text may have the password in it
        raise OperatorError("--store: cannot be understood; give postgresql://user@host/database") from None
