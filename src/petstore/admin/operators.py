"""Adds, identifies and revokes operators, and sets their roles."""

from petstore.admin.actor import Actor
from petstore.errors import OperatorError
from petstore.keys import digest_of
from petstore.operators import Operator, Role, is_operator_name, mint_token, new_operator
from petstore.store import Store


class OperatorActions:
    def __init__(self, store: Store, actor: Actor) -> None:
        self._store = store
        self._actor = actor

    async def identify(self, token: str) -> Operator:
        """Returns the active operator to whom this token belongs."""
        operator = await self._store.operators.find(digest_of(token))
        if operator is None:
            raise OperatorError("this is an operator token, but it does not belong to an active operator")
        return operator

    async def add(self, name: str, role: Role = "operator") -> tuple[Operator, str]:
        """Adds an operator. Returns the operator and their token. Only a hash of the token is stored."""
        operator, token = new_operator(name, self._actor.clock(), role), mint_token()
        entry = self._actor.new_entry("add operator", name, role)
        if not await self._store.operators.add(operator, digest_of(token), entry):
            raise OperatorError(f"operator {name} already exists; revoke that operator first")
        return operator, token

    async def set_role(self, name: str, role: Role) -> None:
        entry = self._actor.new_entry("set role", name)
        if not is_operator_name(name) or not await self._store.operators.set_role(name, role, entry):
            raise OperatorError(f"no active operator is named {name}")

    async def revoke(self, name: str) -> None:
        entry = self._actor.new_entry("revoke operator", name)
        if not is_operator_name(name) or not await self._store.operators.revoke(name, entry):
            raise OperatorError(f"no active operator is named {name}; list the names with `petstore operators list`")
