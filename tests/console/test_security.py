"""The checks of host name, origin, session, role and body size that precede every page, and the security headers."""

import asyncio
import contextlib
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from harness.commands import Commands
from harness.consoles import Console, ConsoleClient, is_sign_in_page, running_console
from harness.servers import Server, serving
from petstore.console.app import ROUTES
from petstore.console.forms import CONTENT_TYPE_MAX, FIELDS_MAX, read_form
from petstore.console.security import PARAMETERS_MAX, POLICY, QUERY_MAX
from tests.console.every_page import FORM_ROUTES

PARAMETERS = {"environment": "live", "pet_id": "1", "key_id": "key_x", "job_id": "x", "import_id": "imp_x"}


def address_of(route: str) -> str:
    return "/live" + re.sub(r"{(\w+)}", lambda found: PARAMETERS[found[1]], route)


ADDRESSES = sorted((address_of(route.path), method) for route in ROUTES for method in route.methods or ())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Uses one pair of backends, because the tests do not depend on the backend."""
    with serving(tmp_path_factory.mktemp("security") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def console(server: Server) -> Iterator[Console]:
    with running_console(server) as running:
        yield running


@pytest.mark.parametrize(("path", "method"), ADDRESSES, ids=lambda value: value)
def test_every_route_without_a_session_is_the_sign_in_page(console: Console, path: str, method: str) -> None:
    response = console.client().http.request(method, path, headers={"Origin": console.origin})
    assert response.status_code == 401
    assert method == "HEAD" or is_sign_in_page(response)
    assert response.headers["hx-refresh"] == "true"


@pytest.mark.parametrize("path", ["/", "/nowhere", "/live", "/live/", "/staging/keys/../bans", "/sign-out"])
def test_an_unknown_path_without_a_session_is_the_sign_in_page(console: Console, path: str) -> None:
    assert is_sign_in_page(console.client().get(path))


def test_an_unknown_cookie_is_no_session(console: Console) -> None:
    client = console.client()
    client.http.cookies.set(console.cookie_name, "A" * 43)
    assert is_sign_in_page(client.get("/live/keys"))


@pytest.mark.parametrize(
    "origin", [None, "null", "https://evil.example", "http://127.0.0.1:1", "https://127.0.0.1:{port}", "{origin}.evil"]
)
def test_a_post_from_another_origin_is_403_and_changes_nothing(
    console: Console, operator: ConsoleClient, origin: str | None
) -> None:
    headers = {"Origin": origin.format(port=console.port, origin=console.origin)} if origin else {}
    before = Commands(console.server).entries()
    for path in ("/live/animals", "/live/keys", "/sign-out", "/sign-in"):
        assert operator.http.post(path, data={"name": "x", "categoryId": "1"}, headers=headers).status_code == 403
    assert Commands(console.server).entries() == before
    assert operator.get("/live/keys").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", ""])
def test_another_host_name_is_421(console: Console, operator: ConsoleClient, host: str) -> None:
    assert operator.get("/live/keys", Host=host).status_code == 421


@pytest.mark.parametrize("host", ["rebound.example:{port}", "rebound.example", "127.0.0.1.rebound.example:{port}"])
def test_a_page_whose_name_was_rebound_to_the_console_reads_and_changes_nothing(
    console: Console, operator: ConsoleClient, host: str
) -> None:
    """DNS rebinding points an attacker's host name at the console, so that the attacker's page has the same origin.

    Browsers send that name as Host and Origin. Even with a session cookie, a token or the one-time link, every response
    is the same text, and nothing is recorded.
    """
    name = host.format(port=console.port)
    rebound = {"Host": name, "Origin": f"http://{name}", "Sec-Fetch-Site": "same-origin"}
    token = console.add_operator("Rebound " + name)
    before = Commands(console.server).entries()
    responses = [
        operator.http.request(method, path, headers=rebound)
        for path in ("/", "/live/overview", "/live/animals", "/live/keys", "/static/console.js", "/sign-in", "/nothing")
        for method in ("GET", "POST", "OPTIONS")
    ]
    responses.append(operator.http.post("/sign-in", data={"token": token, "next": "/live/keys"}, headers=rebound))
    responses.append(operator.http.get("/sign-in", params={"token": console.link_token}, headers=rebound))
    assert {(each.status_code, each.text) for each in responses} == {
        (421, "The console does not accept this host name. See --public-url.\n")
    }
    for each in responses:
        assert "set-cookie" not in each.headers and "access-control-allow-origin" not in each.headers
    assert Commands(console.server).entries() == before
    assert operator.get("/live/keys").status_code == 200  # the operator is still signed in


@pytest.mark.parametrize("host", ["localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_the_names_of_the_loopback_address_are_allowed(console: Console, operator: ConsoleClient, host: str) -> None:
    name = host.format(port=console.port)
    assert operator.get("/sign-in", Host=name).status_code == 401
    done = operator.http.post("/live/animals/status", headers={"Host": name, "Origin": f"http://{name}"})
    assert done.status_code != 403


def test_the_public_url_is_the_allowed_origin_behind_a_proxy(tmp_path: Path) -> None:
    with running_console(Server(tmp_path / "data"), "--public-url", "https://Console.Example.com/") as own_console:
        assert own_console.link.startswith("https://Console.Example.com/sign-in?token=")
        client = own_console.client().http
        client.headers["Host"] = "console.example.com"
        done = client.get("/sign-in", params={"token": own_console.link_token})
        assert "secure" in done.headers["set-cookie"].lower()
        headers = {"Cookie": done.headers["set-cookie"].split(";")[0], "Origin": "https://console.example.com"}
        assert client.post("/sign-out", headers=headers).status_code == 303


@pytest.mark.parametrize("length", ["", "Content-Length: 10\r\n"], ids=["chunks", "chunks-and-content-length"])
def test_an_endless_form_before_signing_in_is_refused_and_the_connection_closed(console: Console, length: str) -> None:
    head = (
        f"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1:{console.port}\r\nOrigin: {console.origin}\r\n"
        f"Content-Type: application/x-www-form-urlencoded\r\n{length}Transfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    with socket.create_connection(("127.0.0.1", console.port), timeout=10) as connection:
        connection.sendall(head.encode())
        with contextlib.suppress(ConnectionError):  # the server may close the connection during the request
            for _ in range(10_000):
                connection.sendall(chunk)
            pytest.fail("the server read 40 MB of a form")
        response = b""
        with contextlib.suppress(ConnectionError):
            response = connection.recv(65_536)
    assert response == b"" or response.startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 400 "))


@pytest.mark.parametrize("path", ["/live/animals", "/live/animals/import", "/sign-out"])
def test_a_refused_post_closes_the_connection(console: Console, path: str) -> None:
    response = console.client().post(path, name="x" * 100_000)
    assert response.status_code == 401
    assert response.headers["connection"] == "close"


def test_a_large_form_of_an_operator_is_413(operator: ConsoleClient) -> None:
    assert operator.post("/live/animals", name="x" * 70_000, categoryId="1").status_code == 413
    headers = {"Origin": operator.console.origin, "Content-Type": "application/x-www-form-urlencoded"}
    chunks = iter([b"name=" + b"x" * 40_000] * 2)
    assert operator.http.post("/live/keys", content=chunks, headers=headers).status_code == 413


@pytest.mark.parametrize("charset", ["undefined", "unicode_escape", '"no such"'])
def test_a_form_in_another_charset_is_400(console: Console, charset: str) -> None:
    headers = {
        "Origin": console.origin,
        "Content-Type": f"multipart/form-data; boundary=b; charset={charset}",
    }
    body = b'--b\r\nContent-Disposition: form-data; name="token"\r\n\r\n\\ud800\r\n--b--\r\n'
    assert console.client().http.post("/sign-in", content=body, headers=headers).status_code == 400


@pytest.mark.parametrize("query", ["&" * PARAMETERS_MAX, "q=" + "x" * QUERY_MAX])
def test_a_query_that_is_too_long_is_400(console: Console, operator: ConsoleClient, query: str) -> None:
    for client in (console.client(), operator):
        assert client.get(f"/live/animals?{query}").status_code == 400
    assert operator.get("/live/animals?q=" + "%C3%A9" * 200).status_code == 200


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"a&" * FIELDS_MAX, "application/x-www-form-urlencoded"),
        ("token=é".encode(), "application/x-www-form-urlencoded"),
        (b"token=x", "application/x-www-form-urlencoded" + ";" * CONTENT_TYPE_MAX),
        (b"token=x", "text/plain"),
    ],
)
def test_a_form_that_no_browser_sends_is_400(console: Console, body: bytes, content_type: str) -> None:
    headers = {"Origin": console.origin, "Content-Type": content_type}
    assert console.client().http.post("/sign-in", content=body, headers=headers).status_code == 400


def test_the_session_is_found_among_other_cookies(console: Console, operator: ConsoleClient) -> None:
    name = console.cookie_name
    own = f"{name}={operator.http.cookies[name]}"
    for cookies, status in (
        (f"a=1; {own}; b=2", 200), ("x=1; " * 3_000 + own, 200), (f"a=1; x{own}", 401), (f"a=1 {own}", 401)
    ):  # fmt: skip
        response = httpx.get(console.origin + "/live/animals", headers={"Cookie": cookies}, timeout=15)
        assert response.status_code == status, cookies[:40]


def test_a_form_that_takes_too_long_is_408() -> None:
    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def read() -> None:
        scope = {"type": "http", "headers": [(b"content-type", b"application/x-www-form-urlencoded")]}
        with pytest.raises(HTTPException) as error:
            await read_form(Request(scope, receive), seconds=0.01)
        assert error.value.status_code == 408

    asyncio.run(read())


@pytest.fixture(scope="module")
def viewer(console: Console) -> ConsoleClient:
    return console.sign_in("viewer of every address", "viewer")


@pytest.mark.parametrize(("path", "method"), ADDRESSES, ids=lambda value: value)
def test_every_post_and_every_form_of_a_viewer_is_403(
    console: Console, viewer: ConsoleClient, operator: ConsoleClient, path: str, method: str
) -> None:
    headers = {"Origin": console.origin}
    is_refused = method == "POST" or path in map(address_of, FORM_ROUTES)
    assert (viewer.http.request(method, path, headers=headers).status_code == 403) == is_refused
    assert operator.http.request(method, path, headers=headers).status_code != 403


@pytest.mark.parametrize("path", ["/sign-out", "/sign-out/everywhere"])
def test_a_viewer_may_sign_out(console: Console, new_name: Callable[[], str], path: str) -> None:
    viewer = console.sign_in(new_name(), "viewer")
    assert viewer.post(path).status_code == 303
    assert is_sign_in_page(viewer.get("/live/keys"))


def test_endless_headers_end_the_connection(console: Console) -> None:
    with (
        socket.create_connection(("127.0.0.1", console.port), timeout=10) as connection,
        contextlib.suppress(ConnectionError),  # the server may close the connection during the request
    ):
        connection.sendall(b"GET /sign-in HTTP/1.1\r\nHost: here\r\n" + b"X-More: and more\r\n" * 10_000)
        response = b"".join(iter(lambda: connection.recv(65_536), b""))
        assert response.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "path",
    ["/sign-in", "/live/overview", "/live/nowhere", "/nowhere", "/static/base.css", "/static/none", "/live/keys/new"],
)
def test_every_response_carries_the_strict_headers(console: Console, operator: ConsoleClient, path: str) -> None:
    headers = operator.get(path).headers
    assert headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY and "default-src 'none'" in POLICY and "http" not in POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == ("no-cache" if path == "/static/base.css" else "no-store")
    assert "server" not in headers


def test_no_page_has_an_inline_script_or_style(console: Console, operator: ConsoleClient) -> None:
    for name in ("overview", "animals", "keys", "keys/new", "bans", "audit"):
        text = operator.get(f"/live/{name}").text
        assert re.findall(r"<script(?![^>]* src=)", text) == []
        assert re.findall(r"<style|\sstyle=|\son[a-z]+=", text) == []
        assert re.findall(r'(?:src|href|action)="(?!/|#)', text) == []


def test_versioned_static_files_are_cached(console: Console) -> None:
    client = console.client()
    (address,) = re.findall(r'href="(/static/base.css\?v=\w+)"', client.get("/sign-in").text)
    assert client.get(address).headers["cache-control"] == "max-age=31536000, immutable"
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/vendor/htmx/LICENSE", "/static/"):
        assert client.get(path).status_code in (401, 404)
