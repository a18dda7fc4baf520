"""How long a store may take, and how much may wait for it: the same on every backend. Times are in seconds."""

from typing import NamedTuple

from petstore.usage import USAGE_DAYS

IDEMPOTENCY_LIFETIME = 86_400.0
OPERATOR_TIMEOUT = 3600.0  # for a statement of an operator's command, which may take the longer the more there is


class Bounds(NamedTuple):
    """A client gets its answer within two seconds, so the defaults add up to less."""

    queued_writes: int = 10_000
    batch: int = 1_000  # writes in one transaction
    queued_reads: int = 1_000  # requests that wait for a connection to PostgreSQL

    request_timeout: float = 1.5  # from the call until the store begins to answer
    commit_timeout: float = 0.3  # for a write that was begun, beyond its request_timeout
    check_interval: float = 0.1  # between two looks for writes whose time is over
    # Shorter than request_timeout, so that the database names the reason before the caller gives up.
    busy_timeout: float = 1.2  # of SQLite, for a lock
    statement_timeout: float = 1.35  # of PostgreSQL
    connect_timeout: float = 1.2
    disconnect_timeout: float = 0.2
    idle_transaction_timeout: float = 5.0  # a client that is silent for so long is gone, and others wait for its locks

    pruned_records: int = 1_000  # idempotency records that are deleted at once
    prune_interval: float = 60.0
    search_step: int = 25_000  # rows that one search reads
    import_chunk: int = 2_000  # animals of an import in one transaction, so that creates do not wait long for the next
    # Bytes that an import leaves free on SQLite's disk: for the log while its animals are removed, and for the creates
    # of others.
    import_free_bytes: int = 32 * 1024 * 1024
    usage_days: int = USAGE_DAYS  # for which the usage of keys is kept by the hour
