"""Paths and methods: which exist, which do not, and which error takes precedence when several apply."""

import httpx
import pytest

from harness.servers import Key, Server
from petstore.keys import Scope
from petstore.operations import OPERATIONS
from petstore.plans import Limits
from tests.web.answers import Answer, ask, message_of

BASES = ["/v1", "/staging/v1"]
SITE = {"GET", "HEAD", "OPTIONS"}
OTHERS = ("DELETE", "PUT", "PATCH", "TRACE", "PROPFIND", "POST")


def methods_at(path: str) -> set[str]:
    """Returns the methods that the table of operations implies for a path."""
    own = {operation.method for operation in OPERATIONS if operation.path == path}
    return {*own, "OPTIONS"} | ({"HEAD"} if "GET" in own else set())


COLLECTION, ITEM = methods_at("/pets"), methods_at("/pets/{petId}")


def allowed(value: str) -> set[str]:
    return {method.strip() for method in value.split(",")}


def key_for(server: Server, base: str) -> Key:
    return server.key_in_stock("staging" if base == "/staging/v1" else "live")


def code_of(answer: Answer) -> str:
    return answer.body.decode().removeprefix('{"code":"').partition('"')[0]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    ("path", "method", "allow"),
    [
        *(("/pets", method, COLLECTION) for method in OTHERS if method not in COLLECTION),
        *(("/pets/1", method, ITEM) for method in OTHERS if method not in ITEM),
        ("/pets/0", "TRACE", ITEM),
        ("/pets/abc", "TRACE", ITEM),
    ],
)
def test_another_method_is_405_with_allow(
    server: Server, client: httpx.Client, base: str, path: str, method: str, allow: set[str]
) -> None:
    headers = {**key_for(server, base).headers, "Content-Type": "text/plain"}  # the method is checked before the body
    response = client.request(method, server.origin + base + path, headers=headers, content=b"{")
    message_of(response, "method_not_allowed")
    assert allowed(response.headers["allow"]) == allow


@pytest.mark.parametrize("method", ["get", "Post", "hEAD", "BREW"])
def test_a_method_that_http_does_not_know_is_refused(server: Server, key: Key, method: str) -> None:
    """Methods are case-sensitive."""
    answer = ask(server, f"{method} /v1/pets", key=key)
    assert (answer.status, code_of(answer)) == (405, "method_not_allowed")
    assert allowed(answer.values("allow")[0]) == COLLECTION


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("path", "allow"), [("/pets", COLLECTION), ("/pets/1", ITEM), ("/pets/abc", ITEM)])
@pytest.mark.parametrize("credential", [None, "Bearer nonsense", "Basic x"])
def test_options_is_204_with_allow_and_needs_no_key(
    server: Server, client: httpx.Client, base: str, path: str, allow: set[str], credential: str | None
) -> None:
    headers = {"Authorization": credential} if credential else {}
    response = client.options(server.origin + base + path, headers=headers)
    assert (response.status_code, response.content) == (204, b"")
    assert allowed(response.headers["allow"]) == allow
    assert "content-length" not in response.headers


def test_options_with_a_key_counts(server: Server, client: httpx.Client) -> None:
    key = server.key(limits=Limits(10, 1_000))
    response = client.options(server.url("/pets"), headers=key.headers)
    assert (response.status_code, response.headers["x-ratelimit-remaining"]) == (204, "9")


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    "path",
    [
        "", "/", "/pet", "/petss", "/Pets", "/pets/", "//pets", "/pets//", "/pets//1", "/pets/1/", "/pets/1/2",
        "/./pets", "/../v1/pets", "/pets/../pets", "/pets/1/..", "/x/../pets", "/%2e%2e/v1/pets",
        "/x/%2E%2E/pets", "/pets;a=1", "/pets%20", "/pets%00", "/pets%3Flimit=1", "/pets.json", "/orders",
        "/categories", "/docs", "/healthz", "/openapi.json", "/%C3%A9", "/%FF", "/v1/pets", "/store/orders",
        "/" + "x" * 5_000,
    ],
    ids=lambda path: path[:20],
)  # fmt: skip
def test_an_unknown_path_under_a_base_address_is_404(server: Server, base: str, path: str) -> None:
    key = key_for(server, base)
    for method in ("GET", "POST", "DELETE"):
        answer = ask(server, f"{method} {base}{path}", "Content-Length: 0", key=key)
        assert (answer.status, code_of(answer)) == (404, "not_found"), method


