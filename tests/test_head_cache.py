"""What a worker remembers of heads changes how soon they are understood, and nothing else."""

import asyncio
import itertools
import random
from pathlib import Path

import pytest

from petstore.pets import NewPet
from petstore.server.connection import Connection
from petstore.server.head_cache import HEAD_MAX, HEADS_MAX, HeadCache
from petstore.server.messages import Head
from petstore.server.server import HttpServer
from petstore.store import Store
from petstore.web.app import App
from petstore.web.counters import NO_TALLY
from petstore.web.replies import Reply
from petstore.web.requests import Memo, Request
from tests.connections import Slow, connected, only
from tests.test_web_in_process import use_app
from tests.test_web_parts import NOW

LINES = [
    b"GET /v1/pets HTTP/1.1",
    b"GET /v1/pets?limit=1&status=sold HTTP/1.1",
    b"GET /v1/pets?limit=%31 HTTP/1.1",
    b"GET /v1/pets?limit=0 HTTP/1.1",
    b"GET /v1/pets/1 HTTP/1.1",
    b"GET /v1/pets/1? HTTP/1.1",
    b"GET /v1/pets/2?a=1 HTTP/1.1",
    b"GET /v1/%70ets HTTP/1.1",
    b"GET /staging/v1/pets HTTP/1.1",
    b"GET //v1/pets HTTP/1.1",
    b"GET http://elsewhere/v1/pets HTTP/1.1",
    b"GET /healthz HTTP/1.1",
    b"GET /v1/pets#x HTTP/1.1",
    b"GET /v1/pets?a=1#x HTTP/1.1",
    b"GET /v1/pets HTTP/1.0",
    b"GET /v1/pets HTTP/1.2",
    b"GET /v1/pets HTTP/2.0",
    b"GET /v1/pets",
    b"HEAD /v1/pets HTTP/1.1",
    b"OPTIONS /v1/pets HTTP/1.1",
    b"POST /v1/pets HTTP/1.1",
    b"get /v1/pets HTTP/1.1",
    b"GET  /v1/pets HTTP/1.1",
    b"GET * HTTP/1.1",
    b"GET /v1/pets?" + b"a" * 70_000 + b" HTTP/1.1",
]
VARYING = ("date:", "x-request-id:", "x-ratelimit-remaining:")


def lines() -> list[bytes]:
    """Those above, and the same with an octet changed, left out or put in."""
    chance = random.Random(1)
    found = list(LINES)
    while len(found) < 400:
        line, octet = chance.choice(LINES[:-1]), bytes([chance.choice(b"/?&=%+-_.~# \t\r\nAz09\x00\xff:;@!")])
        at = chance.randrange(len(line))
        found.append(line[:at] + octet + line[at + chance.randrange(2) :])
    return found


@pytest.mark.parametrize("fields", ["Host: here\r\n", "Host: here\r\nExpect: 100-continue\r\n", ""])
def test_a_first_line_means_the_same_before_fields_that_are_known(tmp_path: Path, fields: str) -> None:
    async def said(server: HttpServer, *heads: bytes) -> list[str]:
        """The last answer, without what differs from one to the next."""
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0)
        async with listening, asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            for head in heads:
                writer.write(head)
                answer = await reader.read(65536)
                if not answer:  # closed by the one before
                    break
            writer.close()
        return [line for line in answer.decode().split("\r\n") if not line.startswith(VARYING)]

    async def work(app: App, store: Store, secret: str) -> None:
        await store.add(NewPet("Rex", 1), NOW)
        rest = f"\r\n{fields}Authorization: Bearer {secret}\r\n\r\n".encode()
        for line in lines():
            # HTTP/1.0 may come without a host, which is no reason to take one of 1.1 without.
            before = b"GET /v1/pets?limit=3 HTTP/1.1" if fields else b"GET /v1/pets?limit=3 HTTP/1.0"
            known, unknown = HttpServer(app), HttpServer(app)
            idempotency_key = await said(unknown, line + rest)
            if fields:
                assert await said(known, before + rest, line + rest) == idempotency_key, line
            else:
                await said(known, before + rest)
                assert await said(known, line + rest) == idempotency_key, line

    use_app(tmp_path, work)


