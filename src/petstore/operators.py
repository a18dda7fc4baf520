"""Operators: the people who may sign in to the console, and their tokens."""

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


class Operator(msgspec.Struct, frozen=True):
    """A viewer sees every page and changes nothing. Of a token, only a hash is stored. Times are Unix seconds."""

    name: str
    created: float
    revoked: float | None = None
    role: Role = "operator"


def is_operator_name(name: str) -> bool:
    return len(name) <= NAME_MAX and _NAME(name) is not None and name.isprintable()


def new_operator(name: str, now: float, role: Role = "operator") -> Operator:
    """Raises OperatorError for a name that the audit log could not show plainly."""
    if not is_operator_name(name):
        raise OperatorError(f"an operator's name has 1 to {NAME_MAX} printable characters and no space at its ends")
    return Operator(name, now, role=role)


def mint_token() -> str:
    return new_secret(PREFIX)


def could_be_token(text: str) -> bool:
    """Whether a text has the prefix, the length and the checksum of a token. Needs no look-up."""
    return has_form(text, PREFIX)
