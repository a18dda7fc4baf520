"""The store for deployments on several machines: PostgreSQL with one schema per environment.

Reads use connections from a pool. Create requests are queued, and a single statement adds a whole batch of animals.
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
    """Returns both environments' databases. They share a connection pool, which connects on first use."""
    pool = PostgresPool(url, [schema_of(each) for each in ENVIRONMENTS], policy)
    return [PostgresDatabase(pool, each, announce(each), policy.bounds) for each in ENVIRONMENTS]