@pytest.mark.parametrize(
    "path",
    [
        "/pets", "/pets/1", "/v2/pets", "/v1x/pets", "/V1/pets", "//v1/pets", "/./v1/pets", "/x/../v1/pets",
        "/staging", "/staging/", "/staging/pets", "/staging/v2/pets", "/staging//v1/pets", "/docs/", "/healthz/",
        "/openapi.json/", "/openapi", "/docs/../healthz", "/docs/../../etc/passwd", "/docs/..%2f..%2fetc/passwd",
        "/index.html", "/docs/assets", "/docs/assets/", "/docs/assets/0/base.css", "/livez/",
        "/favicon.ico", "/admin", "/.env", "/%00", "/%FF", "/" + "x" * 5_000,
    ],
    ids=lambda path: path[:20],
)  # fmt: skip
def test_an_unknown_path_outside_the_base_addresses_is_404_without_a_key(server: Server, path: str) -> None:
    for method in ("GET", "POST"):
        answer = ask(server, f"{method} {path}", "Content-Length: 0")
        assert (answer.status, code_of(answer)) == (404, "not_found"), method


@pytest.mark.parametrize(
    "path", ["/", "/healthz", "/livez", "/readyz", "/openapi.json", "/openapi.yaml", "/docs", "/metrics"]
)
def test_the_pages_outside_the_interface_answer_get_head_and_options_only(
    server: Server, client: httpx.Client, path: str
) -> None:
    assert client.get(server.origin + path).status_code == 200
    assert client.head(server.origin + path).status_code == 200
    options = client.options(server.origin + path)
    assert (options.status_code, allowed(options.headers["allow"])) == (204, SITE)
    for method in ("POST", "PUT", "DELETE", "PATCH", "TRACE"):
        response = client.request(method, server.origin + path)
        message_of(response, "method_not_allowed")
        assert allowed(response.headers["allow"]) == SITE


# The precedence of errors


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    "line",
    [
        "GET ", "GET /", "GET /nothing", "GET /pets/", "GET //pets", "GET /pets/../pets", "DELETE /pets", "PUT /pets/1",
        "TRACE /pets", "POST /pets/1", "GET /pets?limit=0", "GET /pets/abc", "POST /pets", "GET /pets/1/2",
    ],
)  # fmt: skip
def test_401_comes_before_everything_else(server: Server, base: str, line: str) -> None:
    method, path = line.split(" ")
    answer = ask(server, f"{method} {base}{path}", "Content-Type: text/plain", "Content-Length: 1", body=b"x")
    assert (answer.status, code_of(answer)) == (401, "unauthorized")


@pytest.mark.parametrize(
    "line",
    ["GET /nothing", "DELETE /pets", "POST /pets", "GET /pets?limit=0", "GET /pets/abc", "OPTIONS /pets", "GET /pets"],
)
def test_429_comes_before_404_405_403_and_400(server: Server, client: httpx.Client, line: str) -> None:
    method, path = line.split()
    scope: Scope = "read" if method == "POST" else "write"
    key = server.key(limits=Limits(1, 1_000), scopes=[scope])
    client.get(server.url("/nothing"), headers=key.headers)
    response = client.request(method, server.url(path), headers=key.headers)
    message_of(response, "rate_limit_exceeded")
    assert "allow" not in response.headers


@pytest.mark.parametrize("scope", ["read", "write"])
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("DELETE /pets", "method_not_allowed"),
        ("POST /pets/1", "method_not_allowed"),
        ("PUT /pets/abc", "method_not_allowed"),
        ("GET /nothing", "not_found"),
        ("POST /nothing", "not_found"),
        ("POST /pets/", "not_found"),
    ],
)
def test_404_and_405_come_before_403(server: Server, client: httpx.Client, scope: Scope, line: str, code: str) -> None:
    method, path = line.split()
    response = client.request(method, server.url(path), headers=server.key(scopes=[scope]).headers)
    message_of(response, code)


@pytest.mark.parametrize("query", ["limit=0", "status=lost", "cursor=x", "limit=1&limit=1"])
def test_403_comes_before_400_when_listing(server: Server, client: httpx.Client, query: str) -> None:
    response = client.get(server.url(f"/pets?{query}"), headers=server.key(scopes=["write"]).headers)
    message_of(response, "insufficient_scope")


@pytest.mark.parametrize("pet_id", ["0", "abc", "9223372036854775808"])
def test_403_comes_before_an_unknown_animal(server: Server, client: httpx.Client, pet_id: str) -> None:
    response = client.get(server.url(f"/pets/{pet_id}"), headers=server.key(scopes=["write"]).headers)
    message_of(response, "insufficient_scope")


@pytest.mark.parametrize(
    "headers", [{}, {"Content-Type": "text/plain"}, {"Content-Encoding": "gzip"}, {"Idempotency-Key": "a b"}], ids=str
)
@pytest.mark.parametrize("body", [b"", b"[]", b"x" * 70_000], ids=["none", "array", "too large"])
def test_403_comes_before_400_413_and_415_when_adding(server: Server, headers: dict[str, str], body: bytes) -> None:
    lines = [f"{name}: {value}" for name, value in headers.items()]
    key = server.key(scopes=["read"])
    answer = ask(server, "POST /v1/pets", *lines, f"Content-Length: {len(body)}", key=key, body=body)
    assert (answer.status, code_of(answer)) == (403, "insufficient_scope")
