"""Idempotency records in SQLite, which the writer reads and writes in the same transaction as the animals."""

from typing import Any

import apsw
import msgspec

from petstore.pets import Added, Pet
from petstore.store.database import IDEMPOTENCY_LIFETIME, Bounds
from petstore.store.schema import IDEMPOTENCY, NEW_PET_FIELDS, new_pet_row
from petstore.store.writing import AddPet, Records

# The animal as it was when it was added, whatever became of it.
_FIND = (
    f"SELECT i.key_id, i.token, i.body_digest, i.pet_id, {', '.join(f'i.{field}' for field in NEW_PET_FIELDS)}"
    " FROM json_each(?) AS t JOIN idempotency AS i ON i.key_id = t.value ->> 0 AND i.token = t.value ->> 1"
    " WHERE i.created > ?"
)
_REMEMBER = (
    f"REPLACE INTO idempotency ({', '.join(IDEMPOTENCY.columns)})"
    f" VALUES ({', '.join('?' for _ in IDEMPOTENCY.columns)})"
)


class IdempotencyRecords:
    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._pruned = 0.0

    def find(self, connection: apsw.Connection, adds: list[AddPet]) -> Records:
        """The records of earlier requests with the same idempotency keys."""
        names = {add.idempotency_key.name for add in adds if add.idempotency_key}
        if not names:
            return {}
        now = max(add.now for add in adds)
        self._prune(connection, now)
        rows: list[Any] = connection.execute(
            _FIND, (msgspec.json.encode(list(names)).decode(), now - IDEMPOTENCY_LIFETIME)
        ).fetchall()
        return {(key_id, token): (digest, Pet(*pet)) for key_id, token, digest, *pet in rows}

    def remember(self, connection: apsw.Connection, adds: list[AddPet]) -> None:
        """Writes the records of animals that were just added."""
        records = [
            (*key, add.result.pet.id, *new_pet_row(add.new), add.now)
            for add in adds
            if (key := add.idempotency_key) and isinstance(add.result, Added)
        ]
        if records:
            # REPLACE: an expired record may still be there.
            connection.executemany(_REMEMBER, records)

    def _prune(self, connection: apsw.Connection, now: float) -> None:
        if now - self._pruned < self._bounds.prune_interval:
            return
        connection.execute(
            "DELETE FROM idempotency WHERE (key_id, token) IN"
            " (SELECT key_id, token FROM idempotency WHERE created <= ? LIMIT ?)",
            (now - IDEMPOTENCY_LIFETIME, self._bounds.pruned_records),
        )
        if connection.changes() < self._bounds.pruned_records:  # otherwise there are more, for the next batch
            self._pruned = now
