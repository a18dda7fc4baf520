"""The plans and their limits."""

from typing import Literal, NamedTuple

Plan = Literal["free", "pro", "business", "enterprise"]


class Limits(NamedTuple):
    """Requests that a key may make in one minute window and in one day window."""

    per_minute: int
    per_day: int


PLANS: dict[Plan, Limits | None] = {
    "free": Limits(60, 1_000),
    "pro": Limits(300, 10_000),
    "business": Limits(1_000, 100_000),
    "enterprise": None,  # each key has its own limits
}
