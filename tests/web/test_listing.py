"""GET /pets: which animals are listed, in which order, and how clients page through them."""

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from harness.servers import Key, Server
from tests.web.answers import PET, ask, change_status, created, message_of

ENOUGH = 130


@pytest.fixture(scope="module")
def stocked(server: Server) -> Server:
    """The shared server with more animals of each status than the longest page holds."""
    server.fill(3 * ENOUGH)
    return server


def listed(client: httpx.Client, server: Server, key: Key, **parameters: Any) -> list[dict[str, Any]]:
    response = client.get(server.url("/pets"), params=parameters, headers=key.headers)
    assert response.status_code == 200, response.text
    pets: list[dict[str, Any]] = response.json()
    return pets


def pages(client: httpx.Client, server: Server, key: Key, path: str) -> Iterator[list[dict[str, Any]]]:
    """Yields each page, following the links to the end."""
    following: str | None = server.origin + path
    while following is not None:
        response = client.get(following, headers=key.headers)
        assert response.status_code == 200, response.text
        yield response.json()
        following = server.origin + response.links["next"]["url"] if "next" in response.links else None


def cursor_of(response: httpx.Response) -> str:
    return parse_qs(urlsplit(response.links["next"]["url"]).query)["cursor"][0]


def test_an_empty_list_is_an_empty_array_without_a_link(fresh: Server, client: httpx.Client) -> None:
    response = client.get(fresh.url("/pets"), headers=fresh.key().headers)
    assert (response.status_code, response.content) == (200, b"[]")
    assert "link" not in response.headers
    assert response.headers["content-type"] == "application/json"


@pytest.mark.on("sqlite-lmdb")
def test_a_changed_status_moves_the_animal_to_the_other_filter_at_once(fresh: Server, client: httpx.Client) -> None:
    key = fresh.key()
    pet = created(fresh, client, key, status="available")
    assert listed(client, fresh, key, status="available") == [pet]
    change_status(fresh, pet["id"], "sold")
    assert listed(client, fresh, key, status="available") == []
    assert listed(client, fresh, key, status="sold") == [{**pet, "status": "sold"}]


@pytest.mark.parametrize(
    ("name", "query"),
    [
        *(
            ("limit", f"limit={value}")
            for value in (
                "0", "101", "abc", "", "1.0", "%2B5", "+5", "1_0", "%EF%BC%95", "%D9%A5", "9" * 30, "-1", "5%20",
                "5%0A", "%205", "1e1", "0x10", "1,2", "5%00", "null", "00", "1000", "9223372036854775808", "%FF",
                "½", '"5"',
            )
        ),
        ("limit", "limit"),
        ("limit", "limit=5&limit=5"),
        ("limit", "limit=5&status=sold&limit=6"),
        ("limit", "limit=5&%6Cimit=5"),
        *(
            ("status", f"status={value}")
            for value in ("AVAILABLE", "", "available,sold", "Available", "%20available", "available%00", "lost")
        ),
        ("status", "status"),
        ("status", "status=sold&status=sold"),
        ("status", "status=sold&limit=5&status=available"),
        ("cursor", "cursor="),
        ("cursor", "cursor=1"),
        ("cursor", "cursor=" + "A" * 16),
        ("cursor", "cursor=" + "x" * 5_000),
        ("cursor", "cursor=%C3%A9"),
    ],
)  # fmt: skip
def test_a_bad_parameter_is_400_and_named(
    server: Server, key: Key, client: httpx.Client, name: str, query: str
) -> None:
    response = client.get(server.url(f"/pets?{query}"), headers=key.headers)
    assert name in message_of(response, "invalid_parameter")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "limit=0&status=lost",
            "limit must be a whole number from 1 to 100; status must be one of available, pending, sold.",
        ),
        (
            "status=lost&cursor=x&limit=5&limit=6&limit=7",
            "status must be one of available, pending, sold; cursor is not valid: start again without it; limit must be"
            " given at most once.",
        ),
        ("limit=0&limit=0&status=sold", "limit must be given at most once."),
    ],
)
def test_one_message_names_every_bad_parameter(
    server: Server, key: Key, client: httpx.Client, query: str, message: str
) -> None:
    response = client.get(server.url(f"/pets?{query}"), headers=key.headers)
    assert message_of(response, "invalid_parameter") == message


UNKNOWN = "offset=5&page=2&LIMIT=0&Status=x&limit[]=0&limit%5B%5D=0&limits=0&verify&&=&%FF=%00&"


def test_an_unknown_parameter_is_ignored(stocked: Server, key: Key, client: httpx.Client) -> None:
    plain, other = (client.get(stocked.url(f"/pets?{more}limit=2"), headers=key.headers) for more in ("", UNKNOWN))
    assert (other.status_code, other.content) == (200, plain.content)


# Pages


def test_a_page_has_limit_animals_and_20_by_default(stocked: Server, key: Key, client: httpx.Client) -> None:
    longest = listed(client, stocked, key, limit=100)
    assert len(longest) == 100
    assert listed(client, stocked, key) == longest[:20]
    for limit in (1, 2, 19, 99):
        assert listed(client, stocked, key, limit=limit) == longest[:limit]


