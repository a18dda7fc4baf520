"""GET /pets: entity tags, conditional requests, and HEAD."""

import httpx
import pytest

from harness.servers import Key, Server
from tests.web.answers import Answer, ask, created

# Headers that may differ between two responses to the same request.
VARYING = {"date", "x-request-id", "x-ratelimit-remaining", "x-ratelimit-reset"}


@pytest.fixture(scope="module")
def stocked(server: Server) -> Server:
    server.fill(30)
    return server


def steady(answer: Answer) -> list[tuple[str, str]]:
    return sorted((name, value) for name, value in answer.headers if name not in VARYING)


def test_the_tag_is_the_same_for_every_key(stocked: Server, client: httpx.Client) -> None:
    keys = [stocked.key(), stocked.key("free"), stocked.key(scopes=["read"])]
    tags = {client.get(stocked.url("/pets"), headers=key.headers).headers["etag"] for key in keys}
    assert len(tags) == 1


def test_different_pages_have_different_tags(stocked: Server, key: Key, client: httpx.Client) -> None:
    queries = ["", "?limit=1", "?limit=2", "?status=sold", "?status=pending"]
    tags = [client.get(stocked.url(f"/pets{query}"), headers=key.headers).headers["etag"] for query in queries]
    assert len(set(tags)) == len(queries)


@pytest.mark.on("sqlite-lmdb")
def test_a_page_that_gains_a_successor_is_not_304(fresh: Server, client: httpx.Client) -> None:
    """Otherwise, a client that caches pages would never find the next one."""
    key = fresh.key()
    fresh.fill(2)
    before = client.get(fresh.url("/pets?limit=2"), headers=key.headers)
    assert "link" not in before.headers
    created(fresh, client, key)
    after = client.get(fresh.url("/pets?limit=2"), headers={**key.headers, "If-None-Match": before.headers["etag"]})
    assert after.status_code == 200
    assert "next" in after.links


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "conditions",
    [["{}"], ["W/{}"], ["*"], ['"other", {}'], ['{}, "other"'], ['W/"other",W/{},"third"'], ['"other"', "{}"]],
    ids=lambda conditions: " and ".join(conditions),
)
def test_a_known_tag_is_304_without_a_body(stocked: Server, key: Key, method: str, conditions: list[str]) -> None:
    plain = ask(stocked, "GET /v1/pets", key=key)
    (etag,) = plain.values("etag")
    headers = [f"If-None-Match: {condition.format(etag)}" for condition in conditions]
    answer = ask(stocked, f"{method} /v1/pets", *headers, key=key)
    assert (answer.status, answer.body) == (304, b"")
    for name in ("etag", "cache-control", "vary", "link"):
        assert answer.values(name) == plain.values(name) != [], name
    for name in ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "x-request-id"):
        assert len(answer.values(name)) == 1, name


@pytest.mark.parametrize("condition", ['"other"', 'W/"other"', "", "{bare}", '"{bare}x"', '"x{bare}"', "w/{etag}"])
def test_an_unknown_tag_is_200(stocked: Server, key: Key, condition: str) -> None:
    (etag,) = ask(stocked, "GET /v1/pets", key=key).values("etag")
    header = "If-None-Match: " + condition.format(etag=etag, bare=etag.strip('"'))
    answer = ask(stocked, "GET /v1/pets", header, key=key)
    assert answer.status == 200
    assert answer.body != b""


@pytest.mark.parametrize(
    "target",
    [
        "/v1/pets", "/v1/pets?limit=1&status=sold", "/v1/pets?limit=0", "/v1/pets/1", "/v1/pets/0", "/v1/pets/abc",
        "/v1/nothing", "/nothing", "/healthz", "/readyz", "/openapi.json",
    ],
)  # fmt: skip
@pytest.mark.parametrize("with_key", [True, False], ids=["with a key", "without"])
def test_head_is_get_without_the_body(stocked: Server, key: Key, target: str, with_key: bool) -> None:
    get = ask(stocked, f"GET {target}", key=key if with_key else None)
    head = ask(stocked, f"HEAD {target}", key=key if with_key else None)
    assert (head.status, head.body) == (get.status, b"")
    assert steady(head) == steady(get)
    assert head.values("content-length") == [str(len(get.body))]
