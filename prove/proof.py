"""What a proof is: a function of a scale that returns its figures, or raises Broken or Skipped."""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from harness.claims import Broken


class Scale(NamedTuple):
    """How much of everything. `plant` puts a fault in that the proof must find: what cannot fail shows nothing."""

    name: str
    kills: int
    cuts: int
    slow_clients: int  # of each kind
    slow_rounds: int
    history_seconds: float
    soak_minutes: float
    schema_cases: int
    reloads: int
    messages: int  # of the attack on identities
    trials: int  # of each action of an operator
    usage_kills: int  # on each pair of backends
    upgrades: int  # of each kind, on each pair of backends
    imported: int  # animals in the file
    import_kills: int  # on each pair of backends
    plant: bool = False

    @property
    def full(self) -> bool:
        """Only at full scale are times asserted: beside other tests they would be a lottery."""
        return self.name == "full"


SHORT = Scale("short", 3, 10, 50, 1, 1.0, 0.04, 50, 2, 400, 10, 3, 1, 6_000, 2)
FULL = Scale("full", 1_000, 200, 1_000, 3, 20.0, 60.0, 100_000, 100, 100_000, 1_000, 200, 20, 300_000, 10)

# In the order of running: the quick ones first.
ATTACKS = tuple(
    f"attacks.{name}"
    for name in ("targets", "fields", "chunks", "connections", "heads", "unread", "trailers", "memory", "minted_keys",
                 "backups", "metrics", "files", "links", "identities", "console", "lockout")
)  # fmt: skip
PROOFS = (
    "strictness", "power", "gate", "disk", *ATTACKS, "linearizability", "obeyed", "schema", "slow", "kills",
    "usage_kills", "imports", "reloads", "upgrades", "soak",
)  # fmt: skip


class Parts:
    """The parts of a proof. A planted fault must be found in each of them: one that finds none shows nothing."""

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
        """Raises Broken if a part is broken and no fault is planted, or if one is planted and every part is broken."""
        if self._broken and (not self._plant or len(self._broken) == self._count):
            raise Broken(self._broken[0])


Figures = dict[str, float | int | str]
Proof = Callable[[Scale], Figures]
