"""The gate: the one small, atomic, shared step per request, and its contract.

`admit` decides ban, minute and day limits and, in the same step, compares the version of the keys and returns that of
the catalogue. Whatever a worker remembers, it may use only while its version is the one the gate just named.
"""

from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from petstore.errors import OperatorError
from petstore.keys import Environment
from petstore.plans import Limits
from petstore.windows import BanPolicy, Decision

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

    async def bans(self, now: float) -> list[Ban]: ...

    async def lift(self, key_id: str) -> bool:
        """End a key's ban and forget its earlier ones. False: it has none."""

    async def sweep(self, now: float) -> None:
        """Forget some of what can no longer matter; called about once a second."""

    async def close(self) -> None: ...


class GatePolicy(NamedTuple):
    """What the operator may set."""

    bans: BanPolicy = BanPolicy()
    address_per_minute: int = 600


def open_gate(url: str | None, data: Path, policy: GatePolicy) -> Gate:
    """The gate behind a URL; without one, the file in the data folder. Raises OperatorError for an unknown scheme."""
    if url is None:
        from petstore.gate.local import LocalGate

        return LocalGate(data / "gate.mdb", policy)
    raise OperatorError(f"--gate {url.split(':', 1)[0]}: not a gate that Petstore knows")
