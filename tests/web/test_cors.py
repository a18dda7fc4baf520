"""Cross-origin requests are allowed only from origins that the operator names."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from harness.servers import HOSTS, Key, Server, serving
from petstore.plans import Limits
from petstore.settings import Settings
from petstore.web.cors import as_browsers_send
from tests.web.answers import PET

SHOP, LOCAL = "https://shop.example", "http://localhost:3000"
EXPOSED = {
    "link", "etag", "location", "retry-after", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset",
    "x-request-id", "deprecation", "sunset", "preference-applied", "idempotent-replayed",
}  # fmt: skip
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,idempotency-key",
}


@pytest.fixture(scope="module", params=HOSTS, ids=list(HOSTS.values()))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that allows two origins."""
    options = ("--cors-origin", SHOP, "--cors-origin", LOCAL)
    with serving(tmp_path_factory.mktemp("cors") / "data", request.param, *options) as own:
        yield own


def words(response: httpx.Response, name: str) -> set[str]:
    return {word.strip().lower() for value in response.headers.get_list(name) for word in value.split(",")}


def access_control(response: httpx.Response) -> set[str]:
    return {name for name in response.headers if name.startswith("access-control-")}


def test_off_by_default(server: Server, key: Key, client: httpx.Client) -> None:
    for response in (
        client.options(server.url("/pets"), headers={"Origin": SHOP, **PREFLIGHT}),
        client.get(server.url("/pets"), headers={"Origin": SHOP, **key.headers}),
        client.get(server.url("/pets"), headers={"Origin": SHOP}),
    ):
        assert access_control(response) == set()
        assert "origin" not in words(response, "vary")


@pytest.mark.parametrize("origin", [SHOP, LOCAL])
@pytest.mark.parametrize(("path", "method"), [("/pets", "POST"), ("/pets", "GET"), ("/pets/1", "GET")])
@pytest.mark.parametrize("base", ["/v1", "/staging/v1"])
def test_a_preflight_is_answered_without_a_key(
    opened: Server, client: httpx.Client, base: str, path: str, method: str, origin: str
) -> None:
    headers = {"Origin": origin, **PREFLIGHT, "Access-Control-Request-Method": method}
    response = client.options(opened.origin + base + path, headers=headers)
    assert (response.status_code, response.content) == (204, b"")
    assert response.headers.get_list("access-control-allow-origin") == [origin]
    assert method.lower() in words(response, "access-control-allow-methods")
    accepted = words(response, "access-control-allow-headers")
    assert {"authorization", "content-type", "idempotency-key", "if-none-match"} <= accepted
    assert "origin" in words(response, "vary")
    assert "allow" in response.headers


def test_a_preflight_is_answered_even_if_its_address_is_refused(tmp_path: Path, client: httpx.Client) -> None:
    """A preflight cannot carry the key with which the page's actual request is admitted."""
    with serving(tmp_path / "data", "own", "--cors-origin", SHOP, "--address-per-minute", "2") as own:
        key = own.key()
        for status in (401, 401, 429):
            assert client.get(own.url("/pets")).status_code == status
        answer = client.options(own.url("/pets"), headers={"Origin": SHOP, **PREFLIGHT})
        assert answer.status_code == 204 and "access-control-allow-methods" in answer.headers
        assert client.get(own.url("/pets"), headers={"Origin": SHOP, **key.headers}).status_code == 200
        for headers in ({}, {"Origin": "https://evil.example", **PREFLIGHT}, {"Origin": SHOP}):
            assert client.options(own.url("/pets"), headers=headers).status_code == 429


def test_a_preflight_of_an_animal_does_not_offer_to_add_one(opened: Server, client: httpx.Client) -> None:
    response = client.options(opened.url("/pets/1"), headers={"Origin": SHOP, **PREFLIGHT})
    assert "post" not in words(response, "access-control-allow-methods")


def test_every_answer_lets_a_named_origin_read_its_headers(opened: Server, client: httpx.Client) -> None:
    key = opened.key()
    limited = opened.key(limits=Limits(1, 100))
    client.get(opened.url("/pets"), headers=limited.headers)
    good, origin = key.headers, {"Origin": SHOP}
    answers = {
        200: client.get(opened.url("/pets"), headers={**good, **origin}),
        201: client.post(opened.url("/pets"), json=PET, headers={**good, **origin}),
        304: client.get(opened.url("/pets"), headers={**good, **origin, "If-None-Match": "*"}),
        400: client.get(opened.url("/pets?limit=0"), headers={**good, **origin}),
        401: client.get(opened.url("/pets"), headers=origin),
        404: client.get(opened.url("/pets/0"), headers={**good, **origin}),
        405: client.delete(opened.url("/pets"), headers={**good, **origin}),
        429: client.get(opened.url("/pets"), headers={**limited.headers, **origin}),
    }
    for status, response in answers.items():
        assert response.status_code == status
        assert response.headers.get_list("access-control-allow-origin") == [SHOP], status
        assert words(response, "access-control-expose-headers") >= EXPOSED, status
        assert "origin" in words(response, "vary"), status
        assert "access-control-allow-credentials" not in response.headers, status


def test_vary_still_names_authorization(opened: Server, client: httpx.Client) -> None:
    response = client.get(opened.url("/pets"), headers={**opened.key().headers, "Origin": SHOP})
    assert words(response, "vary") == {"authorization", "origin"}


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example", "https://shop.example.evil.example", "http://shop.example", "https://shop.example:8443",
        "https://SHOP.example/", "null", "", "*", f"{SHOP}, {LOCAL}", "https://evil.example#https://shop.example",
    ],
)  # fmt: skip
def test_another_origin_gets_nothing(opened: Server, client: httpx.Client, origin: str) -> None:
    key = opened.key()
    for response in (
        client.options(opened.url("/pets"), headers={"Origin": origin, **PREFLIGHT}),
        client.get(opened.url("/pets"), headers={"Origin": origin, **key.headers}),
        client.get(opened.url("/pets"), headers={"Origin": origin}),
    ):
        assert access_control(response) == set()
        assert "origin" in words(response, "vary")


def test_a_request_without_an_origin_varies_by_it_too(opened: Server, client: httpx.Client) -> None:
    response = client.get(opened.url("/pets"), headers=opened.key().headers)
    assert access_control(response) == set()
    assert "origin" in words(response, "vary")


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("https://Shop.example.com:443", "https://shop.example.com"), ("HTTP://shop:80", "http://shop"),
        ("http://[::1]:80", "http://[::1]"), ("http://[::80]", "http://[::80]"),
        ("http://shop:443", "http://shop:443"), ("https://shop:80", "https://shop:80"),
        ("http://localhost:3000", "http://localhost:3000"), ("*", "*"),
    ],
)  # fmt: skip
def test_an_origin_is_taken_as_browsers_send_it(written: str, sent: str) -> None:
    Settings(cors_origins=(written,)).check()
    assert as_browsers_send(written) == sent
