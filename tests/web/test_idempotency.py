"""Idempotency-Key: a request that is sent again adds nothing more."""

import contextlib
import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import httpx
import pytest

from harness.servers import Key, Server
from harness.wire import Response, receive, request, split
from tests.web.answers import PET, ask, change_status, message_of

DAY = 86_400


def post(client: httpx.Client, server: Server, key: Key, token: str, body: object = PET) -> httpx.Response:
    return client.post(server.url("/pets"), json=body, headers={**key.headers, "Idempotency-Key": token})


def test_a_replay_is_the_original_body_after_the_status_has_changed(
    server: Server, key: Key, client: httpx.Client
) -> None:
    first = post(client, server, key, "a", {**PET, "status": "pending"})
    pet_id = first.json()["id"]
    change_status(server, pet_id, "sold")
    assert client.get(server.url(f"/pets/{pet_id}"), headers=key.headers).json()["status"] == "sold"
    assert post(client, server, key, "a", {**PET, "status": "pending"}).content == first.content


@pytest.mark.on("sqlite-lmdb")
def test_a_replay_after_a_restart_is_the_original_answer(fresh: Server, client: httpx.Client) -> None:
    key = fresh.key()
    first = post(client, fresh, key, "a")
    fresh.kill()
    fresh.start()
    again = post(client, fresh, key, "a")
    assert (again.content, again.headers["idempotent-replayed"]) == (first.content, "true")


def test_a_token_belongs_to_one_api_key(server: Server, client: httpx.Client) -> None:
    mine, other = (post(client, server, server.key(), "shared-token") for _ in range(2))
    assert (mine.status_code, other.status_code) == (201, 201)
    assert mine.json()["id"] != other.json()["id"]
    assert "idempotent-replayed" not in other.headers


def test_tokens_that_differ_only_in_case_are_two(server: Server, key: Key, client: httpx.Client) -> None:
    assert post(client, server, key, "Token").json() != post(client, server, key, "tOKEN").json()


@pytest.mark.parametrize("token", ["a", "x" * 255, "!~", '"quoted"', "a,b", "8e03978e-40d5-43e8-bc93-6894a57f9324"])
def test_1_to_255_visible_ascii_characters_are_a_token(
    server: Server, key: Key, client: httpx.Client, token: str
) -> None:
    first, again = (post(client, server, key, token) for _ in range(2))
    assert (first.status_code, again.content) == (201, first.content)


@pytest.mark.parametrize("token", ["", "x" * 256, "a b", "a\tb", "é", "aé", "\x80", "a" * 10_000], ids=ascii)
def test_anything_else_is_400(server: Server, key: Key, client: httpx.Client, token: str) -> None:
    headers = [(b"Authorization", f"Bearer {key.secret}".encode()), (b"Idempotency-Key", token.encode("latin-1"))]
    response = client.post(server.url("/pets"), json=PET, headers=headers)
    assert "Idempotency-Key" in message_of(response, "invalid_parameter")


@pytest.mark.parametrize("second", ["a", "b", "é"])
def test_two_tokens_are_400(server: Server, key: Key, second: str) -> None:
    body = b'{"name":"Rex","categoryId":1}'
    tokens = ("Idempotency-Key: a", f"Idempotency-Key: {second}")
    answer = ask(server, "POST /v1/pets", f"Content-Length: {len(body)}", *tokens, key=key, body=body)
    assert (answer.status, answer.body[:28]) == (400, b'{"code":"invalid_parameter",')


def test_another_body_with_the_same_token_is_422_and_changes_nothing(fresh: Server, client: httpx.Client) -> None:
    key = fresh.key()
    first, other, again = (post(client, fresh, key, "a", {**PET, "name": name}) for name in ("Rex", "Max", "Rex"))
    message_of(other, "idempotency_mismatch")
    assert "idempotent-replayed" not in other.headers
    assert (again.status_code, again.content) == (201, first.content)
    assert client.get(fresh.url("/pets"), headers=key.headers).json() == [first.json()]


