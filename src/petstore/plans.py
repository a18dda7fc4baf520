"""Plans and their rate limits."""

from typing import Literal, NamedTuple

Plan = Literal["free", "pro", "business", "enterprise"]


class Limits(NamedTuple):
    """How many requests a key may make per minute and per day."""

    per_minute: int
    per_day: int


PLANS: dict[Plan, Limits | None] = {
    "free": Limits(60, 1_000),
    "pro": Limits(300, 10_000),
    "business": Limits(1_000, 100_000),
    "enterprise": None,  # each key has its own limits
}
