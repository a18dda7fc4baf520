"""The values that the service speaks of: animals, their status, pages of animals, the state of the rate limit."""

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

import msgspec


class PetStatus(StrEnum):
    """The status of an animal. A member equals its text: `PetStatus.SOLD == "sold"`."""

    AVAILABLE = "available"
    PENDING = "pending"
    SOLD = "sold"


Status = PetStatus | Literal["available", "pending", "sold"]
"""The type of a `status` argument: a `PetStatus`, or its text."""


class Model(msgspec.Struct, frozen=True, rename="camel"):
    """The base of all values. They are immutable, and equal if all fields are equal."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, with the names that they have in JSON (`categoryId`)."""
        fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return fields

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return msgspec.json.encode(self).decode()


class Pet(Model, frozen=True):
    """An animal."""

    id: int
    name: str
    category_id: int
    status: PetStatus


class Page(Model, frozen=True):
    """One page of a list. Iterating over the page, and `len`, are those of `pets`."""

    pets: tuple[Pet, ...]
    next_cursor: str | None = None
    """The `cursor` argument for the page after this one, or None if this page is the last."""
    etag: str | None = None
    """The `ETag` of the page, or None if the response had none."""
    not_modified: bool = False
    """True if the service answered that the page given as `if_none_match` has not changed."""

    def __iter__(self) -> Iterator[Pet]:
        return iter(self.pets)

    def __len__(self) -> int:
        return len(self.pets)

    def __repr__(self) -> str:
        # With its animals, a page would fill a screen.
        return f"<Page len={len(self)} next_cursor={self.next_cursor!r} not_modified={self.not_modified}>"


class RateLimit(Model, frozen=True):
    """The state of the key's rate limit: of the minute or of the day, whichever has less remaining."""

    limit: int
    """How many requests the window admits."""
    remaining: int
    """How many of these requests are left."""
    reset: int
    """When the window resets: a Unix timestamp by the service's clock."""

    @property
    def reset_at(self) -> datetime:
        """`reset` as an aware datetime in UTC."""
        return datetime.fromtimestamp(self.reset, UTC)
