"""A transaction is committed completely or not at all, and awaits nothing but its own statements."""

import ast
import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import petstore.store
from harness.stores import ENTRY, NOW, StorePlace, names, sqlite_store
from petstore.changes import Change
from petstore.pets import NewPet
from petstore.store import Store
from petstore.store.audit import add_entries
from petstore.store.database import Tx
from petstore.store.freshness import EDITED
from petstore.store.schema import IMPORT_CHUNKS

TRANSACTIONS = sorted(Path(petstore.store.__file__).parent.rglob("*.py"))


async def audited(store: Store) -> int:
    return len((await store.audit.find()).entries)


def test_transaction_that_fails_changes_and_announces_nothing(store_at: StorePlace) -> None:
    announced: list[Change] = []

    async def work(store: Store) -> None:
        async def transaction(tx: Tx) -> None:
            await add_entries(tx, store.database.schema, ENTRY)
            await tx.put(IMPORT_CHUNKS, [("imp_a", 0, 1, 2)])
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await store.database.write(transaction, EDITED)
        assert await store.database.read(f"SELECT * FROM {store.database.schema}.import_chunks") == []
        assert await audited(store) == 0
        await store.pets.add(NewPet("Rex", 1), NOW)  # the store continues to accept writes

    store_at.use(work, announced)
    assert announced == ["added"]


@pytest.mark.parametrize("pause", [lambda: asyncio.sleep(0), lambda: asyncio.sleep(0.001)], ids=["yield", "timer"])
def test_transaction_that_waits_for_the_event_loop_is_rolled_back_on_sqlite(
    tmp_path: Path, pause: Callable[[], Awaitable[None]]
) -> None:
    ended = []

    async def work() -> None:
        async with sqlite_store(tmp_path) as store:

            async def transaction(tx: Tx) -> None:
                await add_entries(tx, "main", ENTRY)
                try:
                    await pause()
                finally:
                    ended.append(True)

            with pytest.raises(RuntimeError):
                await store.database.write(transaction, EDITED)
            assert ended == [True] and await audited(store) == 0
            await store.pets.add(NewPet("Rex", 1), NOW)
            assert await names(store) == ["Rex"]

    asyncio.run(work())


def foreign_awaits(source: str) -> Iterator[str]:
    """Yields each function with a parameter `tx` that awaits something other than `tx` or a function that gets `tx`.

    On SQLite, such a call could succeed without suspending. For example, a read of the store would use the event loop's
    connection in the writer's thread.
    """
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.AsyncFunctionDef) and "tx" in [each.arg for each in function.args.args]:
            for node in ast.walk(function):
                if isinstance(node, ast.AsyncFor | ast.AsyncWith) or (
                    isinstance(node, ast.Await) and not is_about_tx(node.value)
                ):
                    yield f"{function.name}, line {node.lineno}"


def is_about_tx(call: ast.expr) -> bool:
    if not isinstance(call, ast.Call):
        return False
    receiver = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    values = [*receiver, *call.args, *(keyword.value for keyword in call.keywords)]
    return any(isinstance(value, ast.Name) and value.id == "tx" for value in values)


@pytest.mark.parametrize(
    "statement", ["await self._db.read('SELECT 1')", "await waiting", "async with lock:\n  pass", "await f(not_tx)"]
)
def test_foreign_await_is_found(statement: str) -> None:
    assert list(foreign_awaits(f"async def f(tx: Tx):\n await tx.execute('')\n await self.g(1, tx)\n {statement}")) == [
        "f, line 4"
    ]


def test_transactions_of_the_store_await_only_their_statements() -> None:
    assert sum("tx: Tx" in file.read_text() for file in TRANSACTIONS) > 5
    assert {file.name: found for file in TRANSACTIONS if (found := list(foreign_awaits(file.read_text())))} == {}
