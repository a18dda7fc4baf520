"""The store of one environment: protocols for animals, keys, audit log, usage and operators, and opening by URL."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from petstore import settings
from petstore.audit import AuditEntry, FoundEntries
from petstore.errors import MissingPackage, OperatorError
from petstore.keys import ApiKey, Environment, KeyChanges, KeyQuery, KeySort
from petstore.operations import OperationName
from petstore.operators import Operator, Role
from petstore.pets import Added, Found, IdempotencyKey, Import, NewPet, Page, Pet, PetChanges, PetStatus, Undone
from petstore.store.limits import StoreLimits
from petstore.store.schema import Row, Table
from petstore.usage import (
    END_OF_TIME,
    AdmissionTotal,
    Interval,
    KeyTotal,
    OperationUsage,
    RecentError,
    TotalUsage,
    Usage,
)

Subject = Literal["catalogue", "keys"]
# Called after a commit and before its caller gets an answer, with what has changed.
OnCommit = Callable[[Subject], Awaitable[None]]


class Catalogue(Protocol):
    """The animals of one environment.

    Every change that `page` and `pet` return has been announced: the catalogue's version was raised after its commit.
    So no client sees a change that another client, served from a cache, cannot see afterwards.
    """

    immediate: bool  # whether reads return without waiting for anything

    async def page(self, *, after: int, limit: int, status: PetStatus | None) -> Page:
        """Animals with an id above `after`, ascending: the same cost wherever the page lies."""

    async def search(self, text: str, *, after: int, limit: int, status: PetStatus | None) -> Found:
        """Animals above the id `after` whose name contains `text`, ascending. One call reads SEARCH_STEP at most."""

    async def newest_pets(
        self, *, before: int | None = None, limit: int, status: PetStatus | None = None, text: str = ""
    ) -> Found:
        """The same from the highest id downwards: animals with an id below `before`."""

    async def pet(self, pet_id: int) -> Pet | None: ...

    async def latest_change(self) -> int:
        """The number of the latest change that was not just a client's new animal."""

    async def add(self, new: NewPet, now: float, idempotency_key: IdempotencyKey | None = None) -> Added:
        """Returns when the animal is on disk and visible to every reader.

        Raises IdempotencyMismatch when `idempotency_key` was used with another body, IdempotencyConflict while its
        first request is in flight.
        """

    async def add_by_hand(self, new: NewPet, entry: AuditEntry) -> Pet:
        """Add an animal together with an audit entry, which has its id as the subject and its values as the detail."""

    async def set_status(self, pet_ids: Sequence[int], status: PetStatus, entry: AuditEntry) -> list[Pet]:
        """Those of the animals that exist, with this status. Each that had another one gets an audit entry."""

    async def update_pet(self, pet_id: int, changes: PetChanges, entry: AuditEntry) -> Pet | None:
        """The changed animal; None when there is none of this id."""

    async def remove_pets(self, pet_ids: Sequence[int], entry: AuditEntry) -> list[Pet]:
        """The removed animals: those that existed. Each gets an audit entry with its values.

        Their ids are never given out again. A repeated create of one is still answered with the original.
        """

    async def restore_pets(self, pets: Sequence[Pet], entry: AuditEntry) -> list[Pet]:
        """Add removed animals again under their ids: those that were missing. Each gets an audit entry."""

    async def import_pets(
        self, batches: AsyncIterator[list[NewPet]], entry: AuditEntry, sha256: Callable[[], str] = lambda: ""
    ) -> Import:
        """Add all animals, which appear at one moment; or none, when the iterator raises.

        `entry` names the file as its subject. `sha256` is called after the last batch. Raises OperatorError when the
        store failed or its disk is almost full: then nothing was added.
        """

    async def find_import(self, import_id: str) -> Import | None: ...

    async def imports(self, *, before: tuple[float, str] | None = None, limit: int = 100) -> list[Import]:
        """The newest first; `before` is the time and the id of the last one on the previous page."""

    async def undo_import(self, import_id: str, entry: AuditEntry) -> Undone | None:
        """Remove the animals of an import that no operator has changed since. None when it cannot be undone.

        An undoing that was interrupted goes on. `entry` is recorded at the beginning, and gets the numbers of animals
        in its detail.
        """

    async def undo_progress(self, import_id: str) -> Undone | None:
        """What the undoing of this import has removed and has still to remove. None for an unknown import."""

    async def tidy(self) -> None:
        """Finish or remove what imports have left that were interrupted; to be called about once a minute."""

    async def count(self) -> dict[PetStatus, int]:
        """Takes the longer the more animals there are: not for a request's path."""


