"""How a command acts: as the user who runs it, on the data that its options name."""

import asyncio
import contextlib
import functools
import getpass
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Literal, TypeVar

import click

from petstore import data_dir, timeouts
from petstore.admin.actions import Admin
from petstore.audit import AuditEntry
from petstore.backends import Backends, check_copied
from petstore.cli.options import BACKEND_OPTIONS, data_options, is_given, settings_from
from petstore.cli.output import Output
from petstore.errors import OperatorError
from petstore.keys import ApiKey, Environment
from petstore.operators import COMMAND_LINE
from petstore.settings import Settings, without_password
from petstore.store.database import Bounds

T = TypeVar("T")

# What a command does with the data. `read` creates nothing, migrates nothing and changes no row. `write` changes data
# that exists. `create` also creates the store where there is none.
Access = Literal["read", "write", "create"]

OPERATOR_BOUNDS = Bounds(timeouts=timeouts.OPERATOR)


def actor() -> str:
    """The actor of this command in the audit log. With sudo it is the person, not root."""
    return f"{os.environ.get('SUDO_USER') or _user()}{COMMAND_LINE}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container a user may have no name
        return f"uid {os.getuid()}"


def entry(action: str, subject: str, detail: str = "") -> AuditEntry:
    """An audit entry of this command."""
    return AuditEntry(time.time(), actor(), action, subject, detail)


def on_data(access: Access) -> Callable[[Callable[..., Coroutine[Any, Any, Output]]], Callable[..., None]]:
    """Makes a command with the backend options and --json. It gets the open backends and the values of other options.

    Its output is printed when the backends are closed again: a reader of a pipe may take long.
    """

    def decorate(work: Callable[..., Coroutine[Any, Any, Output]]) -> Callable[..., None]:
        @functools.wraps(work)
        def command(as_json: bool, **options: Any) -> None:
            where = {name: options.pop(name) for name in BACKEND_OPTIONS}
            act(where, lambda backends: work(backends, **options), access=access).print(as_json)

        return data_options(command)

    return decorate


def act(where: Mapping[str, Any], work: Callable[[Backends], Coroutine[Any, Any, T]], *, access: Access = "read") -> T:
    """The result of `work` on the data that the backend options name. Raises OperatorError."""

    async def on_backends() -> T:
        async with open_data(settings_from(where), access) as backends:
            return await work(backends)

    return asyncio.run(on_backends())


@contextlib.asynccontextmanager
async def open_data(settings: Settings, access: Access) -> AsyncIterator[Backends]:
    """The backends. Raises OperatorError where there is no data, unless the command may create it there."""
    creates = access == "create" and creates_store(settings)
    if access != "create":
        await check_data(settings)
    async with Backends(settings, migrate=access != "read", bounds=OPERATOR_BOUNDS) as backends:
        if creates:
            say_created(settings)
        await check_copied(backends.stores)
        yield backends


def creates_store(settings: Settings) -> bool:
    """Whether a command is about to create a store in the data directory. Raises NoData unless --data names it.

    A store that is created by accident, in the wrong directory, has keys that the running service does not know.
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
    """Raises OperatorError when the data directory or the database has no data of Petstore."""
    if settings.store is None or (settings.gate is None and not settings.data.is_dir()):
        if not data_dir.has_data(settings.data):
            raise no_data(settings)
        return
    data_dir.check_encoding(settings.data)
    if not await _has_schemas(settings.store):
        raise OperatorError(f"{without_password(settings.store)} has no Petstore data")


def no_data(settings: Settings) -> data_dir.NoData:
    """If --data was not given, the message also says how to give it."""
    return data_dir.NoData(settings.data, "" if is_given("data") else "; give the data directory with --data DIR")


async def _has_schemas(url: str) -> bool:
    """True also for a server that does not answer: the store itself tells why."""
    try:
        import asyncpg

        from petstore.store.postgres.doctor import has_schemas
    except ImportError:
        return True
    try:
        return await has_schemas(url)
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return True


def admin(backends: Backends, environment: Environment) -> Admin:
    return Admin(backends.stores[environment], backends.gate, actor(), backends.clock)


async def key_of(backends: Backends, key_id: str) -> ApiKey:
    """The key of this id, of either environment. Raises OperatorError."""
    # PostgreSQL refuses a text with U+0000 or a lone surrogate: such a text is not looked up.
    if key_id.isascii() and key_id.isprintable():
        for store in backends.stores.values():
            key = await store.keys.get(key_id)
            if key is not None:
                return key
    raise OperatorError(f"no key has the id {key_id}; `petstore keys list` shows the ids")


async def admin_of_key(backends: Backends, key_id: str) -> Admin:
    """The admin of the key's environment. Raises OperatorError."""
    return admin(backends, (await key_of(backends, key_id)).environment)
