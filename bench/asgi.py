"""Petstore as an ASGI application, to compare HTTP servers. It does not check what other servers accept or reject.

Example: PETSTORE_DATA=data PYTHONPATH=bench uvicorn --factory asgi:application
"""

import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from time import perf_counter
from typing import Any

from seed import UNLIMITED

from petstore.server.messages import RequestMessage, split_target
from petstore.service import Service
from petstore.settings import Settings
from petstore.web.requests import FIELDS

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Application:
    def __init__(self, settings: Settings) -> None:
        self._service = Service(settings)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await self._service.start()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._service.stop()
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await self._respond(scope, receive, send)

    async def _respond(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        started = perf_counter()
        # Granian includes the query in `raw_path`, and uvicorn does not.
        path, _ = split_target(scope["raw_path"].partition(b"?")[0])
        fields = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name.decode() in FIELDS}
        query, peer = scope["query_string"].decode("latin-1"), scope["client"][0]
        request = RequestMessage(scope["method"], path, query, fields, keep_alive=True, peer=peer, started=started)
        if request.method == "POST":
            more = True
            while more:
                message = await receive()
                request.body += message.get("body", b"")
                more = message.get("more_body", False)
        reply = await self._service.app.answer(request)
        lines = [line.partition(": ") for line in reply.headers.split("\r\n")[:-1]]
        headers = [(name.encode(), value.encode("latin-1")) for name, _, value in lines]
        if reply.status != 304:
            headers.append((b"content-length", str(len(reply.body)).encode()))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})


def application() -> Application:
    data = Path(os.environ["PETSTORE_DATA"])
    return Application(Settings(data=data, ban_strikes=UNLIMITED, address_per_minute=UNLIMITED))
