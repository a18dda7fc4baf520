"""The database protocol that SQLite and PostgreSQL implement, and the transactions that run on either of them."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from petstore.changes import Change
from petstore.errors import PetstoreError
from petstore.keys import Environment
from petstore.pets import Added, IdempotencyKey, NewPet
from petstore.store.freshness import Freshness
from petstore.store.schema import Row, Table, spellings
from petstore.timeouts import CLIENT, Timeouts
from petstore.usage import USAGE_DAYS

T = TypeVar("T")

IDEMPOTENCY_LIFETIME = 86_400.0  # seconds
OPERATOR_TIMEOUT = 3600.0  # seconds; long enough for an operator's command to read a whole table


class Bounds(NamedTuple):
    """A store's limits. Times are in seconds."""

    queued_writes: int = 10_000
    batch: int = 1_000  # writes per transaction
    queued_reads: int = 1_000  # how many calls can wait for a PostgreSQL connection at the same time

    timeouts: Timeouts = CLIENT
    check_interval: float = 0.1  # how often to check for writes whose deadline has passed
    idle_transaction_timeout: float = 5.0  # PostgreSQL ends a transaction that has been idle for this long

    pruned_records: int = 1_000  # idempotency records deleted per statement
    prune_interval: float = 60.0
    search_step: int = 25_000  # the maximum number of rows that one search reads
    import_chunk: int = 2_000  # animals per import or removal transaction; create requests wait for each transaction
    # Imports stop when fewer than this many bytes are free on the disk. This space is reserved for create requests,
    # and for the write-ahead log if the import is undone. Applies only to SQLite.
    import_free_bytes: int = 32 * 1024 * 1024
    usage_days: int = USAGE_DAYS  # how many days to keep each key's hourly usage


class Tx(Protocol):
    """A transaction's statements. Each SQL statement is written once, in PostgreSQL's dialect.

    A transaction is a function `async def transaction(tx: Tx) -> T`. It touches only `tx`, its arguments and pure
    functions, and awaits nothing but the methods of `tx` and functions that receive `tx`. PostgreSQL awaits it on a
    connection. SQLite runs it in the writer's thread, outside the event loop, where no statement ever suspends. A
    transaction that suspends there is rolled back and raises RuntimeError.
    """

    async def execute(self, sql: str, *values: Any) -> list[Row]:
        """Executes a statement and returns its rows. `$1` refers to the first value.

        A value can be a list, as in `column = ANY($1)`.
        """

    async def for_each(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Executes a statement once for each row of values."""

    async def put(self, table: Table, rows: Sequence[Row]) -> None:
        """Inserts complete rows into a table."""


Transaction = Callable[[Tx], Coroutine[Any, Any, T]]


class Unchanged(PetstoreError):
    """Raised to end a transaction without changes. `Database.write` rolls it back and returns `result`."""

    def __init__(self, result: Any) -> None:
        self.result = result
        super().__init__()


class Database(Protocol):
    """One environment's database. All methods raise Unavailable if the database does not respond."""

    environment: Environment
    freshness: Freshness
    bounds: Bounds
    immediate: bool  # whether reads complete without yielding to the event loop
    usage_timeout: float  # the timeout for recording usage, in seconds

    # The dialect
    schema: str  # qualifies every table name
    for_update: str  # appended to a SELECT to lock its rows; empty if every transaction locks the whole database
    skip_locked: str  # like `for_update`, but skips rows that another transaction has locked
    counters: str  # a subquery that returns the rows of the table COUNTERS

    async def read(self, sql: str, *values: Any) -> list[Row]:
        """Runs a query that is fast enough for a client request."""

    async def read_long(self, sql: str, *values: Any) -> list[Row]:
        """Runs a query that may read a whole table. Must not be used for client requests."""

    async def write(
        self, transaction: Transaction[T], changes: Collection[Change], timeout_seconds: float | None = None
    ) -> T:
        """Commits a transaction, announces `changes`, and returns the transaction's result.

        The default timeout is the one for client requests. A transaction with a longer timeout is committed separately
        from other writes. If the transaction raises Unchanged, it is rolled back and nothing is announced.
        """

    def add(
        self,
        new: NewPet,
        now: float,
        idempotency_key: IdempotencyKey | None,
        deadline: float | None,
        key_id: str,
    ) -> "asyncio.Future[Added]":
        """Queues a client's animal, to be added in one transaction with other queued animals and then announced.

        `deadline` is a `time.monotonic` time, and defaults to the deadline of a request that starts now. If the animal
        is still queued shortly before the deadline, it is not added. `key_id` is the id of the client's API key. The
        future raises IdempotencyMismatch if the idempotency key has been used with a different body.
        """

    def contains(self, column: str, place: int) -> str:
        """Returns a SQL condition that is true if the column contains the parameter `$place`.

        The condition converts A to Z in the column to lower case, so the parameter must have them in lower case too.
        """

    async def lock_pet_ids(self, tx: Tx) -> None:
        """Prevents other transactions from reserving animal ids until this one ends.

        This ensures that ids are committed in ascending order. Otherwise, a client that reads page by page could miss
        an animal that is committed after one with a higher id.
        """

    async def draw_pet_ids(self, tx: Tx, count: int) -> int:
        """Reserves `count` consecutive ids and returns the lowest. Must be called after `lock_pet_ids`."""

    async def raise_last_id(self, tx: Tx, table: str, last: int) -> None:
        """Ensures that every id assigned later in this table is higher than `last`."""

    def check_space(self) -> None:
        """Raises OperatorError if the disk has too little free space for an import."""

    async def ping(self) -> None:
        """Checks that the database can be read. Raises Unavailable if it cannot, or if PostgreSQL is read-only.

        Does not detect a full disk, because it writes nothing.
        """

    async def drain(self) -> None:
        """Waits until all accepted writes have finished."""

    async def close(self) -> None:
        """Waits until all accepted writes have finished, and then closes the connections."""


def contains_text(db: Database, columns: Iterable[str], text: str, values: list[Any]) -> str:
    """Returns a SQL condition that is true if any of the columns contains `text`. An empty `text` matches every row.

    Appends the condition's parameters to `values`.
    """
    if not text:
        return "true"
    forms = spellings(text)
    places = range(len(values) + 1, len(values) + len(forms) + 1)
    values += forms
    return f"({' OR '.join(db.contains(column, place) for column in columns for place in places) or 'false'})"


async def lock_tables(tx: Tx, db: Database, *names: str) -> None:
    """Prevents other transactions from changing these tables until this one ends."""
    if db.for_update:
        tables = ", ".join(f"{db.schema}.{name}" for name in names)
        await tx.execute(f"LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE")
