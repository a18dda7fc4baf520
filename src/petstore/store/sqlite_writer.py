"""The one writer of a process: a thread that puts all that waits into one transaction, so one fsync serves many.

SQLite releases the interpreter's lock at every step, and getting it back from a busy event loop costs far more than
an insert. So a batch of animals is one statement, whatever its size: the rows travel as one JSON array.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import apsw
import msgspec

from petstore.errors import IdempotencyMismatch, PetstoreError, Unavailable
from petstore.pets import Added, NewPet, Once, Pet, PetStatus
from petstore.store import PATIENCE, OnCommit, Subject
from petstore.store.sqlite_file import Turn, connect, translated

BATCH_MAX = 1_000
QUEUE_MAX = 10_000
WAL_MAX = 32 * 1024 * 1024
IDEMPOTENCY_LIFE = 86_400.0
PRUNE_EVERY = 60.0

T = TypeVar("T")
_encode = msgspec.json.encode


class Job(Generic[T]):
    """Something to be written: what came of it goes to `future`."""

    __slots__ = ("due", "future", "result")

    def __init__(self, future: asyncio.Future[T], patience: float = PATIENCE) -> None:
        self.future = future
        self.due = time.monotonic() + patience
        self.result: T | PetstoreError = Unavailable("not written")


class Add(Job[Added]):
    __slots__ = ("new", "now", "once")

    def __init__(self, future: asyncio.Future[Added], new: NewPet, now: float, once: Once | None) -> None:
        super().__init__(future)
        self.new = new
        self.now = now
        self.once = once


class Call(Job[Any]):
    """Any other write: a function of the connection, inside the transaction."""

    __slots__ = ("changes", "work")

    def __init__(
        self,
        future: asyncio.Future[Any],
        work: Callable[[apsw.Connection], Any],
        changes: Subject | None,
        patience: float,
    ) -> None:
        super().__init__(future, patience)
        self.work = work
        self.changes = changes


class Writer:
    def __init__(self, path: Path, on_commit: OnCommit) -> None:
        self._path = path
        self._on_commit = on_commit
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Add | Call | None] = queue.SimpleQueue()
        self._waiting: set[Add | Call] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._pruned = 0.0
        self._batches = 0
        self._turn = Turn(path)
        self._watchdog = self._loop.call_later(PATIENCE / 3, self._watch)
        self._thread = threading.Thread(target=self._run, name=f"writer-{path.stem}", daemon=True)
        self._thread.start()

    async def add(self, new: NewPet, now: float, once: Once | None) -> Added:
        added: Added = await self._submit(Add(self._loop.create_future(), new, now, once))
        return added

    async def call(
        self, work: Callable[[apsw.Connection], T], changes: Subject | None = None, patience: float = PATIENCE
    ) -> T:
        """Run `work` in a transaction; `changes` names what readers must be told of."""
        result: T = await self._submit(Call(self._loop.create_future(), work, changes, patience))
        return result

    async def _submit(self, job: Add | Call) -> Any:
        if len(self._waiting) >= QUEUE_MAX:
            raise Unavailable("the writer's queue is full")
        self._waiting.add(job)
        self._queue.put(job)
        return await job.future

    def _watch(self) -> None:
        """Nobody waits longer than the patience for a disk or a lock that hangs."""
        self._watchdog = self._loop.call_later(PATIENCE / 3, self._watch)
        now = time.monotonic()
        for job in [job for job in self._waiting if job.due < now]:
            self._waiting.discard(job)
            if not job.future.done():
                job.future.set_exception(Unavailable("the writer did not answer in time"))

    async def close(self) -> None:
        """Writes what is queued, then stops."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        while self._settling:
            await asyncio.wait(self._settling)
        self._watchdog.cancel()

    async def _settle(self, batch: list[Add | Call], changed: set[Subject]) -> None:
        """Tell the gate, then everyone who waits. On the event loop."""
        failure: Unavailable | None = None
        for subject in changed:
            try:
                await self._on_commit(subject)
            except Unavailable as error:
                failure = error
        for job in batch:
            self._waiting.discard(job)
            if job.future.done():
                continue  # its client has gone, or waited too long
            result = failure or job.result
            if isinstance(result, PetstoreError):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)

    def _start_settling(self, batch: list[Add | Call], changed: set[Subject]) -> None:
        task = self._loop.create_task(self._settle(batch, changed))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    # From here on: the writer's thread.

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        closing = False
        while not closing:
            batch, closing = self._next_batch()
            changed: set[Subject] = set()
            try:
                connection = connection or connect(self._path)
                with self._turn:
                    changed = self._commit(connection, batch)
            except Exception as error:
                fault = translated(error)
                for job in batch:
                    job.result = fault
                if connection is not None and connection.in_transaction:
                    with contextlib.suppress(apsw.Error):
                        connection.execute("ROLLBACK")
            with contextlib.suppress(RuntimeError):  # the loop is gone: nobody is left to be told
                self._loop.call_soon_threadsafe(self._start_settling, batch, changed)
            if connection is not None:
                self._keep_wal_short(connection)
        if connection is not None:
            connection.close()

    def _next_batch(self) -> tuple[list[Add | Call], bool]:
        """Waits for a job, then takes all that wait; the second value tells whether they were the last."""
        jobs = [self._queue.get()]
        with contextlib.suppress(queue.Empty):
            while len(jobs) < BATCH_MAX:
                jobs.append(self._queue.get_nowait())
        return [job for job in jobs if job is not None and not job.future.done()], None in jobs

    def _commit(self, connection: apsw.Connection, batch: list[Add | Call]) -> set[Subject]:
        changed: set[Subject] = set()
        connection.execute("BEGIN IMMEDIATE")
        adds = [job for job in batch if isinstance(job, Add)]
        if adds and self._insert(connection, adds):
            changed.add("catalogue")
        for job in batch:
            if isinstance(job, Call):
                try:
                    with connection:  # a savepoint: a call that fails takes nothing else with it
                        job.result = job.work(connection)
                    if job.changes:
                        changed.add(job.changes)
                except Exception as error:
                    job.result = translated(error)
        connection.execute("COMMIT")
        return changed

    def _insert(self, connection: apsw.Connection, adds: list[Add]) -> bool:
        fresh = self._without_replays(connection, adds) if any(add.once for add in adds) else adds
        if not fresh:
            return False
        rows = _encode([(add.new.name, add.new.category_id, add.new.status.value) for add in fresh]).decode()
        connection.execute(
            "INSERT INTO pets (name, category_id, status)"
            " SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?) ORDER BY key",
            (rows,),
        )
        # Nobody else can insert within this transaction, so the new ids are consecutive.
        first = connection.last_insert_rowid() - len(fresh) + 1
        promises = []
        for pet_id, add in enumerate(fresh, first):
            new, once = add.new, add.once
            add.result = Added(Pet(pet_id, new.name, new.category_id, new.status), replayed=False)
            if once:
                promises.append((once.key_id, once.token, once.body_digest, pet_id, new.status.value, add.now))
        if promises:
            # REPLACE: a record older than its life may still be there.
            connection.executemany("REPLACE INTO idempotency VALUES (?, ?, ?, ?, ?, ?)", promises)
        return True

    def _without_replays(self, connection: apsw.Connection, adds: list[Add]) -> list[Add]:
        """Answers the jobs that repeat an earlier request, and returns the others."""
        now = max(add.now for add in adds)
        if now - self._pruned >= PRUNE_EVERY:
            connection.execute("DELETE FROM idempotency WHERE created <= ?", (now - IDEMPOTENCY_LIFE,))
            self._pruned = now
        tokens = _encode([(add.once.key_id, add.once.token) for add in adds if add.once]).decode()
        rows: list[Any] = connection.execute(
            "SELECT i.key_id, i.token, i.body_digest, i.created, p.id, p.name, p.category_id, i.status"
            " FROM json_each(?) AS t"
            " JOIN idempotency AS i ON i.key_id = t.value ->> 0 AND i.token = t.value ->> 1"
            " JOIN pets AS p ON p.id = i.pet_id",
            (tokens,),
        ).fetchall()
        known = {
            (key_id, token): (digest, Pet(pet_id, name, category_id, PetStatus(status)))
            for key_id, token, digest, created, pet_id, name, category_id, status in rows
            if created > now - IDEMPOTENCY_LIFE
        }
        fresh = []
        for add in adds:
            earlier = known.get((add.once.key_id, add.once.token)) if add.once else None
            if add.once is None or earlier is None:
                fresh.append(add)
            elif earlier[0] == add.once.body_digest:
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
