"""Animals: the types of the interface, and the rules that a new animal must meet."""

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
from petstore.errors import InvalidBody

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
NAME_MAX = 255
NESTING_MAX = 100  # arrays and objects inside each other in the JSON of a new animal
# For readers of the OpenAPI document: no control character, and at least one character that is not white space, which
# is spelled out because languages do not agree on what \s matches.
_WHITE = r"\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
NAME_PATTERN = rf"^[^\u0000-\u001f\u007f]*[^{_WHITE}\u0000-\u001f\u007f][^\u0000-\u001f\u007f]*$"
REMOVAL_PREFIX = "rem_"  # of the id of a removal

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
    """Animals in the order of their ids, and whether more follow."""

    pets: list[Pet]
    more: bool


class Found(NamedTuple):
    """Animals that a search found. With `more`, the search continues from the id `searched_to`."""

    pets: list[Pet]
    searched_to: int
    more: bool


AdderKind = Literal["key", "import", "operator"]


class Adder(NamedTuple):
    """Who has added an animal: a key or an import, by its id, or an operator, by name."""

    kind: AdderKind
    name: str


class Origin(NamedTuple):
    """Who added an animal, and when, in Unix seconds. The adder is None if it is not known."""

    adder: Adder | None
    at: int


class PetQuery(NamedTuple):
    """Which animals to find. Times are in Unix seconds."""

    text: str = ""  # part of the name
    status: PetStatus | None = None
    added_by: str = ""  # the name of an adder
    since: float | None = None  # added at this time or later
    until: float | None = None  # added before this time
    unedited: bool = False  # only animals that no operator has changed


class Matching(NamedTuple):
    """How many animals match a query, how many of them an operator has changed, and the highest of their ids."""

    total: int
    edited: int
    last_id: int


class PetChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator changes in an animal; UNSET leaves a field as it is."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    category_id: int | msgspec.UnsetType = msgspec.UNSET
    status: PetStatus | msgspec.UnsetType = msgspec.UNSET


PET_UNITS = tuple((field,) for field in PetChanges.__struct_fields__)


class IdempotencyKey(NamedTuple):
    """An API key's idempotency key, and the hash of the body that came with it."""

    key_id: str
    token: str
    body_digest: bytes

    @property
    def name(self) -> tuple[str, str]:
        """What makes two requests one: the same API key and the same token."""
        return self.key_id, self.token


class Added(msgspec.Struct, frozen=True, gc=False):
    """The animal as it was when it was added; `replayed` when an earlier request has added it."""

    pet: Pet
    replayed: bool


ImportState = Literal["running", "interrupted", "done", "undoing", "undone"]


class Import(msgspec.Struct, frozen=True):
    """The animals of a file. `at` is in Unix seconds."""

    id: str
    at: float
    actor: str
    name: str  # of the file
    sha256: str  # of its bytes
    total: int  # animals in the file
    added: int  # of them
    state: ImportState


class Undone(NamedTuple):
    """How many animals of an import are gone, by undoing or by hand, how many stay because an operator has changed
    them, and how many undoing has still to remove.
    """

    removed: int
    kept: int
    left: int = 0


class Removal(msgspec.Struct, frozen=True):
    """Animals that an operator has removed together. `at` is in Unix seconds."""

    id: str
    at: float
    actor: str
    pets: int  # those that have not been restored


class Removed(NamedTuple):
    """Animals that were just removed. Without any, there is no removal."""

    removal_id: str | None
    pets: list[Pet]


class RemovedPet(NamedTuple):
    """An animal as it was when it was removed, and its removal."""

    pet: Pet
    removal: Removal


def new_import_id() -> str:
    return _new_id("imp_")


def new_removal_id() -> str:
    return _new_id(REMOVAL_PREFIX)


def _new_id(prefix: str) -> str:
    return prefix + "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(12))


def is_status(value: object) -> TypeGuard[PetStatus]:
    return value in STATUSES


