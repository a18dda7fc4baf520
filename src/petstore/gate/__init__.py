"""The gate: one small, atomic step in shared state per request, and its protocol.

`admit` decides on the ban, the minute limit and the day limit. In the same step it compares the version of the keys and
returns the versions of the catalogue. A worker uses a cached page only if it is valid under these versions.
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

# In the data directory. With a gate in Redis, the second file is used while Redis is unavailable.
GATE_FILE, FALLBACK_FILE = "gate.mdb", "gate-outage.mdb"

VALID_SECONDS = 30 * 86_400  # how long a mark of `mark_valid` is kept
DIGEST_LENGTH = 16  # the bytes of a digest that are part of its mark's name

REDIS_SCHEMES = (
    "redis", "valkey", "redis+sentinel", "redis+cluster",
    "rediss", "valkeys", "rediss+sentinel", "rediss+cluster",
)  # fmt: skip

CatalogueVersion = tuple[int, int]  # the versions of `added` and of `edited`


class Ban(NamedTuple):
    """A ban in force. Times are Unix seconds."""

    key_id: str
    since: float
    until: float
    times: int


class Gate(Protocol):
    """Every method except `close` raises Unavailable if the gate cannot answer. `now` is in Unix seconds."""

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
        """Decide one request of a key, and return the versions of the catalogue at that moment.

        The step that admits a request also counts it for the operation: see `admissions`.

        `keys_version` is the version under which the caller read `limits`. If a key has changed since then, the gate
        returns None without deciding or counting anything, and the caller rereads the key.
        """

    def admit_address(self, environment: Environment, address: str, now: float) -> Awaitable[Decision]:
        """Decide one request without a valid key."""

    async def peek_address(self, environment: Environment, address: str, now: float) -> Decision:
        """Return the decision that a request would get, without counting it."""

    async def keys_version(self, environment: Environment) -> int: ...

    async def announce(self, environment: Environment, changes: Collection[Change]) -> None:
        """Give each of these changes a new version, in one step. What workers cached under older versions is stale."""

    async def mark_valid(self, digest: bytes, now: float, *, valid: bool) -> None:
        """Remember for 30 days, for all workers, that the key with this digest is valid, or forget it."""

    async def was_valid(self, digest: bytes) -> bool:
        """Whether a worker has marked the key with this digest."""

    async def lift(self, key_id: str) -> bool:
        """End a key's ban and forget its earlier ones. Returns False if there are none."""

    async def windows(self, key_ids: Sequence[str]) -> list[Windows]:
        """The windows of each key, in the order of the ids."""

    def all_windows(self) -> AsyncIterator[list[tuple[str, Windows]]]:
        """The windows of all keys, in batches. A key may appear twice."""

    async def put_windows(self, rows: Iterable[tuple[str, Windows]]) -> None:
        """Replace the windows of these keys. Their counts are kept."""

    def admissions(self, key_ids: Sequence[str] | None = None) -> AsyncIterator[list[AdmissionTotal]]:
        """What these keys, or all keys, were admitted for, in batches. A total may appear twice."""

    def degraded(self) -> bool:
        """Whether the fallback decides at the moment, so that limits apply per node."""

    async def sweep(self, now: float) -> None:
        """Remove some of the expired records. Called about once a second."""

    async def close(self) -> None:
        """Release files and connections. Can be called at any time and twice. Calls in flight get Unavailable."""


class GatePolicy(NamedTuple):
    """The operator's settings.

    `given_clock` makes a gate in Redis use the `now` of each call, for tests. `counted` names the operations that
    admissions are counted for, in the order of their numbers.
    """

    bans: BanPolicy = BanPolicy()
    address_per_minute: int = 600
    outage: Literal["degrade", "refuse"] = "degrade"
    given_clock: bool = False
    counted: tuple[OperationName, ...] = COUNTED


def gate_file(url: str | None, data: Path) -> Path:
    """The LMDB file that this machine uses: the gate, or the fallback of a gate in Redis."""
    return data / (GATE_FILE if url is None else FALLBACK_FILE)


def open_gate(url: str | None, data: Path, policy: GatePolicy) -> Gate:
    """The gate of a URL; without one, the file in the data directory. Must be called in a running event loop.

    Raises OperatorError for a URL that is not valid or a file that this version does not recognise, and Unavailable
    if the file cannot be opened.
    """
    if url is None:
        from petstore.gate.lmdb import LmdbGate

        return LmdbGate(gate_file(url, data), policy)
    scheme = url.partition("://")[0] if "://" in url else "without a scheme"
    if scheme not in REDIS_SCHEMES:
        raise OperatorError(f"--gate {scheme}: not a gate that Petstore knows; give redis://host:6379/0")
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
    """An IPv4 address, or the /64 network of an IPv6 address, because one client usually has a whole network."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return b"?"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            return parsed.packed[:8]
        parsed = parsed.ipv4_mapped
    return parsed.packed
