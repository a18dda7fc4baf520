"""Adds clients' animals to PostgreSQL in batches. Each batch is a single statement with its own transaction."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

import asyncpg

from petstore.errors import PetstoreError, Unavailable
from petstore.keys import Environment
from petstore.observability.health import Health
from petstore.observability.metrics import STORE_BATCH, STORE_QUEUE
from petstore.pets import Added, IdempotencyKey, NewPet, Pet
from petstore.store.database import IDEMPOTENCY_LIFETIME, Bounds
from petstore.store.freshness import ADDED, Freshness, Numbers
from petstore.store.postgres.pool import Connection, Connections
from petstore.store.schema import IDEMPOTENCY, NEW_PET_COLUMNS, NEW_PET_FIELDS, TYPES, new_pet_row
from petstore.store.writing import AddPet, Records, deliver, first_uses, log_bug, new_records, newly_added, replay

BATCH_MAX = 500  # animals per statement

SEQUENCES = {
    "adders": "adders_id_seq",
    "pets": "pets_id_seq",
    "audit": "audit_id_seq",
}  # the sequence that assigns each table's ids

R = TypeVar("R")


async def watched(health: Health, call: Awaitable[R]) -> R:
    """Awaits a call, and records in `health` whether the store was available."""
    try:
        result = await call
    except Unavailable as outage:
        health.failed(outage)
        raise
    if health.down:
        health.worked()
    return result


def lock_pet_ids(schema: str) -> str:
    """Returns a SQL expression that acquires the lock on animal ids and holds it until the transaction ends."""
    return f"pg_advisory_xact_lock(hashtext('{schema}.pet_ids'))"


def _add_sql(schema: str) -> str:
    """Returns the statement that adds a batch in one transaction.

    The first parameters are arrays, one per column: the columns of a new animal, the API key's id, the idempotency
    token and the body digest. The last two parameters are the current time and a cutoff. Idempotency records created
    at or before the cutoff have expired.

    The lock on animal ids makes batches from other nodes wait. Ids are assigned first, so that the statement can return
    the id of each row. A row whose idempotency key has an unexpired record is not added. If another transaction is
    still writing such a record, this one waits for it. All batches claim records in the same order, so they cannot
    deadlock.
    """
    types = [*(TYPES[field] for field in NEW_PET_FIELDS), "text", "text", "bytea"]
    arrays = ", ".join(f"${place}::{kind}[]" for place, kind in enumerate(types, 1))
    now, oldest = f"${len(types) + 1}", f"${len(types) + 2}"
    record = ", ".join(IDEMPOTENCY.columns)
    replaced = ", ".join(f"{column} = excluded.{column}" for column in IDEMPOTENCY.columns[2:])
    return f"""
