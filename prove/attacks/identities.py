"""Clients with different keys send pipelined requests in random pieces, and hide each other's requests in bodies.

Each key has a different limit, so `X-RateLimit-Limit` shows which key a request was counted for, and
`X-RateLimit-Remaining` shows its position among the key's requests. A response is wrong if either does not match what
the client sent.
"""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from typing import NamedTuple

from harness.claims import hold, progress, temporary_directory
from harness.servers import Key, Server, started
from harness.stores import BY
from petstore.backends import Backends
from petstore.keys import mint, new_key
from petstore.plans import Limits
from prove.attacks.altered import program
from prove.http import Response, read
from prove.proof import Figures, Scale

CLIENTS = 16
PIPELINE_MAX = 24
DAY = 10_000_000
TIMEOUT = 60.0


class Message(NamedTuple):
    sent: bytes
    method: str
    status: int
    name: str | None = None  # the name of the animal in the response
    may_be_last: bool = False  # the service may close afterwards, because it does not read the body


def prove(scale: Scale) -> Figures:
    each = scale.messages // CLIENTS
    with temporary_directory() as data:
        server = Server(data / "data")
        server.program = program("fields_of_other_requests") if scale.plant else program()
        with started(server):
            keys = _keys(server)
            heads = [_head("GET", "/v1/pets", key.secret) for key in keys]
            clients = [Client(server.port, number, key, heads) for number, key in enumerate(keys)]
            asyncio.run(_all(clients, each))
            names = [name for client in clients for name in client.acknowledged]
            page = server.act(lambda backends: backends.stores["live"].pets.page(after=0, limit=10**6, status=None))
    stored = Counter(pet.name for pet in page.pets)
    unknown = sum(client.unavailable for client in clients)
    hold(not Counter(names) - stored, "every acknowledged animal exists, once for each acknowledgement")
    hold(stored.total() - len(names) <= unknown, f"{len(names)} animals were acknowledged, but {stored.total()} exist")
    return {"messages": sum(client.count for client in clients), "clients": CLIENTS,
            "pipelines": sum(client.pipelines for client in clients), "creates": len(names),
            "not answered by the store in time": unknown,
            "not sent in time": sum(client.timed_out for client in clients), "wrong": 0}  # fmt: skip


async def _all(clients: list["Client"], each: int) -> None:
    tasks = [asyncio.ensure_future(client.run(each)) for client in clients]
    try:
        await asyncio.gather(*tasks)
    finally:  # stop the other clients too after the first wrong response
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _keys(server: Server) -> list[Key]:
    """Creates a key for each client, with a unique limit."""
    now = time.time()
    records = [
        new_key("live", "enterprise", now=now, limits=Limits(1_000_000_000, DAY + number)) for number in range(CLIENTS)
    ]
    keys = [Key(record, mint("live")) for record in records]

    async def add(backends: Backends) -> None:
        for key in keys:
            await backends.stores["live"].keys.create(key.record, key.secret, BY)

    server.act(add)
    return keys


def _head(method: str, target: str, secret: str, *lines: str) -> bytes:
    fields = ["Host: x", f"Authorization: Bearer {secret}", *lines]
    return f"{method} {target} HTTP/1.1\r\n".encode() + "\r\n".join(fields).encode() + b"\r\n\r\n"


