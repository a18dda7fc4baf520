"""Creates bills. A bill lists the number of admitted requests for each key."""

from collections import Counter
from typing import NamedTuple

from petstore.keys import Environment, KeyQuery
from petstore.operations import OPERATIONS, OTHER, OperationName
from petstore.pets import INT64_MAX
from petstore.plans import Plan
from petstore.store import Store
from petstore.usage import Span
from petstore.wording import as_cell

BILLED = [*(each.name for each in OPERATIONS), OTHER]
CSV_COLUMNS = ["key", "name", "environment", "plan", "admitted", *BILLED]


class BilledKey(NamedTuple):
    """One key's admitted requests. `operations` counts them by operation, and `admitted` is the total."""

    key_id: str
    name: str
    environment: Environment
    plan: Plan | None  # None if the key no longer exists, for example after a restore
    operations: Counter[OperationName]

    @property
    def admitted(self) -> int:
        return self.operations.total()

    def csv_row(self) -> list[str | int]:
        """Returns this key's row in the CSV file, in the order of CSV_COLUMNS."""
        about = (self.key_id, as_cell(self.name), self.environment, self.plan or "")
        return [*about, self.admitted, *(self.operations[each] for each in BILLED)]


async def bill(store: Store, span: Span, end: float) -> list[BilledKey]:
    """Returns each key's admitted requests, starting with the busiest key. Raises Unavailable."""
    keys = {key.id: key for key in await store.keys.search(KeyQuery(), now=end, limit=INT64_MAX)}
    admitted: dict[str, Counter[OperationName]] = {key_id: Counter() for key_id in keys}
    found = await store.usage.admitted(interval=span.interval, since=span.since(end), until=int(end) + 1)
    for key_id, operation, requests in found:
        admitted.setdefault(key_id, Counter())[operation] += requests
    billed = [
        BilledKey(key_id, key.name if key else "", store.environment, key.plan if key else None, operations)
        for key_id, operations in admitted.items()
        for key in [keys.get(key_id)]
    ]
    return sorted(billed, key=lambda each: (-each.admitted, each.key_id))
