"""The store: animals, keys, deeds and usage of one environment, behind one contract and chosen by URL."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, Protocol

from petstore.errors import OperatorError
from petstore.keys import Environment, KeyStore
from petstore.ledger import Ledger
from petstore.pets import Catalogue

Subject = Literal["catalogue", "keys"]
# Called after a commit and before anyone is told of it, with what has changed.
OnCommit = Callable[[Subject], Awaitable[None]]

PATIENCE = 1.5  # seconds a write may wait for its turn: an answer is due within two


class Store(Catalogue, KeyStore, Ledger, Protocol):
    """One environment's store. Every method raises Unavailable when it cannot answer."""

    async def ping(self) -> None:
        """Returns when the store can be read."""

    async def faults(self) -> list[str]:
        """What an integrity check finds; empty when all is well."""

    async def close(self) -> None: ...


def open_store(url: str | None, data: Path, environment: Environment, on_commit: OnCommit) -> Store:
    """The store behind a URL; without one, a SQLite file in the data folder. To be called inside the event loop.

    Raises OperatorError for an unknown scheme, or for a store that a newer version has written.
    """
    if url is None:
        from petstore.store.sqlite import SqliteStore

        return SqliteStore(data / f"{environment}.db", environment, on_commit)
    raise OperatorError(f"--store {url.split(':', 1)[0]}: not a store that Petstore knows")
