"""How the server reads heads and bodies, regardless of how the bytes are split."""

import asyncio
import itertools
import random
import time
import tracemalloc

import pytest

from harness.in_process import connected
from petstore.server.bodies import (
    CHUNK_LINE_MAX,
    CHUNK_OVERHEAD_MAX,
    CHUNKS_MAX,
    TRAILERS_MAX,
    BodyStream,
    ChunkedDecoder,
    Malformed,
)
from petstore.server.http_server import HttpServer
from petstore.server.messages import (
    CONNECTION_MAX,
    ESCAPES_MAX,
    FIELDS_MAX,
    HEAD_MAX,
    HOST_MAX,
    SPELLINGS_MAX,
    TARGET_MAX,
    FieldNames,
    HeadReader,
    RequestMessage,
    split_target,
)
from petstore.web.replies import Reply


def read(head: bytes, wanted: frozenset[str] | None = None) -> tuple[RequestMessage, int]:
    return HeadReader(FieldNames(wanted)).read(head, "192.0.2.9", 0.0)


def head(*fields: str, line: str = "GET /v1/pets?limit=1 HTTP/1.1") -> bytes:
    return "\r\n".join([line, "Host: here", *fields, "", ""]).encode()


def test_a_head_becomes_a_request() -> None:
    request, length = read(head("Authorization:  Bearer x \t", "Accept: a", "accept: b", "Content-Length: 5"))
    assert (request.method, request.path, request.query) == ("GET", "/v1/pets", "limit=1")
    assert request.fields["authorization"] == "Bearer x" and request.fields["accept"] == "a, b"
    assert (length, request.keep_alive, request.peer) == (5, True, "192.0.2.9")


def test_only_the_fields_that_the_application_reads_are_kept() -> None:
    request, _ = read(head("User-Agent: x", "AUTHORIZATION: y"), frozenset({"authorization"}))
    assert request.fields == {"host": "here", "authorization": "y"}


@pytest.mark.parametrize(
    ("fields", "keeps"),
    [((), True), (("Connection: keep-alive",), True), (("Connection: x, CLOSE",), False),
     (("Connection: keep-alive", "Connection: close"), False), (("Connection: closely",), True),
     (("Connection: " + "x," * CONNECTION_MAX,), False)],
)  # fmt: skip
def test_a_connection_is_kept_unless_the_client_asks_to_close(fields: tuple[str, ...], *, keeps: bool) -> None:
    assert read(head(*fields))[0].keep_alive is keeps


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (head("X: " + "x" * HEAD_MAX), 431),
        (head("Content-Length: " + "0" * 5_000 + "5"), 400),
        (head(*["X: 1"] * FIELDS_MAX), 431),
        (head(line="GET /" + "x" * TARGET_MAX + " HTTP/1.1"), 414),
        (head(line="GET /" + "x" * HEAD_MAX + " HTTP/1.1"), 414),
        (head(line="GET / HTTP/1.2"), 505),
        (head(line="GET / HTTP/2.0"), 505),
        (head(line="GET / RTSP/1.0"), 400),
        (head(line="OPTIONS / ICE/1.1"), 400),
        (head(line="GET /a b HTTP/1.1"), 400),
        (head(line="G(T / HTTP/1.1"), 400),
        (head(line="GET /#x HTTP/1.1"), 400),
        (head("Transfer-Encoding: gzip"), 400),
        (head("Transfer-Encoding: gzip, chunked"), 501),
        (head("Content-Length: 1", "Transfer-Encoding: chunked"), 400),
        (head("Host: there"), 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: " + b"a" * (HOST_MAX + 1) + b"\r\n\r\n", 400),
        (head(line=f"GET http://{'a' * (HOST_MAX + 1)}/ HTTP/1.1"), 400),
        (b"GET / HTTP/1.0\r\n" + b"a:\r\n" * (FIELDS_MAX + 1) + b"\r\n", 431),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_malformed_head_has_a_status(sent: bytes, status: int) -> None:
    with pytest.raises(Malformed) as malformed:
        read(sent)
    assert malformed.value.status == status


def test_bounds_are_met_exactly() -> None:
    assert read(head(*["X: 1"] * (FIELDS_MAX - 1)))[0].path == "/v1/pets"
    assert len(read(head(line=f"GET /{'x' * (TARGET_MAX - 1)} HTTP/1.1"))[0].path) == TARGET_MAX
    assert read(b"GET / HTTP/1.0\r\n" + b"a:\r\n" * FIELDS_MAX + b"\r\n")[0].path == "/"
    assert read(head(line=f"GET http://{'a' * HOST_MAX}/ HTTP/1.1"))[0].fields["host"] == "a" * HOST_MAX


@pytest.mark.parametrize("method", ["get", "ADOPT", "DESCRIBE", "SOURCE", "PROPFIND", "X-1"])
def test_any_method_is_read(method: str) -> None:
    assert read(head(line=f"{method} /v1/pets HTTP/1.1"))[0].method == method


@pytest.mark.parametrize("target", ["http://there/v1/pets", "http://there", "HTTPS://there?limit=1"])
def test_the_host_of_an_absolute_target_counts(target: str) -> None:
    assert read(head(line=f"GET {target} HTTP/1.1"))[0].fields["host"] == "there"
    with pytest.raises(Malformed):
        read(f"GET {target} HTTP/1.1\r\n\r\n".encode())
    with pytest.raises(Malformed):
        read(head(line=f"GET {target.replace('there', 'a@b')} HTTP/1.1"))


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [(b"/v1/pets", "/v1/pets", ""), (b"/v1/%70ets?a=%41", "/v1/pets", "a=%41"), (b"/a%2Fb", "/a%2Fb", ""),
     (b"http://x/v1/pets?a", "/v1/pets", "a"), (b"http://x", "/", ""), (b"*", "*", ""), (b"/?a?b", "/", "a?b")],
)  # fmt: skip
def test_a_target_is_split_into_path_and_query(target: bytes, path: str, query: str) -> None:
    assert split_target(target) == (path, query)


