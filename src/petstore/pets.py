"""Animals: the types of the interface, the rules a new animal must meet, and the contract of the catalogue."""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Protocol, TypeGuard, get_args

import msgspec

from petstore.audit import AuditEntry
from petstore.errors import InvalidBody

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
NAME_MAX = 255
# As a regular expression for readers of the schema: no control character, and at least one that is not white space.
# That is spelled out, since languages do not agree on what \s stands for.
_WHITE = r"\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
NAME_PATTERN = rf"^[^\u0000-\u001f\u007f]*[^{_WHITE}\u0000-\u001f\u007f][^\u0000-\u001f\u007f]*$"


PetStatus = Literal["available", "pending", "sold"]
STATUSES: tuple[PetStatus, ...] = get_args(PetStatus)

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX, pattern=NAME_PATTERN)]
Int64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX, extra_json_schema={"format": "int64"})]


class NewPet(msgspec.Struct, frozen=True, rename="camel"):
    """An animal to be added."""

    name: Name
    category_id: Int64
    status: PetStatus = "available"


class Pet(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """An animal of the catalogue."""

    id: Int64
    name: Name
    category_id: Int64
    status: PetStatus


class Page(NamedTuple):
    """Some animals in the order of their ids, and whether there are more behind them."""

    pets: list[Pet]
    more: bool


class Found(NamedTuple):
    """Animals that fit, among those that were looked at. When there may be more, they are behind `searched_to`."""

    pets: list[Pet]
    searched_to: int
    more: bool


class IdempotencyKey(NamedTuple):
    """A client's promise that a repeated request is the same one: its idempotency key, and a hash of the body."""

    key_id: str
    token: str
    body_digest: bytes


class Added(msgspec.Struct, frozen=True, gc=False):
    """The animal as it was when it was added, and whether this answer repeats an earlier one."""

    pet: Pet
    replayed: bool


class Catalogue(Protocol):
    """The animals of one environment. Every method raises Unavailable when the store cannot answer."""

    immediate: bool  # whether reads return without waiting for anything

    async def page(self, *, after: int, limit: int, status: PetStatus | None) -> Page:
        """Animals with an id above `after`, ascending: the same cost wherever the page lies."""

    async def search(self, text: str, *, after: int, limit: int, status: PetStatus | None) -> Found:
        """Animals with an id above `after` whose name has `text` in it; at most SEARCH_STEP animals are looked at."""

    async def pet(self, pet_id: int) -> Pet | None: ...

    async def newest(self) -> int:
        """The highest id there is; 0 when there is none."""

    async def stamp(self) -> object:
        """Something that is equal to an earlier one only if no animal has changed since then."""

    async def add(self, new: NewPet, now: float, idempotency_key: IdempotencyKey | None = None) -> Added:
        """On disk and visible to every reader when it returns.

        Raises IdempotencyMismatch when `idempotency_key` was used with another body, IdempotencyConflict while its
        first request is in flight.
        """

    async def add_by_hand(self, new: NewPet, entry: AuditEntry) -> Pet:
        """The same for an operator: the animal, and a entry like the one given with it as the subject, or neither."""

    async def set_status(self, pet_ids: Sequence[int], status: PetStatus, entry: AuditEntry) -> list[Pet]:
        """The animals of these that exist, all changed at once; each is the subject of a entry like the one given."""

    async def import_pets(self, batches: AsyncIterator[list[NewPet]], entry: AuditEntry) -> int:
        """Adds all or, when the iterator raises, nothing. Returns how many."""

    async def count(self) -> dict[PetStatus, int]:
        """Takes the longer the more animals there are: not for a request's path."""


def is_status(value: object) -> TypeGuard[PetStatus]:
    return value in STATUSES


def parse_new_pet(body: bytes) -> NewPet:
    """Raises InvalidBody with one message that names every member at fault."""
    try:
        plain = _decode_plain(body)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return _strictly(body)
    # msgspec is several times faster than the strict parser but takes duplicate members. Without escapes, name and
    # categoryId have six quotes and status four more: one more quote is a duplicate, or something else worth a look.
    if b"\\" in body or body.count(b'"') != (6 if plain.status is msgspec.UNSET else 10):
        return _strictly(body)
    name = plain.name
    if not 0 < len(name) <= NAME_MAX or _NAME_FAULT(name) or name.isspace():
        return _strictly(body)
    return NewPet(name, plain.category_id, "available" if plain.status is msgspec.UNSET else plain.status)


class _Plain(msgspec.Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    name: str
    category_id: Int64
    status: PetStatus | msgspec.UnsetType = msgspec.UNSET


_decode_plain = msgspec.json.Decoder(_Plain).decode


def _strictly(body: bytes) -> NewPet:
    """UTF-8, an object, no NaN, no member twice. Raises InvalidBody."""
    if not body:
        raise InvalidBody("The body is missing: send a JSON object with name and categoryId.")
    repeated = _Repeated()
    decoder = json.JSONDecoder(
        object_pairs_hook=repeated.members_of, parse_constant=_no_constant, parse_int=_integer, parse_float=_number
    )
    try:
        value = decoder.decode(body.decode())
    except UnicodeDecodeError:
        raise InvalidBody("The body is not valid UTF-8.") from None
    except RecursionError:
        raise InvalidBody("The body is nested too deeply.") from None
    except ValueError:
        raise InvalidBody("The body is not valid JSON.") from None
    if not isinstance(value, dict):
        raise InvalidBody("The body must be a JSON object with name and categoryId.")
    return new_pet(value, repeated.names)


class _Repeated:
    """Members that came more than once: those of the outermost object by their names, others without."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def members_of(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Called for each object after those within it."""
        within = {""} if self.names else set()
        members = dict(pairs)
        if len(members) != len(pairs):
            times = Counter(name for name, _ in pairs)
            within |= {name for name, n in times.items() if n > 1}
        self.names = within
        return members


def new_pet(members: Mapping[str, Any], repeated: Set[str] = frozenset()) -> NewPet:
    """Raises InvalidBody. Unknown members are ignored, a client's `id` among them, unless they are repeated."""
    name = members.get("name", _MISSING)
    category_id = members.get("categoryId", _MISSING)
    status = members.get("status", "available")
    # One pass over what is nearly always right; what is wrong is told apart only where something is.
    if (
        type(name) is str
        and 0 < len(name) <= NAME_MAX
        and not _NAME_FAULT(name)
        and not name.isspace()
        and type(category_id) is int
        and INT64_MIN <= category_id <= INT64_MAX
        and is_status(status)
        and not repeated
    ):
        return NewPet(name, category_id, status)
    faults = {"name": _name_fault(name), "categoryId": _category_fault(category_id), "status": _status_fault(status)}
    told = [f"{member} {fault}" for member, fault in faults.items() if fault and member not in repeated]
    told += [f"{member} must be given at most once" for member in faults if member in repeated]
    if repeated - faults.keys():
        told.append("a member must be given at most once")
    raise InvalidBody("; ".join(told) + ".")


def _name_fault(name: object) -> str | None:
    if name is _MISSING:
        return "is required"
    if not isinstance(name, str):
        return "must be a string"
    if not name or name.isspace():
        return "must not be empty or only white space"
    if len(name) > NAME_MAX:
        return f"must have at most {NAME_MAX} characters"
    return "must not contain control characters or lone surrogates" if _NAME_FAULT(name) else None


def _category_fault(category_id: object) -> str | None:
    if category_id is _MISSING:
        return "is required"
    whole = type(category_id) is int and INT64_MIN <= category_id <= INT64_MAX
    return None if whole else "must be a whole number that fits in 64 bits"


def _status_fault(status: object) -> str | None:
    return None if is_status(status) else "must be one of available, pending, sold"


_MISSING = object()
_NAME_FAULT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]").search


def _no_constant(_: str) -> NoReturn:
    raise InvalidBody("The body is not valid JSON: NaN and Infinity are not JSON.")


_BEYOND = 2**64  # any limit, so that it does not matter which number it is


def _integer(digits: str) -> int:
    return int(digits) if len(digits) < 40 else _BEYOND  # Python refuses to convert thousands of digits


def _number(text: str) -> int | float:
    """With a point or an exponent. By JSON Schema's reading 1.0 and 1e2 are integers; floats could not tell."""
    try:
        exact = Decimal(text)
        return int(exact) if abs(exact) < _BEYOND and exact == int(exact) else float(text)
    except ArithmeticError:  # an exponent of twenty digits
        return float(text)