class KeyStore(Protocol):
    """The keys of one environment."""

    async def find_key(self, digest: bytes) -> ApiKey | None:
        """The key with this hash of a secret, usable or not; `expires` is the earlier of the key's and the secret's."""

    async def latest_key_change(self) -> int:
        """A number that every change of a key raises; adding one need not."""

    async def key(self, key_id: str) -> ApiKey | None: ...

    async def keys(self, *, after: str = "", limit: int = 1000) -> list[ApiKey]:
        """Keys in the order of their ids."""

    async def find_keys(
        self, query: KeyQuery, *, now: float, sort: KeySort = "created", after: ApiKey | None = None, limit: int = 100
    ) -> list[ApiKey]:
        """Keys: newest first, by name, or last used first. `after` is the last key of the previous page."""

    async def keys_by_id(self, key_ids: Sequence[str]) -> dict[str, ApiKey]:
        """The keys of these ids that exist."""

    async def add_key(self, key: ApiKey, digest: bytes, entry: AuditEntry, *, only_first: bool = False) -> bool:
        """Whether the key was added: with `only_first`, only when there is no key yet."""

    async def update_key(self, key_id: str, changes: KeyChanges, entry: AuditEntry) -> ApiKey | None:
        """The changed key; None when there is none of this id."""

    async def rotate_key(self, key_id: str, digest: bytes, old_until: float, entry: AuditEntry) -> None:
        """Give the key a new secret; the old secrets work until `old_until`."""

    async def revoke_key(self, key_id: str, entry: AuditEntry) -> None: ...


class AuditLog(Protocol):
    async def record(self, entry: AuditEntry) -> None: ...

    async def find_entries(
        self,
        *,
        before: int | None = None,
        limit: int = 100,
        actor: str = "",
        action: str = "",
        subject: str = "",
        text: str = "",
    ) -> FoundEntries:
        """Entries with this action and subject, whose actor contains `actor`, and whose subject or detail `text`.

        One call searches at most SEARCH_STEP entries.
        """


class UsageStore(Protocol):
    """With an `operation`, usage counts from the version on that first kept it by operation."""

    async def add_usage(self, rows: Sequence[OperationUsage], last_used: dict[str, float]) -> None:
        """Add each row to the minute, the hour and the day that contain its `start`, and delete rows past their age.

        Rows of ANONYMOUS count only in the total. A row may take requests away, to move them to another class.
        """

    async def add_admissions(self, totals: Sequence[AdmissionTotal], at: int, *, late: bool = False) -> None:
        """Add what each total has grown by since it was last given, as class `ok` at `at`.

        `late`: a worker that was killed may have counted them, so `at` is also the last use that is known.

        Each admission is added once, however often and in whatever order totals are given, by any process: the
        store keeps the highest total of each epoch in the same transaction.
        """

    async def add_errors(self, errors: Sequence[RecentError]) -> None:
        """Keep the newest RECENT_ERRORS of each key."""

    async def recent_errors(self, key_id: str) -> list[RecentError]:
        """Those that are kept, the newest first."""

    async def usage_of(
        self, key_ids: Sequence[str], interval: Interval, starts: Sequence[int], operation: OperationName | None = None
    ) -> list[Usage]:
        """The usage of these keys in the intervals that began at `starts`."""

    async def busiest(
        self,
        *,
        interval: Interval,
        since: int,
        until: int = END_OF_TIME,
        limit: int,
        after: str = "",
        operation: OperationName | None = None,
    ) -> list[KeyTotal]:
        """Keys by their requests from `since` on and before `until`, most first; `after` ended the previous page."""

    async def total_usage(self, *, interval: Literal[60, 3600], since: int) -> list[TotalUsage]: ...


