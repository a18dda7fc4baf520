"""The gate, which takes one atomic step in shared state for each request, and its protocol.

`admit` checks the ban, the minute limit and the day limit. In the same step, it compares the version of the keys and
returns the versions of the catalogue. A worker uses a cached page only if the page is valid for these versions.
"""

import ipaddress
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from petstore.changes import Change
from petstore.errors import MissingPackage, OperatorError
from petstore.keys import Environment
from petstore.operations import COUNTED, OperationName
from petstore.plans import Limits
from petstore.rate_limits import SECOND, BanPolicy, Decision, Windows, used
from petstore.usage import AdmissionTotal

# Files in the data directory. With a gate in Redis, the second file is used while Redis is unavailable.
GATE_FILE, FALLBACK_FILE = "gate.mdb", "gate-outage.mdb"

VALID_SECONDS = 30 * 86_400  # how long `mark_valid` keeps a mark
DIGEST_LENGTH = 16  # bytes of the digest in the name of a mark

REDIS_SCHEMES = (
    "redis", "valkey", "redis+sentinel", "redis+cluster",
    "rediss", "valkeys", "rediss+sentinel", "rediss+cluster",
)  # fmt: skip

CatalogueVersion = tuple[int, int]  # the versions of `added` and of `edited`


class Ban(NamedTuple):
    """An active ban. Times are in Unix seconds."""

    key_id: str
    since: float
    until: float
    times: int


class Gate(Protocol):
    """Every method except `close` raises Unavailable if the gate is unavailable. `now` is in Unix seconds."""

    immediate: bool  # whether calls return without waiting for another machine

    def admit(
        self,
        environment: Environment,
        key_id: str,
        limits: Limits,
        keys_version: int,
        now: float,
        operation: OperationName,
    ) -> Awaitable[tuple[Decision, CatalogueVersion] | None]:
        """Decides on one request with a key. Returns the decision and the versions of the catalogue at that time.

        If the request is admitted, the same step also counts it for the operation (see `admissions`).

        `keys_version` is the version at which the caller read `limits`. If a key has changed since then, the gate
        decides and counts nothing and returns None. The caller then rereads the key.
        """

    def admit_address(self, environment: Environment, address: str, now: float) -> Awaitable[Decision]:
        """Decides on one request without a valid key."""

    async def peek_address(self, environment: Environment, address: str, now: float) -> Decision:
        """Returns the decision that a request would get, without counting it."""

    async def keys_version(self, environment: Environment) -> int: ...

    async def announce(self, environment: Environment, changes: Collection[Change]) -> None:
        """Increments the versions of these changes in one step. Values that workers cached earlier become stale."""

    async def mark_valid(self, digest: bytes, now: float, *, valid: bool) -> None:
        """Marks the key with this digest as valid for 30 days, for all workers, or removes the mark."""

    async def was_valid(self, digest: bytes) -> bool:
        """Whether a worker has marked the key with this digest as valid."""

    async def lift(self, key_id: str) -> bool:
        """Ends a key's ban and forgets its earlier bans. Returns False if there are none."""

    async def windows(self, key_ids: Sequence[str]) -> list[Windows]:
        """Returns the windows of each key, in the order of the ids."""

    def all_windows(self) -> AsyncIterator[list[tuple[str, Windows]]]:
        """Yields the windows of all keys in batches. A key may appear twice."""

    async def put_windows(self, rows: Iterable[tuple[str, Windows]]) -> None:
        """Replaces the windows of these keys but keeps their admission counts."""

    def admissions(self, key_ids: Sequence[str] | None = None) -> AsyncIterator[list[AdmissionTotal]]:
        """Yields the admission totals of these keys, or of all keys, in batches. A total may appear twice."""

    def degraded(self) -> bool:
        """Whether the fallback is in use, so that limits apply per node."""

    async def sweep(self, now: float) -> None:
        """Removes some of the expired records. Called about once a second."""

    async def close(self) -> None:
        """Closes files and connections. Can be called at any time, and twice. Calls in flight get Unavailable."""


class GatePolicy(NamedTuple):
    """The operator's settings for the gate.

    `given_clock` makes a gate in Redis use the `now` of each call, for tests. `counted` lists the operations for which
    admissions are counted, in the order of their numbers.
    """

    bans: BanPolicy = BanPolicy()
    address_per_minute: int = 600
    outage: Literal["degrade", "refuse"] = "degrade"
    given_clock: bool = False
    counted: tuple[OperationName, ...] = COUNTED


def gate_file(url: str | None, data: Path) -> Path:
    """Returns the LMDB file on this machine: the gate, or the fallback of a gate in Redis."""
    return data / (GATE_FILE if url is None else FALLBACK_FILE)


def open_gate(url: str | None, data: Path, policy: GatePolicy) -> Gate:
    """Opens the gate at a URL, or the file in the data directory. Must be called in a running event loop.

    Raises OperatorError if the URL is not valid or this version does not recognise the file, and Unavailable if the
    file cannot be opened.
    """
    if url is None:
        from petstore.gate.lmdb import LmdbGate

        return LmdbGate(gate_file(url, data), policy)
    scheme = url.partition("://")[0] if "://" in url else "without a scheme"
    if scheme not in REDIS_SCHEMES:
        raise OperatorError(f"--gate {scheme}: not supported; give a URL like redis://host:6379/0")
    try:
        from petstore.gate.redis import RedisGate
        from petstore.gate.redis_url import open_link
    except ImportError as error:
        raise MissingPackage(f"--gate {scheme}", error.name, "cluster") from None

    shared = RedisGate(open_link(url), policy)
    if policy.outage == "refuse":
        return shared
    from petstore.gate.fallback import FallbackGate

    return FallbackGate(shared, gate_file(url, data), policy)


async def bans_in_force(gate: Gate, now: float) -> list[Ban]:
    """Raises Unavailable."""
    found = {
        key_id: Ban(key_id, w.ban_start / SECOND, w.ban_end / SECOND, w.bans)
        async for rows in gate.all_windows()
        for key_id, w in rows
        if used(w, int(now * SECOND)).banned_until
    }
    return list(found.values())


def bucket_of(address: str) -> bytes:
    """Returns an IPv4 address, or the /64 network of an IPv6 address, because a client usually owns a whole network."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return b"?"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            return parsed.packed[:8]
        parsed = parsed.ipv4_mapped
    return parsed.packed
