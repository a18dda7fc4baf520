"""How commands sit down at the operator's desk: as the user who runs them, on the data that their options name."""

import time

from petstore.cli import actor
from petstore.desk import Desk
from petstore.errors import OperatorError
from petstore.keys import ApiKey, Environment
from petstore.service import Backends


def desk(backends: Backends, environment: Environment) -> Desk:
    return Desk(backends.stores[environment], backends.gate, actor(), time.time)


async def key_of(backends: Backends, key_id: str) -> ApiKey:
    """Wherever it lives. Raises OperatorError.

    What cannot be an id is not looked for: a store may take offence at it.
    """
    for store in backends.stores.values():
        key = await store.key(key_id) if key_id.isascii() and key_id.isprintable() else None
        if key is not None:
            return key
    raise OperatorError(f"no key has the id {key_id}; petstore keys list shows them")


async def desk_of(backends: Backends, key_id: str) -> Desk:
    """The desk of the environment that a key belongs to. Raises OperatorError."""
    return desk(backends, (await key_of(backends, key_id)).environment)
