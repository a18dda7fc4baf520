"""How a command acts: as the user who runs it, on the data that its options name."""

import asyncio
import getpass
import os
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from petstore.admin.actions import Admin
from petstore.audit import AuditEntry
from petstore.errors import OperatorError
from petstore.keys import ApiKey, Environment
from petstore.service import Backends

T = TypeVar("T")


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
    raise OperatorError(f"no key has the id {key_id}; petstore keys list shows the ids")


async def admin_of_key(backends: Backends, key_id: str) -> Admin:
    """The admin of the key's environment. Raises OperatorError."""
    return admin(backends, (await key_of(backends, key_id)).environment)
