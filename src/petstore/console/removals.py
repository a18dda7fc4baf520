"""Removed animals that can be restored for a minute. They are in memory: a restart of the console forgets them."""

import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple

from petstore.keys import Environment
from petstore.pets import Pet

UNDO_SECONDS = 60.0
REMOVALS_MAX = 100


class Removal(NamedTuple):
    environment: Environment
    pets: Sequence[Pet]
    until: float


class Removals:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._removals: dict[str, Removal] = {}

    def add(self, environment: Environment, pets: Sequence[Pet]) -> str:
        """A token that restores these animals once."""
        now = self._clock()
        self._removals = {token: each for token, each in self._removals.items() if now < each.until}
        while len(self._removals) >= REMOVALS_MAX:
            del self._removals[next(iter(self._removals))]
        token = secrets.token_urlsafe(12)
        self._removals[token] = Removal(environment, pets, now + UNDO_SECONDS)
        return token

    def find(self, token: str, environment: Environment) -> Sequence[Pet] | None:
        """The animals of a removal; None when its time is over, or when it was undone."""
        removal = self._removals.get(token)
        is_valid = removal and removal.environment == environment and self._clock() < removal.until
        return removal.pets if removal and is_valid else None

    def forget(self, token: str) -> None:
        self._removals.pop(token, None)
