"""Idempotency records in SQLite, which the writer reads and writes in the same transaction as the animals."""

from typing import Any

import apsw
import msgspec

from petstore.pets import Added, Pet
from petstore.store.limits import IDEMPOTENCY_LIFETIME, StoreLimits
from petstore.store.writing import AddPet, replayed


class IdempotencyRecords:
    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._pruned = 0.0

    def without_replays(self, connection: apsw.Connection, adds: list[AddPet]) -> list[AddPet]:
        """Gives a result to those that repeat an earlier request, and returns the others."""
        keys = [add.idempotency_key for add in adds if add.idempotency_key]
        if not keys:
            return adds
        now = max(add.now for add in adds)
        self._prune(connection, now)
        # The record has the status of the animal when it was added. Name and category, too, are those of then.
        rows: list[Any] = connection.execute(
            "SELECT i.key_id, i.token, i.body_digest,"
            "  i.pet_id, coalesce(c.name, p.name), coalesce(c.category_id, p.category_id), i.status"
            " FROM json_each(?) AS t"
            " JOIN idempotency AS i ON i.key_id = t.value ->> 0 AND i.token = t.value ->> 1"
            " LEFT JOIN pets AS p ON p.id = i.pet_id LEFT JOIN changed_pets AS c ON c.id = i.pet_id"
            " WHERE i.created > ? AND coalesce(c.id, p.id) IS NOT NULL",
            (msgspec.json.encode([(key.key_id, key.token) for key in keys]).decode(), now - IDEMPOTENCY_LIFETIME),
        ).fetchall()
        known = {(key_id, token): (digest, Pet(*pet)) for key_id, token, digest, *pet in rows}
        new = []
        for add in adds:
            key = add.idempotency_key
            if key is None or (key.key_id, key.token) not in known:
                new.append(add)
            else:
                add.result = replayed(key, *known[key.key_id, key.token])
        return new

    def remember(self, connection: apsw.Connection, adds: list[AddPet]) -> None:
        """Of animals that were just added."""
        records = [
            (key.key_id, key.token, key.body_digest, add.result.pet.id, add.new.status, add.now)
            for add in adds
            if (key := add.idempotency_key) and isinstance(add.result, Added)
        ]
        if records:
            # REPLACE: a record whose life is over may still be there.
            connection.executemany("REPLACE INTO idempotency VALUES (?, ?, ?, ?, ?, ?)", records)

    def _prune(self, connection: apsw.Connection, now: float) -> None:
        if now - self._pruned < self._limits.prune_interval:
            return
        connection.execute(
            "DELETE FROM idempotency WHERE (key_id, token) IN"
            " (SELECT key_id, token FROM idempotency WHERE created <= ? LIMIT ?)",
            (now - IDEMPOTENCY_LIFETIME, self._limits.pruned_records),
        )
        if connection.changes() < self._limits.pruned_records:  # otherwise there are more, for the next batch
            self._pruned = now
