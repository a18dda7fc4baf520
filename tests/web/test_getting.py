"""GET /pets/{petId}: what it finds, its deprecation, and its removal on 5 December 2030."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import httpx
import pytest

from harness.servers import Key, Server
from petstore.plans import Limits
from tests.web.answers import ask, change_status, created, message_of

REMOVAL = datetime(2030, 12, 5, tzinfo=UTC).timestamp()


def assert_deprecated(response: httpx.Response, pets: str = "/v1/pets") -> None:
    assert response.headers.get_list("deprecation") == ["@1794614400"]
    assert response.headers.get_list("sunset") == ["Thu, 05 Dec 2030 00:00:00 GMT"]
    links = [link.strip() for value in response.headers.get_list("link") for link in value.split(",")]
    assert sorted(links) == ['</docs>; rel="deprecation"', f'<{pets}>; rel="successor-version"']


@pytest.mark.parametrize(
    "pet_id",
    [
        "9223372036854775807", "9223372036854775808", "18446744073709551617", "0", "-0", "-1", "+1", "01", "001", "1.0",
        "1e0", "0x1", "abc", "1%00", "%001", "%201", "1%20", "1%0A", "1_0", "%EF%BC%91", "%D9%A1", "%C2%B2", "1;a",
        "1,2", "null", "*", "%C3%A9", "%FF", "-9223372036854775808", "9" * 5_000,
    ],
    ids=lambda text: text[:24],
)  # fmt: skip
def test_a_bad_or_unknown_id_is_404(server: Server, key: Key, client: httpx.Client, pet_id: str) -> None:
    created(server, client, key)  # lax parsing of the id would find animal 1
    response = client.get(server.url(f"/pets/{pet_id}"), headers=key.headers)
    message_of(response, "pet_not_found")
    assert_deprecated(response)


@pytest.mark.parametrize("pet_id", [".", "..", "%2e", "%2E%2e"])
def test_a_dot_segment_is_404(server: Server, key: Key, pet_id: str) -> None:
    assert ask(server, f"GET /v1/pets/{pet_id}", key=key).status == 404


def test_an_unknown_query_is_ignored(server: Server, key: Key, client: httpx.Client) -> None:
    pet = created(server, client, key)
    response = client.get(server.url(f"/pets/{pet['id']}?limit=0&status=lost"), headers=key.headers)
    assert (response.status_code, response.json()) == (200, pet)


def test_429_is_deprecated(server: Server, client: httpx.Client) -> None:
    key = server.key(limits=Limits(1, 1_000))
    client.get(server.url("/pets"), headers=key.headers)
    for code in ("rate_limit_exceeded", "key_banned"):
        response = client.get(server.url("/pets/1"), headers=key.headers)
        message_of(response, code)
        assert_deprecated(response)


def test_with_a_public_address_the_successor_is_absolute(start: Callable[..., Server], client: httpx.Client) -> None:
    own = start("--public-url", "https://api.example.com")
    links = client.get(own.url("/pets/1"), headers=own.key().headers).headers["link"]
    assert '<https://api.example.com/v1/pets>; rel="successor-version"' in links


def test_a_changed_status_is_seen_at_once(server: Server, key: Key, client: httpx.Client) -> None:
    pet = created(server, client, key, status="available")
    url = server.url(f"/pets/{pet['id']}")
    assert client.get(url, headers=key.headers).json() == pet
    for status in ("pending", "sold"):
        change_status(server, pet["id"], status)
        assert client.get(url, headers=key.headers).json() == {**pet, "status": status}


@pytest.mark.on("sqlite-lmdb")
def test_the_operation_is_gone_from_the_removal_on_and_not_a_second_before(fresh: Server, client: httpx.Client) -> None:
    key = fresh.key()
    path = f"/pets/{created(fresh, client, key)['id']}"
    for _ in range(10):
        began = time.time()
        fresh.move_clock(REMOVAL - 1 - began)
        before = client.get(fresh.url(path), headers=key.headers)
        if time.time() - began < 1:  # otherwise the second might have passed
            break
    assert before.status_code == 200
    fresh.move_clock(REMOVAL - time.time())
    for gone in (path, "/pets/0", "/pets/abc"):
        response = client.get(fresh.url(gone), headers=key.headers)
        message_of(response, "gone")
        assert_deprecated(response)
    assert client.head(fresh.url(path), headers=key.headers).status_code == 410
    assert client.get(fresh.url(path)).status_code == 401
    assert client.get(fresh.url("/pets"), headers=key.headers).status_code == 200
    staging = fresh.key(environment="staging")
    assert client.get(fresh.url("/pets/1", "staging"), headers=staging.headers).status_code == 410
