"""Signing in: the link, tokens, sessions, and the checks before every page."""

import contextlib
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from petstore.console.app import ROUTES
from petstore.console.security import POLICY
from petstore.errors import to_install
from tests.commands import Commands
from tests.consoles import Console, ConsoleClient, running_console, text_of
from tests.servers import PETSTORE, Server, serving

PARAMETERS = {"environment": "live", "key_id": "key_x", "job_id": "x"}
ADDRESSES = sorted(
    ("/live" + re.sub(r"{(\w+)}", lambda found: PARAMETERS[found[1]], route.path), method)
    for route in ROUTES
    for method in route.methods or ()
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One pair of backends is enough: the checks do not depend on it."""
    with serving(tmp_path_factory.mktemp("sign_in") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def console(server: Server) -> Iterator[Console]:
    with running_console(server) as running:
        yield running


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Console]:
    """A console for one test, whose clock may be moved."""
    with running_console(Server(tmp_path / "data")) as running:
        yield running


def is_sign_in(response: httpx.Response) -> bool:
    return "Sign in · Petstore console" in response.text and 'name="token"' in response.text


def test_the_link_signs_in_once(own: Console) -> None:
    first, second = own.client(), own.client()
    assert second.http.head(own.link).status_code == 401  # a link preview
    done = first.get(own.link)
    assert (done.status_code, done.headers["location"]) == (303, "/live/overview")
    assert "Signed in as console" in text_of(first.get("/live/overview"))
    again = second.get(own.link)
    assert again.status_code == 401 and is_sign_in(again)
    assert is_sign_in(second.get("/live/overview"))


def test_the_link_expires_after_an_hour(own: Console) -> None:
    own.server.move_clock(3600)
    assert own.client().get(own.link).status_code == 401


def test_a_session_ends_after_twelve_hours(own: Console) -> None:
    client = own.client()
    client.get(own.link)
    own.server.move_clock(12 * 3600 - 60)
    assert client.get("/live/keys").status_code == 200
    own.server.move_clock(12 * 3600 + 1)
    assert client.get("/live/keys").status_code == 401


def test_the_cookie_is_http_only_and_same_site_strict(own: Console) -> None:
    cookie = own.client().get(own.link).headers["set-cookie"]
    assert cookie.startswith(f"petstore_console_{own.port}=")
    words = {word.strip().lower() for word in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= words
    assert "secure" not in words  # plain HTTP on the loopback


def test_under_tls_the_cookie_is_secure(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    options = ["--tls-cert", str(certificate), "--tls-key", str(key)]
    with running_console(Server(tmp_path / "data"), *options, scheme="https") as own:
        done = own.client().get(own.link)
    assert done.status_code == 303
    assert "secure" in done.headers["set-cookie"].lower()


def test_a_copied_cookie_does_not_work_after_signing_out(console: Console, operator: ConsoleClient) -> None:
    cookies = dict(operator.http.cookies)
    assert operator.post("/sign-out").status_code == 303
    stolen = console.client()
    stolen.http.cookies.update(cookies)
    assert is_sign_in(stolen.get("/live/keys"))


@pytest.mark.parametrize(("path", "method"), ADDRESSES, ids=lambda value: value)
def test_every_route_without_a_session_is_the_sign_in_page(console: Console, path: str, method: str) -> None:
    response = console.client().http.request(method, path, headers={"Origin": console.origin})
    assert response.status_code == 401
    assert method == "HEAD" or is_sign_in(response)
    assert response.headers["hx-refresh"] == "true"


@pytest.mark.parametrize("path", ["/", "/nowhere", "/live", "/live/", "/staging/keys/../bans", "/sign-out"])
def test_an_unknown_path_without_a_session_is_the_sign_in_page(console: Console, path: str) -> None:
    assert is_sign_in(console.client().get(path))


def test_an_unknown_cookie_is_no_session(console: Console) -> None:
    client = console.client()
    client.http.cookies.set(console.cookie_name, "A" * 43)
    assert is_sign_in(client.get("/live/keys"))


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


@pytest.mark.parametrize("host", ["localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_the_names_of_the_loopback_address_are_allowed(console: Console, operator: ConsoleClient, host: str) -> None:
    name = host.format(port=console.port)
    assert operator.get("/sign-in", Host=name).status_code == 401
    done = operator.http.post("/live/animals/status", headers={"Host": name, "Origin": f"http://{name}"})
    assert done.status_code != 403


def test_the_public_url_is_the_allowed_origin_behind_a_proxy(tmp_path: Path) -> None:
    with running_console(Server(tmp_path / "data"), "--public-url", "https://Console.Example.com/") as own:
        assert own.link.startswith("https://Console.Example.com/sign-in?token=")
        client = own.client().http
        client.headers["Host"] = "console.example.com"
        done = client.get("/sign-in", params={"token": own.link_token})
        assert "secure" in done.headers["set-cookie"].lower()
        headers = {"Cookie": done.headers["set-cookie"].split(";")[0], "Origin": "https://console.example.com"}
        assert client.post("/sign-out", headers=headers).status_code == 303


def test_the_eleventh_failed_sign_in_of_a_minute_is_429(own: Console) -> None:
    client = own.client()
    for _ in range(10):
        assert client.post("/sign-in", token="pets_op_nonsense").status_code == 401
    refused = client.post("/sign-in", token=own.add_operator("ada"))
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert "Too many failed sign-ins" in text_of(refused)
    assert own.client().get(own.link).status_code == 429
    own.server.move_clock(61)
    assert client.get(own.link).status_code == 303


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_of_another_site_count_as_no_failure_and_keep_the_link(own: Console, site: str) -> None:
    client, wrong = own.client(), own.link.replace(own.link_token, "A" * 43)
    for link in [wrong] * 11 + [own.link]:
        shown_page = client.get(link, **{"Sec-Fetch-Site": site})
        assert shown_page.status_code == 401 and is_sign_in(shown_page)
        assert "refresh" not in shown_page.headers, "the reload would be a request of the console itself"
    assert client.get(own.link, **{"Sec-Fetch-Site": "none"}).status_code == 303


def test_a_wrong_link_counts_as_a_failure(own: Console) -> None:
    wrong = own.link.replace(own.link_token, "A" * 43)
    for _ in range(10):
        assert own.client().get(wrong, **{"Sec-Fetch-Site": "none"}).status_code == 401
    assert own.client().get(wrong).status_code == 429


def test_an_operator_token_in_the_url_does_not_sign_in(own: Console) -> None:
    """The browser would keep the token in its history."""
    client, token = own.client(), own.add_operator("ada")
    refused = client.get(f"/sign-in?token={token}")
    assert refused.status_code == 401 and is_sign_in(refused)
    assert "does not sign in from here" in text_of(refused) and "set-cookie" not in refused.headers
    for _ in range(10):
        assert client.get("/sign-in?token=x").status_code == 401
    assert client.post("/sign-in", token=token).status_code == 303


def test_the_token_of_the_link_can_be_entered_in_the_form(own: Console) -> None:
    assert own.client().post("/sign-in", token=own.link_token).status_code == 303


def test_a_sign_in_with_a_file_or_a_large_body_is_refused(console: Console) -> None:
    client, headers = console.client(), {"Origin": console.origin}
    assert client.http.post("/sign-in", files={"token": ("x", b"x")}, headers=headers).status_code == 400
    assert client.post("/sign-in", token="x", next="x" * 70_000).status_code == 400
    assert client.http.post("/sign-in", content=iter([b"token=x"]), headers=headers).status_code == 400


def test_endless_headers_end_the_connection(console: Console) -> None:
    with (
        socket.create_connection(("127.0.0.1", console.port), timeout=10) as connection,
        contextlib.suppress(ConnectionError),  # the server may close the connection while the client sends
    ):
        connection.sendall(b"GET /sign-in HTTP/1.1\r\nHost: here\r\n" + b"X-More: and more\r\n" * 10_000)
        response = b"".join(iter(lambda: connection.recv(65_536), b""))
        assert response.startswith(b"HTTP/1.1 400 ")


def test_signing_in_leads_to_the_requested_page(console: Console, new_name: Callable[[], str]) -> None:
    client = console.client()
    page = client.get("/staging/animals?q=Rex")
    (wanted,) = re.findall(r'name="next" value="([^"]+)"', page.text)
    done = client.post("/sign-in", token=console.add_operator(new_name()), next=wanted)
    assert done.headers["location"] == "/staging/animals?q=Rex"


@pytest.mark.parametrize(
    "wanted",
    ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:1", "", "/\n/x", "//[x", "http://["],
)
def test_signing_in_does_not_lead_to_another_site(console: Console, new_name: Callable[[], str], wanted: str) -> None:
    done = console.client().post("/sign-in", token=console.add_operator(new_name()), next=wanted)
    assert done.headers["location"] == "/live/overview"


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


def test_the_sign_in_page_reloads_after_a_link_on_another_site(console: Console) -> None:
    """The browser does not send a strict cookie with a cross-site link, but with the reload it does."""
    client = console.client()
    assert client.get("/live/keys", **{"Sec-Fetch-Site": "cross-site"}).headers["refresh"] == "0"
    assert "refresh" not in client.get("/live/keys", **{"Sec-Fetch-Site": "same-origin"}).headers


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--host", "0.0.0.0"], "--public-url"),
        (["--host", "0.0.0.0", "--public-url", "http://console.example.com"], "https"),
        (["--public-url", "console.example.com"], "--public-url"),
        (["--public-url", "https://c.example:abc"], "--public-url"),
        (["--public-url", "https://[x"], "--public-url"),
        (["--public-url", "https://c.example/ops"], "no path"),
        (["--public-url", "https://c.example?x=1"], "no path"),
        (["--public-url", "https://me@c.example"], "--public-url"),
        (["--public-url", "https://"], "--public-url"),
        (["--tls-cert", "x.pem"], "--tls-key"),
        (["--port", "0"], "--port"),
        (["--store", "mysql://x"], "mysql"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_unsafe_options_are_refused_in_one_line(tmp_path: Path, options: list[str], names: str) -> None:
    assert names in Commands(Server(tmp_path / "data")).fails_in_one_line("console", *options)


def test_a_port_in_use_is_refused_in_one_line(console: Console) -> None:
    message = Commands(console.server).fails_in_one_line("console", "--port", str(console.port))
    assert str(console.port) in message


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    """The service can be installed without the packages of the console."""
    for module in ("starlette", "jinja2", "uvicorn", "python_multipart"):
        hidden = tmp_path / module
        hidden.mkdir()
        (hidden / f"{module}.py").write_text(f"raise ModuleNotFoundError(name={module!r})")
        done = subprocess.run(
            [*PETSTORE, "console", "--data", str(tmp_path / "data"), "--port", "1024"],
            capture_output=True, text=True, timeout=30, env={"PYTHONPATH": str(hidden), "PATH": "/usr/bin"},
        )  # fmt: skip
        assert done.returncode == 2
        assert done.stderr == f"petstore: the console needs the package {module}: {to_install('console')}\n"


def test_the_service_does_not_serve_the_console(server: Server) -> None:
    for path in ("/sign-in", "/live/overview", "/static/base.css"):
        assert httpx.get(server.origin + path).status_code == 404
