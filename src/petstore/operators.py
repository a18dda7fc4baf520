"""Operators, who can sign in to the console, and the tokens they use."""

import re
from typing import Literal, get_args

import msgspec

from petstore.errors import OperatorError
from petstore.keys import has_form, new_secret

Role = Literal["viewer", "operator"]
ROLES: tuple[Role, ...] = get_args(Role)

PREFIX = "pets_op_"
_NAME = re.compile(r"[^\s\x00-\x1f\x7f]+( [^\s\x00-\x1f\x7f]+)*").fullmatch
NAME_MAX = 64

# Key and import ids start with these prefixes. Operators' names must not, because --added-by accepts names and ids.
ID_PREFIXES = ("key_", "imp_")
# The audit log uses these names for actors that are not operators.
LINK_ACTOR = "console"  # someone who signed in to the console with the one-time link
ANONYMOUS_ACTOR = "anonymous"  # someone who sent an invalid token to the console
DEMO_ACTOR = "petstore serve --demo"  # the demo, which creates keys
COMMAND_LINE = " (command line)"  # appended to the name of the system user who ran a command


class Operator(msgspec.Struct, frozen=True):
    """Someone who can sign in to the console. Viewers cannot change anything. Only a hash of the token is stored.

    Times are in Unix seconds.
    """

    name: str
    created: float
    revoked: float | None = None
    role: Role = "operator"


def is_operator_name(name: str) -> bool:
    return len(name) <= NAME_MAX and _NAME(name) is not None and name.isprintable()


def is_reserved(name: str) -> bool:
    """Whether this name could be mistaken for another actor in the audit log, or for the id of a key or an import.

    The comparison ignores case.
    """
    folded = name.casefold()
    if folded.startswith(ID_PREFIXES):
        return True
    return folded in (LINK_ACTOR, ANONYMOUS_ACTOR, DEMO_ACTOR) or folded.endswith(COMMAND_LINE)


def new_operator(name: str, now: float, role: Role = "operator") -> Operator:
    """Returns a new operator. Raises OperatorError if the name is invalid or reserved."""
    if not is_operator_name(name):
        raise OperatorError(
            f"an operator's name must have 1 to {NAME_MAX} printable characters, without spaces at either end"
        )
    if is_reserved(name):
        raise OperatorError(
            f'the name "{name}" is reserved, because it could be mistaken for another actor or an id; choose another'
        )
    return Operator(name, now, role=role)


def mint_token() -> str:
    return new_secret(PREFIX)


def could_be_token(text: str) -> bool:
    """Whether a string has a valid prefix, length and checksum. Does not check whether the token exists."""
    return has_form(text, PREFIX)
