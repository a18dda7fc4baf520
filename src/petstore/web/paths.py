"""The 404 of an address where nothing is, with the address that was probably meant."""

import re

from petstore.errors import MethodNotAllowed, NotFound, RequestError
from petstore.settings import BASES

SUGGESTED_MAX = 100  # characters: a longer path is no slip
_SLIP = re.compile(r"(/staging/v1|/v1|)/pets?(/[0-9]+)?/?").fullmatch


def not_found(path: str) -> NotFound:
    return NotFound(NotFound.usual + suggestion(path))


def wrong_address(path: str, allow: str) -> RequestError:
    """`allow`: the methods that the address answers; none: nothing is there."""
    return MethodNotAllowed(f"This address answers {allow}.", (("allow", allow),)) if allow else not_found(path)


def suggestion(path: str) -> str:
    """For a path that is one slip away from an address of the interface."""
    match = _SLIP(re.sub("/+", "/", path.lower())) if len(path) <= SUGGESTED_MAX else None
    if match is None:
        return ""
    address = f"{match[1] or BASES['live']}/pets{match[2] or ''}"
    return f" Did you mean {address}?" if address != path else ""
