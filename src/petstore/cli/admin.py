"""How a command acts: as the user who runs it, on the data that its options name."""

import asyncio
import contextlib
import getpass
import os
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import msgspec

from petstore import data_dir
from petstore.admin.actions import Admin
from petstore.audit import AuditEntry
from petstore.backends import Backends, check_copied
from petstore.cli.output import program
from petstore.errors import OperatorError
from petstore.keys import ApiKey, Environment
from petstore.settings import Settings, without_password
from petstore.store.limits import StoreLimits

T = TypeVar("T")

# An operator waits longer than a client, for whom the defaults are: the machine may be busy, or a migration may run.
OPERATOR_LIMITS = StoreLimits(
    request_timeout=20.0, commit_timeout=5.0, busy_timeout=16.0, statement_timeout=18.0, connect_timeout=8.0
)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def actor() -> str:
    """The actor of this command in the audit log. With sudo it is the person, not root."""
    return f"{os.environ.get('SUDO_USER') or _user()} (command line)"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container a user may have no name
        return f"uid {os.getuid()}"


def entry(action: str, subject: str, detail: str = "") -> AuditEntry:
    """An audit entry of this command."""
    return AuditEntry(time.time(), actor(), action, subject, detail)


@contextlib.asynccontextmanager
async def existing_data(settings: Settings) -> AsyncIterator[Backends]:
    """The backends, for every command that needs data to act on. Raises OperatorError where there are none.

    Creates neither a data directory nor a database.
    """
    await check_data(settings)
    locked = settings.data.is_dir()
    if not locked:  # all data are on servers: there is nothing to lock, and no file to count in while Redis is away
        settings = msgspec.structs.replace(settings, gate_outage="refuse")
    async with Backends(settings, locked=locked, limits=OPERATOR_LIMITS) as backends:
        await check_copied(backends.stores)
        yield backends


@contextlib.asynccontextmanager
async def data_to_create(settings: Settings) -> AsyncIterator[Backends]:
    """The backends, for the few commands that create data where there are none. Raises OperatorError."""
    async with Backends(settings, limits=OPERATOR_LIMITS) as backends:
        await check_copied(backends.stores)
        yield backends


async def check_data(settings: Settings) -> None:
    """Raises OperatorError when the data directory or the database has no data of Petstore."""
    if settings.store is None or (settings.gate is None and not settings.data.is_dir()):
        data_dir.check_data(settings.data)
        return
    data_dir.check_encoding(settings.data)
    if not await _has_schemas(settings.store):
        raise OperatorError(f"no Petstore data in {without_password(settings.store)}")


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
    return Admin(backends.stores[environment], backends.gate, actor(), time.time)


async def key_of(backends: Backends, key_id: str) -> ApiKey:
    """The key of this id, of either environment. Raises OperatorError."""
    # PostgreSQL refuses a text with U+0000 or a lone surrogate: such a text is not looked up.
    if key_id.isascii() and key_id.isprintable():
        for store in backends.stores.values():
            key = await store.key(key_id)
            if key is not None:
                return key
    raise OperatorError(f"no key has the id {key_id}; {program()} keys list shows the ids")


async def admin_of_key(backends: Backends, key_id: str) -> Admin:
    """The admin of the key's environment. Raises OperatorError."""
    return admin(backends, (await key_of(backends, key_id)).environment)
