"""Defines a proof: a function that takes a scale, and either returns figures or raises Broken or Skipped."""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from harness.claims import Broken


class Scale(NamedTuple):
    """How extensive the proofs are. The defaults are the short scale."""

    name: str = "short"
    kills: int = 3
    cuts: int = 10
    slow_clients: int = 50  # of each kind
    slow_rounds: int = 1
    history_seconds: float = 1.0
    soak_minutes: float = 0.04
    schema_cases: int = 50
    reloads: int = 2
    messages: int = 400  # in the attack on identities
    trials: int = 10  # of each operator action
    usage_kills: int = 3  # on each pair of backends
    upgrades: int = 1  # of each kind, on each pair of backends
    stops: int = 1  # and reloads, of each kind
    imported: int = 6_000  # animals in the file
    import_kills: int = 2  # on each pair of backends
    creates: int = 300  # by the Python client, gathered and one after another
    outages: int = 3  # during them
    plant: bool = False  # plant a fault that the proof must find, because a proof that cannot fail is worthless

    @property
    def full(self) -> bool:
        """Whether this is the full scale. The short scale checks no times, because other tests run at the same time."""
        return self.name == "full"


SHORT = Scale()
FULL = Scale(
    "full",
    kills=1_000,
    cuts=200,
    slow_clients=1_000,
    slow_rounds=3,
    history_seconds=20.0,
    soak_minutes=60.0,
    schema_cases=100_000,
    reloads=100,
    messages=100_000,
    trials=1_000,
    usage_kills=200,
    upgrades=20,
    stops=20,
    imported=300_000,
    import_kills=10,
    creates=5_000,
    outages=12,
)

# In the order in which they run, fastest first.
ATTACKS = tuple(
    f"attacks.{name}"
    for name in ("targets", "fields", "chunks", "connections", "heads", "unread", "trailers", "memory", "minted_keys",
                 "backups", "metrics", "files", "links", "identities", "console", "uploads", "lockout", "proxies")
)  # fmt: skip
PROOFS = (
    "strictness", "power", "gate", "disk", *ATTACKS, "linearizability", "obeyed", "schema", "slow", "kills",
    "usage_kills", "outage", "imports", "reloads", "stops", "upgrades", "soak",
)  # fmt: skip


class Parts:
    """The parts of a proof. Each part must find a planted fault, because a part that cannot fail proves nothing."""

    def __init__(self, scale: Scale) -> None:
        self._plant = scale.plant
        self._count = 0
        self._broken: list[str] = []

    @contextlib.contextmanager
    def part(self) -> Iterator[None]:
        self._count += 1
        try:
            yield
        except Broken as broken:
            self._broken.append(str(broken))

    def judge(self) -> None:
        """Raises Broken if a part failed without a planted fault, or if every part found the planted fault."""
        if self._broken and (not self._plant or len(self._broken) == self._count):
            raise Broken(self._broken[0])


Figures = dict[str, float | int | str]
Proof = Callable[[Scale], Figures]
