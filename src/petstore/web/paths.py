"""The base paths of both environments, and the 404 of what is beside them."""

from petstore.errors import NotFound
from petstore.keys import Environment

BASES: dict[Environment, str] = {"live": "/v1", "staging": "/staging/v1"}


def not_found(path: str) -> NotFound:
    return NotFound("There is nothing at this address." + suggestion(path))


def suggestion(path: str) -> str:
    """For a path that is one slip away from an address of the interface."""
    plain = path.lower().rstrip("/")
    for base in BASES.values():
        collection = base + "/pets"
        if path != collection and plain in (collection, base + "/pet"):
            return f" Did you mean {collection}?"
    return f" Did you mean {BASES['live']}/pets?" if plain in ("/pets", "/pet") else ""
