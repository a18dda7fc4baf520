"""Implements all operator actions in one environment, for the command line and the console.

Each action writes an audit entry that names the operator. Changes take effect with the next request.
"""

from collections.abc import Callable

from petstore.admin.actor import Actor
from petstore.admin.imports import ImportActions
from petstore.admin.keys import KeyActions
from petstore.admin.operators import OperatorActions
from petstore.admin.pets import PetActions
from petstore.gate import Gate
from petstore.store import Store


class Admin:
    """Performs an operator's actions in one environment, with one class for each kind of data.

    All methods raise OperatorError if the action is not possible, and Unavailable if the store does not respond.
    """

    def __init__(self, store: Store, gate: Gate, actor: str, clock: Callable[[], float]) -> None:
        acting = Actor(actor, clock)
        self.keys = KeyActions(store, gate, acting)
        self.pets = PetActions(store, acting)
        self.imports = ImportActions(store, acting)
        self.operators = OperatorActions(store, acting)
