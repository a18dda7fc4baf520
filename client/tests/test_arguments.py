"""All four forms of the client send every argument of every operation in the same way.

The operations and their parameters come from the signatures of `Petstore`, so new ones are tested automatically.
"""

import inspect
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin

import httpx2
import msgspec
import pytest

from fakes import Client, Kind, Service, error
from petstore_client import Petstore, PetstoreError

# The kind of client, and whether with_raw_response is used.
FORMS: dict[str, tuple[Kind, bool]] = {
    "Petstore": ("sync", False),
    "Petstore.with_raw_response": ("sync", True),
    "AsyncPetstore": ("async", False),
    "AsyncPetstore.with_raw_response": ("async", True),
}
OPERATIONS = [
    name
    for name, _ in inspect.getmembers(Petstore, inspect.isfunction)
    if not name.startswith("_") and name not in ("close", "with_options")
]
# Values for parameters for which a value cannot be derived from the type.
VALUES: dict[str, Any] = {"max_items": 17}

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
each_operation = pytest.mark.parametrize("operation", OPERATIONS)
each_form = pytest.mark.parametrize("form", FORMS)


def parameters_of(form: str, operation: str) -> list[inspect.Parameter]:
    with Client(FORMS[form][0], Service()) as client:
        return list(inspect.signature(method_of(client, form, operation)).parameters.values())


def method_of(client: Client, form: str, operation: str) -> Any:
    return getattr(client.inner.with_raw_response if FORMS[form][1] else client.inner, operation)


def arguments_of(operation: str) -> dict[str, Any]:
    """Returns a value for every parameter. The values differ, so that each can be found in a request."""
    parameters = parameters_of("Petstore", operation)
    return {parameter.name: value_of(parameter, 1000 + number) for number, parameter in enumerate(parameters, 1)}


def value_of(parameter: inspect.Parameter, number: int) -> Any:
    if parameter.name in VALUES:
        return VALUES[parameter.name]
    annotation = parameter.annotation
    for kind in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,):
        if kind is str:
            return f"{parameter.name}-{number}"
        if kind is bool:
            return parameter.default is not True
        if kind in (int, float):
            return kind(number)
        if inspect.isclass(kind) and issubclass(kind, Enum):
            members = list(kind)
            return members[number % len(members)]
    pytest.fail(f"give a value for {parameter.name} in VALUES of test_arguments.py: its type is {annotation}")


def requests_of(form: str, operation: str, arguments: dict[str, Any]) -> list[httpx2.Request]:
    """Returns the requests that a call sends. The response is an error, which every operation accepts."""
    service = Service(error(400, "invalid_request"))
    with Client(FORMS[form][0], service) as client, suppress(PetstoreError):
        result = method_of(client, form, operation)(**arguments)
        if isinstance(result, Iterator | AsyncIterator):
            next(client.iterate(result))
        else:
            client.finish(result)
    assert service.requests, f"{form}.{operation} sends no request"
    return service.requests


def values_in(requests: list[httpx2.Request]) -> set[str]:
    """Returns all values in the paths, queries, headers and JSON bodies as text."""
    values: set[str] = set()
    for request in requests:
        values.update(request.url.path.split("/"))
        values.update(value for _, value in request.url.params.multi_items())
        values.update(request.headers.values())
        values.update(texts(json.loads(request.content or b"{}")))
    return values


def texts(value: Any) -> set[str]:
    """Returns the text of a JSON value, or the texts of all members of an object or array."""
    if isinstance(value, dict | list):
        members = value.values() if isinstance(value, dict) else value
        return {text for member in members for text in texts(member)}
    return {value if isinstance(value, str) else json.dumps(value)}


@each_operation
@each_form
def test_every_argument_is_sent(operation: str, form: str) -> None:
    """Passes each optional argument alone, because only the smaller of `max_items` and `page_size` is sent."""
    arguments = arguments_of(operation)
    parameters = parameters_of("Petstore", operation)
    required = {each.name: arguments[each.name] for each in parameters if each.default is each.empty}
    missing = []
    for name, value in arguments.items():
        sent = values_in(requests_of(form, operation, required | {name: value}))
        if not texts(msgspec.to_builtins(value)) <= sent:
            missing.append(name)
    assert not missing, f"{form}.{operation} does not send {', '.join(missing)}"


@each_operation
@each_form
def test_every_form_has_the_same_parameters_and_sends_the_same_request(operation: str, form: str) -> None:
    same = parameters_of(form, operation) == parameters_of("Petstore", operation)
    assert same, f"{form}.{operation} has different parameters from Petstore.{operation}"
    arguments = arguments_of(operation)
    sent, by_petstore = (
        [(request.method, str(request.url), dict(request.headers), request.content) for request in requests]
        for requests in (requests_of(form, operation, arguments), requests_of("Petstore", operation, arguments))
    )
    assert sent == by_petstore, f"{form}.{operation} sends a different request from Petstore.{operation}"
