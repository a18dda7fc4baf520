"""The gate: the one small, atomic, shared step per request, and its contract.

`admit` decides ban, minute and day limits and, in the same step, compares the version of the keys and returns that of
the catalogue. Whatever a worker remembers, it may use only while its version is the one the gate just named.
"""

import ipaddress
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from petstore.errors import MissingPackage, OperatorError
from petstore.keys import Environment
from petstore.plans import Limits
from petstore.rate_limits import SECOND, BanPolicy, Decision, Windows

GATE_FILE, FALLBACK_FILE = "gate.mdb", "gate-outage.mdb"  # in the data folder

Subject = Literal["catalogue", "keys"]


class Ban(NamedTuple):
    """A ban in force. Times are Unix seconds."""

    key_id: str
    since: float
    until: float
    times: int


class Gate(Protocol):
    """Every method raises Unavailable when the gate cannot answer. `now` is in Unix seconds."""

    async def admit(
        self, environment: Environment, key_id: str, limits: Limits, keys_version: int, now: float
    ) -> tuple[Decision, int] | None:
        """Decide one request of a key, and tell the version of the catalogue at that instant.

        `keys_version` is the version that `limits` were read under. When it is no longer the current one, nothing is
        decided or counted and None is returned: read the key again.
        """

    async def admit_address(self, environment: Environment, address: str, now: float) -> Decision:
        """Decide one request without a valid key."""

    async def peek_address(self, environment: Environment, address: str, now: float) -> Decision:
        """What the address has left, counting nothing."""

    async def keys_version(self, environment: Environment) -> int: ...

    async def raise_version(self, environment: Environment, subject: Subject) -> None:
        """From the next admit on, everywhere, what was read under an older version is stale."""

    async def lift(self, key_id: str) -> bool:
        """End a key's ban and forget its earlier ones. False: it has none."""

    async def windows(self, key_ids: Sequence[str]) -> list[Windows]:
        """What is remembered of these keys, in their order."""

    def all_windows(self) -> AsyncIterator[list[tuple[str, Windows]]]:
        """What is remembered of all keys, some at a time."""

    async def put_windows(self, rows: Iterable[tuple[str, Windows]]) -> None:
        """Remember this of these keys, in place of whatever was remembered."""

    def degraded(self) -> bool:
        """Whether a stand-in answers at the moment: limits then hold per node."""

    async def sweep(self, now: float) -> None:
        """Forget some of what can no longer matter; called about once a second."""

    async def close(self) -> None: ...


class GatePolicy(NamedTuple):
    """What the operator may set; `given_clock` is for tests, which pass the time in."""

    bans: BanPolicy = BanPolicy()
    address_per_minute: int = 600
    outage: Literal["degrade", "refuse"] = "degrade"
    given_clock: bool = False


def open_gate(url: str | None, data: Path, policy: GatePolicy) -> Gate:
    """The gate behind a URL; without one, the file in the data folder. To be called inside the event loop.

    Raises OperatorError for a URL that it cannot understand.
    """
    if url is None:
        from petstore.gate.lmdb import LmdbGate

        return LmdbGate(data / GATE_FILE, policy)
    scheme = url.partition("://")[0] if "://" in url else "without a scheme"
    if scheme not in ("redis", "rediss", "valkey", "valkeys", "redis+sentinel", "redis+cluster"):
        raise OperatorError(f"--gate {scheme}: not a gate that Petstore knows; give redis://host:6379/0")
    try:
        from petstore.gate.redis import RedisGate
        from petstore.gate.redis_link import open_link
    except ImportError as error:
        raise MissingPackage(f"--gate {scheme}", error.name, "cluster") from None

    shared = RedisGate(open_link(url), policy)
    if policy.outage == "refuse":
        return shared
    from petstore.gate.fallback import FallbackGate
    from petstore.gate.lmdb import LmdbGate

    return FallbackGate(shared, partial(LmdbGate, data / FALLBACK_FILE, policy))


async def bans_in_force(gate: Gate, now: float) -> list[Ban]:
    """Raises Unavailable."""
    found = {  # by key: Redis may name a record twice
        key_id: Ban(key_id, w.ban_start / SECOND, w.ban_end / SECOND, w.bans)
        async for rows in gate.all_windows()
        for key_id, w in rows
        if w.ban_end > now * SECOND
    }
    return list(found.values())


def bucket_of(address: str) -> bytes:
    """An IPv4 address, or the /64 network of an IPv6 address: a whole network is usually one client's."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return b"?"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            return parsed.packed[:8]
        parsed = parsed.ipv4_mapped
    return parsed.packed
