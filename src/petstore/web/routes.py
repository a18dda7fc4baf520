"""Routing: the environment and the operation that a request is for, from the table of operations."""

import math
import re

import msgspec

from petstore.errors import Gone, MethodNotAllowed, NotFound, RequestError
from petstore.keys import Environment
from petstore.operations import OPERATIONS, OTHER, Operation, OperationName
from petstore.settings import BASES, Settings, leads_to_staging
from petstore.web.admission import Admission
from petstore.web.counters import RequestCounters
from petstore.web.deprecation import deprecation_headers, gone_message
from petstore.web.pets import HANDLERS, Handler, PetOperations
from petstore.web.replies import Lines
from petstore.web.requests import Request


class Api(msgspec.Struct, frozen=True):
    """One environment's interface, at its base address."""

    environment: Environment
    admission: Admission
    pets: PetOperations
    counters: RequestCounters


class Route(msgspec.Struct, frozen=True):
    """What a method does at an address under a base address."""

    api: Api
    counted_as: OperationName = OTHER
    operation: Operation | None = None  # None: no operation of the table has this method here
    handler: Handler | None = None
    allow: str = ""  # the methods that this address answers; none: nothing is there
    headers: Lines = ""  # on every response, whatever its status
    end: float = math.inf  # the Unix time from which the operation no longer exists
    gone: str = Gone.usual  # the message from then on


# By method; ANY_OTHER has the route of all methods that no operation has.
Address = dict[str, Route]
ANY_OTHER = ""


class Router:
    """Finds the route of a request. All routes are made once: a request costs one or two look-ups."""

    def __init__(self, apis: dict[Environment, Api], settings: Settings) -> None:
        self._staging_url, self._public_url = settings.staging_url, settings.public_url
        self._fixed: dict[str, Address] = {}  # by path
        self._items: dict[str, Address] = {}  # whose last segment is a parameter: by the path before it
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
        """None: the path is not under a base address."""
        path = request.path
        if self._staging_url is not None and path.startswith(BASES["live"]):
            host = request.fields.get("host", "")
            if leads_to_staging(host.lower(), self._staging_url, self._public_url):
                path = "/staging" + path
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
    allow = ", ".join(sorted({*operations, "OPTIONS"}))
    address = {method: _route(api, operation, allow, base_url) for method, operation in operations.items()}
    return address | {ANY_OTHER: Route(api, allow=allow)}


def _route(api: Api, operation: Operation, allow: str, base_url: str) -> Route:
    route = Route(api, operation.name, operation, HANDLERS[operation.name], allow)
    if operation.deprecation is None:
        return route
    headers = deprecation_headers(operation.deprecation, base_url)
    return msgspec.structs.replace(route, headers=headers, end=operation.end, gone=gone_message(operation.deprecation))


# The 404 of an address where nothing is, with the address that was probably meant

SUGGESTED_MAX = 100  # characters: a longer path is not a slip
_SLIP = re.compile(r"(/staging/v1|/v1|)/pets?(/[0-9]+)?/?").fullmatch


def not_found(path: str) -> NotFound:
    return NotFound(NotFound.usual + suggestion(path))


def wrong_address(path: str, allow: str) -> RequestError:
    """`allow`: the methods that the address answers; none: nothing is there."""
    return MethodNotAllowed(f"This address supports only {allow}.", (("allow", allow),)) if allow else not_found(path)


def suggestion(path: str) -> str:
    """For a path that is one slip away from an address of the interface."""
    match = _SLIP(re.sub("/+", "/", path.lower())) if len(path) <= SUGGESTED_MAX else None
    if match is None:
        return ""
    address = f"{match[1] or BASES['live']}/pets{match[2] or ''}"
    return f" Did you mean {address}?" if address != path else ""
