"""Sends requests to the addresses under test and records the responses."""

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from petstore.keys import without_keys
from petstore.verify.findings import Skip
from petstore.verify.responses import Response, link_target
from petstore.verify.transport import EXCHANGE_SECONDS, Address, Budget, Closed, Connection, NoResponse

RUN_SECONDS = 120.0
RUN_BYTES = 32 * 2**20  # received in all exchanges together
NAME = "verify-"


class ListEnd(NamedTuple):
    """The last page of the list of animals with this status. `query` is the page's query string."""

    status: str
    query: str


class Session:
    def __init__(
        self, addresses: Sequence[Address], key: str, limit_key: str = "", sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.addresses = addresses
        self.key = key
        self.limit_key = limit_key
        self._sleep = sleep
        self.received: list[Response] = []  # all responses except rejections by a proxy
        self.sent = 0
        self.added = 0
        self.list_end: ListEnd | None = None
        # After the deadline, no request is sent, so that there is enough time for the last response.
        self.deadline = time.monotonic() + RUN_SECONDS - EXCHANGE_SECONDS
        self._budget = Budget("the run", RUN_BYTES, RUN_SECONDS)
        self._open: dict[Address, Connection] = {}
        self._lock = threading.Lock()

    # Requests

    def message(
        self, line: str, *headers: str, body: bytes | None = None, key: str | None = None, at: Address | None = None
    ) -> bytes:
        """Builds a request and counts it as sent. Raises Skip if the deadline has passed.

        `line` is the method and the path, which is relative to the base address. `key` defaults to the session's key.
        If it is an empty string, no key is sent.
        """
        if time.monotonic() > self.deadline:
            raise Skip("the two-minute limit has passed because the address responds too slowly")
        method, _, path = line.partition(" ")
        address = at or self.addresses[0]
        lines = [f"{method} {address.path}{path} HTTP/1.1", f"Host: {address.authority}", *headers]
        if key is None or key:
            lines.append(f"Authorization: Bearer {key or self.key}")
        if body is not None and not any(header.lower().startswith("transfer-encoding:") for header in headers):
            lines.append(f"Content-Length: {len(body)}")
        with self._lock:
            self.sent += 1
        return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8") + (body or b"")

    def send(
        self, line: str, *headers: str, body: bytes | None = None, key: str | None = None, at: Address | None = None
    ) -> Response:
        """Sends a request and returns its response. Raises NoResponse or OSError on failure.

        GET and HEAD requests share one connection per address. If the server has closed it, they are resent on a new
        one. All other requests use new connections, so that they are never sent twice.
        """
        address = at or self.addresses[0]
        data = self.message(line, *headers, body=body, key=key, at=address)
        if line.startswith(("GET ", "HEAD ")) and body is None:
            return self._send_on_kept(address, data, line)
        with self.connect(address) as connection:
            connection.write(data)
            return self.read(connection, line)

    def _send_on_kept(self, address: Address, data: bytes, line: str) -> Response:
        for connection in (self._open.pop(address, None), None):
            reused = connection is not None
            connection = connection or self.connect(address)
            try:
                connection.write(data)
                response = self.read(connection, line)
            except (NoResponse, OSError) as error:
                connection.close()
                if not reused or not isinstance(error, Closed | OSError):
                    raise
                continue
            if response.value("connection").lower() == "close":
                connection.close()
            else:
                self._open[address] = connection
            return response
        raise AssertionError("a new connection either returns a response or raises")

    def connect(self, at: Address | None = None) -> Connection:
        """Opens a new connection. Raises NoResponse or OSError on failure."""
        return Connection(at or self.addresses[0], self._budget)

    def read(self, connection: Connection, line: str) -> Response:
        """Reads the next response and records it for `every_response`. Raises NoResponse or OSError on failure."""
        response = connection.read(line)
        with self._lock:
            self.received.append(response)
        return response

    def read_rejection(self, connection: Connection, line: str) -> Response:
        """Reads the response to a message that a proxy might reject. Raises NoResponse or OSError on failure."""
        response = connection.read(line)
        if response.values("x-request-id"):
            self.received.append(response)
        return response

    def send_at_once(
        self, count: int, line: str, *headers: str, body: bytes | None = None, key: str | None = None
    ) -> list[Response]:
        """Sends the same request `count` times in parallel, on new connections spread evenly over the addresses."""
        with ExitStack() as stack:
            addresses = [self.addresses[number % len(self.addresses)] for number in range(count)]
            connections = [stack.enter_context(self.connect(address)) for address in addresses]

            def send(connection: Connection) -> Response:
                connection.write(self.message(line, *headers, body=body, key=key, at=connection.address))
                return self.read(connection, line)

            with ThreadPoolExecutor(count) as pool:
                return list(pool.map(send, connections))

    def wait(self, seconds: float) -> None:
        """Waits for this many seconds. Raises Skip if that would exceed the deadline."""
        if time.monotonic() + seconds > self.deadline:
            raise Skip(f"waiting for {seconds:.0f} s would exceed the two-minute limit")
        self._sleep(seconds)

    def without_keys(self, text: str) -> str:
        """Removes keys from text that will be printed, because a faulty service might echo a key."""
        for key in filter(None, (self.key, self.limit_key)):
            text = text.replace(key, "(the key)")
        return without_keys(text)

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    # Animals

    def add(self, *headers: str, at: Address | None = None, **members: Any) -> Response:
        """Adds an animal. Its name begins with `verify-` unless `members` contains a name."""
        return self.post(new_pet(**members), *headers, at=at)

    def post(self, body: bytes, *headers: str, at: Address | None = None) -> Response:
        response = self.send("POST /pets", "Content-Type: application/json", *headers, body=body, at=at)
        self.count_added(response)
        return response

    def count_added(self, *responses: Response) -> None:
        self.added += sum(each.status == 201 and not each.values("idempotent-replayed") for each in responses)

    def next_page(self, response: Response) -> str:
        """Returns the query string of the link to the next page, or an empty string if there is no link."""
        return urlsplit(link_target(response, "next")).query

    def end_of_list(self) -> ListEnd:
        """Returns the last page of a list, where new animals appear. Raises Skip if no last page was found."""
        if self.list_end is None:
            raise Skip("the lists are too long to find their last page; run this check on staging")
        return self.list_end

    def newest(self, at: Address | None = None) -> list[Response]:
        """Returns the page that was last when the run began, and any pages that have been added since then."""
        pages: list[Response] = []
        query = self.end_of_list().query
        while query and len(pages) < 4:
            pages.append(self.send(f"GET /pets?{query}", at=at))
            query = self.next_page(pages[-1])
        return pages


def new_name() -> str:
    return NAME + secrets.token_hex(6)


def new_pet(**members: Any) -> bytes:
    """Returns the body of a create request."""
    return msgspec.json.encode({"name": new_name(), "categoryId": 1, **members})
