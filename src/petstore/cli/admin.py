"""How commands sit down at the operator's admin: as the user who runs them, on the data that their options name."""

import time

from petstore.admin.actions import Admin
from petstore.cli import actor
from petstore.errors import OperatorError
from petstore.keys import ApiKey, Environment
from petstore.service import Backends


def admin(backends: Backends, environment: Environment) -> Admin:
    return Admin(backends.stores[environment], backends.gate, actor(), time.time)


async def key_of(backends: Backends, key_id: str) -> ApiKey:
    """Wherever it lives. Raises OperatorError.

    What cannot be an id is not looked for: a store may take offence at it.
    """
    for store in backends.stores.values():
        key = await store.key(key_id) if key_id.isascii() and key_id.isprintable() else None
        if key is not None:
            return key
    raise OperatorError(f"no key has the id {key_id}; petstore keys list shows them")


async def admin_of_key(backends: Backends, key_id: str) -> Admin:
    """The admin of the environment that a key belongs to. Raises OperatorError."""
    return admin(backends, (await key_of(backends, key_id)).environment)
