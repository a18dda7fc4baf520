"""The adapter to RSGI, Granian's own interface: production."""

from collections.abc import AsyncIterable, Sequence
from typing import Any

from granian._granian import RSGIProtocolClosed as ProtocolClosed

from petstore.errors import InvalidBody
from petstore.web.app import App
from petstore.web.replies import pairs
from petstore.web.requests import Memo

UNREADABLE = "\ufffd"  # stands for a value that is not ASCII, which RSGI does not show: it is none that we could take


class RsgiRequest:
    """A `Request` over an RSGI scope."""

    __slots__ = ("_headers", "_proto", "_scope", "memo", "method", "path", "query")

    def __init__(self, scope: Any, proto: Any) -> None:
        self._scope = scope
        self._proto = proto
        self.method: str = scope.method
        self.path: str = scope.path
        self.query: str = scope.query_string
        self.memo = Memo()
        self._headers = scope.headers

    def header(self, name: str) -> str | None:
        value: str | None = self._headers.get(name)
        return UNREADABLE if value is None and name in self._headers else value

    def headers(self, name: str) -> Sequence[str]:
        values: list[str] = self._headers.get_all(name)
        return [UNREADABLE] if not values and name in self._headers else values

    @property
    def peer(self) -> str:
        return str(self._scope.client).rpartition(":")[0].strip("[]")

    def body(self) -> AsyncIterable[bytes]:
        chunks: AsyncIterable[bytes] = self._proto
        return chunks

    def body_at_hand(self) -> bytes | None:
        return None

    async def whole_body(self) -> bytes:
        try:
            body: bytes = await self._proto()
        except ProtocolClosed:
            raise InvalidBody("The body broke off before its end.") from None
        return body


async def respond(app: App, scope: Any, proto: Any) -> None:
    request = RsgiRequest(scope, proto)
    reply = await app.answer(request)
    headers = pairs(reply.headers)
    if request.method == "HEAD":
        if reply.body:
            headers.append(("content-length", str(len(reply.body))))
        proto.response_empty(reply.status, headers)
    elif reply.body:
        proto.response_bytes(reply.status, headers, reply.body)
    else:
        proto.response_empty(reply.status, headers)
