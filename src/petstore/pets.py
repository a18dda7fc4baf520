"""Data types for animals, and the validation of new animals."""

import json
import math
import re
import secrets
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from decimal import Decimal
from itertools import accumulate
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeGuard, get_args

import msgspec

from petstore.edits import edited, given
from petstore.errors import InvalidBody, OperatorError
from petstore.wording import when

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
NAME_MAX = 255
SELECTED_MAX = 1_000  # how many animals an operator can change, remove or restore by their ids in one act
NESTING_MAX = 100  # how deeply arrays and objects may be nested in the body of a create request
# A regular expression for the OpenAPI document. It forbids control characters and requires at least one character that
# is not white space. It spells out the white space, because the meaning of \s varies between programming languages.
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
    """An animal in the catalogue."""

    id: Int64
    name: Name
    category_id: Int64
    status: PetStatus


class Page(NamedTuple):
    """A page of animals, ordered by id, and whether there are more animals."""

    pets: list[Pet]
    more: bool


class Found(NamedTuple):
    """Animals found by a search. If `more` is true, the search can continue from the id `searched_to`."""

    pets: list[Pet]
    searched_to: int
    more: bool


AdderKind = Literal["key", "import", "operator"]


class Adder(NamedTuple):
    """Who added an animal. `name` is a key id, an import id or an operator's name."""

    kind: AdderKind
    name: str


class Origin(NamedTuple):
    """Who added an animal (None if unknown), and when. `at` is in Unix seconds."""

    adder: Adder | None
    at: int


class PetQuery(NamedTuple):
    """A search for animals. Times are in Unix seconds."""

    text: str = ""  # a substring of the name
    status: PetStatus | None = None
    added_by: str = ""  # an adder's name
    since: float | None = None  # added at this time or later
    until: float | None = None  # added before this time
    unedited: bool = False  # exclude animals that an operator has changed


class Matching(NamedTuple):
    """How many animals match a query, how many of them operators have edited, and the highest id among them."""

    total: int
    edited: int
    last_id: int


