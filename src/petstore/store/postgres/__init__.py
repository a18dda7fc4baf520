"""The store of many machines: PostgreSQL, one schema per environment.

A read takes a connection of the pool. New animals go to the writer, which puts all that waits into one statement.
"""

from collections.abc import Callable

from petstore.keys import ENVIRONMENTS, Environment
from petstore.store import StorePolicy
from petstore.store.freshness import Announce
from petstore.store.postgres.database import PostgresDatabase, schema_of
from petstore.store.postgres.pool import PostgresPool


def open_databases(
    url: str, policy: StorePolicy, announce: Callable[[Environment], Announce]
) -> list[PostgresDatabase]:
    """They share one pool, which connects when it is first needed."""
    pool = PostgresPool(url, [schema_of(each) for each in ENVIRONMENTS], policy)
    return [PostgresDatabase(pool, each, announce(each), policy.bounds) for each in ENVIRONMENTS]
