"""Where a store or a gate lies: opening the same place again finds what was left there."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from petstore.gate import Gate, GatePolicy, open_gate
from petstore.store import Store, StorePolicy, Subject, open_stores

T = TypeVar("T")


class StorePlace(NamedTuple):
    data: Path
    url: str | None = None

    def open(self, changes: list[Subject] | None = None, policy: StorePolicy | None = None) -> Store:
        """The live environment's store; `changes` collects what readers would be told of."""

        async def on_commit(subject: Subject) -> None:
            if changes is not None:
                changes.append(subject)

        return open_stores(self.url, self.data, policy or StorePolicy(), lambda _: on_commit)["live"]

    def use(
        self,
        work: Callable[[Store], Awaitable[T]],
        changes: list[Subject] | None = None,
        policy: StorePolicy | None = None,
    ) -> T:
        async def inside() -> T:
            store = self.open(changes, policy)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(inside())


class GatePlace(NamedTuple):
    data: Path
    url: str | None = None

    def open(self, policy: GatePolicy | None = None) -> Gate:
        """A gate that believes the time it is given."""
        chosen = policy or GatePolicy()
        return open_gate(self.url, self.data, chosen._replace(given_clock=True))

    def use(self, work: Callable[[Gate], Awaitable[T]], policy: GatePolicy | None = None) -> T:
        async def inside() -> T:
            gate = self.open(policy)
            try:
                return await work(gate)
            finally:
                await gate.close()

        return asyncio.run(inside())


def opened(path: Path) -> list[str]:
    """What this process has open of a database: the file, its log and the index of that."""
    names = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return [name for name in names if name.startswith(str(path))]
