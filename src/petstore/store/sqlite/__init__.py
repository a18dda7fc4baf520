"""The embedded store: one SQLite file per environment.

Each read takes a few microseconds and runs in the event loop's thread, on a separate connection. Writes run in the
writer's thread. Several processes can use the same file.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from petstore.keys import ENVIRONMENTS, Environment
from petstore.store import StorePolicy
from petstore.store.freshness import Announce
from petstore.store.sqlite.database import SqliteDatabase
from petstore.store.sqlite.migrations import check_migrated, migrate


def open_databases(
    data: Path, policy: StorePolicy, announce: Callable[[Environment], Announce]
) -> list[SqliteDatabase]:
    """Opens both environments' databases. If one cannot be opened, closes the other and raises OperatorError."""
    databases = []
    with ExitStack() as opened:
        for environment in ENVIRONMENTS:
            path = data / f"{environment}.db"
            if policy.migrate:
                migrate(path)
            else:
                check_migrated(path)
            database = SqliteDatabase(path, environment, announce(environment), policy.bounds)
            opened.callback(database.release)
            databases.append(database)
        opened.pop_all()
    return databases