def test_the_link_is_there_exactly_when_more_animals_exist(fresh: Server, client: httpx.Client) -> None:
    key = fresh.key()
    fresh.fill(20, status="sold")
    for count in range(1, 13):
        fresh.fill(1, status="pending")
        response = client.get(fresh.url("/pets?limit=5&status=pending"), headers=key.headers)
        assert ("next" in response.links) == (count > 5)
        sizes = [len(page) for page in pages(client, fresh, key, "/v1/pets?limit=5&status=pending")]
        assert sizes == [5] * (count // 5) + [count % 5] * (count % 5 > 0)


@pytest.mark.parametrize(
    ("query", "kept"), [("limit=7&status=sold", "limit=7&status=sold"), ("limit=7", "limit=7"), ("", "limit=20")]
)
def test_the_link_is_path_absolute_and_keeps_limit_and_status(
    stocked: Server, key: Key, client: httpx.Client, query: str, kept: str
) -> None:
    response = client.get(stocked.url(f"/pets?{query}"), headers=key.headers)
    pattern = rf'</v1/pets\?{kept}&cursor=[^>&]+>; rel="next"'
    assert re.fullmatch(pattern, response.headers["link"]), response.headers["link"]


def test_the_link_is_never_built_from_what_the_client_says(stocked: Server, key: Key) -> None:
    forged = (
        "X-Forwarded-Host: evil.test",
        "X-Forwarded-Proto: https",
        "Forwarded: host=evil.test",
        "X-Host: evil.test",
    )
    honest = ask(stocked, "GET /v1/pets", key=key)
    answer = ask(stocked, "GET /v1/pets", *forged, key=key)
    assert (answer.status, answer.values("link")) == (200, honest.values("link"))
    assert answer.values("link")[0].startswith("</v1/pets?")


@pytest.mark.on("sqlite-lmdb")
def test_with_a_public_address_links_are_absolute(start: Callable[..., Server], client: httpx.Client) -> None:
    own = start("--public-url", "https://api.example.com/shop/")
    key = own.key()
    own.fill(3)
    response = client.get(own.url("/pets?limit=1"), headers={**key.headers, "Host": "evil.test"})
    assert response.headers["link"].startswith("<https://api.example.com/shop/v1/pets?limit=1&cursor=")
    added = client.post(own.url("/pets"), json=PET, headers=key.headers)
    assert added.headers["location"] == f"https://api.example.com/shop/v1/pets/{added.json()['id']}"


@pytest.mark.parametrize("query", ["limit=7", "limit=100", "limit=9&status=sold"])
def test_a_traversal_returns_every_animal_exactly_once_while_others_write(
    fresh: Server, client: httpx.Client, query: str
) -> None:
    key = fresh.key()
    fresh.fill(120)
    expected = [pet["id"] for pet in _all_of(fresh, client, key) if "sold" not in query or pet["status"] == "sold"]
    seen: list[int] = []
    for page in pages(client, fresh, key, f"/v1/pets?{query}"):
        seen += [pet["id"] for pet in page]
        created(fresh, client, key, name="Written meanwhile", status="sold")
    assert seen == sorted(set(seen))
    assert [pet_id for pet_id in seen if pet_id <= max(expected)] == expected


def _all_of(server: Server, client: httpx.Client, key: Key) -> list[dict[str, Any]]:
    return [pet for page in pages(client, server, key, "/v1/pets?limit=100") for pet in page]


@pytest.mark.on("sqlite-lmdb")
def test_status_changes_do_not_disturb_a_traversal(fresh: Server, client: httpx.Client) -> None:
    key = fresh.key()
    fresh.fill(30)
    expected = [pet["id"] for pet in _all_of(fresh, client, key)]
    seen = []
    for page in pages(client, fresh, key, "/v1/pets?limit=6"):
        seen += [pet["id"] for pet in page]
        change_status(fresh, page[-1]["id"], "sold")
    assert seen == expected


def test_a_cursor_given_twice_is_400(stocked: Server, key: Key, client: httpx.Client) -> None:
    cursor = cursor_of(client.get(stocked.url("/pets?limit=3"), headers=key.headers))
    response = client.get(stocked.url(f"/pets?cursor={cursor}&cursor={cursor}"), headers=key.headers)
    assert "cursor" in message_of(response, "invalid_parameter")


def test_a_cursor_stays_valid_for_every_key_and_limit(fresh: Server, client: httpx.Client) -> None:
    fresh.fill(9)
    key = fresh.key()
    expected = _all_of(fresh, client, key)[3:]
    cursor = cursor_of(client.get(fresh.url("/pets?limit=3"), headers=key.headers))
    expected.append(created(fresh, client, key))
    fresh.stop()
    fresh.start()
    fresh.move_clock(400 * 86_400)
    assert listed(client, fresh, fresh.key(), limit=100, cursor=cursor) == expected
