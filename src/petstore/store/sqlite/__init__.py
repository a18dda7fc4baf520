"""The embedded store: one SQLite file per environment.

Reads run in the event loop's thread on a connection of their own, as prepared statements of some microseconds.
Writes go to the writer's thread. Other processes may write at the same time.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from petstore.keys import ENVIRONMENTS, Environment
from petstore.store.database import Bounds
from petstore.store.freshness import Announce
from petstore.store.sqlite.database import SqliteDatabase


def open_databases(data: Path, bounds: Bounds, announce: Callable[[Environment], Announce]) -> list[SqliteDatabase]:
    """Raises OperatorError, and then leaves nothing open."""
    databases = []
    with ExitStack() as opened:
        for environment in ENVIRONMENTS:
            database = SqliteDatabase(data / f"{environment}.db", environment, announce(environment), bounds)
            opened.callback(database.release)
            databases.append(database)
        opened.pop_all()
    return databases