class PetChanges(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's changes to an animal. UNSET leaves a field unchanged."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    category_id: int | msgspec.UnsetType = msgspec.UNSET
    status: PetStatus | msgspec.UnsetType = msgspec.UNSET


PET_UNITS = tuple((field,) for field in PetChanges.__struct_fields__)


class IdempotencyKey(NamedTuple):
    """A request's idempotency key, with the API key's id and the hash of the body."""

    key_id: str
    token: str
    body_digest: bytes

    @property
    def name(self) -> tuple[str, str]:
        """Returns a name that identifies the request and is the same for every retry."""
        return self.key_id, self.token


class Added(msgspec.Struct, frozen=True, gc=False):
    """The animal as it was when it was added. `replayed` is true if an earlier request had already added it."""

    pet: Pet
    replayed: bool


def new_id(prefix: str) -> str:
    return prefix + "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(12))


def is_status(value: object) -> TypeGuard[PetStatus]:
    return value in STATUSES


# Operators' acts


def checked_pet(pet: NewPet | Pet) -> NewPet:
    """Returns an animal's values if they are valid, and raises OperatorError otherwise."""
    try:
        return new_pet(msgspec.to_builtins(pet))
    except InvalidBody as error:
        raise OperatorError(error.message) from None


def changed_pet(pet: Pet, changes: PetChanges, base: Pet | None = None) -> Pet:
    """Returns the animal with the changes applied. `base` is the animal as the operator saw it.

    Raises Conflict if someone else has changed the same values, and OperatorError if a new value is not valid.
    """
    new = given(changes)
    checked_pet(msgspec.structs.replace(pet, **new))
    return edited(pet, new, base, PET_UNITS)


def parse_whole_number(text: str) -> int | None:
    """Parses a number in canonical decimal form that fits in 64 bits, such as an id. Returns None for anything else."""
    # int() alone would accept "+5", "1_0", " 5" and digits in other scripts.
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or (text[0] == "0" and text != "0"):
        return None
    value = int(text)
    return value if value <= INT64_MAX else None


def check_selection(pet_ids: Sequence[int]) -> None:
    """Raises OperatorError if an operator selected too many animals for one act."""
    if len(pet_ids) > SELECTED_MAX:
        raise OperatorError(f"choose at most {SELECTED_MAX:,} animals at a time")


def pet_in_words(pet: Pet) -> str:
    """Describes an animal for an audit entry."""
    return f"{pet.name}, category {pet.category_id}, {pet.status}"


def added_in_words(query: PetQuery) -> str:
    since = "" if query.since is None else f" since {when(query.since)}"
    until = "" if query.until is None else f" before {when(query.until)}"
    return f"added by {query.added_by}{since}{until}"


# Creates


# A function that returns the error message for the unknown members of a JSON object.
UnknownMembersFault = Callable[[Sequence[str]], str]


def parse_new_pet(body: bytes, unknown_fault: UnknownMembersFault | None = None) -> NewPet:
    """Parses the body of a create request. Raises InvalidBody, whose message names every invalid member.

    Ignores unknown members, including `id`, unless `unknown_fault` is given.
    """
    try:
        plain = _decode_plain(body)
    except ValueError:  # all of msgspec's errors
        return _strictly(body, unknown_fault)
    # msgspec is several times faster than the strict parser, but accepts duplicate members. A valid body
    # without escapes contains six quotation marks, or ten if it includes a status. Any other number means that a member
    # may be duplicated, so use the strict parser.
    if b"\\" in body or body.count(b'"') != (6 if plain.status is msgspec.UNSET else 10):
        return _strictly(body, unknown_fault)
    name = plain.name
    if not 0 < len(name) <= NAME_MAX or _NAME_FAULT(name) or name.isspace():
        return _strictly(body, unknown_fault)
    return NewPet(name, plain.category_id, "available" if plain.status is msgspec.UNSET else plain.status)


class _Plain(msgspec.Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    name: str
    category_id: Int64
    status: PetStatus | msgspec.UnsetType = msgspec.UNSET


_decode_plain = msgspec.json.Decoder(_Plain).decode


def _strictly(body: bytes, unknown_fault: UnknownMembersFault | None) -> NewPet:
    """Parses a JSON object. Raises InvalidBody, for example for invalid UTF-8, NaN or duplicate members."""
    if not body:
        raise InvalidBody
    repeated = _Repeated()
    decoder = json.JSONDecoder(
        object_pairs_hook=repeated.members_of, parse_constant=_no_constant, parse_int=_integer, parse_float=_number
    )
    try:
        text = body.decode()
        if _is_too_deep(body):
            raise InvalidBody("The body is nested too deeply.")
        value = decoder.decode(text)
    except UnicodeDecodeError as error:
        place = _place(body[: error.start].decode())
        raise InvalidBody(f"The body is not valid UTF-8 at {place}.") from None
    except json.JSONDecodeError as error:
        raise InvalidBody(f"The body is not valid JSON at {_place(text[: error.pos])}.") from None
    except _NotANumber:
        # Everything before the constant is valid JSON, so the error is at the first constant outside a string.
        start = next(found.start(1) for found in _CONSTANT(text) if found[1])
        place = _place(text[:start])
        raise InvalidBody(f"The body is not valid JSON at {place}: NaN and Infinity are not JSON.") from None
    if not isinstance(value, dict):
        raise InvalidBody("The body must be a JSON object with name and categoryId.")
    return new_pet(value, repeated.names, unknown_fault)


# In both patterns, the closing quote is optional. Otherwise, an unterminated string would take exponential time.
_CONSTANT = re.compile(r'"(?:[^"\\]+|\\.)*"?|(NaN|-?Infinity)', re.DOTALL).finditer


class _NotANumber(Exception):
    """The body contains NaN, Infinity or -Infinity, which Python's decoder would accept."""


def _place(before: str) -> str:
    """Returns the position directly after `before` as a line and a column, both counted from 1."""
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


_STRING = re.compile(rb'"(?:[^"\\]+|\\.)*"?', re.DOTALL)
_OPENING, _CLOSING = b"[{", b"]}"
_NO_BRACKETS = bytes(set(range(256)) - set(_OPENING + _CLOSING))
_TO_STEPS = bytes.maketrans(_OPENING + _CLOSING, b"\x01\x01\xff\xff")  # 1 and -1 as signed bytes


def _is_too_deep(body: bytes) -> bool:
    """Whether the body is nested too deeply. Does not rely on Python's own limit, which differs between versions."""
    if body.count(b"[") + body.count(b"{") <= NESTING_MAX:
        return False
    steps = _STRING.sub(b"", body).translate(_TO_STEPS, _NO_BRACKETS)
    return any(depth > NESTING_MAX for depth in accumulate(memoryview(steps).cast("b")))


class _Repeated:
    """Collects the names of duplicate members. For a duplicate in a nested object, records an empty name."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def members_of(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """The decoder calls this for each object. Nested objects come before the objects that contain them."""
        within = {""} if self.names else set()
        members = dict(pairs)
        if len(members) != len(pairs):
            times = Counter(name for name, _ in pairs)
            within |= {name for name, n in times.items() if n > 1}
        self.names = within
        return members


def new_pet(
    members: Mapping[str, Any], repeated: Set[str] = frozenset(), unknown_fault: UnknownMembersFault | None = None
) -> NewPet:
    """Validates the members of a new animal. Raises InvalidBody if any member is missing or not valid.

    If `unknown_fault` is None, unknown members are ignored unless they are duplicated.
    """
    known = NewPet.__struct_encode_fields__
    unknown = [member for member in members if member not in known] if unknown_fault else []
    name, category_id = members.get("name", _MISSING), members.get("categoryId", _MISSING)
    status = members.get("status", "available")
    # Check everything first, because most requests are valid. Build the message only if something is wrong.
    if (
        type(name) is str
        and 0 < len(name) <= NAME_MAX
        and not _NAME_FAULT(name)
        and not name.isspace()
        and type(category_id) is int
        and INT64_MIN <= category_id <= INT64_MAX
        and is_status(status)
        and not repeated
        and not unknown
    ):
        return NewPet(name, category_id, status)
    reasons = [f"{member} {fault}" for member, fault in faults_of(members).items() if member not in repeated]
    reasons += [f"{member} must be given at most once" for member in known if member in repeated]
    if repeated - set(known):
        reasons.append("a member must be given at most once")
    if unknown_fault and unknown:
        reasons.append(unknown_fault(unknown))
    raise InvalidBody("; ".join(reasons) + ".")


def faults_of(members: Mapping[str, Any]) -> dict[str, str]:
    """Returns the error for each member that is missing or not valid."""
    faults = {
        "name": _name_fault(members.get("name", _MISSING)),
        "categoryId": _category_fault(members.get("categoryId", _MISSING)),
        "status": None if is_status(members.get("status", "available")) else f"must be one of {', '.join(STATUSES)}",
    }
    return {member: fault for member, fault in faults.items() if fault}


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


_MISSING: Any = object()
_NAME_FAULT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]").search


def _no_constant(_: str) -> NoReturn:
    raise _NotANumber


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) < 40 else math.inf  # int() rejects numbers with thousands of digits


def _number(text: str) -> int | float:
    """Parses a number with a decimal point or an exponent. Accepts 1.0 and 1e2 as integers, as JSON Schema does.

    Uses Decimal, because a float would lose precision.
    """
    try:
        exact = Decimal(text)
        return int(exact) if abs(exact) < 2**64 and exact == int(exact) else math.inf
    except ArithmeticError:  # for example, the exponent is too large
        return math.inf
