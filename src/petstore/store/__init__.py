"""Opens the stores. Each environment's store consists of a database and an object for each kind of data."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from petstore import settings
from petstore.errors import MissingPackage, OperatorError
from petstore.keys import Environment
from petstore.store.audit import Audit
from petstore.store.database import Bounds, Database
from petstore.store.freshness import Announce, Freshness
from petstore.store.imports import Imports
from petstore.store.keys import Keys
from petstore.store.operators import Operators
from petstore.store.pets import Pets
from petstore.store.removals import Removals
from petstore.store.transfer import Transfer
from petstore.store.usage import Usage


class Store(NamedTuple):
    """One environment's store. All methods raise Unavailable if the database does not respond."""

    database: Database
    pets: Pets
    removals: Removals
    keys: Keys
    audit: Audit
    usage: Usage
    operators: Operators
    imports: Imports
    transfer: Transfer

    @property
    def environment(self) -> Environment:
        return self.database.environment

    @property
    def freshness(self) -> Freshness:
        return self.database.freshness


def store_on(db: Database) -> Store:
    pets = Pets(db)
    return Store(db, pets, Removals(db, pets), Keys(db), Audit(db), Usage(db), Operators(db), Imports(db), Transfer(db))


class StorePolicy(NamedTuple):
    """The options for opening stores. `pool_size`, `pgbouncer` and `serving` apply only to PostgreSQL."""

    pool_size: int = settings.DEFAULTS.postgres_pool
    pgbouncer: bool = False
    serving: bool = False  # True for a running service, False for an operator's command
    migrate: bool = True  # if False, a store that is missing or has an older schema cannot be opened
    bounds: Bounds = Bounds()


def open_stores(
    url: str | None, data: Path, policy: StorePolicy, announce: Callable[[Environment], Announce]
) -> dict[Environment, Store]:
    """Opens the stores at a URL or, if there is no URL, the SQLite files in the data directory.

    Must be called inside the event loop. If the URL is invalid or this version cannot use the store, raises
    OperatorError and leaves no database open.
    """
    databases: Sequence[Database]
    if url is None:
        from petstore.store import sqlite

        databases = sqlite.open_databases(data, policy, announce)
    else:
        with _needing_packages(check_url(url)):
            from petstore.store import postgres
        databases = postgres.open_databases(url, policy, announce)
    return {db.environment: store_on(db) for db in databases}


@contextlib.asynccontextmanager
async def new_stores(url: str, policy: StorePolicy) -> AsyncIterator[dict[Environment, Store]]:
    """Creates stores in PostgreSQL, which become visible at the end of the block. If it fails, creates nothing.

    Announces no changes. Raises OperatorError if there is a store, or Unavailable if the server does not respond.
    """
    with _needing_packages(check_url(url)):
        from petstore.store.postgres.new_databases import new_databases
    async with new_databases(url, policy) as databases:
        yield {db.environment: store_on(db) for db in databases}


@contextlib.contextmanager
def _needing_packages(scheme: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise MissingPackage(f"--store {scheme}", error.name, "cluster") from None


async def close_stores(stores: Iterable[Store]) -> None:
    """Closes stores that were opened together. Waits for all pending writes before closing any connection."""
    databases = [store.database for store in stores]
    await asyncio.gather(*(db.drain() for db in databases))
    await asyncio.gather(*(db.close() for db in databases))


def check_url(url: str) -> str:
    """Returns a URL's scheme. Raises OperatorError if the URL is invalid. Error messages never contain the password."""
    settings.check_url("--store", url)
    scheme = url.partition("://")[0] if "://" in url else "without a scheme"
    if scheme not in ("postgresql", "postgres"):
        raise OperatorError(f"--store {scheme}: not supported; give a URL like postgresql://user@host/database")
    return scheme