def test_a_refused_request_leaves_its_token_free(server: Server, key: Key, client: httpx.Client) -> None:
    assert post(client, server, key, "a", {"name": ""}).status_code == 400
    response = post(client, server, key, "a")
    assert response.status_code == 201
    assert "idempotent-replayed" not in response.headers


def test_a_token_is_kept_for_24_hours_and_free_again_after(fresh: Server, client: httpx.Client) -> None:
    key = fresh.key()
    first = post(client, fresh, key, "a")
    fresh.move_clock(DAY - 60)
    assert post(client, fresh, key, "a").content == first.content
    assert post(client, fresh, key, "a", {**PET, "name": "Max"}).status_code == 422
    fresh.move_clock(DAY + 1)
    other = post(client, fresh, key, "a", {**PET, "name": "Max"})
    assert other.status_code == 201
    assert other.json()["id"] != first.json()["id"]
    assert "idempotent-replayed" not in other.headers
    assert post(client, fresh, key, "a", {**PET, "name": "Max"}).headers["idempotent-replayed"] == "true"


def test_concurrent_requests_with_one_token_never_add_two_animals(
    server: Server, key: Key, client: httpx.Client
) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(10):
            token, name = f"race-{number}", f"Racer {key.id} {number}"
            racing = [pool.submit(post, client, server, key, token, {**PET, "name": name}) for _ in range(8)]
            answers = [future.result() for future in racing]
            assert {answer.status_code for answer in answers} == {201}
            ids = {answer.json()["id"] for answer in answers}
            assert len(ids) == 1
            assert sorted(a.headers.get("idempotent-replayed", "") for a in answers) == [""] + ["true"] * 7
            assert client.get(server.url(f"/pets/{ids.pop()}"), headers=key.headers).json()["name"] == name


def test_while_the_first_is_in_flight_others_wait_for_it(fresh: Server, client: httpx.Client) -> None:
    """Another process's write transaction blocks all of them."""
    key = fresh.key()
    with ThreadPoolExecutor(4) as pool:
        with fresh.writes_held_up():
            racing = [pool.submit(post, client, fresh, key, "a") for _ in range(3)]
            assert not wait(racing, timeout=0.3).done
        answers = [future.result() for future in racing]
    assert [answer.status_code for answer in answers] == [201] * 3
    assert sorted(answer.headers.get("idempotent-replayed", "") for answer in answers) == ["", "true", "true"]
    assert client.get(fresh.url("/pets"), headers=key.headers).json() == [answers[0].json()]
    message_of(post(client, fresh, key, "a", {**PET, "name": "Max"}), "idempotency_mismatch")


def test_1000_requests_at_once_add_one_animal_and_999_are_replays(
    start: Callable[..., Server], client: httpx.Client
) -> None:
    server = start(workers=2)
    key = server.key()
    for number in range(1, 6):
        answers = at_once(server, 1_000, {**key.headers, "Idempotency-Key": f"token-{number}"})
        pets = client.get(server.url("/pets"), headers=key.headers).json()
        assert len(pets) == number
        assert [each for each in answers if each.status == 201 and json.loads(each.body) != pets[-1]] == []
        if {answer.status for answer in answers} == {201}:
            assert sum(answer.headers.get("idempotent-replayed") == "true" for answer in answers) == 999
            return
        assert {answer.status for answer in answers} == {201, 503}  # the machine stalled, so try again
    raise AssertionError("some of 1,000 requests took longer than two seconds, five times")


def at_once(server: Server, count: int, headers: dict[str, str]) -> list[Response]:
    """Sends create requests on separate connections, with their last bytes at the same time. Returns the responses."""
    data = request("POST", "/v1/pets", headers, json.dumps(PET).encode(), close=True)
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60)) for _ in range(count)
        ]
        for connection in connections:
            connection.sendall(data[:-1])
        for connection in connections:
            connection.sendall(data[-1:])
        return [split(receive(connection).data)[0] for connection in connections]