@pytest.mark.parametrize("rest", [b"\r\n\r\n", b"\r\nX-Note: 1\r\n\r\n"], ids=["its end", "another field"])
def test_a_head_is_known_only_when_it_has_ended(tmp_path: Path, rest: bytes) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        server = HttpServer(app)
        listening = await asyncio.get_running_loop().create_server(lambda: Connection(server), "127.0.0.1", 0)
        start = f"GET /v1/pets HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {secret}".encode()
        async with listening, asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            writer.write(start + b"\r\n\r\n")
            assert (await reader.read(65536)).startswith(b"HTTP/1.1 200")
            connection = only(server)
            connection.data_received(start)  # by hand: so that it comes alone
            writer.write(rest)
            answer = await reader.read(65536)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
            answer += await reader.read()
            writer.close()
        assert answer.count(b"HTTP/1.1 200") == answer.count(b"HTTP/1.1") == 2  # one, and the one behind it

    use_app(tmp_path, work)


@pytest.mark.parametrize(
    "behind",
    [b"GET /healthz HTTP/1.1\r\nHost: here", b"GET /healthz HTTP/1.1\r\nHost: here\r\nX Note: 1\r\n\r\n"],
    ids=["unfinished", "malformed"],
)
def test_what_comes_behind_a_request_in_hand_is_not_taken_for_it(tmp_path: Path, behind: bytes) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        slow = Slow(app)
        server = HttpServer(slow)  # type: ignore[arg-type]  # the one method that a server calls
        listening = await asyncio.get_running_loop().create_server(lambda: Connection(server), "127.0.0.1", 0)
        async with listening, asyncio.timeout(20):
            _, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            writer.write(f"GET /v1/pets HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {secret}\r\n\r\n".encode())
            while not server.repeated.heads:
                await asyncio.sleep(0)
            connection = only(server)
            connection.data_received(behind)  # by hand: so that it comes alone, while the answer is awaited
            assert len(server.repeated.heads) == 1
            assert server.repeated.recall(raw("/v1/pets")) is None
            slow.may_go.set()
            writer.close()

    use_app(tmp_path, work)


def test_the_rest_of_a_head_is_neither_learned_nor_looked_up(tmp_path: Path) -> None:
    """Its beginning came in the bytes that ended another message, with a credential that the rest does not show."""

    async def work(app: App, store: Store, secret: str) -> None:
        server = HttpServer(app)
        listening = await asyncio.get_running_loop().create_server(lambda: Connection(server), "127.0.0.1", 0)
        whole = f"GET /v1/pets HTTP/1.1\r\nAuthorization: Bearer {secret}\r\nHost: here\r\n\r\n".encode()
        cut = whole.index(b"st: here")
        async with listening, asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
            assert (await reader.read(65536)).startswith(b"HTTP/1.1 200")
            connection = only(server)
            known = set(server.repeated.heads)
            connection.data_received(whole + whole[:cut])  # by hand: so that they come together
            connection.data_received(whole[cut:])
            answers = await reader.read(65536)
            while answers.count(b"HTTP/1.1 200") < 2:
                answers += await reader.read(65536)
            assert set(server.repeated.heads) == known
            _, stranger = await asyncio.open_connection(*listening.sockets[0].getsockname())
            stranger.write(whole[cut:])
            assert (await _.read(65536)).startswith(b"HTTP/1.1 400")
            for each in (writer, stranger):
                each.close()

    use_app(tmp_path, work)


class Echo:
    """Says what it was asked, and by whom."""

    async def answer(self, request: Request) -> Reply:
        said = f"{request.method} {request.path} {request.header('authorization')} {len(await request.whole_body())}"
        return Reply(200, "", said.encode())


