"""Runs the app on any ASGI server, for example one that supports HTTP/2."""

from collections.abc import Awaitable, Callable, MutableMapping
from time import perf_counter
from typing import Any

from petstore.paths import decoded_path
from petstore.web.app import App
from petstore.web.replies import pairs
from petstore.web.requests import FIELDS, FORWARDED_PREFIX, Body

TARGET_MAX = 8 * 1024

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class AsgiRequest:
    """A `Request` created from an ASGI scope. The object is also the stream of the request's body."""

    body = b""

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive) -> None:
        self.started = perf_counter()
        self.method: str = scope["method"]
        self.path = _path(scope)
        self.query: str = scope["query_string"].decode("latin-1")
        client = scope.get("client")
        self.peer: str = client[0] if client else ""
        self.fields: dict[str, str] = {}
        for raw, value in scope["headers"]:
            name = raw.decode("latin-1")
            if name in FIELDS or name.startswith(FORWARDED_PREFIX):
                text = value.decode("latin-1").strip(" \t")
                self.fields[name] = f"{self.fields[name]}, {text}" if name in self.fields else text
        self._receive = receive
        self._more = True

    @property
    def stream(self) -> Body:
        return self

    async def read(self) -> bytes:
        while self._more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the client has disconnected")
            self._more = message.get("more_body", False)
            if body := message.get("body", b""):
                return bytes(body)
        return b""


def _path(scope: MutableMapping[str, Any]) -> str:
    """Returns the path relative to the mount point, decoded exactly as Petstore's own server would decode it.

    Uses the optional `raw_path` if present, because ASGI servers decode %2F to a slash in `path`.
    """
    raw: bytes | None = scope.get("raw_path")
    # Some servers include the query in `raw_path`.
    path: str = scope["path"] if raw is None else decoded_path(raw.partition(b"?")[0].decode("latin-1"))
    root: str = scope.get("root_path", "").rstrip("/")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


async def respond(app: App, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    request = AsgiRequest(scope, receive)
    target = len(scope.get("raw_path") or request.path) + len(request.query)
    reply = await (app.reject(414, request.peer) if target > TARGET_MAX else app.answer(request))
    headers = [(name.encode(), value.encode("latin-1")) for name, value in pairs(reply.headers)]
    if reply.status not in (204, 304):
        headers.append((b"content-length", str(len(reply.body)).encode()))
    if reply.status in (408, 413):  # close the connection, because the rest of the body is never read
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else reply.body})
