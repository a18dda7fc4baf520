"""SQL that both backends share: each text is written once, in PostgreSQL's dialect, and either backend runs it.

A transaction is a generator: it yields statements, and the backend sends it the rows of each. So the same transaction
runs in the thread of SQLite's writer and on a connection to PostgreSQL.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from petstore.audit import AuditEntry
from petstore.keys import Environment
from petstore.store import OnCommit, Subject
from petstore.store.limits import StoreLimits
from petstore.store.schema import Row, Table, spellings

T = TypeVar("T")


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


class Database(ABC):
    """One environment's database. Every method raises Unavailable when the database cannot answer."""

    schema: str  # the prefix of every table
    for_update: str  # after a SELECT: locks its rows, where a transaction does not lock everything anyway
    skip_locked: str  # the same, but leaves out rows that another transaction has locked
    clock: str  # an expression: Unix seconds by the database's own clock
    usage_timeout: float  # for one transaction that adds usage
    counters: str  # the table COUNTERS, as a subquery

    def __init__(self, environment: Environment, on_commit: OnCommit, limits: StoreLimits) -> None:
        self.environment: Environment = environment
        self.limits = limits
        self._on_commit = on_commit
        self._in_flight: set[tuple[str, str]] = set()  # idempotency keys whose first request is not answered yet

    @abstractmethod
    async def _fetch(self, sql: str, *values: Any) -> list[Row]:
        """For reads that take microseconds."""

    @abstractmethod
    async def _fetch_long(self, sql: str, *values: Any) -> list[Row]:
        """For reads that take the longer the more there is: an operator's, never a client's."""

    @abstractmethod
    async def _run(
        self, transaction: Transaction[T], changes: Subject | None = None, timeout_seconds: float | None = None
    ) -> T:
        """What the transaction returns, after its commit, and after the version of `changes` was raised.

        The default of `timeout_seconds` is a request's. A transaction with a longer one has a commit of its own.
        """

    @abstractmethod
    def _contains(self, column: str, place: int) -> str:
        """A condition: the column, its letters A to Z in lower case, contains the value at this place."""

    @abstractmethod
    def _lock_pet_ids(self) -> Transaction[None]:
        """Let no other transaction draw ids of animals until this one ends.

        So ids are drawn and committed in the same order. Otherwise a reader could see an animal, go on from there, and
        never meet one with a lower id that is committed later.
        """

    @abstractmethod
    def _draw_pet_ids(self, count: int) -> Transaction[int]:
        """The first of that many new ids, which follow each other. To be called under the lock of the ids."""

    @abstractmethod
    def _raise_last_id(self, table: str, last: int) -> Transaction[None]:
        """Let no id up to this one be given out again."""

    def _contains_text(self, columns: Iterable[str], text: str, values: list[Any]) -> str:
        """A condition: no text, or one of the columns contains it. Adds what it looks for to the statement's values."""
        if not text:
            return "true"
        forms = spellings(text)
        places = range(len(values) + 1, len(values) + len(forms) + 1)
        values += forms
        return f"({' OR '.join(self._contains(column, place) for column in columns for place in places) or 'false'})"

    def _note_moving(self, *, also: str = "") -> Statement:
        """Keep in the one row of `catalogue_changes` whether an import is being moved; every read looks at it."""
        return Statement(
            f"UPDATE {self.schema}.catalogue_changes SET {also}"
            f" moving = EXISTS (SELECT 1 FROM {self.schema}.imports WHERE state = 'moving') RETURNING number"
        )

    def _lock_tables(self, *names: str) -> Transaction[None]:
        """Let no other transaction add a row until this one ends."""
        if self.for_update:
            tables = ", ".join(f"{self.schema}.{name}" for name in names)
            yield Statement(f"LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE")

    def _record(self, *entries: AuditEntry) -> ForEachRow:
        return record(self.schema, entries)


def record(schema: str, entries: Sequence[AuditEntry]) -> ForEachRow:
    return ForEachRow(
        f"INSERT INTO {schema}.deeds (at, actor, action, subject, detail) VALUES ($1, $2, $3, $4, $5)",
        [(entry.at, entry.actor, entry.action, entry.subject, entry.detail) for entry in entries],
    )
