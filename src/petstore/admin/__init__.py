"""The actions that operators can perform in one environment, shared by the command line and the console.

Each change is recorded in an audit entry that names the operator, and takes effect with the next request.
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
    """One operator's actions in one environment, grouped by the kind of data that they change.

    All methods raise OperatorError if the action is not possible, and Unavailable if the store or the gate is down.
    """

    def __init__(self, store: Store, gate: Gate, actor: str, clock: Callable[[], float]) -> None:
        acting = Actor(actor, clock)
        self.keys = KeyActions(store, gate, acting)
        self.pets = PetActions(store, acting)
        self.imports = ImportActions(store, acting)
        self.operators = OperatorActions(store, acting)
