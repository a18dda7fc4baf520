"""The one protocol of the store: a database, which SQLite and PostgreSQL implement, and what both run.

Each text of SQL is written once, in PostgreSQL's dialect. A transaction is a generator: it yields statements and gets
the rows of each. So the same transaction runs in the thread of SQLite's writer and on a connection to PostgreSQL.
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
OPERATOR_TIMEOUT = 3600.0  # for a statement of an operator's command, which may take the longer the more there is


class Bounds(NamedTuple):
    """How long a store may take, in seconds, and how much may wait for it."""

    queued_writes: int = 10_000
    batch: int = 1_000  # writes in one transaction
    queued_reads: int = 1_000  # requests that wait for a connection to PostgreSQL

    timeouts: Timeouts = CLIENT
    check_interval: float = 0.1  # between two looks for writes whose deadline has passed
    idle_transaction_timeout: float = 5.0  # a process that died in a transaction holds locks that others wait for

    pruned_records: int = 1_000  # idempotency records that are deleted at once
    prune_interval: float = 60.0
    search_step: int = 25_000  # rows that one search reads
    import_chunk: int = 2_000  # animals of an import in one transaction, so that creates do not wait long for the next
    # Bytes that an import leaves free on SQLite's disk: for the log while its animals are removed, and for the creates
    # of others.
    import_free_bytes: int = 32 * 1024 * 1024
    usage_days: int = USAGE_DAYS  # for which the usage of keys is kept by the hour


class Statement(NamedTuple):
    """`$1` in the text stands for the first of the values. A list is a value too: `column = ANY($1)`."""

    sql: str
    values: Sequence[Any] = ()


class ForEachRow(NamedTuple):
    """A statement that is executed once for each row of values, and returns nothing."""

    sql: str
    rows: Sequence[Sequence[Any]]


class PutRows(NamedTuple):
    """Adds rows of a table as they are, and returns nothing."""

    schema: str
    table: Table
    rows: Sequence[Row]


class Unchanged(PetstoreError):
    """Raised by a transaction that has nothing to change, with the result of `Database.write`."""

    def __init__(self, result: Any) -> None:
        self.result = result
        super().__init__()


Step = Statement | ForEachRow | PutRows
Transaction = Generator[Step, list[Row], T]


def steps(*each: Step) -> Transaction[list[Row]]:
    """A transaction that is known from the beginning. Returns the rows of the last step."""
    rows: list[Row] = []
    for step in each:
        rows = yield step
    return rows


def steps_if(found: Statement, *then: Step) -> Transaction[bool]:
    """A transaction whose first statement decides whether the others are executed: whether it returns a row."""
    if not (yield found):
        return False
    yield from steps(*then)
    return True


class Database(Protocol):
    """One environment's database. Every method raises Unavailable when the database cannot answer."""

    environment: Environment
    freshness: Freshness
    bounds: Bounds
    immediate: bool  # whether reads return without waiting for anything
    usage_timeout: float  # for one transaction that adds usage

    # The dialect
    schema: str  # the prefix of every table
    for_update: str  # after a SELECT: locks its rows, where a transaction does not lock everything anyway
    skip_locked: str  # the same, but leaves out rows that another transaction has locked
    counters: str  # the table COUNTERS, as a subquery

    async def read(self, sql: str, *values: Any) -> list[Row]:
        """For reads that take microseconds."""

    async def read_long(self, sql: str, *values: Any) -> list[Row]:
        """For reads that take the longer the more there is: an operator's, never a client's."""

    async def write(
        self, transaction: Transaction[T], changes: Collection[Change], timeout_seconds: float | None = None
    ) -> T:
        """What the transaction returns, after its commit, and after `changes` were announced.

        By default it has the time of a request. With a longer timeout, it has a commit of its own. If the transaction
        raises Unchanged, it is rolled back and nothing is announced.
        """

    def add(
        self,
        new: NewPet,
        now: float,
        idempotency_key: IdempotencyKey | None,
        deadline: float | None,
        key_id: str,
    ) -> "asyncio.Future[Added]":
        """The same for an animal of a client, which shares its transaction with others. Raises IdempotencyMismatch.

        `deadline` is by `time.monotonic`, and by default that of a request that begins now. An animal that cannot join
        a batch long enough before it is not added. `key_id` is the id of the API key that adds it.
        """

    def contains(self, column: str, place: int) -> str:
        """A condition: the column, its letters A to Z in lower case, contains the value at this place."""

    def lock_pet_ids(self) -> Transaction[None]:
        """Let no other transaction draw ids of animals until this one ends.

        So ids are drawn and committed in the same order. Otherwise a reader could see an animal, go on from there, and
        never meet one with a lower id that is committed later.
        """

    def draw_pet_ids(self, count: int) -> Transaction[int]:
        """The first of that many new ids, which follow each other. To be called under the lock of the ids."""

    def raise_last_id(self, table: str, last: int) -> Transaction[None]:
        """Let no id up to this one be given out again."""

    def check_space(self) -> None:
        """Raises OperatorError when the disk is so full that an import should not begin."""

    async def ping(self) -> None:
        """Returns when the database can be read. Raises Unavailable, also for a PostgreSQL that takes no writes.

        It writes nothing: a full disk is not seen.
        """

    async def drain(self) -> None:
        """Returns when every write that was accepted is answered."""

    async def close(self) -> None:
        """Drains and closes."""


def contains_text(db: Database, columns: Iterable[str], text: str, values: list[Any]) -> str:
    """A condition: no text, or one of the columns contains it. Adds what it looks for to the statement's values."""
    if not text:
        return "true"
    forms = spellings(text)
    places = range(len(values) + 1, len(values) + len(forms) + 1)
    values += forms
    return f"({' OR '.join(db.contains(column, place) for column in columns for place in places) or 'false'})"


def lock_tables(db: Database, *names: str) -> Transaction[None]:
    """Let no other transaction add a row until this one ends."""
    if db.for_update:
        tables = ", ".join(f"{db.schema}.{name}" for name in names)
        yield Statement(f"LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE")
