"""Opens the data selected by a command's options, and determines the user's name for the audit log."""

import asyncio
import contextlib
import functools
import getpass
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Any, Literal, TypeVar

import click

from petstore import data_dir, timeouts
from petstore.audit import Actor
from petstore.backends import Backends
from petstore.changes import CHANGES
from petstore.cli.options import data_options, settings_from
from petstore.cli.output import Output
from petstore.cli.suggestions import BACKEND_OPTIONS, is_given
from petstore.errors import OperatorError, Unavailable
from petstore.files import check_encoding
from petstore.gate import Gate
from petstore.keys import ENVIRONMENTS, PREFIXES, ApiKey
from petstore.operators import COMMAND_LINE
from petstore.settings import Settings, without_password
from petstore.store import Store
from petstore.store.database import Bounds
from petstore.wording import could_be_id

T = TypeVar("T")

# What a command is allowed to do. `read` does not create, migrate or change anything. `write` changes existing data.
# `create` changes data and, if there is no store, creates one.
Access = Literal["read", "write", "create"]

OPERATOR_BOUNDS = Bounds(timeouts=timeouts.OPERATOR)


def actor(now: float) -> Actor:
    """Returns the current user, who acts now. Under sudo, this is the user who ran sudo, not root."""
    return Actor(f"{os.environ.get('SUDO_USER') or _user()}{COMMAND_LINE}", now)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container, the user might have no name
        return f"uid {os.getuid()}"


def on_data(access: Access) -> Callable[[Callable[..., Coroutine[Any, Any, Output]]], Callable[..., None]]:
    """Returns a decorator that adds the backend options and --json to a command, and passes open backends to it.

    The backends are closed before the output is printed, so that a slow reader of a pipe does not keep them open.
    """

    def decorate(work: Callable[..., Coroutine[Any, Any, Output]]) -> Callable[..., None]:
        @functools.wraps(work)
        def command(as_json: bool, **options: Any) -> None:
            where = {name: options.pop(name) for name in BACKEND_OPTIONS}
            act(where, lambda backends: work(backends, **options), access=access).print(as_json)

        return data_options(command)

    return decorate


def act(where: Mapping[str, Any], work: Callable[[Backends], Coroutine[Any, Any, T]], *, access: Access = "read") -> T:
    """Opens the data selected by the backend options, runs `work` on it, and returns the result of `work`.

    Raises OperatorError if an option is invalid or if there is no data.
    """

    async def on_backends() -> T:
        async with open_data(settings_from(where), access) as backends:
            return await work(backends)

    return asyncio.run(on_backends())


@contextlib.contextmanager
def naming_servers(settings: Settings) -> Iterator[None]:
    """Adds the servers' addresses to Unavailable errors, because drivers' error messages often do not name the host."""
    try:
        yield
    except Unavailable as error:
        servers = [without_password(url) for url in (settings.store, settings.gate) if url]
        if servers:
            error.args = (f"{error} ({' and '.join(servers)})",)
        raise


@contextlib.asynccontextmanager
async def open_data(settings: Settings, access: Access) -> AsyncIterator[Backends]:
    """Opens the backends. Raises OperatorError if there is no data and the command is not allowed to create any."""
    creates = access == "create" and creates_store(settings)
    if access != "create":
        await check_data(settings)
    with naming_servers(settings):
        async with Backends(settings, migrate=access != "read", bounds=OPERATOR_BOUNDS) as backends:
            if creates:
                say_created(settings)
            yield backends


async def announce_all(gate: Gate) -> None:
    """Invalidates the caches of all nodes that share this gate, because they may contain data of the previous store."""
    for environment in ENVIRONMENTS:
        await gate.announce(environment, CHANGES)


def creates_store(settings: Settings) -> bool:
    """Returns whether opening the backends will create a store in the data directory.

    Raises NoData if a store would be created but --data was not given. This keeps operators from accidentally creating
    keys in a directory that the service does not use.
    """
    if settings.store is not None or data_dir.has_data(settings.data):
        return False
    data_dir.check_ours(settings.data)
    if not is_given("data"):
        raise no_data(settings)
    return True


def say_created(settings: Settings) -> None:
    click.echo(f"Created a store in {settings.data.absolute()}", err=True)


async def check_data(settings: Settings) -> None:
    """Raises OperatorError if the data directory or the database contains no Petstore data."""
    if settings.store is None or (settings.gate is None and not settings.data.is_dir()):
        if not data_dir.has_data(settings.data):
            raise no_data(settings)
        return
    check_encoding(settings.data)
    if not await _has_schemas(settings.store):
        raise OperatorError(f"{without_password(settings.store)} has no Petstore data")


def no_data(settings: Settings) -> data_dir.NoData:
    """Returns a NoData error. The message suggests --data if the option was not given."""
    return data_dir.NoData(settings.data, "" if is_given("data") else "; specify the data directory with --data DIR")


async def _has_schemas(url: str) -> bool:
    """Returns whether the database contains Petstore's schemas.

    If the check fails, returns True, because opening the store will report the error.
    """
    try:
        import asyncpg

        from petstore.store.postgres.doctor import has_schemas
    except ImportError:
        return True
    try:
        return await has_schemas(url)
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return True


def refuse_secret(text: str) -> None:
    """Raises OperatorError if the operator gave a secret instead of an id. The message does not repeat the secret."""
    if any(prefix in text for prefix in PREFIXES.values()):
        raise OperatorError(
            "this is a secret, not an id. To find the key that it belongs to, run `petstore keys identify` and enter"
            " the secret."
        )


async def key_of(backends: Backends, key_id: str) -> ApiKey:
    """Returns the key with this id in either environment. Raises OperatorError if there is no such key."""
    refuse_secret(key_id)
    if could_be_id(key_id):
        for store in backends.stores.values():
            key = await store.keys.get(key_id)
            if key is not None:
                return key
    raise OperatorError(f"no key has the id {key_id}; list the ids with `petstore keys list`")


async def store_of_key(backends: Backends, key_id: str) -> Store:
    """Returns the store that contains the key. Raises OperatorError if there is no such key."""
    return backends.stores[(await key_of(backends, key_id)).environment]