class Client:
    def __init__(self, port: int, number: int, key: Key, heads: list[bytes]) -> None:
        """`heads` has a complete request of each client, to be hidden in bodies."""
        self._port, self._number, self._secret, self._heads = port, number, key.secret, heads
        self._dice = random.Random(number)
        self.count = self.pipelines = self.unavailable = self.timed_out = 0
        self.acknowledged: list[str] = []

    async def run(self, messages: int) -> None:
        """Sends this many messages. Raises Broken if a response is wrong."""
        while self.count < messages:
            number = min(messages - self.count, self._dice.randint(1, PIPELINE_MAX))
            pipeline = [self._message(self.count + each) for each in range(number)]
            async with asyncio.timeout(TIMEOUT):
                answers = await self._exchange(pipeline)
            if answers and answers[-1].status == 408:  # the machine was busy for 8 s, so the service may close here
                self._time_out(answers.pop())
                number = len(answers)
            last = pipeline[len(answers) - 1]
            complete = len(answers) == number or (answers and last.may_be_last and answers[-1].field("connection"))
            hold(
                complete,
                f"{number} messages got the responses {[answer.status for answer in answers]}: {last.sent[:60]!r}",
            )
            for message, answer in zip(pipeline, answers, strict=False):
                self.count += 1
                self._check(message, answer)
            self.pipelines += 1
            if self._number == 0 and self.pipelines % 100 == 0:
                progress(f"identities: {CLIENTS * self.count:,} messages")

    def _time_out(self, answer: Response) -> None:
        """Handles a message that did not arrive in time. It must have no effect, but is counted if its head arrived."""
        self.timed_out += 1
        if answer.field("x-ratelimit-limit") == str(DAY + self._number):
            self.count += 1

    def _check(self, message: Message, answer: Response) -> None:
        limit = DAY + self._number
        if answer.status == 503 and message.name is not None:
            self.unavailable += 1
            message = message._replace(status=503, name=None)
        actual = (answer.status, answer.field("x-ratelimit-limit"), answer.field("x-ratelimit-remaining"))
        expected = (message.status, str(limit), str(limit - self.count))
        hold(actual == expected, f"client {self._number} expected {expected} but got {actual}: {message.sent[:60]!r}")
        if message.name is not None:
            hold(json.loads(answer.body)["name"] == message.name, f"the response for {message.name} is {answer.body!r}")
            self.acknowledged.append(message.name)

    async def _exchange(self, pipeline: list[Message]) -> list[Response]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        reading = asyncio.ensure_future(reader.read())
        try:
            await self._send(writer, pipeline)
            received = await reading
        finally:
            reading.cancel()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        return read(received, [message.method for message in pipeline], age=TIMEOUT)

    async def _send(self, writer: asyncio.StreamWriter, pipeline: list[Message]) -> None:
        """Sends the bytes in pieces of random sizes."""
        data = b"".join(message.sent for message in pipeline)
        steps = self._dice.choice([(1, 40), (1, 400), (1_000, 9_000), (10**6, 10**6)])
        while data:
            size = self._dice.randint(*steps)
            if writer.is_closing():
                break
            writer.write(data[:size])
            await asyncio.sleep(self._dice.choice([0, 0, 0, 0.001]))
            data = data[size:]
        with contextlib.suppress(OSError):
            writer.write_eof()

    def _message(self, number: int) -> Message:
        dice, secret = self._dice, self._secret
        other = dice.choice(self._heads)
        kind = dice.randrange(8)
        if kind < 2:
            return Message(_head("GET", f"/v1/pets?limit={dice.randint(1, 3)}", secret), "GET", 200)
        if kind == 2:
            return Message(_head("HEAD", "/v1/pets?limit=1", secret, f"X-Trace: {number}"), "HEAD", 200)
        if kind == 3:
            return Message(_head("GET", "/v1/pets/none", secret), "GET", 404)
        if kind == 4:  # the body consists of other clients' requests
            body = other * dice.randint(1, 3)
            return Message(self._posted(body), "POST", 400)
        if kind == 5:  # a body that the service does not read
            body = other + dice.choice(self._heads)
            return Message(_head("GET", "/v1/pets?limit=1", secret, f"Content-Length: {len(body)}") + body, "GET", 200,
                           may_be_last=True)  # fmt: skip
        name = f"{self._number}.{number}"
        animal = json.dumps({"name": name, "categoryId": number, "note": other.decode()}).encode()
        return Message(self._posted(animal), "POST", 201, name)

    def _posted(self, body: bytes) -> bytes:
        """Returns a POST with a length, or in random chunks, sometimes with another client's key in a trailer."""
        if self._dice.random() < 0.5:
            return _head("POST", "/v1/pets", self._secret, f"Content-Length: {len(body)}") + body
        sent = _head("POST", "/v1/pets", self._secret, "Transfer-Encoding: chunked")
        while body:
            size = self._dice.choice([1, 3, 50, 1_000])
            sent += b"%x\r\n%s\r\n" % (len(body[:size]), body[:size])
            body = body[size:]
        trailer = self._dice.choice(self._heads).split(b"\r\n")[2]
        return sent + b"0\r\n" + self._dice.choice([b"", trailer + b"\r\n"]) + b"\r\n"
