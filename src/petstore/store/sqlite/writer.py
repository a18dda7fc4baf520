"""The one writer of a process: a thread that puts all that waits into one transaction, so one fsync serves many.

SQLite releases the interpreter's lock at every step, and getting it back from a busy event loop costs far more than
an insert. So a batch of animals is one statement, whatever its size: the rows travel as one JSON array.

What was refused is not written: the thread writes nothing that is overdue, and the loop leaves what the thread has
some time more for the commit. Only a disk that hangs for longer can make both happen.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec

from petstore.errors import IdempotencyMismatch, PetstoreError, Unavailable
from petstore.keys import Environment
from petstore.observability.health import Health
from petstore.observability.metrics import STORE_BATCH, STORE_QUEUE
from petstore.pets import Added, IdempotencyKey, NewPet, Pet
from petstore.store import COMMIT_SECONDS, IDEMPOTENCY_LIFE, PATIENCE, PRUNE_MAX, TICK, OnCommit, Subject
from petstore.store.sqlite.file import BUSY_MILLISECONDS, Turn, connect, translated
from petstore.store.sqlite.jobs import Add, Call, Jobs, timely_of

BATCH_MAX = 1_000
QUEUE_MAX = 10_000
WAL_MAX = 32 * 1024 * 1024
PRUNE_EVERY = 60.0

T = TypeVar("T")
_encode = msgspec.json.encode

Committed = tuple[set[Subject], int | None]


class Writer:
    def __init__(self, path: Path, environment: Environment, on_commit: OnCommit) -> None:
        self._path = path
        self._environment = environment
        self._on_commit = on_commit
        self._health = Health("store", environment, "write")
        self._loop = asyncio.get_running_loop()
        self._waiting: Jobs = []
        self._in_flight: Jobs = []  # what the thread has at the moment
        self._handing_over = False
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._to_thread: queue.SimpleQueue[tuple[Jobs, str | None] | None] = queue.SimpleQueue()
        self._settling: set[asyncio.Task[None]] = set()
        self._pruned = 0.0
        self._batches = 0
        self._turn = Turn(path)
        self._watch()
        threading.Thread(target=self._run, name=f"writer-{path.stem}", daemon=True).start()

    def add(self, new: NewPet, now: float, idempotency_key: IdempotencyKey | None) -> "asyncio.Future[Added]":
        future: asyncio.Future[Added] = self._loop.create_future()
        self._submit(Add(future, time.monotonic() + PATIENCE, new, now, idempotency_key))
        return future

    def call(
        self, work: Callable[[apsw.Connection], T], changes: Subject | None = None, patience: float = PATIENCE
    ) -> "asyncio.Future[T]":
        """Run `work` in a transaction; `changes` names what readers must be told of.

        Whoever has more patience than a request may also take longer, so nobody else is in that transaction.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._submit(Call(future, time.monotonic() + patience, work, changes, alone=patience > PATIENCE))
        return future

    def _submit(self, job: Add | Call) -> None:
        if len(self._waiting) >= QUEUE_MAX:
            self._health.error()
            raise Unavailable("the writer's queue is full")
        self._waiting.append(job)
        if not self._handing_over and not self._in_flight:
            # Not at once: what else this turn of the loop brings goes into the same batch.
            self._handing_over = True
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        """Give the thread all that waits; it is woken once per batch."""
        self._handing_over = False
        count = next((n for n, job in enumerate(self._waiting[:BATCH_MAX]) if job.alone), BATCH_MAX) or 1
        self._in_flight, self._waiting = self._waiting[:count], self._waiting[count:]
        if not self._in_flight:
            return
        # The thread should need the interpreter's lock as little as can be, so rows are made ready here.
        batch = [job for job in self._in_flight if not job.future.done()]  # without those that have given up
        plain = [job for job in batch if type(job) is Add and job.idempotency_key is None]
        self._to_thread.put((batch, _rows(plain) if len(plain) == len(batch) else None))

    def _watch(self) -> None:
        """Nobody waits longer than the patience for a disk or a lock that hangs."""
        self._watchdog = self._loop.call_later(TICK, self._watch)
        now = time.monotonic()
        STORE_QUEUE.set(len(self._in_flight) + len(self._waiting), self._environment)
        self._refuse(job for job in self._waiting if job.due < now)
        self._refuse(job for job in self._in_flight if job.due + COMMIT_SECONDS < now)

    def _refuse(self, jobs: Iterable[Add | Call]) -> None:
        for job in jobs:
            if not job.future.done():
                late = Unavailable("the writer did not answer in time")
                self._health.failed(late)
                job.future.set_exception(late)

    async def close(self) -> None:
        """Writes what is queued, then stops."""
        while self._waiting or self._in_flight or self._settling:
            await asyncio.wait([*self._settling, asyncio.ensure_future(asyncio.sleep(0.005))])
        self._to_thread.put(None)
        await self._closed
        self._watchdog.cancel()

    def _settled(self, batch: Jobs, changed: set[Subject], first_id: int | None, fault: PetstoreError | None) -> None:
        """`batch` is those whose fate is decided; what else the thread had was overdue."""
        if len(batch) < len(self._in_flight):
            self._refuse(set(self._in_flight).difference(batch))
        self._in_flight = []
        self._hand_over()
        if fault is not None:
            self._health.failed(fault)
        elif batch:
            STORE_BATCH.observe(len(batch), self._environment)
            if self._health.down:
                self._health.worked()
        if first_id is not None:
            for pet_id, job in enumerate(batch, first_id):
                job.result = _added(job, pet_id)
        task = self._loop.create_task(self._tell(batch, changed))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _tell(self, batch: Jobs, changed: set[Subject]) -> None:
        """The gate first, then everyone who waits."""
        failure: Exception | None = None
        for subject in changed:
            try:
                await self._on_commit(subject)
            except Exception as error:  # whatever it is, nobody may be left waiting
                failure = error
        for job in batch:
            future: asyncio.Future[Any] = job.future
            result = failure or job.result
            if future.done():
                continue  # its client has gone, or waited too long
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    # From here on: the writer's thread.

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        while (taken := self._to_thread.get()) is not None:
            batch, rows = taken
            changed: set[Subject] = set()
            first_id: int | None = None
            fault: PetstoreError | None = None
            try:
                if connection is None:
                    connection = connect(self._path)
                    connection.set_busy_timeout(0)
                    # It adds at the end and seldom looks back: a large cache would fill up for hours, to no use.
                    connection.pragma("cache_size", -1024)
                batch, (changed, first_id) = self._commit_in_turn(connection, batch, rows)
            except Exception as error:
                fault = translated(error)
                for job in batch:
                    job.result = fault
                if connection is not None and connection.in_transaction:
                    with contextlib.suppress(apsw.Error):
                        connection.execute("ROLLBACK")
            self._loop.call_soon_threadsafe(self._settled, batch, changed, first_id, fault)
            if connection is not None:
                self._keep_wal_short(connection)
        if connection is not None:
            connection.close()
        self._loop.call_soon_threadsafe(self._closed.set_result, None)

    def _commit_in_turn(self, connection: apsw.Connection, batch: Jobs, rows: str | None) -> tuple[Jobs, Committed]:
        """Those of the batch that were not overdue, and what has come of them."""
        timely = timely_of(batch)
        if not timely:
            return timely, (set(), None)
        try:
            return timely, self._commit(connection, timely, rows if len(timely) == len(batch) else None)
        except apsw.BusyError:  # another process is writing, so nothing was begun: queue up
            with self._turn:
                _begin(connection, max(job.due for job in timely) - time.monotonic())
                timely = timely_of(timely)  # once more: for some the lock may have come too late
                return timely, self._write(connection, timely)

    def _commit(self, connection: apsw.Connection, batch: Jobs, rows: str | None) -> Committed:
        """What has changed and, for a batch of plain adds, the first of their ids."""
        if rows is not None:
            return {"catalogue"}, _insert(connection, rows, len(batch))  # one statement: a transaction of its own
        connection.execute("BEGIN IMMEDIATE")
        return self._write(connection, batch)

    def _write(self, connection: apsw.Connection, batch: Jobs) -> Committed:
        """The rest of a transaction that has begun."""
        changed: set[Subject] = set()
        fresh = self._without_replays(connection, [job for job in batch if isinstance(job, Add)])
        if fresh:
            self._add(connection, fresh)
            changed.add("catalogue")
        for job in batch:
            if isinstance(job, Call):
                connection.execute("SAVEPOINT call")  # one that fails takes nothing else with it
                try:
                    job.result = job.work(connection)
                    if job.changes:
                        changed.add(job.changes)
                except Exception as error:
                    if not connection.in_transaction:  # a full disk does: it has ended the whole transaction
                        raise
                    connection.execute("ROLLBACK TO call")
                    job.result = translated(error)
                connection.execute("RELEASE call")
        connection.execute("COMMIT")
        return changed, None

    def _add(self, connection: apsw.Connection, fresh: list[Add]) -> None:
        promises = []
        for pet_id, add in enumerate(fresh, _insert(connection, _rows(fresh), len(fresh))):
            add.result = _added(add, pet_id)
            idempotency_key = add.idempotency_key
            if idempotency_key:
                promises.append(
                    (
                        idempotency_key.key_id,
                        idempotency_key.token,
                        idempotency_key.body_digest,
                        pet_id,
                        add.new.status,
                        add.now,
                    )
                )
        if promises:
            # REPLACE: a record older than its life may still be there.
            connection.executemany("REPLACE INTO idempotency VALUES (?, ?, ?, ?, ?, ?)", promises)

    def _without_replays(self, connection: apsw.Connection, adds: list[Add]) -> list[Add]:
        """Answers the jobs that repeat an earlier request, and returns the others."""
        if not any(add.idempotency_key for add in adds):
            return adds
        now = max(add.now for add in adds)
        if now - self._pruned >= PRUNE_EVERY:
            connection.execute(
                "DELETE FROM idempotency WHERE (key_id, token) IN"
                " (SELECT key_id, token FROM idempotency WHERE created <= ? LIMIT ?)",
                (now - IDEMPOTENCY_LIFE, PRUNE_MAX),
            )
            if connection.changes() < PRUNE_MAX:  # else there are more: the next batch goes on
                self._pruned = now
        tokens = _encode(
            [(add.idempotency_key.key_id, add.idempotency_key.token) for add in adds if add.idempotency_key]
        ).decode()
        rows: list[Any] = connection.execute(
            "SELECT i.key_id, i.token, i.body_digest, i.created, p.id, p.name, p.category_id, i.status"
            " FROM json_each(?) AS t"
            " JOIN idempotency AS i ON i.key_id = t.value ->> 0 AND i.token = t.value ->> 1"
            " JOIN pets AS p ON p.id = i.pet_id",
            (tokens,),
        ).fetchall()
        known = {
            (key_id, token): (digest, Pet(pet_id, name, category_id, status))
            for key_id, token, digest, created, pet_id, name, category_id, status in rows
            if created > now - IDEMPOTENCY_LIFE
        }
        fresh = []
        for add in adds:
            earlier = (
                known.get((add.idempotency_key.key_id, add.idempotency_key.token)) if add.idempotency_key else None
            )
            if add.idempotency_key is None or earlier is None:
                fresh.append(add)
            elif earlier[0] == add.idempotency_key.body_digest:
                add.result = Added(earlier[1], replayed=True)
            else:
                add.result = IdempotencyMismatch("This Idempotency-Key was used before with another body.")
        return fresh

    def _keep_wal_short(self, connection: apsw.Connection) -> None:
        """Readers that come and go without a pause can keep SQLite from starting the log over: then insist."""
        self._batches += 1
        if self._batches % 64:
            return
        with contextlib.suppress(apsw.Error, OSError):
            if self._path.with_name(self._path.name + "-wal").stat().st_size > WAL_MAX:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)


def _begin(connection: apsw.Connection, patience: float) -> None:
    """Have the write lock, in so many seconds. Raises apsw.BusyError."""
    connection.set_busy_timeout(max(0, min(BUSY_MILLISECONDS, int(patience * 1000))))
    try:
        connection.execute("BEGIN IMMEDIATE")
    finally:
        connection.set_busy_timeout(0)


def _rows(adds: Sequence[Add]) -> str:
    return _encode([(add.new.name, add.new.category_id, add.new.status) for add in adds]).decode()


def _insert(connection: apsw.Connection, rows: str, count: int) -> int:
    """The first id: nobody else can insert within the transaction, so the others follow it."""
    connection.execute(
        "INSERT INTO pets (name, category_id, status)"
        " SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?) ORDER BY key",
        (rows,),
    )
    return connection.last_insert_rowid() - count + 1


def _added(add: Any, pet_id: int) -> Added:
    new: NewPet = add.new
    return Added(Pet(pet_id, new.name, new.category_id, new.status), replayed=False)
