"""The health page: the workers of this node, latency, the store, the gate, the last backup, version and certificate."""

import asyncio
from typing import Any

from petstore.console.requests import ConsoleRequest


async def content(request: ConsoleRequest) -> dict[str, Any]:
    node = request.state.node
    stores, gate, workers = await asyncio.gather(node.check_stores(), node.check_gate(), node.workers.latest())
    facts = await asyncio.to_thread(node.facts)
    return {"stores": stores, "gate": gate, "workers": workers, "facts": facts}
