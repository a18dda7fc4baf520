"""The writer: a thread in each process that commits all queued writes in one transaction, with one fsync.

The event loop queues writes. The thread first waits for the lock that it shares with other processes, and then takes
the queued writes. The longer it waits, the more writes share its commit. SQLite releases the interpreter lock at every
step, and reacquiring it from a busy event loop takes longer than an insert, so one statement inserts many rows.

The thread skips writes that are too close to their deadline. It finishes every batch that it has begun, however long it
has to wait for a lock or the disk. If a write's deadline passes in the meantime, its caller gets an error immediately.
"""

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import apsw

from petstore.changes import Change
from petstore.errors import Unavailable
from petstore.job_control import unstoppable
from petstore.keys import Environment
from petstore.observability.health import Health
from petstore.observability.metrics import STORE_BATCH, STORE_QUEUE
from petstore.pets import Added, IdempotencyKey, NewPet
from petstore.store.database import Bounds
from petstore.store.freshness import ADDED, Freshness, Numbers, numbering_sql, numbers_sql
from petstore.store.schema import NEW_PET_COLUMNS, NEW_PET_FIELDS, new_pet_row
from petstore.store.sqlite.connection import FILE_PRAGMAS, WriteLock, set_busy_timeout, translate
from petstore.store.sqlite.idempotency import IdempotencyRecords
from petstore.store.sqlite.rows import ROWS_MAX, portions, rows_sql
from petstore.store.writing import AddPet, deliver, first_uses, new_records, newly_added, replay

# If the write-ahead log is larger than this, the writer waits for readers, so that SQLite can restart the log.
WAL_MAX = 32 * 1024 * 1024
CHECKPOINT_TIMEOUT = 0.2  # how many seconds to wait for readers; other writers are blocked during this time

T = TypeVar("T")
_NUMBERS = numbers_sql("main")


@dataclass(slots=True, eq=False)
class Call:
    """A queued function that runs in a transaction. If `alone` is true, the transaction contains no other writes."""

    future: "asyncio.Future[Any]"
    deadline: float
    work: Callable[[apsw.Connection], Any]
    changes: Collection[Change]
    alone: bool
    result: Any = None


Write = AddPet | Call


class BatchResult(NamedTuple):
    """The result of a batch, passed from the thread to the event loop."""

    writes: list[Write]  # all writes that were not skipped as too late, with their results
    changes: Collection[Change] = ()
    reached: Numbers = Numbers()  # the change numbers at the end of the batch
    first_id: int | None = None  # the first new animal's id, if the event loop must set the results
    fault: Exception | None = None  # why nothing was written