WITH locked AS MATERIALIZED (
    SELECT {lock_pet_ids(schema)}
), input AS MATERIALIZED (
    SELECT nextval('{schema}.{SEQUENCES["pets"]}') AS pet_id, {NEW_PET_COLUMNS}, key_id, token, body_digest, place
    FROM locked, unnest({arrays}) WITH ORDINALITY
        AS new ({NEW_PET_COLUMNS}, key_id, token, body_digest, place)
), claimed AS (
    INSERT INTO {schema}.idempotency AS known ({record})
    SELECT key_id, token, body_digest, pet_id, {NEW_PET_COLUMNS}, {now} FROM input
    WHERE token IS NOT NULL ORDER BY key_id, token
    ON CONFLICT (key_id, token) DO UPDATE SET {replaced} WHERE known.created <= {oldest}
    RETURNING pet_id
), inserted AS (
    INSERT INTO {schema}.pets (id, {NEW_PET_COLUMNS}, added_by, added_at)
    SELECT pet_id, {NEW_PET_COLUMNS}, (SELECT a.id FROM {schema}.adders AS a WHERE a.kind = 'key' AND a.name = key_id),
        trunc({now}::float8)
    FROM input
    WHERE token IS NULL OR pet_id IN (SELECT pet_id FROM claimed)
    ORDER BY place
    RETURNING id
)
SELECT input.pet_id, inserted.id IS NOT NULL FROM input LEFT JOIN inserted ON inserted.id = input.pet_id ORDER BY place
"""


def _earlier_sql(schema: str) -> str:
    """Returns the query for existing idempotency records, which contain the animal as it was originally added.

    This is a separate statement, because it must see records that were committed while the batch waited for a lock.
    """
    columns = ", ".join(f"known.{field}" for field in NEW_PET_FIELDS)
    return (
        f"SELECT key_id, token, known.body_digest, known.pet_id, {columns}"
        " FROM unnest($1::text[], $2::text[]) AS wanted (key_id, token)"
        f" JOIN {schema}.idempotency AS known USING (key_id, token)"
    )


class BatchedCreates:
    def __init__(
        self,
        pool: Connections,
        schema: str,
        environment: Environment,
        health: Health,
        freshness: Freshness,
        bounds: Bounds,
    ) -> None:
        self._pool = pool
        self._environment = environment
        self._health = health
        self._freshness = freshness
        self._bounds = bounds
        self._add_sql = _add_sql(schema)
        self._earlier_sql = _earlier_sql(schema)
        old = (
            f"SELECT ctid FROM {schema}.idempotency WHERE created <= $1"
            f" LIMIT {bounds.pruned_records} FOR UPDATE SKIP LOCKED"
        )
        self._prune_sql = f"DELETE FROM {schema}.idempotency WHERE ctid = ANY (ARRAY({old}))"
        self._loop = asyncio.get_running_loop()
        self._waiting: list[AddPet] = []
        self._writing: asyncio.Task[None] | None = None
        self._pruned = 0.0

    def add(
        self,
        new: NewPet,
        now: float,
        idempotency_key: IdempotencyKey | None,
        deadline: float | None,
        key_id: str,
    ) -> "asyncio.Future[Added]":
        """Queues an animal. Raises Unavailable if the queue is full."""
        if len(self._waiting) >= self._bounds.queued_writes:
            self._health.error()
            raise Unavailable("the writer's queue is full")
        future: asyncio.Future[Added] = self._loop.create_future()
        if deadline is None:
            deadline = time.monotonic() + self._bounds.timeouts.deadline
        self._waiting.append(AddPet(future, deadline, new, now, idempotency_key, key_id))
        if self._writing is None:
            self._writing = self._loop.create_task(self._write())
        return future

    async def drain(self) -> None:
        """Waits until the queue is empty and the last batch has finished."""
        while self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write(self) -> None:
        """Writes batches until the queue is empty. Animals queued during a write form the next batch."""
        try:
            while self._waiting:
                count = min(BATCH_MAX, self._bounds.batch)
                batch, self._waiting = self._waiting[:count], self._waiting[count:]
                batch = self._in_time(batch)
                STORE_QUEUE.set(len(batch) + len(self._waiting), self._environment)
                if batch:
                    await self._write_batch(batch)
                if any(add.idempotency_key for add in batch):
                    await self._prune(max(add.now for add in batch))
        finally:
            STORE_QUEUE.set(0, self._environment)
            self._writing = None

    def _in_time(self, batch: list[AddPet]) -> list[AddPet]:
        """Returns the requests with enough time left, rejects those that are too late, and drops cancelled ones."""
        latest = time.monotonic() + self._bounds.timeouts.reserve
        in_time = []
        for add in batch:
            if add.future.done():
                continue
            if add.deadline > latest:
                in_time.append(add)
            else:
                late = Unavailable("the store did not respond in time")
                self._health.failed(late)
                add.future.set_exception(late)
        return in_time

    async def _write_batch(self, batch: list[AddPet]) -> None:
        """Writes a batch, announces the new animals, and then delivers the results."""
        try:
            await watched(self._health, self._pool.run(lambda connection: self._commit(connection, batch)))
            STORE_BATCH.observe(len(batch), self._environment)
            results: list[Added | Exception | None] = [add.result for add in batch]
            new = [result.pet.id for result in results if isinstance(result, Added) and not result.replayed]
            if new:
                await self._freshness.announce(ADDED, Numbers(added=max(new)))
        except PetstoreError as outage:
            # Queued requests would fail for the same reason, so report the error to their callers immediately.
            batch, self._waiting = batch + self._waiting, []
            results = [outage] * len(batch)
        except Exception as bug:
            results = [bug] * len(batch)
        deliver(zip((add.future for add in batch), results, strict=True))

    async def _prune(self, now: float) -> None:
        """Deletes some expired idempotency records. Runs after the results are delivered, so that no caller waits."""
        if now - self._pruned < self._bounds.prune_interval:
            return

        async def work(connection: Connection) -> str:
            status: str = await connection.execute(self._prune_sql, now - IDEMPOTENCY_LIFETIME)
            return status

        try:
            if await self._pool.run(work) == f"DELETE {self._bounds.pruned_records}":
                return  # there may be more expired records; delete them after the next batch
        except Unavailable:
            pass  # the next batch will report the outage
        except Exception as bug:
            log_bug(bug)
        self._pruned = now

    async def _commit(self, connection: Connection, batch: list[AddPet]) -> None:
        try:
            await self._add(connection, batch)
        except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as bug:
            if len(batch) == 1:
                batch[0].result = bug
                return
            for add in batch:  # retry the rows one by one, so that one bad row does not affect the others
                await self._commit(connection, [add])

    async def _add(self, connection: Connection, batch: list[AddPet]) -> None:
        now = max(add.now for add in batch)
        first = first_uses(batch)  # one statement cannot write the same idempotency record twice
        keys = [add.idempotency_key for add in first]
        rows = await connection.fetch(
            self._add_sql,
            *map(list, zip(*(new_pet_row(add.new) for add in first), strict=True)),
            [add.idempotency_key.key_id if add.idempotency_key else add.key_id for add in first],
            [key.token if key else None for key in keys],
            [key.body_digest if key else None for key in keys],
            now,
            now - IDEMPOTENCY_LIFETIME,
        )
        repeated = []
        for add, (pet_id, is_new) in zip(first, rows, strict=True):
            if is_new:
                add.result = newly_added(add.new, pet_id)
            elif add.idempotency_key is not None:
                repeated.append(add.idempotency_key)
        earlier = await self._earlier(connection, repeated) if repeated else {}
        if repeated or len(first) < len(batch):
            replay(batch, earlier | new_records(first))

    async def _earlier(self, connection: Connection, keys: list[IdempotencyKey]) -> Records:
        """Returns the idempotency records written by earlier transactions."""
        rows: list[Any] = await connection.fetch(
            self._earlier_sql, [key.key_id for key in keys], [key.token for key in keys]
        )
        return {(key_id, token): (digest, Pet(*pet)) for key_id, token, digest, *pet in rows}
