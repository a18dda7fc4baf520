"""Adds animals to PostgreSQL: all that waits goes into one multi-row statement, so one commit serves many."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import asyncpg

from petstore.errors import IdempotencyMismatch, Unavailable
from petstore.keys import Environment
from petstore.observability.health import Health
from petstore.observability.metrics import STORE_BATCH, STORE_QUEUE
from petstore.pets import Added, IdempotencyKey, NewPet, Pet
from petstore.store import COMMIT_SECONDS, IDEMPOTENCY_LIFE, PATIENCE, PRUNE_MAX, TICK, OnCommit
from petstore.store.postgres.base import watched
from petstore.store.postgres.pool import STATEMENT_MILLISECONDS, Connection, PostgresPool

BATCH_MAX = 500
QUEUE_MAX = 10_000
PRUNE_EVERY = 60.0

# One statement is one transaction. What waits for its turn meanwhile makes one larger batch. The ids are drawn first,
# so that it is certain which row got which. A row whose idempotency record exists already, and is not too old, is not
# added; if another transaction is just writing that record, this one waits for its end. Records are claimed in one
# order everywhere, so that two batches cannot deadlock.
_ADD = """
WITH turn AS MATERIALIZED (
    SELECT {turn}
), input AS MATERIALIZED (
    SELECT nextval('{schema}.pet_ids') AS id, name, category_id, status, key_id, token, digest, place
    FROM turn, unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bytea[]) WITH ORDINALITY
        AS new (name, category_id, status, key_id, token, digest, place)
), claimed AS (
    INSERT INTO {schema}.idempotency AS known (key_id, token, body_digest, pet_id, status, created)
    SELECT key_id, token, digest, id, status, $7 FROM input WHERE token IS NOT NULL ORDER BY key_id, token
    ON CONFLICT (key_id, token) DO UPDATE
        SET body_digest = excluded.body_digest, pet_id = excluded.pet_id, status = excluded.status,
            created = excluded.created
        WHERE known.created <= $8
    RETURNING pet_id
), added AS (
    INSERT INTO {schema}.pets (id, name, category_id, status)
    SELECT id, name, category_id, status FROM input
    WHERE token IS NULL OR id IN (SELECT pet_id FROM claimed)
    ORDER BY place
    RETURNING id
)
SELECT input.id, added.id IS NOT NULL FROM input LEFT JOIN added USING (id) ORDER BY place
"""

# A statement of its own: it must see what another transaction committed while the first one waited for it.
_EARLIER = """
SELECT wanted.place, known.body_digest, pets.id, pets.name, pets.category_id, known.status
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS wanted (key_id, token, place)
JOIN {schema}.idempotency AS known USING (key_id, token)
JOIN {schema}.pets ON pets.id = known.pet_id
"""


def turn_of(schema: str) -> str:
    """To be waited for before an id is drawn: ids are drawn and committed in the same order on all nodes.

    Otherwise someone could see an animal and only later one with a lower id, which a reader that goes on from there
    would never meet.
    """
    return f"pg_advisory_xact_lock(hashtext('{schema}.pet_ids'))"


class _Job:
    __slots__ = ("due", "future", "idempotency_key", "new", "now")

    def __init__(
        self,
        future: "asyncio.Future[Added]",
        due: float,
        new: NewPet,
        now: float,
        idempotency_key: IdempotencyKey | None,
    ) -> None:
        self.future = future
        self.due = due
        self.new = new
        self.now = now
        self.idempotency_key = idempotency_key


Result = Added | Exception


class PostgresWriter:
    def __init__(
        self, pool: PostgresPool, schema: str, environment: Environment, health: Health, on_commit: OnCommit
    ) -> None:
        self._pool = pool
        self._schema = schema
        self._environment = environment
        self._health = health
        self._on_commit = on_commit
        self._add_sql = _ADD.format(schema=schema, turn=turn_of(schema))
        self._earlier_sql = _EARLIER.format(schema=schema)
        some = f"SELECT ctid FROM {schema}.idempotency WHERE created <= $1 LIMIT {PRUNE_MAX} FOR UPDATE SKIP LOCKED"
        self._prune_sql = f"DELETE FROM {schema}.idempotency WHERE ctid = ANY (ARRAY({some}))"
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Job] = []
        self._writing: asyncio.Task[None] | None = None
        self._pruned = 0.0

    def add(self, new: NewPet, now: float, idempotency_key: IdempotencyKey | None) -> "asyncio.Future[Added]":
        """Raises Unavailable when too many wait already."""
        if len(self._waiting) >= QUEUE_MAX:
            self._health.error()
            raise Unavailable("the writer's queue is full")
        future: asyncio.Future[Added] = self._loop.create_future()
        self._waiting.append(_Job(future, self._loop.time() + PATIENCE, new, now, idempotency_key))
        if self._writing is None:
            self._writing = self._loop.create_task(self._write())
            self._watchdog = self._loop.call_later(TICK, self._watch)
        return future

    def _watch(self) -> None:
        """Nobody waits longer than the patience behind a batch that takes long."""
        self._watchdog = self._loop.call_later(TICK, self._watch)
        self._refuse_late()

    def _refuse_late(self) -> None:
        now = self._loop.time()
        for job in self._waiting:
            if job.due < now and not job.future.done():
                late = Unavailable("the store did not answer in time")
                self._health.failed(late)
                job.future.set_exception(late)

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        """Batch after batch until nobody waits. What comes while one is under way makes the next."""
        try:
            while self._waiting:
                self._refuse_late()
                batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
                batch = [job for job in batch if not job.future.done()]  # without those that have given up
                STORE_QUEUE.set(len(batch) + len(self._waiting), self._environment)
                if batch:
                    await self._settle(batch)
                if any(job.idempotency_key for job in batch):
                    await self._prune(max(job.now for job in batch))
        finally:
            STORE_QUEUE.set(0, self._environment)
            self._writing = None
            self._watchdog.cancel()

    async def _settle(self, batch: list[_Job]) -> None:
        now = self._loop.time()
        patience = min(PATIENCE, batch[0].due + COMMIT_SECONDS - now)  # the first of them has waited for the longest
        try:
            done = self._pool.run(lambda connection: self._commit(connection, batch, now + patience), patience)
            results: Sequence[Result] = await watched(self._health, done)
            STORE_BATCH.observe(len(batch), self._environment)
            if any(isinstance(result, Added) and not result.replayed for result in results):
                await self._on_commit("catalogue")
        except Exception as error:
            # Those who waited behind this batch waited for the same outage: they hear of it now, not later.
            batch, self._waiting = batch + self._waiting, []
            results = [error] * len(batch)
        for job, result in zip(batch, results, strict=True):
            if job.future.done():
                continue
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)

    async def _prune(self, now: float) -> None:
        """Some at a time, after everyone is answered: nobody's animal depends on it."""
        if now - self._pruned < PRUNE_EVERY:
            return

        async def work(connection: Connection) -> str:
            status: str = await connection.execute(self._prune_sql, now - IDEMPOTENCY_LIFE)
            return status

        with contextlib.suppress(Unavailable):
            if await self._pool.run(work) == f"DELETE {PRUNE_MAX}":
                return  # there are more: the next batch goes on
        self._pruned = now

    async def _commit(self, connection: Connection, batch: list[_Job], until: float) -> list[Result]:
        try:
            return await self._add_until(until, connection, batch)
        except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
            if len(batch) == 1:
                return [Unavailable(f"the store refused an animal: {error}")]
            # One bad row never fails its neighbours.
            return [(await self._commit(connection, [job], until))[0] for job in batch]

    async def _add_until(self, until: float, connection: Connection, batch: list[_Job]) -> list[Result]:
        """The server must give up before we do: what waits there for a lock would be added after it was refused."""
        milliseconds = int((until - self._loop.time()) * 1000)
        if milliseconds > STATEMENT_MILLISECONDS:
            return await self._add(connection, batch)  # one statement, whose limit is the connection's
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(f"SET LOCAL statement_timeout = {max(1, milliseconds * 9 // 10)}")
            return await self._add(connection, batch)

    async def _add(self, connection: Connection, batch: list[_Job]) -> list[Result]:
        now = max(job.now for job in batch)
        rows = await connection.fetch(
            self._add_sql,
            [job.new.name for job in batch],
            [job.new.category_id for job in batch],
            [job.new.status for job in batch],
            [job.idempotency_key.key_id if job.idempotency_key else None for job in batch],
            [job.idempotency_key.token if job.idempotency_key else None for job in batch],
            [job.idempotency_key.body_digest if job.idempotency_key else None for job in batch],
            now,
            now - IDEMPOTENCY_LIFE,
        )
        repeated = [job for job, (_, fresh) in zip(batch, rows, strict=True) if not fresh]
        earlier = iter(await self._earlier(connection, repeated) if repeated else ())
        return [
            _added(job.new, pet_id) if fresh else next(earlier)
            for job, (pet_id, fresh) in zip(batch, rows, strict=True)
        ]

    async def _earlier(self, connection: Connection, jobs: list[_Job]) -> list[Result]:
        """The answers to requests that repeat an earlier one."""
        promises = [job.idempotency_key for job in jobs if job.idempotency_key]
        rows: list[Any] = await connection.fetch(
            self._earlier_sql,
            [idempotency_key.key_id for idempotency_key in promises],
            [idempotency_key.token for idempotency_key in promises],
        )
        found = {place: rest for place, *rest in rows}
        results: list[Result] = []
        for place, idempotency_key in enumerate(promises, 1):
            if place not in found:  # pruned within this very moment: the client's next try adds it
                results.append(Unavailable("an idempotency record vanished"))
                continue
            digest, pet_id, name, category_id, status = found[place]
            if digest == idempotency_key.body_digest:
                results.append(Added(Pet(pet_id, name, category_id, status), replayed=True))
            else:
                results.append(IdempotencyMismatch("This Idempotency-Key was used before with another body."))
        return results


def _added(new: NewPet, pet_id: int) -> Added:
    return Added(Pet(pet_id, new.name, new.category_id, new.status), replayed=False)
