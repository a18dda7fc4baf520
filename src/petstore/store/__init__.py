"""The store of one environment: a database, and one class for each noun that is given it; opening by URL."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
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
    """Every method of each noun raises Unavailable when the database cannot answer."""

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
    """What the operator may set for PostgreSQL. `serving`: the callers are clients, not an operator.

    Without `migrate`, a store that does not exist or has an older schema is refused, and nothing is created.
    """

    pool_size: int = 8
    pgbouncer: bool = False
    serving: bool = False
    migrate: bool = True
    bounds: Bounds = Bounds()


def open_stores(
    url: str | None, data: Path, policy: StorePolicy, announce: Callable[[Environment], Announce]
) -> dict[Environment, Store]:
    """The stores behind a URL; without one, SQLite files in the data directory. To be called inside the event loop.

    Raises OperatorError for a URL that it cannot understand, or for a store that another version has written; then
    nothing is left open.
    """
    databases: Sequence[Database]
    if url is None:
        from petstore.store import sqlite

        databases = sqlite.open_databases(data, policy, announce)
    else:
        scheme = check_url(url)
        try:
            from petstore.store import postgres
        except ImportError as error:
            raise MissingPackage(f"--store {scheme}", error.name, "cluster") from None
        databases = postgres.open_databases(url, policy, announce)
    return {db.environment: store_on(db) for db in databases}


async def close_stores(stores: Iterable[Store]) -> None:
    """Close stores that were opened together: no connection is closed while one of them has a write in flight."""
    databases = [store.database for store in stores]
    await asyncio.gather(*(db.drain() for db in databases))
    await asyncio.gather(*(db.close() for db in databases))


def check_url(url: str) -> str:
    """The URL's scheme. Raises OperatorError, with a message that never contains the password."""
    settings.check_url("--store", url)
    scheme = url.partition("://")[0] if "://" in url else "without a scheme"
    if scheme not in ("postgresql", "postgres"):
        raise OperatorError(f"--store {scheme}: not a store that Petstore knows; give postgresql://user@host/database")
    return scheme
