"""HTTP faults on raw sockets: clients that are slow, send too much or disconnect.

The proof `strictness` covers ambiguous messages.
"""

import contextlib
import socket
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import msgspec
import pytest

from harness.servers import Key, Server
from harness.wire import Received, Response, receive, request, split
from petstore.pets import Pet

WITHIN = 20.0  # the service promises 10 s; the rest is a margin for a busy machine
RATE_LIMIT_HEADERS = {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"}


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=15)


def head(key: Key, *fields: str) -> bytes:
    """Returns the head of a create request, including the blank line."""
    lines = ["POST /v1/pets HTTP/1.1", "Host: petstore.test", f"Authorization: Bearer {key.secret}", *fields]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def new_pet(name: str) -> bytes:
    return msgspec.json.encode({"name": name, "categoryId": 1})


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def named(server: Server, name: str) -> list[Pet]:
    page = server.act(lambda backends: backends.stores["live"].pets.page(after=0, limit=10**6, status=None))
    return [pet for pet in page.pets if pet.name == name]


def is_error(response: Response, status: int, code: str) -> bool:
    body = msgspec.json.decode(response.body)
    return (
        response.status == status
        and response.headers.keys() >= RATE_LIMIT_HEADERS
        and body.keys() == {"code", "message", "status"}
        and (body["code"], body["status"]) == (code, status)
    )


def trickle(server: Server, beginning: bytes, drop: bytes) -> Received:
    """Sends `beginning`, and then `drop` every half second until the server closes the connection."""
    with connect(server) as connection:
        began = time.monotonic()
        connection.sendall(beginning)
        enough = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not enough.wait(0.5):
                    connection.sendall(drop)

        dripping = threading.Thread(target=drip)
        dripping.start()
        received = receive(connection)
        enough.set()
        dripping.join()
        return received._replace(seconds=time.monotonic() - began)


@pytest.mark.on("sqlite-lmdb")
def test_trickled_requests_are_ended_within_10_seconds(server: Server, key: Key) -> None:
    """If the head is slow, the server just closes the connection. If the body is slow, it first sends a 408."""
    cases = {
        "head": (b"GET /v1/pets HTTP/1.1\r\nHost: petstore.test\r\n", b"X-Drop: 1\r\n"),
        "part of a line": (b"GET /v1/pe", b"t"),
        "sized body": (head(key, "Content-Length: 1000"), b" "),
        "chunked body": (head(key, "Transfer-Encoding: chunked"), chunk(b" ")),
        "no body at all": (head(key, "Content-Length: 1000"), b""),
    }
    with ThreadPoolExecutor(len(cases)) as pool:
        running = {name: pool.submit(trickle, server, *case) for name, case in cases.items()}
    ended = {name: future.result() for name, future in running.items()}
    for name, received in ended.items():
        assert received.closed, name
        assert received.seconds < WITHIN, name
        responses = split(received.data)
        if "body" in name:
            assert len(responses) == 1, name
            assert is_error(responses[0], 408, "request_timeout"), name
        else:
            assert not any(response.status < 400 for response in responses), name


@pytest.mark.on("sqlite-lmdb")
def test_a_malformed_chunk_is_400_at_once_however_its_bytes_arrive(server: Server, key: Key) -> None:
    parts = [head(key, "Transfer-Encoding: chunked"), chunk(b'{"name":'), b"zz\r\n"]
    for cut in {(1, 2), (1, 3), (2, 3), (3, 3)}:
        pieces = [b"".join(parts[start:end]) for start, end in zip((0, *cut), (*cut, 3), strict=True)]
        with connect(server) as connection:
            began = time.monotonic()
            for piece in filter(None, pieces):
                connection.sendall(piece)
                time.sleep(0.05)  # usually makes the server read each piece separately
            received = receive(connection)
        (response,) = split(received.data)
        assert is_error(response, 400, "invalid_body"), cut
        assert received.closed and time.monotonic() - began < WITHIN, cut


@pytest.mark.on("sqlite-lmdb")
def test_a_body_in_too_many_chunks_is_413(server: Server, key: Key) -> None:
    name = f"Chunks {uuid.uuid4()}"
    body = new_pet(name)
    for padding, status in ((8_192 - len(body), 201), (8_193 - len(body), 413)):
        pieces = [chunk(bytes([octet])) for octet in body + b" " * padding]
        with connect(server) as connection:
            connection.sendall(head(key, "Transfer-Encoding: chunked", "Connection: close") + b"".join(pieces))
            connection.sendall(b"0\r\n\r\n")
            received = receive(connection)
        (response,) = split(received.data)
        assert response.status == status and received.closed
    assert is_error(response, 413, "body_too_large")
    assert len(named(server, name)) == 1


@pytest.mark.on("sqlite-lmdb")
def test_a_connection_is_listened_to_after_a_large_body_that_nobody_read(server: Server, key: Key) -> None:
    behind = request("GET", "/v1/pets?limit=1", key.headers, b"x" * 69_000)
    with connect(server) as connection:
        connection.sendall(request("POST", "/v1/pets", key.headers, new_pet("Rex")) + behind)
        time.sleep(0.2)  # so that the next request usually arrives separately
        connection.sendall(request("GET", "/v1/pets?limit=1", key.headers, close=True))
        received = receive(connection)
    assert [response.status for response in split(received.data)] == [201, 200, 200]


@pytest.mark.on("sqlite-lmdb")
def test_a_client_that_has_closed_its_half_gets_its_answers(server: Server, key: Key) -> None:
    name = f"Half {uuid.uuid4()}"
    creates = [request("POST", "/v1/pets", key.headers, new_pet(name)) for _ in range(3)]
    with connect(server) as connection:
        connection.sendall(b"".join(creates))
        connection.shutdown(socket.SHUT_WR)
        received = receive(connection)
    assert [response.status for response in split(received.data)] == [201] * 3
    assert received.closed and len(named(server, name)) == 3


@pytest.mark.parametrize("form", ["half the JSON", "whole JSON, short of its length", "no last chunk", "broken chunk"])
def test_client_gone_in_the_middle_of_a_body_adds_nothing(
    server: Server, client: httpx.Client, key: Key, form: str
) -> None:
    name = f"Gone {uuid.uuid4()}"
    body = new_pet(name)
    data = {
        "half the JSON": head(key, f"Content-Length: {len(body)}") + body[: len(body) // 2],
        "whole JSON, short of its length": head(key, f"Content-Length: {len(body) + 10}") + body,
        "no last chunk": head(key, "Transfer-Encoding: chunked") + chunk(body),
        "broken chunk": head(key, "Transfer-Encoding: chunked") + chunk(body) + b"zz\r\n\r\n",
    }[form]
    with connect(server) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answers = split(receive(connection).data)
    assert all(400 <= answer.status < 500 for answer in answers)  # any response is a client error
    assert client.get(server.url("/pets"), headers=key.headers).status_code == 200
    assert named(server, name) == []


def test_client_gone_right_after_a_create_adds_it_once_whole(server: Server, client: httpx.Client, key: Key) -> None:
    """Either an abandoned create or the retry adds the animal. There must be exactly one."""
    name = f"Once {uuid.uuid4()}"
    headers = key.headers | {"Idempotency-Key": str(uuid.uuid4())}
    for _ in range(10):
        with connect(server) as connection:
            connection.sendall(request("POST", "/v1/pets", headers, new_pet(name)))
    retry = client.post(server.url("/pets"), headers=headers, content=new_pet(name))
    assert retry.status_code == 201
    (pet,) = named(server, name)
    assert retry.json() == {"id": pet.id, "name": name, "categoryId": 1, "status": "available"}