def test_a_path_with_many_escapes_is_not_decoded() -> None:
    assert split_target(b"/" + b"%41" * ESCAPES_MAX) == ("/" + "A" * ESCAPES_MAX, "")
    assert split_target(b"/" + b"%41" * (ESCAPES_MAX + 1) + b"?%41") == ("/" + "%41" * (ESCAPES_MAX + 1), "%41")


def test_spellings_of_field_names_are_bounded_in_number_and_length() -> None:
    names = FieldNames(frozenset({"accept"}))
    for number in range(SPELLINGS_MAX + 9):
        assert names.learn(b"X-%d" % number) == ""
    assert len(names.known) == SPELLINGS_MAX
    names = FieldNames(None)
    assert names.learn(b"X" * 1000) == "x" * 1000 and not names.known


def decode(*pieces: bytes) -> tuple[bytes, bytes | None]:
    decoder, body, rest = ChunkedDecoder(), b"", None
    for piece in pieces:
        part, rest = decoder.decode(piece)
        body += part
    return body, rest


def test_chunks_are_decoded_wherever_they_are_cut() -> None:
    sent = b"5;a=b\r\nhello\r\n1\r\n \r\n005\r\nworld\r\n0\r\nX-Sum: 1\r\n\r\nGET"
    for cuts in itertools.combinations(range(1, len(sent)), 2):
        first, second, third = sent[: cuts[0]], sent[cuts[0] : cuts[1]], sent[cuts[1] :]
        decoder, body, rest = ChunkedDecoder(), b"", None
        for piece in (first, second, third):
            if rest is None:
                part, rest = decoder.decode(piece)
                body += part
            else:
                rest += piece
        assert (body, rest) == (b"hello world", b"GET")


@pytest.mark.parametrize("trailer", [b"Connection: Upgrade\r\nUpgrade: a", b"Connection: close", b"Content-Length: 5"])
def test_trailers_do_not_change_how_the_message_is_read(trailer: bytes) -> None:
    assert decode(b"5\r\nhello\r\n0\r\n" + trailer + b"\r\n\r\nGET") == (b"hello", b"GET")


def test_tiny_chunks_are_decoded_wherever_they_are_cut() -> None:
    dice = random.Random(3)
    for _ in range(200):
        parts = [dice.randbytes(dice.choice([1, 1, 1, 2, 17])) for _ in range(dice.randrange(60))]
        sent = b"".join(b"%0*X\r\n%s\r\n" % (dice.choice([1, 1, 3]), len(part), part) for part in parts) + b"0\r\n\r\n"
        decoder, body, rest = ChunkedDecoder(), b"", None
        while sent:
            size = dice.choice([1, 2, 7, 50, 1_000])
            part, rest = decoder.decode(sent[:size])
            body, sent = body + part, sent[size:]
            if rest is not None:
                rest += sent
                break
        assert (body, rest) == (b"".join(parts), b"")