def test_requests_are_answered_as_they_are_wherever_their_bytes_are_cut() -> None:
    """With few paths, keys and lengths, so that heads and parts of heads come again and again, on other connections."""
    dice = random.Random(12)

    def message() -> tuple[bytes, str]:
        method, path, key = dice.choice(["GET", "POST"]), dice.choice("ab"), dice.choice(["k1", "k2", None])
        body = b"x" * dice.choice([0, 0, 3]) if method == "POST" else b""
        fields = ["Host: here", *([f"Authorization: {key}"] if key else ())]
        dice.shuffle(fields)
        if body and dice.random() < 0.5:
            fields.append("Transfer-Encoding: chunked")
            sent = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        else:
            fields += [f"Content-Length: {len(body)}"] if method == "POST" else []
            sent = body
        whole = "\r\n".join([f"{method} /{path} HTTP/1.1", *fields, "", ""]).encode() + sent
        return whole, f"{method} /{path} {key} {len(body)}"

    async def work() -> None:
        server = HttpServer(Echo())  # type: ignore[arg-type]  # the one method that a server calls
        for _ in range(1_500):
            connection, end = connected(server)
            messages = [message() for _ in range(dice.randint(1, 3))]
            data = b"".join(sent for sent, _ in messages)
            cuts = sorted(dice.sample(range(1, len(data)), dice.randint(0, 3)))
            for start, stop in itertools.pairwise((0, *cuts, len(data))):
                connection.data_received(data[start:stop])
                await asyncio.sleep(0)
            for _ in range(4):
                await asyncio.sleep(0)
            answers = [part.split(b"\r\n\r\n", 1)[1].decode() for part in end.data.split(b"HTTP/1.1 200 OK")[1:]]
            assert answers == [said for _, said in messages], data
            connection.connection_lost(None)

    asyncio.run(work())


def head(path: str = "/v1/pets", *, keep_alive: bool = True) -> Head:
    return Head("GET", path, "", {"host": ["here"]}, keep_alive, False, 0, Memo())


def raw(path: str, host: str = "here") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}".encode()


def test_fields_that_are_known_need_not_be_read_again() -> None:
    repeated, known = HeadCache(), head()
    known.memo.credential, known.memo.route = ("secret", b"digest"), ("place", None, "listPets")
    assert repeated.recall(raw("/v1/pets?limit=7")) is None
    repeated.learn(raw("/v1/pets"), known)
    page = repeated.recall(raw("/v1/pets?limit=7&x=%20"))
    assert page is not None
    assert (page.path, page.query, page.fields, page.length) == ("/v1/pets", "limit=7&x=%20", known.fields, 0)
    assert (page.memo.credential, page.memo.route) == (known.memo.credential, known.memo.route)
    pet = repeated.recall(raw("/v1/pets/7"))
    assert pet is not None
    assert (pet.path, pet.query, pet.memo.route, pet.memo.tally) == ("/v1/pets/7", "", None, NO_TALLY)
    assert pet.memo.credential == known.memo.credential
    assert repeated.heads[raw("/v1/pets/7")] is pet
    assert repeated.recall(raw("/v1/pets/7", host="there")) is None


def test_nothing_is_kept_for_long_nor_of_what_ends_its_connection_nor_without_bound() -> None:
    repeated = HeadCache()
    repeated.learn(raw("/v1/pets"), head(keep_alive=False))
    repeated.learn(raw("/" + "a" * 1024), head())
    assert (repeated.heads, repeated.recall(raw("/v1/pets/7"))) == ({}, None)
    repeated.learn(raw("/v1/pets"), head())
    assert repeated.recall(raw("/" + "a" * 1024)) is None  # the parser has limits, and this has not
    repeated.age()
    assert repeated.recall(raw("/v1/pets/7")) is None
    assert repeated.recall(raw("/v1/pets")) is not None  # as long as it comes every second
    repeated.age()
    repeated.age()
    assert repeated.recall(raw("/v1/pets")) is None
    for number in range(HEADS_MAX + 9):
        repeated.learn(raw(f"/v1/pets/{number}", host=str(number)), head())
    assert len(repeated.heads) == HEADS_MAX
    assert repeated.recall(raw("/v1/pets", host=str(HEADS_MAX - 1))) is not None
    assert repeated.recall(raw("/v1/pets", host=str(HEADS_MAX))) is None


@pytest.mark.parametrize("kind", ["names", "texts"])
def test_names_and_values_are_remembered_up_to_a_number_and_a_size(kind: str) -> None:
    repeated = HeadCache()
    learn, known = {"names": (repeated.name_of, repeated.names), "texts": (repeated.text_of, repeated.texts)}[kind]
    for size in (HEAD_MAX - 1, HEAD_MAX):
        assert learn(b"x" * size) == "x" * size
        assert (b"x" * size in known) == (size < HEAD_MAX)
    for number in range(HEADS_MAX):
        assert learn(b"%d" % number) == str(number)
    assert len(known) == HEADS_MAX
    assert learn(b"one more") == "one more" and b"one more" not in known