class Writer:
    def __init__(
        self,
        path: Path,
        environment: Environment,
        freshness: Freshness,
        bounds: Bounds,
        connect: Callable[[Path], apsw.Connection],
        clock: Callable[[], float],
    ) -> None:
        self._path = path
        self._environment = environment
        self._freshness = freshness
        self._bounds = bounds
        self._timeouts = bounds.timeouts
        self._connect = connect
        self._clock = clock
        self._health = Health("store", environment, "write")
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Write] = deque()  # the event loop appends writes, and the thread removes them
        self._in_flight: list[Write] = []  # taken by the thread
        self._thread_busy = False  # True if the thread has been woken and its last result has not arrived yet
        self._idle = asyncio.Event()
        self._idle.set()
        self._answering: set[asyncio.Task[None]] = set()
        self._watch: asyncio.TimerHandle | None = None
        self._to_thread: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False stops the thread
        self._thread_ended: asyncio.Future[None] | None = None  # None until the thread starts
        # The attributes below are used only by the writer's thread.
        self._write_lock = WriteLock(path)
        self._idempotency = IdempotencyRecords(bounds)
        self._batches = 0
        self._wal_pages = 0

    def add(
        self,
        new: NewPet,
        now: float,
        idempotency_key: IdempotencyKey | None,
        deadline: float | None,
        key_id: str,
    ) -> "asyncio.Future[Added]":
        """Queues an animal. Raises Unavailable if the queue is full."""
        future: asyncio.Future[Added] = self._loop.create_future()
        if deadline is None:
            deadline = self._clock() + self._timeouts.deadline
        self._submit(AddPet(future, deadline, new, now, idempotency_key, key_id))
        return future

    def call(
        self, work: Callable[[apsw.Connection], T], changes: Collection[Change], timeout: float | None = None
    ) -> "asyncio.Future[T]":
        """Queues `work` to run in a transaction. Announces `changes` after the commit.

        If the timeout is longer than a request's deadline, `work` may be slow, so it gets a separate transaction.
        Raises Unavailable if the queue is full.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        usual = self._timeouts.deadline
        deadline = self._clock() + (usual if timeout is None else timeout)
        self._submit(Call(future, deadline, work, changes, alone=timeout is not None and timeout > usual))
        return future

    def _submit(self, write: Write) -> None:
        if len(self._waiting) >= self._bounds.queued_writes:
            self._health.error()
            raise Unavailable("the writer's queue is full")
        if self._thread_ended is None:
            self._start()
        self._idle.clear()
        self._waiting.append(write)
        if not self._thread_busy:
            self._thread_busy = True
            # Wake the thread in the loop's next iteration, so that other writes from this iteration join the batch.
            self._loop.call_soon(self._to_thread.put, True)

    def _start(self) -> None:
        self._thread_ended = self._loop.create_future()
        self._refuse_late()
        threading.Thread(target=self._run, name=f"writer-{self._path.stem}", daemon=True).start()

    def _refuse_late(self) -> None:
        """Rejects writes that are too late, even if the thread is stuck. Runs every `check_interval` seconds."""
        self._watch = self._loop.call_later(self._bounds.check_interval, self._refuse_late)
        now = self._clock()
        STORE_QUEUE.set(len(self._in_flight) + len(self._waiting), self._environment)
        latest = now + self._timeouts.reserve
        self._refuse(write for write in list(self._waiting) if write.deadline <= latest)
        late = [write for write in self._in_flight if write.deadline < now]
        if late and not self._health.down:  # report the problem even if no caller is waiting
            self._health.failed("the writer is stuck")
        self._refuse(late)

    def _refuse(self, writes: Iterable[Write]) -> None:
        for write in writes:
            if not write.future.done():
                late = Unavailable("the writer did not respond in time")
                self._health.failed(late)
                write.future.set_exception(late)

    async def drain(self) -> None:
        """Waits until all writes have finished."""
        await self._idle.wait()

    async def close(self) -> None:
        """Waits until all queued writes have finished, and then stops the thread."""
        await self.drain()
        if self._thread_ended is not None:
            self._to_thread.put(False)
            await self._thread_ended
        if self._watch is not None:
            self._watch.cancel()

    def _committed(self, result: BatchResult) -> None:
        writes, _, _, first_id, fault = result
        if len(writes) < len(self._in_flight):
            self._refuse(set(self._in_flight).difference(writes))
        self._in_flight = []
        self._thread_busy = bool(self._waiting)
        if self._thread_busy:
            self._to_thread.put(True)
        if isinstance(fault, Unavailable):
            self._health.failed(fault)
        elif fault is None and writes:
            STORE_BATCH.observe(len(writes), self._environment)
            if self._health.down:
                self._health.worked()
        if first_id is not None:
            for pet_id, write in enumerate(writes, first_id):
                assert isinstance(write, AddPet)
                write.result = newly_added(write.new, pet_id)
        task = self._loop.create_task(self._answer(result))
        self._answering.add(task)
        task.add_done_callback(self._answered)

    async def _answer(self, result: BatchResult) -> None:
        """Announces the changes, and then delivers the results."""
        failure: Exception | None = None
        try:
            await self._freshness.announce(result.changes, result.reached)
        except Exception as error:  # deliver this error, so that no caller waits forever
            failure = error
        deliver((write.future, failure or write.result) for write in result.writes)

    def _answered(self, task: "asyncio.Task[None]") -> None:
        self._answering.discard(task)
        if not (self._thread_busy or self._answering):
            self._idle.set()

    # The methods below run in the writer's thread.

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        while self._to_thread.get():
            with unstoppable:
                connection = self._write_batch(connection)
        if connection is not None:
            connection.close()
        self._write_lock.close()
        assert self._thread_ended is not None
        self._loop.call_soon_threadsafe(self._thread_ended.set_result, None)

    def _write_batch(self, connection: apsw.Connection | None) -> apsw.Connection | None:
        """Commits a batch. Opens a connection if there is none. Returns the connection for the next batch."""
        taken: list[Write] = []
        try:
            if connection is None:
                connection = self._connect(self._path)
                set_busy_timeout(connection, 0)
                # The writer mostly appends and rarely reads, so a large cache would waste memory.
                connection.pragma("cache_size", -1024)
                # This replaces SQLite's automatic checkpoint, which runs during a commit and would delay callers.
                connection.set_wal_hook(self._note_wal_pages)
            # Always acquire the lock. A writer that skipped it could repeatedly overtake waiting writers.
            with self._write_lock:
                taken = self._take()
                result = self._commit(connection, self._in_time(taken))
        except Exception as error:
            result = _failed(taken or self._take(), translate(error, self._path))
            if connection is not None and connection.in_transaction:
                with contextlib.suppress(apsw.Error):
                    connection.execute("ROLLBACK")
        self._loop.call_soon_threadsafe(self._committed, result)
        if connection is not None:
            self._keep_wal_short(connection)
        return connection

    def _take(self) -> list[Write]:
        """Takes at most one batch from the queue. A write that must run alone gets its own batch."""
        taken: list[Write] = []
        while self._waiting and len(taken) < self._bounds.batch:
            if self._waiting[0].alone and taken:
                break
            taken.append(self._waiting.popleft())
            if taken[0].alone:
                break
        self._in_flight = taken
        return taken

    def _commit(self, connection: apsw.Connection, writes: list[Write]) -> BatchResult:
        if not writes:
            return BatchResult([])
        plain = [write for write in writes if isinstance(write, AddPet) and write.idempotency_key is None]
        if len(plain) == len(writes) <= ROWS_MAX:
            with contextlib.suppress(apsw.BusyError):  # another program may write without acquiring the write lock
                # Without BEGIN, the statement runs in its own transaction.
                first = _insert(connection, plain)
                return BatchResult(writes, ADDED, Numbers(added=first + len(plain) - 1), first)
        self._begin(connection, max(write.deadline for write in writes) - self._timeouts.reserve - self._clock())
        # Check again, because some writes may have become too late while the thread waited for the lock.
        return self._write(connection, self._in_time(writes))

    def _begin(self, connection: apsw.Connection, timeout: float) -> None:
        """Begins a transaction. Raises apsw.BusyError if it cannot acquire SQLite's lock within `timeout` seconds."""
        set_busy_timeout(connection, min(self._timeouts.step, timeout))
        try:
            connection.execute("BEGIN IMMEDIATE")
        finally:
            set_busy_timeout(connection, 0)

    def _write(self, connection: apsw.Connection, writes: list[Write]) -> BatchResult:
        """Executes the writes in the open transaction and commits it."""
        changes: set[Change] = set()
        last_id = 0
        adds = [write for write in writes if isinstance(write, AddPet)]
        records = self._idempotency.find(connection, adds)
        new = first_uses(adds, records)
        if new:
            for last_id, add in enumerate(new, _insert(connection, new)):
                add.result = newly_added(add.new, last_id)
            self._idempotency.remember(connection, new)
            changes.update(ADDED)
        if len(new) < len(adds):
            replay(adds, records | new_records(new))
        for write in writes:
            if isinstance(write, Call):
                connection.execute("SAVEPOINT call")  # if the call fails, only its changes are rolled back
                try:
                    write.result = write.work(connection)
                    changes.update(write.changes)
                except Exception as error:
                    # After some errors, such as a full disk, SQLite has already rolled back the whole transaction.
                    if not connection.in_transaction:
                        raise
                    connection.execute("ROLLBACK TO call")
                    write.result = translate(error, self._path)
                connection.execute("RELEASE call")
        reached = Numbers(added=last_id)
        if changes.difference(ADDED) or len(new) < len(writes):  # the batch does more than add animals
            if numbering := numbering_sql("main", changes):
                connection.execute(numbering)
            row: Any = connection.execute(_NUMBERS).fetchall()[0]
            reached = Numbers(*row)
        connection.execute("COMMIT")
        return BatchResult(writes, changes, reached)

    def _in_time(self, writes: list[Write]) -> list[Write]:
        """Returns the writes that are not too late and whose callers are still waiting."""
        latest = self._clock() + self._timeouts.reserve
        return [write for write in writes if latest < write.deadline and not write.future.done()]

    def _note_wal_pages(self, connection: apsw.Connection, database: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _keep_wal_short(self, connection: apsw.Connection) -> None:
        """Checkpoints the write-ahead log if it is long. Runs after the results have been passed to the event loop.

        Overlapping reads can keep SQLite from restarting the log. If the log becomes too large, waits briefly for the
        readers to finish.
        """
        if self._wal_pages >= FILE_PRAGMAS["wal_autocheckpoint"]:
            with contextlib.suppress(apsw.Error):
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._batches += 1
        if self._batches % 64:
            return
        with contextlib.suppress(apsw.Error, OSError):
            if self._path.with_name(self._path.name + "-wal").stat().st_size > WAL_MAX:
                set_busy_timeout(connection, CHECKPOINT_TIMEOUT)
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        set_busy_timeout(connection, 0)


def _failed(writes: list[Write], fault: Exception) -> BatchResult:
    for write in writes:
        write.result = fault
    return BatchResult(writes, fault=fault)


@lru_cache(maxsize=ROWS_MAX)
def _insert_sql(rows: int) -> str:
    return (
        f"INSERT INTO pets ({NEW_PET_COLUMNS}, added_by, added_at)"
        f" SELECT {NEW_PET_COLUMNS}, (SELECT id FROM adders WHERE kind = 'key' AND adders.name = key_id), added_at"
        f" FROM ({rows_sql((*NEW_PET_FIELDS, 'key_id', 'added_at'), rows)})"
    )


def _insert(connection: apsw.Connection, adds: Sequence[AddPet]) -> int:
    """Inserts animals and returns the first id. The ids are consecutive, because only one writer runs at a time."""
    for some in portions(adds):
        values: list[Any] = []
        for add in some:
            values += (*new_pet_row(add.new), add.key_id, int(add.now))
        connection.execute(_insert_sql(len(some)), values)
    return connection.last_insert_rowid() - len(adds) + 1