class Operators(Protocol):
    async def find_operator(self, digest: bytes) -> Operator | None:
        """The operator whose token has this hash, unless revoked."""

    async def operator(self, name: str) -> Operator | None: ...

    async def operators(self) -> list[Operator]:
        """All operators by name, revoked ones included."""

    async def add_operator(self, operator: Operator, digest: bytes, entry: AuditEntry) -> bool:
        """False when an operator of that name exists and is not revoked."""

    async def set_role(self, name: str, role: Role, entry: AuditEntry) -> bool:
        """False when no operator of that name exists, or the operator is revoked."""

    async def revoke_operator(self, name: str, entry: AuditEntry) -> bool:
        """False when no operator of that name exists, or the operator is revoked already."""


class Transfer(Protocol):
    """Rows as they are, for `petstore copy` and for the data of a demo."""

    async def rows(self, table: Table, after: Row | None, limit: int) -> list[Row]:
        """In the order of the table's key, from behind `after` on."""

    async def last_row(self, table: Table) -> Row | None: ...

    async def put_rows(self, table: Table, rows: Sequence[Row]) -> None:
        """Adds all or nothing. Rows come in the order of their key; ids that are given out later are higher."""

    async def put_all(self, rows: Mapping[Table, Sequence[Row]]) -> bool:
        """Add all rows at once, if the store has no animal, key or audit entry: whether this process did so."""

    async def copying_from(self) -> str | None:
        """The source of a copy into this store that is not finished."""

    async def set_copying_from(self, source: str | None) -> None: ...


class Store(Catalogue, KeyStore, AuditLog, UsageStore, Operators, Transfer, Protocol):
    """One environment's store. Every method raises Unavailable when it cannot answer."""

    @property
    def environment(self) -> Environment: ...

    async def ping(self) -> None:
        """Returns when the store can be read."""

    async def drain(self) -> None:
        """Returns when every write that was accepted is answered."""

    async def close(self) -> None:
        """Drains and closes. Stores that were opened together share connections: use `close_stores`."""


class StorePolicy(NamedTuple):
    """What the operator may set for PostgreSQL. `serving`: the callers are clients, not an operator."""

    pool_size: int = 8
    pgbouncer: bool = False
    serving: bool = False
    limits: StoreLimits = StoreLimits()


def open_stores(
    url: str | None, data: Path, policy: StorePolicy, on_commit: Callable[[Environment], OnCommit]
) -> dict[Environment, Store]:
    """The stores behind a URL; without one, SQLite files in the data directory. To be called inside the event loop.

    Raises OperatorError for a URL that it cannot understand, or for a store that a newer version has written; then
    nothing is left open.
    """
    if url is None:
        from petstore.store import sqlite

        return sqlite.open_stores(data, policy.limits, on_commit)
    scheme = check_url(url)
    try:
        from petstore.store import postgres
    except ImportError as error:
        raise MissingPackage(f"--store {scheme}", error.name, "cluster") from None
    return postgres.open_stores(url, policy, on_commit)


async def close_stores(stores: Iterable[Store]) -> None:
    """Close stores that were opened together: no connection is closed while one of them has a write in flight."""
    each = list(stores)
    await asyncio.gather(*(store.drain() for store in each))
    await asyncio.gather(*(store.close() for store in each))


def check_url(url: str) -> str:
    """The URL's scheme. Raises OperatorError, with a message that never contains the password."""
    settings.check_url("--store", url)
    scheme = url.partition("://")[0] if "://" in url else "without a scheme"
    if scheme not in ("postgresql", "postgres"):
        raise OperatorError(f"--store {scheme}: not a store that Petstore knows; give postgresql://user@host/database")
    return scheme