def changed_pet(pet: Pet, changes: PetChanges, base: Pet | None = None) -> Pet:
    """Returns the animal with the changes. `base` is the animal as the operator saw it.

    Raises Conflict, and InvalidBody for values that no animal may have.
    """
    new = given(changes)
    new_pet(msgspec.to_builtins(msgspec.structs.replace(pet, **new)))
    return edited(pet, new, base, PET_UNITS)


# Returns what is wrong with a new animal that has these unknown members.
UnknownMembersFault = Callable[[Sequence[str]], str]


def parse_new_pet(body: bytes, unknown_fault: UnknownMembersFault | None = None) -> NewPet:
    """Raises InvalidBody with one message that names every member at fault.

    Unknown members, a client's `id` among them, are ignored unless `unknown_fault` is given.
    """
    try:
        plain = _decode_plain(body)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return _strictly(body, unknown_fault)
    # msgspec is several times faster than the strict parser, but accepts duplicate members. Without escapes, name and
    # categoryId take six quotes and status four more. Any other number may be a duplicate: the strict parser tells.
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
    """Accepts UTF-8, an object, no NaN, no member twice. Raises InvalidBody."""
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
        # The JSON before it is valid, so the first constant that is not in a string is the one.
        start = next(found.start(1) for found in _CONSTANT(text) if found[1])
        place = _place(text[:start])
        raise InvalidBody(f"The body is not valid JSON at {place}: NaN and Infinity are not JSON.") from None
    if not isinstance(value, dict):
        raise InvalidBody("The body must be a JSON object with name and categoryId.")
    return new_pet(value, repeated.names, unknown_fault)


_CONSTANT = re.compile(r'"(?:[^"\\]+|\\.)*"|(NaN|-?Infinity)', re.DOTALL).finditer


class _NotANumber(Exception):
    """NaN, Infinity or -Infinity, which Python's decoder would accept."""


def _place(before: str) -> str:
    """Returns the position that follows a text, as an editor shows it."""
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


_STRING = re.compile(rb'"(?:[^"\\]+|\\.)*"?', re.DOTALL)  # without an end too: trying each quote would be quadratic
_OPENING, _CLOSING = b"[{", b"]}"
_NO_BRACKETS = bytes(set(range(256)) - set(_OPENING + _CLOSING))
_TO_STEPS = bytes.maketrans(_OPENING + _CLOSING, b"\x01\x01\xff\xff")  # 1 and, as signed bytes, -1


def _is_too_deep(body: bytes) -> bool:
    """Python's own bound is not enough: 3.14 decodes what earlier versions refuse."""
    if body.count(b"[") + body.count(b"{") <= NESTING_MAX:
        return False
    steps = _STRING.sub(b"", body).translate(_TO_STEPS, _NO_BRACKETS)
    return any(depth > NESTING_MAX for depth in accumulate(memoryview(steps).cast("b")))


class _Repeated:
    """Collects duplicate members: of the outermost object by name, of objects inside it as the empty name."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def members_of(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """The decoder calls this for each object, after those inside it."""
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
    """Raises InvalidBody. Without `unknown_fault`, unknown members are ignored unless they are repeated."""
    known = NewPet.__struct_encode_fields__
    unknown = [member for member in members if member not in known] if unknown_fault else []
    name, category_id = members.get("name", _MISSING), members.get("categoryId", _MISSING)
    status = members.get("status", "available")
    # One test for the usual case; the message is put together only when something is wrong.
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
    """Returns what is wrong with each member that is missing or not valid."""
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
    return int(digits) if len(digits) < 40 else math.inf  # int() raises for thousands of digits


def _number(text: str) -> int | float:
    """A number with a point or an exponent. JSON Schema counts 1.0 and 1e2 as integers; a float would lose digits."""
    try:
        exact = Decimal(text)
        return int(exact) if abs(exact) < 2**64 and exact == int(exact) else math.inf
    except ArithmeticError:  # an exponent of twenty digits
        return math.inf
