"""What the service speaks of: animals, their status, and the state of the rate limit."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal

import msgspec


class PetStatus(StrEnum):
    """Where an animal stands in its adoption. A member equals its text: `PetStatus.SOLD == "sold"`."""

    AVAILABLE = "available"
    PENDING = "pending"
    SOLD = "sold"


Status = PetStatus | Literal["available", "pending", "sold"]
"""What a `status` argument may be: a `PetStatus`, or its text."""


class Pet(msgspec.Struct, frozen=True, rename="camel"):
    """An animal, as the service has it. Immutable; equal when all of its fields are."""

    id: int
    name: str
    category_id: int
    status: PetStatus


class RateLimit(msgspec.Struct, frozen=True):
    """What an answer said about the limit of the key: of the minute or the day, whichever has less remaining."""

    limit: int
    """How many requests the window admits."""
    remaining: int
    """How many of them are left."""
    reset: int
    """When the window resets: a Unix timestamp, by the service's clock."""

    @property
    def reset_at(self) -> datetime:
        """`reset` as an aware datetime in UTC."""
        return datetime.fromtimestamp(self.reset, UTC)
