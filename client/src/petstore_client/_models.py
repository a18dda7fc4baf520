"""The types that the client returns: animals, their status, pages of animals, and the state of the rate limit."""

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import msgspec


class PetStatus(StrEnum):
    """The status of an animal. Members compare equal to strings: `PetStatus.SOLD == "sold"`."""

    AVAILABLE = "available"
    PENDING = "pending"
    SOLD = "sold"


_STATUSES = {status.value: status for status in PetStatus}

Status = PetStatus | Literal["available", "pending", "sold"]
"""The type of a `status` argument: a `PetStatus` or a string."""


class Model(msgspec.Struct, frozen=True, rename="camel"):
    """The base class of all models. Models are immutable, and two models are equal if all their fields are equal."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as a dictionary of plain values, with the names used in JSON, such as `categoryId`."""
        fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return fields

    def to_json(self) -> str:
        """Returns the result of `to_dict` as a JSON string."""
        return msgspec.json.encode(self).decode()


class Pet(Model, frozen=True):
    """An animal."""

    id: int
    name: str
    category_id: int
    if TYPE_CHECKING:
        status: PetStatus | str
        """A `PetStatus`, or a string if this version of the client does not know the status."""
    else:
        status: str  # msgspec cannot decode a union of an enum and a string

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "status", _STATUSES.get(self.status, self.status))


class Page(Model, frozen=True):
    """One page of a list. Iterating over a page yields its animals, and `len` returns the number of animals."""

    pets: tuple[Pet, ...]
    next_cursor: str | None = None
    """The `cursor` argument for the next page, or None if this is the last page."""

    def __iter__(self) -> Iterator[Pet]:
        return iter(self.pets)

    def __len__(self) -> int:
        return len(self.pets)

    def __repr__(self) -> str:
        # Omit the animals to keep the repr short.
        return f"<Page len={len(self)} next_cursor={self.next_cursor!r}>"


class RateLimit(Model, frozen=True):
    """The state of the API key's per-minute or per-day limit, whichever has fewer requests remaining."""

    limit: int
    """How many requests the window admits."""
    remaining: int
    """How many requests remain in the window."""
    reset: int
    """When the window resets, as a Unix timestamp on the service's clock."""
    window: str | None = None
    """The name of the window: `minute`, `day`, or `ban` during a ban. None if the service does not name it."""

    @property
    def reset_at(self) -> datetime:
        """`reset` as a timezone-aware datetime in UTC."""
        return datetime.fromtimestamp(self.reset, UTC)
