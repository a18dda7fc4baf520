"""The base paths of both environments, the hosts that lead to them, and the 404 of what is beside them."""

import re
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

from petstore.errors import NotFound
from petstore.keys import Environment

BASES: dict[Environment, str] = {"live": "/v1", "staging": "/staging/v1"}
SUGGESTED_MAX = 100  # characters: a longer path is no slip
HOST_MAX = 300  # of a name with its port; DNS has no longer ones
DEFAULT_PORTS = {"http": 80, "https": 443}
_SLIP = re.compile(r"(/staging/v1|/v1|)/pets?(/[0-9]+)?/?").fullmatch


def not_found(path: str) -> NotFound:
    return NotFound("There is nothing at this address." + suggestion(path))


def suggestion(path: str) -> str:
    """For a path that is one slip away from an address of the interface."""
    match = _SLIP(re.sub("/+", "/", path.lower())) if len(path) <= SUGGESTED_MAX else None
    if match is None:
        return ""
    address = f"{match[1] or BASES['live']}/pets{match[2] or ''}"
    return f" Did you mean {address}?" if address != path else ""


def leads_to_staging(host: str, staging_url: str, public_url: str | None) -> bool:
    """Whether a request with this Host is for --staging-url.

    The name decides. The port decides too, where --staging-url has one or --public-url has the same name.
    """
    return len(host) <= HOST_MAX and _leads_to_staging(host, staging_url, public_url)


@lru_cache(maxsize=256)
def _leads_to_staging(host: str, staging_url: str, public_url: str | None) -> bool:
    staging, public = urlsplit(staging_url), urlsplit(public_url or "")
    try:
        sent = urlsplit(f"{staging.scheme}://{host}")
        port = sent.port
    except ValueError:  # not an IPv6 address in the brackets, or not the number of a port
        return False
    if _name(sent) != _name(staging):
        return False
    if staging.port is None and _name(public) != _name(staging):
        return True
    default = DEFAULT_PORTS[staging.scheme]
    return (port or default) == (staging.port or default)


def _name(url: SplitResult) -> str:
    return (url.hostname or "").rstrip(".")
