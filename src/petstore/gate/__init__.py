"""The gate's interface. The gate decides in one atomic step whether to admit a request.

`admit` checks for a ban and enforces the per-minute and per-day limits. In the same step, it checks that the caller's
copy of the key is current and returns the catalogue's versions, which tell workers whether a cached page is still
valid.
"""

import ipaddress
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from petstore import settings
from petstore.changes import Change
from petstore.errors import MissingPackage, OperatorError
from petstore.keys import Environment
from petstore.operations import COUNTED, OperationName
from petstore.plans import Limits
from petstore.rate_limits import SECOND, BanPolicy, Decision, Windows, used
from petstore.usage import AdmissionTotal

# Files in the data directory: the gate itself, and the fallback for a gate in Redis.
GATE_FILE, FALLBACK_FILE = "gate.mdb", "gate-outage.mdb"

VALID_SECONDS = 30 * 86_400  # the lifetime of a mark set by `mark_valid`
DIGEST_LENGTH = 16  # a mark is named after this many bytes at the start of the key's digest

REDIS_SCHEMES = (
    "redis", "valkey", "redis+sentinel", "redis+cluster",
    "rediss", "valkeys", "rediss+sentinel", "rediss+cluster",
)  # fmt: skip

CatalogueVersion = tuple[int, int]  # two versions: `added` changes increment the first, and `edited` changes the second


class Ban(NamedTuple):
    """An active ban. Times are in Unix seconds."""

    key_id: str
    since: float
    until: float
    times: int


class Gate(Protocol):
    """The gate. All methods except `close` and `degraded` can raise Unavailable. `now` is in Unix seconds."""

    immediate: bool  # whether calls complete without waiting for another machine

    def admit(
        self,
        environment: Environment,
        key_id: str,
        limits: Limits,
        keys_version: int,
        now: float,
        operation: OperationName,
    ) -> Awaitable[tuple[Decision, CatalogueVersion] | None]:
        """Decides whether to admit a request with a key. Returns the decision and the catalogue's current versions.

        If the request is admitted, the same step counts it under its operation (see `admissions`).

        `keys_version` is the version that the keys had when the caller read `limits`. If any key has changed since,
        counts nothing and returns None. The caller must then reread the key and try again.
        """

    def admit_address(self, environment: Environment, address: str, now: float) -> Awaitable[Decision]:
        """Decides whether to admit a request without a valid key."""

    async def peek_address(self, environment: Environment, address: str, now: float) -> Decision:
        """Returns the decision for a request from this address, without counting the request."""

    async def keys_version(self, environment: Environment) -> int: ...

    async def announce(self, environment: Environment, changes: Collection[Change]) -> None:
        """Increments the versions for these changes in one step, so that workers stop using stale cached values."""

    async def mark_valid(self, digest: bytes, now: float, *, valid: bool) -> None:
        """Marks the key with this digest as valid, or removes its mark. Workers share marks, which last 30 days."""

    async def was_valid(self, digest: bytes) -> bool:
        """Whether the key with this digest is marked as valid."""

    async def lift(self, key_id: str) -> bool:
        """Ends a key's ban and resets its ban count. Returns False if the ban count was already zero."""

    async def windows(self, key_ids: Sequence[str]) -> list[Windows]:
        """Returns each key's windows, in the same order as the ids."""

    def all_windows(self) -> AsyncIterator[list[tuple[str, Windows]]]:
        """Yields every key's windows, in batches. A key can appear more than once."""

    async def put_windows(self, rows: Iterable[tuple[str, Windows]]) -> None:
        """Replaces these keys' windows, but keeps their admission counts."""

    def admissions(self, key_ids: Sequence[str] | None = None) -> AsyncIterator[list[AdmissionTotal]]:
        """Yields admission totals, in batches, for these keys or for all keys. A total can appear more than once."""

    def degraded(self) -> bool:
        """Whether the fallback is in use. If so, limits apply to each node separately."""

    async def sweep(self, now: float) -> None:
        """Removes some of the expired records. Called about once a second."""

    async def close(self) -> None:
        """Closes files and connections. Can be called more than once. Calls in flight raise Unavailable."""


class GatePolicy(NamedTuple):
    """The operator's settings for the gate.

    `given_clock` makes a gate in Redis use the caller's `now` instead of the Redis clock, for tests. `counted` lists
    the operations whose admissions are counted. An operation's number is its position in that list.
    """

    bans: BanPolicy = BanPolicy()
    address_per_minute: int = settings.DEFAULTS.address_per_minute
    outage: Literal["degrade", "refuse"] = settings.DEFAULTS.gate_outage
    given_clock: bool = False
    counted: tuple[OperationName, ...] = COUNTED


def gate_file(url: str | None, data: Path) -> Path:
    """Returns the path of the LMDB file, which is either the gate itself or the fallback for a gate in Redis."""
    return data / (GATE_FILE if url is None else FALLBACK_FILE)


def open_gate(url: str | None, data: Path, policy: GatePolicy) -> Gate:
    """Opens the gate at the URL or, if there is no URL, the gate in the data directory.

    Must be called in a running event loop. Raises OperatorError if the URL is not valid or if this version does not
    recognise the file. Raises Unavailable if the file cannot be opened.
    """
    if url is None:
        from petstore.gate.lmdb import LmdbGate

        return LmdbGate(gate_file(url, data), policy)
    scheme = check_url(url)
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


def check_url(url: str) -> str:
    """Returns a URL's scheme. Raises OperatorError if the URL is invalid. Error messages never contain the password."""
    settings.check_url("--gate", url)
    scheme = url.partition("://")[0] if "://" in url else "without a scheme"
    if scheme not in REDIS_SCHEMES:
        raise OperatorError(f"--gate {scheme}: not supported; give a URL like redis://host:6379/0")
    return scheme


async def bans_in_force(gate: Gate, now: float) -> list[Ban]:
    """Returns the active bans. Raises Unavailable if the gate fails."""
    found = {
        key_id: Ban(key_id, w.ban_start / SECOND, w.ban_end / SECOND, w.bans)
        async for rows in gate.all_windows()
        for key_id, w in rows
        if used(w, int(now * SECOND)).banned_until
    }
    return list(found.values())


def bucket_of(address: str) -> bytes:
    """Returns the bytes of an IPv4 address, or of the /64 network that contains an IPv6 address.

    An IPv6 client can usually use any address in its /64 network.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return b"?"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            return parsed.packed[:8]
        parsed = parsed.ipv4_mapped
    return parsed.packed
