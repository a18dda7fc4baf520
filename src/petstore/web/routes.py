"""Finds the environment and the operation for a request."""

import math
import re

import msgspec

from petstore.errors import Gone, MethodNotAllowed, NotFound, RequestError
from petstore.keys import Environment
from petstore.operations import OPERATIONS, OTHER, Operation, OperationName, allowed_methods
from petstore.settings import BASES, Settings, leads_to_staging
from petstore.web.admission import Admission
from petstore.web.counters import RequestCounters
from petstore.web.deprecation import deprecation_headers, gone_message
from petstore.web.pets import HANDLERS, Handler, PetOperations
from petstore.web.replies import Lines
from petstore.web.requests import Request


class Api(msgspec.Struct, frozen=True):
    """The API of one environment."""

    environment: Environment
    admission: Admission
    pets: PetOperations
    counters: RequestCounters


class Route(msgspec.Struct, frozen=True):
    """The route for one method on one path of the API."""

    api: Api
    counted_as: OperationName = OTHER
    operation: Operation | None = None  # None if no operation matches the method and the path
    handler: Handler | None = None
    allow: str = ""  # the methods that this path supports; empty if nothing exists at this path
    headers: Lines = ""  # added to every response, regardless of its status
    end: float = math.inf  # the Unix time of the operation's sunset
    gone: str = Gone.usual  # the error message after the sunset


# Maps each supported method to its route, and ANY_OTHER to the route for all other methods.
Address = dict[str, Route]
ANY_OTHER = ""


class Router:
    """Finds a request's route with one or two dictionary lookups."""

    def __init__(self, apis: dict[Environment, Api], settings: Settings) -> None:
        self._staging_url, self._public_url = settings.staging_url, settings.public_url
        self._fixed: dict[str, Address] = {}  # paths without parameters
        self._items: dict[str, Address] = {}  # paths that end with a parameter, keyed by their parent path
        self._bases = {BASES[environment]: Route(api) for environment, api in apis.items()}
        for base, nothing in self._bases.items():
            base_url = settings.base_url(nothing.api.environment)
            for path in dict.fromkeys(each.path for each in OPERATIONS):
                parent, _, last = path.rpartition("/")
                assert "{" not in parent, f"{path}: only the last segment can be a parameter"
                if last.startswith("{"):
                    self._items[base + parent] = _address(nothing.api, path, base_url)
                else:
                    self._fixed[base + path] = _address(nothing.api, path, base_url)

    def find(self, request: Request) -> Route | None:
        """Returns the request's route, or None if the path is not under a base address."""
        path = request.path
        if (
            self._staging_url is not None
            and path.startswith(BASES["live"])
            and leads_to_staging(request.fields.get("host", ""), self._staging_url, self._public_url)
        ):
            path = BASES["staging"] + path.removeprefix(BASES["live"])
        address = self._fixed.get(path)
        if address is None:
            parent, _, parameter = path.rpartition("/")
            address = self._items.get(parent)
            if address is None or parameter in ("", ".", ".."):
                return self._nothing_at(path)
        return address.get(request.method) or address[ANY_OTHER]

    def _nothing_at(self, path: str) -> Route | None:
        for base, route in self._bases.items():
            if path == base or path.startswith(base + "/"):
                return route
        return None


def _address(api: Api, path: str, base_url: str) -> Address:
    operations: dict[str, Operation] = {each.method: each for each in OPERATIONS if each.path == path}
    if "GET" in operations:
        operations["HEAD"] = operations["GET"]
    allow = ", ".join(sorted(allowed_methods(path)))
    address = {method: _route(api, operation, allow, base_url) for method, operation in operations.items()}
    return address | {ANY_OTHER: Route(api, allow=allow)}


def _route(api: Api, operation: Operation, allow: str, base_url: str) -> Route:
    route = Route(api, operation.name, operation, HANDLERS[operation.name], allow)
    if operation.deprecation is None:
        return route
    headers = deprecation_headers(operation.deprecation, base_url)
    return msgspec.structs.replace(route, headers=headers, end=operation.end, gone=gone_message(operation.deprecation))


# 404 responses with a suggestion

SUGGESTED_MAX = 100  # maximum characters in a path; a longer path is probably not a typo
_SLIP = re.compile(r"(/staging/v1|/v1|)/pets?(/[0-9]+)?/?").fullmatch


def not_found(path: str) -> NotFound:
    return NotFound(NotFound.usual + suggestion(path))


def wrong_address(path: str, allow: str) -> RequestError:
    """Returns a 405 or, if `allow` is empty, a 404. `allow` lists the methods that the address supports."""
    return MethodNotAllowed(f"This address supports only {allow}.", (("allow", allow),)) if allow else not_found(path)


def suggestion(path: str) -> str:
    """Returns a suggestion if the path looks like a mistyped API path, or an empty string otherwise."""
    match = _SLIP(re.sub("/+", "/", path.lower())) if len(path) <= SUGGESTED_MAX else None
    if match is None:
        return ""
    address = f"{match[1] or BASES['live']}/pets{match[2] or ''}"
    return f" Did you mean {address}?" if address != path else ""
