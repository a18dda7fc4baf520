"""POST /pets: the media type and size of a body, and the position of JSON errors."""

import socket
import time

import httpx
import pytest

from harness.servers import Key, Server
from petstore.errors import InvalidBody
from petstore.pets import parse_new_pet
from tests.web.answers import Answer, ask, message_of, parse

VALID = b'{"name":"Rex","categoryId":1}'
MOST = 64 * 1024


def of_size(size: int) -> bytes:
    """Returns a valid body of exactly this many bytes."""
    head, tail = b'{"name":"Rex","categoryId":1,"x":"', b'"}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


def chunked(body: bytes, step: int = 8_192) -> bytes:
    parts = [body[i : i + step] for i in range(0, len(body), step)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    "media_type",
    [
        "application/json", "APPLICATION/JSON", "Application/Json", "application/json; charset=utf-8",
        "application/json;charset=UTF-8", 'application/json ; x="y"', "application/json;",
    ],
)  # fmt: skip
def test_json_is_accepted_with_parameters_and_in_any_case(
    server: Server, key: Key, client: httpx.Client, media_type: str
) -> None:
    headers = {**key.headers, "Content-Type": media_type}
    assert client.post(server.url("/pets"), content=VALID, headers=headers).status_code == 201


@pytest.mark.parametrize(
    "media_type",
    [
        "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml", "json",
        "application/jsonx", "application/json5", "application/problem+json", "text/json", "application/*", "*/*",
        "application/json, text/plain", "text/plain; application/json", "application / json", "é", "application/json é",
    ],
)  # fmt: skip
def test_another_media_type_is_415(server: Server, key: Key, client: httpx.Client, media_type: str) -> None:
    headers = [(b"Authorization", key.headers["Authorization"].encode()), (b"Content-Type", media_type.encode())]
    response = client.post(server.url("/pets"), content=VALID, headers=headers)
    message_of(response, "unsupported_media_type")


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "zstd", "identity", "gzip, br", "é"])
def test_any_content_encoding_is_415(server: Server, key: Key, client: httpx.Client, coding: str) -> None:
    headers = [
        (b"Authorization", key.headers["Authorization"].encode()),
        (b"Content-Type", b"application/json"),
        (b"Content-Encoding", coding.encode()),
    ]
    message_of(client.post(server.url("/pets"), content=VALID, headers=headers), "unsupported_media_type")


@pytest.mark.parametrize("how", ["sized", "chunked", "one chunk"])
def test_a_body_of_64_kib_is_taken(server: Server, key: Key, how: str) -> None:
    assert _send(server, key, of_size(MOST), how).status == 201


@pytest.mark.parametrize("how", ["sized", "chunked", "one chunk"])
@pytest.mark.parametrize("size", [MOST + 1, MOST + 20_000])
def test_a_body_of_more_is_413(server: Server, key: Key, how: str, size: int) -> None:
    answer = _send(server, key, of_size(size), how)
    assert (answer.status, answer.body[:25]) == (413, b'{"code":"body_too_large",')


def test_100_000_nested_brackets_are_413(server: Server, key: Key) -> None:
    """They exceed 64 KiB. As many brackets as fit into 64 KiB get a 400."""
    assert _send(server, key, b"[" * 100_000, "sized").status == 413


def _send(server: Server, key: Key, body: bytes, how: str) -> Answer:
    if how == "sized":
        return ask(server, "POST /v1/pets", f"Content-Length: {len(body)}", key=key, body=body)
    pieces = chunked(body, len(body) if how == "one chunk" else 8_192)
    return ask(server, "POST /v1/pets", "Transfer-Encoding: chunked", key=key, body=pieces)


@pytest.mark.parametrize(
    ("header", "sent"),
    [
        (f"Content-Length: {MOST + 1}", b""),
        ("Content-Length: 10000000000", b"x" * 1_000),
        ("Content-Length: " + "9" * 19, b""),
        ("Transfer-Encoding: chunked", chunked(b"x" * (MOST + 1))[:-5]),
        ("Transfer-Encoding: chunked", b"fffffff\r\n" + b"x" * (MOST + 1)),
    ],
    ids=["sized", "10 GB", "19 digits", "chunked", "one endless chunk"],
)
def test_413_comes_before_the_rest_of_the_body_and_closes_the_connection(
    server: Server, key: Key, header: str, sent: bytes
) -> None:
    """The request does not ask the server to close the connection, and its body never ends."""
    head = f"POST /v1/pets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key.secret}\r\n{header}\r\n\r\n".encode()
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(head + sent)
        try:
            while chunk := connection.recv(65_536):  # a timeout means that the connection stayed open
                received += chunk
        except ConnectionResetError:  # closed with part of the body unread
            pass
    answer = parse(received)
    assert answer.status == 413
    assert [value.lower() for value in answer.values("connection")] == ["close"]


def test_a_body_refused_for_its_media_type_is_not_the_next_request(server: Server, key: Key) -> None:
    """A body is never read as the next request."""
    smuggled = f"GET /v1/pets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key.secret}\r\n\r\n".encode()
    answer = ask(
        server, "POST /v1/pets", "Content-Type: text/plain", f"Content-Length: {len(smuggled)}", key=key, body=smuggled
    )
    assert answer.status == 415
    assert b"HTTP/1.1" not in answer.body


@pytest.mark.parametrize(
    ("body", "position"),
    [
        (b'{"name": "Rex",\n "categoryId": }', "line 2, column 16"),
        (b'{"name": "Rex",\r\n "categoryId": }', "line 2, column 16"),
        ('{"name": "Zoë 🐕", x'.encode(), "line 1, column 19"),  # characters, not bytes
        (b'{"name": "Rex"', "line 1, column 15"),  # truncated
        (b'{"name":\n\n', "line 3, column 1"),
        (b'{"name": "Rex', "line 1, column 10"),  # where the string begins
        (b'{"name": "Rex", "categoryId": 1} x', "line 1, column 34"),
        (b'\xef\xbb\xbf{"name": "Rex", "categoryId": 1}', "line 1, column 1"),
        (b"{'name': 'Rex'}", "line 1, column 2"),
        (b'{"name": "NaN \\" Infinity",\n"categoryId": -Infinity}', "line 2, column 15"),
        ('{"é":\n "\xff"}'.encode().replace("ÿ".encode(), b"\xff"), "line 2, column 3"),
        (b"\n" * 65_535 + b"x", "line 65536, column 1"),
        (b'["' + b"x" * 65_000 + b'",]', "column 65"),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else None,
)
def test_a_body_that_is_not_json_is_400_with_its_position(body: bytes, position: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidBody, match=position):
        parse_new_pet(body)
    assert time.process_time() - began < 0.05
