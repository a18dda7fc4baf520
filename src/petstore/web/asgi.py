"""The adapter to ASGI: any ASGI server, and tests."""

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from petstore.errors import InvalidBody
from petstore.web.app import App
from petstore.web.replies import pairs
from petstore.web.requests import Memo

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class AsgiRequest:
    """A `Request` over an ASGI scope."""

    __slots__ = ("_receive", "_scope", "memo", "method", "path", "query")

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive) -> None:
        self._scope = scope
        self._receive = receive
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: str = scope["query_string"].decode("latin-1")
        self.memo = Memo()

    @property
    def peer(self) -> str:
        client = self._scope.get("client")
        return client[0] if client else ""

    def headers(self, name: str) -> list[str]:
        wanted = name.encode()
        return [value.decode("latin-1").strip(" \t") for key, value in self._scope["headers"] if key == wanted]

    def header(self, name: str) -> str | None:
        found = self.headers(name)
        return found[0] if found else None

    async def body(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise InvalidBody("The body broke off before its end.")
            more = message.get("more_body", False)
            yield message.get("body", b"")

    def body_at_hand(self) -> bytes | None:
        return None

    async def whole_body(self) -> bytes:
        return b"".join([chunk async for chunk in self.body()])


async def respond(app: App, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    reply = await app.answer(AsgiRequest(scope, receive))
    headers = [(name.encode(), value.encode("latin-1")) for name, value in pairs(reply.headers)]
    if reply.status not in (204, 304):
        headers.append((b"content-length", str(len(reply.body)).encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else reply.body})
