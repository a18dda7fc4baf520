"""The database protocol, which SQLite and PostgreSQL implement, and the transactions that both run.

Each SQL statement is written once, in PostgreSQL's dialect. A transaction is a generator that yields statements and
receives their rows. The same transaction can therefore run in SQLite's writer thread and on a PostgreSQL connection.
"""

import asyncio
from collections.abc import Collection, Generator, Iterable, Sequence
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
OPERATOR_TIMEOUT = 3600.0  # seconds for a statement of an operator's command, which may read a whole table


class Bounds(NamedTuple):
    """The limits of a store. Times are in seconds."""

    queued_writes: int = 10_000
    batch: int = 1_000  # writes in one transaction
    queued_reads: int = 1_000  # requests that wait for a connection to PostgreSQL

    timeouts: Timeouts = CLIENT
    check_interval: float = 0.1  # how often to look for writes whose deadline has passed
    idle_transaction_timeout: float = 5.0  # releases the locks of a process that died in a transaction

    pruned_records: int = 1_000  # idempotency records deleted in one statement
    prune_interval: float = 60.0
    search_step: int = 25_000  # rows that one search reads
    import_chunk: int = 2_000  # animals that an import adds in one transaction; creates wait for the transaction
    # Bytes that an import leaves free on SQLite's disk, for the write-ahead log of an undo and for creates.
    import_free_bytes: int = 32 * 1024 * 1024
    usage_days: int = USAGE_DAYS  # days for which the hourly usage of keys is kept


class Statement(NamedTuple):
    """`$1` in the SQL is the first value. A value can be a list: `column = ANY($1)`."""

    sql: str
    values: Sequence[Any] = ()


class ForEachRow(NamedTuple):
    """Executes a statement once for each row of values. Returns no rows."""

    sql: str
    rows: Sequence[Sequence[Any]]


class PutRows(NamedTuple):
    """Inserts complete rows into a table. Returns no rows."""

    schema: str
    table: Table
    rows: Sequence[Row]


class Unchanged(PetstoreError):
    """A transaction raises this if it changes nothing. `Database.write` then returns `result`."""

    def __init__(self, result: Any) -> None:
        self.result = result
        super().__init__()


Step = Statement | ForEachRow | PutRows
Transaction = Generator[Step, list[Row], T]


def steps(*each: Step) -> Transaction[list[Row]]:
    """A transaction of fixed steps. Returns the rows of the last step."""
    rows: list[Row] = []
    for step in each:
        rows = yield step
    return rows


def steps_if(found: Statement, *then: Step) -> Transaction[bool]:
    """A transaction that executes `then` only if `found` returns a row. Returns whether it did."""
    if not (yield found):
        return False
    yield from steps(*then)
    return True


class Database(Protocol):
    """One environment's database. All methods raise Unavailable if the database does not respond."""

    environment: Environment
    freshness: Freshness
    bounds: Bounds
    immediate: bool  # whether reads return without waiting
    usage_timeout: float  # seconds for one transaction that adds usage

    # The dialect
    schema: str  # qualifies every table name
    for_update: str  # appended to a SELECT to lock its rows; empty if a transaction locks everything anyway
    skip_locked: str  # the same, but skips rows that another transaction has locked
    counters: str  # a subquery that returns the table COUNTERS

    async def read(self, sql: str, *values: Any) -> list[Row]:
        """Runs a query that takes microseconds."""

    async def read_long(self, sql: str, *values: Any) -> list[Row]:
        """Runs a query that may read a whole table. Used for operators, never for clients."""

    async def write(
        self, transaction: Transaction[T], changes: Collection[Change], timeout_seconds: float | None = None
    ) -> T:
        """Commits a transaction, announces `changes`, and returns the transaction's result.

        The timeout defaults to the deadline of a request. A transaction with a longer timeout does not share its commit
        with others. If the transaction raises Unchanged, it is rolled back and nothing is announced.
        """

    def add(
        self,
        new: NewPet,
        now: float,
        idempotency_key: IdempotencyKey | None,
        deadline: float | None,
        key_id: str,
    ) -> "asyncio.Future[Added]":
        """Adds a client's animal in a transaction that it shares with others, and announces it.

        `deadline` is a `time.monotonic` time, and defaults to the deadline of a request that starts now. An animal that
        is still queued shortly before its deadline is not added. `key_id` is the id of the API key that adds it.
        The future can raise IdempotencyMismatch.
        """

    def contains(self, column: str, place: int) -> str:
        """Returns a condition: the column, with A to Z in lower case, contains the parameter `$place`."""

    def lock_pet_ids(self) -> Transaction[None]:
        """Prevents other transactions from drawing ids of animals until this one ends.

        Ids are therefore committed in ascending order. Otherwise, a client that reads page by page could miss an animal
        that is committed after one with a higher id.
        """

    def draw_pet_ids(self, count: int) -> Transaction[int]:
        """Reserves `count` consecutive ids and returns the first. Call `lock_pet_ids` before."""

    def raise_last_id(self, table: str, last: int) -> Transaction[None]:
        """Ensures that the table assigns only ids above `last`."""

    def check_space(self) -> None:
        """Raises OperatorError if the disk has too little free space for an import."""

    async def ping(self) -> None:
        """Checks that the database can be read. Raises Unavailable, also if PostgreSQL is read-only.

        Writes nothing, so it does not detect a full disk.
        """

    async def drain(self) -> None:
        """Waits until all accepted writes have their results."""

    async def close(self) -> None:
        """Drains, then closes the connections."""


def contains_text(db: Database, columns: Iterable[str], text: str, values: list[Any]) -> str:
    """Returns a condition: `text` is empty, or one of the columns contains it. Appends its parameters to `values`."""
    if not text:
        return "true"
    forms = spellings(text)
    places = range(len(values) + 1, len(values) + len(forms) + 1)
    values += forms
    return f"({' OR '.join(db.contains(column, place) for column in columns for place in places) or 'false'})"


def lock_tables(db: Database, *names: str) -> Transaction[None]:
    """Prevents other transactions from adding rows to these tables until this one ends."""
    if db.for_update:
        tables = ", ".join(f"{db.schema}.{name}" for name in names)
        yield Statement(f"LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE")
