"""Reads and writes idempotency records in SQLite, in the same transaction as the animals."""

from functools import lru_cache
from itertools import chain
from typing import Any

import apsw

from petstore.pets import Added, Pet
from petstore.store.database import IDEMPOTENCY_LIFETIME, Bounds
from petstore.store.schema import IDEMPOTENCY, NEW_PET_FIELDS, new_pet_row
from petstore.store.sqlite.rows import ROWS_MAX, portions, rows_sql
from petstore.store.writing import AddPet, Records


@lru_cache(maxsize=ROWS_MAX)
def _find_sql(names: int) -> str:
    # The query returns each animal as it was originally added.
    return (
        f"SELECT i.key_id, i.token, i.body_digest, i.pet_id, {', '.join(f'i.{field}' for field in NEW_PET_FIELDS)}"
        f" FROM ({rows_sql(('key_id', 'token'), names)}) AS n"
        " CROSS JOIN idempotency AS i ON i.key_id = n.key_id AND i.token = n.token WHERE i.created > ?"
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
        """Returns the records written by earlier requests with the same idempotency keys."""
        names = {add.idempotency_key.name for add in adds if add.idempotency_key}
        if not names:
            return {}
        now = max(add.now for add in adds)
        self._prune(connection, now)
        rows: list[Any] = []
        for some in portions(list(names)):
            values = [*chain.from_iterable(some), now - IDEMPOTENCY_LIFETIME]
            rows += connection.execute(_find_sql(len(some)), values).fetchall()
        return {(key_id, token): (digest, Pet(*pet)) for key_id, token, digest, *pet in rows}

    def remember(self, connection: apsw.Connection, adds: list[AddPet]) -> None:
        """Writes idempotency records for animals that have just been added."""
        records = [
            (*key, add.result.pet.id, *new_pet_row(add.new), add.now)
            for add in adds
            if (key := add.idempotency_key) and isinstance(add.result, Added)
        ]
        if records:
            # Use REPLACE, because an expired record may not have been pruned yet.
            connection.executemany(_REMEMBER, records)

    def _prune(self, connection: apsw.Connection, now: float) -> None:
        if now - self._pruned < self._bounds.prune_interval:
            return
        connection.execute(
            "DELETE FROM idempotency WHERE (key_id, token) IN"
            " (SELECT key_id, token FROM idempotency WHERE created <= ? LIMIT ?)",
            (now - IDEMPOTENCY_LIFETIME, self._bounds.pruned_records),
        )
        if connection.changes() < self._bounds.pruned_records:  # otherwise, the next batch prunes more records
            self._pruned = now
