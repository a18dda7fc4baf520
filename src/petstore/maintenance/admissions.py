"""Collects what the gate has admitted into the usage of keys.

Any process may collect, at any time: `Usage.add_admissions` adds each admission once.
"""

from collections.abc import Mapping, Sequence

from petstore.gate import Gate
from petstore.keys import Environment
from petstore.store import Store

TOTALS_MAX = 250  # in one transaction, so that creates do not wait long for the write lock


async def collect_admissions(
    gate: Gate, stores: Mapping[Environment, Store], at: float, key_ids: Sequence[str] | None = None
) -> None:
    """Add the admissions of these keys, or of all keys, that were not added yet to the usage at `at`.

    Raises Unavailable when a gate or a store cannot answer. What was not added then is added by a later call.
    """
    async for totals in gate.admissions(key_ids):
        for environment, store in stores.items():
            own = [total for total in totals if total.environment == environment]
            for start in range(0, len(own), TOTALS_MAX):
                await store.usage.add_admissions(own[start : start + TOTALS_MAX], int(at), late=key_ids is None)