@pytest.mark.parametrize("length", [1, 6, 10**6], ids=["byte by byte", "chunk by chunk", "at once"])
def test_chunks_are_bounded_in_number(length: int) -> None:
    sent = b"1\r\nx\r\n" * CHUNKS_MAX
    pieces = [sent[start : start + length] for start in range(0, len(sent), length)]
    assert decode(*pieces, b"0\r\n\r\n") == (b"x" * CHUNKS_MAX, b"")
    with pytest.raises(Malformed) as refused:
        decode(*pieces, b"1\r\nx\r\n")
    assert refused.value.status == 413


@pytest.mark.parametrize(
    "sent",
    [b"zz\r\n", b"0x5\r\n", b"+5\r\n", b" 5\r\n", b"\r\n", b"5\nhello", b"5\r\nhelloX\r\n", b"5\r\nhello\n0\r\n",
     b"5;a\nb\r\n", b"0\r\nX Sum: 1\r\n\r\n", b"0\r\nX: 1\r\n 2\r\n\r\n", b"f" * 20 + b"\r\n", b"5\rhello"],
)  # fmt: skip
def test_malformed_chunks_are_refused(sent: bytes) -> None:
    with pytest.raises(Malformed):
        decode(sent)
    with pytest.raises(Malformed):
        decode(*(bytes([octet]) for octet in sent), b"x\r\n\r\n")


def test_extensions_and_trailers_are_bounded() -> None:
    with pytest.raises(Malformed):
        decode(*[b"1;" + b"x" * 1000 + b"\r\n \r\n"] * (CHUNK_OVERHEAD_MAX // 1000 + 1))
    with pytest.raises(Malformed):
        decode(b"5;" + b"x" * (CHUNK_LINE_MAX + 1))
    with pytest.raises(Malformed):
        decode(b"1;" + b"x" * CHUNK_LINE_MAX + b"\r\n \r\n")
    with pytest.raises(Malformed):
        decode(b"0\r\nX: " + b"x" * CHUNK_LINE_MAX + b"\r\n\r\n")
    trailers = [b"a:\r\n"] * TRAILERS_MAX
    assert decode(b"0\r\n", *trailers, b"\r\n") == (b"", b"")


@pytest.mark.parametrize("last", [b"a:\r\n" * (TRAILERS_MAX + 1), b"X Sum: 1\r\n", b": 1\r\n", b"a: \x00\r\n"])
def test_a_trailer_is_refused_when_it_arrives(last: bytes) -> None:
    decoder = ChunkedDecoder()
    decoder.decode(b"0\r\n")
    with pytest.raises(Malformed):
        decoder.decode(last)


def test_a_body_that_arrives_byte_by_byte_takes_no_more_memory_than_its_bytes() -> None:
    class Source:
        def update_reading(self) -> None: ...

        def write(self, data: bytes) -> None: ...

    tracemalloc.start()
    try:
        stream = BodyStream(Source(), 100_000, continues=False)
        for _ in range(50_000):
            stream.feed(b"x")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000 and stream.take() == b"x" * 50_000


class Rejecting:
    """An application whose responses have no body."""

    async def answer(self, request: RequestMessage) -> Reply:
        return Reply(200, "", b"")

    async def reject(self, status: int, peer: str) -> Reply:
        return Reply(status, "", b"")


@pytest.mark.parametrize(
    ("line", "status"),
    [(b"GET / HTTP/1.1\r\nHost: here\r\nX: ", b"431"), (b"GET /", b"414"), (b"GET / HTTP/1.1\r\nX: \n", b"400")],
)
def test_a_head_that_arrives_byte_by_byte_is_bounded_like_any_other(line: bytes, status: bytes) -> None:
    async def work() -> None:
        connection, transport = connected(HttpServer(Rejecting()))
        began = time.process_time()
        for octet in line + b"x" * HEAD_MAX:
            connection.data_received(bytes([octet]))
        assert time.process_time() - began < 1.0  # 1.7 s if every byte restarted the search of the head
        for _ in range(5):
            await asyncio.sleep(0)
        assert transport.data.startswith(b"HTTP/1.1 " + status)

    asyncio.run(work())
