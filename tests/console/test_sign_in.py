"""Who gets in: the link, tokens, sessions, and what is refused before any page is made."""

import contextlib
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from petstore.console.app import ROUTES
from petstore.console.guard import POLICY
from tests.commands import Commands
from tests.consoles import Console, Visitor, running_console, shown
from tests.servers import PETSTORE, Server, serving

PLACES = {"environment": "live", "key_id": "key_x", "job_id": "x"}
ADDRESSES = sorted(
    ("/live" + re.sub(r"{(\w+)}", lambda found: PLACES[found[1]], route.path), method)
    for route in ROUTES
    for method in route.methods or ()
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The door is the same whatever is behind it: one pair of backends will do."""
    with serving(tmp_path_factory.mktemp("doors") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def console(server: Server) -> Iterator[Console]:
    with running_console(server) as running:
        yield running


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Console]:
    """A console of the test's own, whose clock may be moved."""
    with running_console(Server(tmp_path / "data")) as running:
        yield running


def is_sign_in(response: httpx.Response) -> bool:
    return "Sign in · Petstore console" in response.text and 'name="token"' in response.text


def test_the_link_signs_in_once(own: Console) -> None:
    first, second = own.visitor(), own.visitor()
    assert second.client.head(own.link).status_code == 401  # a preview does not use it up
    done = first.get(own.link)
    assert (done.status_code, done.headers["location"]) == (303, "/live/overview")
    assert "Signed in as console" in shown(first.get("/live/overview"))
    again = second.get(own.link)
    assert again.status_code == 401 and is_sign_in(again)
    assert is_sign_in(second.get("/live/overview"))


def test_the_link_is_worth_nothing_after_an_hour(own: Console) -> None:
    own.server.move_clock(3600)
    assert own.visitor().get(own.link).status_code == 401


def test_a_session_ends_after_twelve_hours(own: Console) -> None:
    visitor = own.visitor()
    visitor.get(own.link)
    own.server.move_clock(12 * 3600 - 60)
    assert visitor.get("/live/keys").status_code == 200
    own.server.move_clock(12 * 3600 + 1)
    assert visitor.get("/live/keys").status_code == 401


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(own: Console) -> None:
    cookie = own.visitor().get(own.link).headers["set-cookie"]
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
        done = own.visitor().get(own.link)
    assert done.status_code == 303
    assert "secure" in done.headers["set-cookie"].lower()


def test_signing_out_ends_the_session_and_not_only_the_cookie(console: Console, ada: Visitor) -> None:
    cookies = dict(ada.client.cookies)
    assert ada.post("/sign-out").status_code == 303
    stolen = console.visitor()
    stolen.client.cookies.update(cookies)
    assert is_sign_in(stolen.get("/live/keys"))


@pytest.mark.parametrize(("path", "method"), ADDRESSES, ids=lambda value: value)
def test_without_a_session_every_address_is_the_sign_in_page(console: Console, path: str, method: str) -> None:
    response = console.visitor().client.request(method, path, headers={"Origin": console.origin})
    assert response.status_code == 401
    assert method == "HEAD" or is_sign_in(response)
    assert response.headers["hx-refresh"] == "true"


@pytest.mark.parametrize("path", ["/", "/nowhere", "/live", "/live/", "/staging/keys/../bans", "/sign-out"])
def test_without_a_session_whatever_else_is_the_sign_in_page_too(console: Console, path: str) -> None:
    assert is_sign_in(console.visitor().get(path))


def test_a_made_up_cookie_is_no_session(console: Console) -> None:
    visitor = console.visitor()
    visitor.client.cookies.set(console.cookie, "A" * 43)
    assert is_sign_in(visitor.get("/live/keys"))


@pytest.mark.parametrize(
    "origin", [None, "null", "https://evil.example", "http://127.0.0.1:1", "https://127.0.0.1:{port}", "{origin}.evil"]
)
def test_a_post_from_elsewhere_is_refused_and_does_nothing(console: Console, ada: Visitor, origin: str | None) -> None:
    headers = {"Origin": origin.format(port=console.port, origin=console.origin)} if origin else {}
    before = Commands(console.server).entries()
    for path in ("/live/animals", "/live/keys", "/sign-out", "/sign-in"):
        assert ada.client.post(path, data={"name": "x", "categoryId": "1"}, headers=headers).status_code == 403
    assert Commands(console.server).entries() == before
    assert ada.get("/live/keys").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", ""])
def test_another_host_name_is_refused(console: Console, ada: Visitor, host: str) -> None:
    assert ada.get("/live/keys", Host=host).status_code == 421


@pytest.mark.parametrize("host", ["localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_the_loopback_s_names_are_known(console: Console, ada: Visitor, host: str) -> None:
    name = host.format(port=console.port)
    assert ada.get("/sign-in", Host=name).status_code == 401
    done = ada.client.post("/live/animals/status", headers={"Host": name, "Origin": f"http://{name}"})
    assert done.status_code != 403


def test_behind_a_proxy_the_public_url_is_the_one_that_counts(tmp_path: Path) -> None:
    with running_console(Server(tmp_path / "data"), "--public-url", "https://Console.Example.com/") as own:
        assert own.link.startswith("https://Console.Example.com/sign-in?token=")
        client = own.visitor().client
        client.headers["Host"] = "console.example.com"
        done = client.get("/sign-in", params={"token": own.link_token})
        assert "secure" in done.headers["set-cookie"].lower()
        headers = {"Cookie": done.headers["set-cookie"].split(";")[0], "Origin": "https://console.example.com"}
        assert client.post("/sign-out", headers=headers).status_code == 303


def test_ten_wrong_tokens_a_minute_are_enough(own: Console) -> None:
    visitor = own.visitor()
    for _ in range(10):
        assert visitor.post("/sign-in", token="pets_op_nonsense").status_code == 401
    refused = visitor.post("/sign-in", token=own.operator("ada"))
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert "Too many wrong tokens" in shown(refused)
    assert own.visitor().get(own.link).status_code == 429
    own.server.move_clock(61)
    assert visitor.get(own.link).status_code == 303


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_uses_up_neither_the_tries_nor_the_link(own: Console, site: str) -> None:
    visitor, wrong = own.visitor(), own.link.replace(own.link_token, "A" * 43)
    for link in [wrong] * 11 + [own.link]:
        shown_page = visitor.get(link, **{"Sec-Fetch-Site": site})
        assert shown_page.status_code == 401 and is_sign_in(shown_page)
        assert "refresh" not in shown_page.headers, "which would be the console's own doing"
    assert visitor.get(own.link, **{"Sec-Fetch-Site": "none"}).status_code == 303


def test_a_wrong_link_counts_when_it_is_opened(own: Console) -> None:
    wrong = own.link.replace(own.link_token, "A" * 43)
    for _ in range(10):
        assert own.visitor().get(wrong, **{"Sec-Fetch-Site": "none"}).status_code == 401
    assert own.visitor().get(wrong).status_code == 429


def test_an_address_signs_nobody_in_with_an_operator_s_token(own: Console) -> None:
    """It would be in the browser's history, and works until it is revoked."""
    visitor, token = own.visitor(), own.operator("ada")
    refused = visitor.get(f"/sign-in?token={token}")
    assert refused.status_code == 401 and is_sign_in(refused)
    assert "does not sign you in" in shown(refused) and "set-cookie" not in refused.headers
    for _ in range(10):
        assert visitor.get("/sign-in?token=x").status_code == 401
    assert visitor.post("/sign-in", token=token).status_code == 303


def test_the_link_s_token_can_be_pasted_too(own: Console) -> None:
    assert own.visitor().post("/sign-in", token=own.link_token).status_code == 303


def test_a_sign_in_takes_no_files_and_nothing_large(console: Console) -> None:
    visitor, headers = console.visitor(), {"Origin": console.origin}
    assert visitor.client.post("/sign-in", files={"token": ("x", b"x")}, headers=headers).status_code == 400
    assert visitor.post("/sign-in", token="x", next="x" * 70_000).status_code == 400
    assert visitor.client.post("/sign-in", content=iter([b"token=x"]), headers=headers).status_code == 400


def test_whoever_sends_headers_without_end_is_hung_up_on(console: Console) -> None:
    with (
        socket.create_connection(("127.0.0.1", console.port), timeout=10) as connection,
        contextlib.suppress(ConnectionError),  # at the end there is nobody left to be sent to
    ):
        connection.sendall(b"GET /sign-in HTTP/1.1\r\nHost: here\r\n" + b"X-More: and more\r\n" * 10_000)
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
        assert answer.startswith(b"HTTP/1.1 400 ")


def test_after_signing_in_the_page_asked_for_is_shown(console: Console, new_name: Callable[[], str]) -> None:
    visitor = console.visitor()
    asked = visitor.get("/staging/animals?q=Rex")
    (wanted,) = re.findall(r'name="next" value="([^"]+)"', asked.text)
    done = visitor.post("/sign-in", token=console.operator(new_name()), next=wanted)
    assert done.headers["location"] == "/staging/animals?q=Rex"


@pytest.mark.parametrize(
    "wanted",
    ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:1", "", "/\n/x", "//[x", "http://["],
)
def test_signing_in_leads_nowhere_else(console: Console, new_name: Callable[[], str], wanted: str) -> None:
    done = console.visitor().post("/sign-in", token=console.operator(new_name()), next=wanted)
    assert done.headers["location"] == "/live/overview"


@pytest.mark.parametrize(
    "path",
    ["/sign-in", "/live/overview", "/live/nowhere", "/nowhere", "/static/base.css", "/static/none", "/live/keys/new"],
)
def test_every_response_carries_the_strict_headers(console: Console, ada: Visitor, path: str) -> None:
    headers = ada.get(path).headers
    assert headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY and "default-src 'none'" in POLICY and "http" not in POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == ("no-cache" if path == "/static/base.css" else "no-store")
    assert "server" not in headers


def test_no_page_has_an_inline_script_or_style(console: Console, ada: Visitor) -> None:
    for name in ("overview", "animals", "keys", "keys/new", "bans", "audit"):
        text = ada.get(f"/live/{name}").text
        assert re.findall(r"<script(?![^>]* src=)", text) == []
        assert re.findall(r"<style|\sstyle=|\son[a-z]+=", text) == []
        assert re.findall(r'(?:src|href|action)="(?!/|#)', text) == []


def test_files_under_their_version_may_be_kept(console: Console) -> None:
    visitor = console.visitor()
    (address,) = re.findall(r'href="(/static/base.css\?v=\w+)"', visitor.get("/sign-in").text)
    assert visitor.get(address).headers["cache-control"] == "max-age=31536000, immutable"
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/vendor/htmx/LICENSE", "/static/"):
        assert visitor.get(path).status_code in (401, 404)


def test_a_link_from_another_site_comes_in_with_the_reload(console: Console) -> None:
    """A strict cookie is not sent along with a cross-site link, so the sign-in page reloads itself, once."""
    visitor = console.visitor()
    assert visitor.get("/live/keys", **{"Sec-Fetch-Site": "cross-site"}).headers["refresh"] == "0"
    assert "refresh" not in visitor.get("/live/keys", **{"Sec-Fetch-Site": "same-origin"}).headers


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
def test_a_console_that_would_not_be_safe_is_refused_in_one_line(
    tmp_path: Path, options: list[str], names: str
) -> None:
    assert names in Commands(Server(tmp_path / "data")).fails_in_one_line("console", *options)


def test_a_port_in_use_is_refused_in_one_line(console: Console) -> None:
    message = Commands(console.server).fails_in_one_line("console", "--port", str(console.port))
    assert str(console.port) in message


def test_a_missing_extra_is_named_with_how_to_install_it(tmp_path: Path) -> None:
    """As on a machine that has the service without the console."""
    for module in ("starlette", "jinja2", "uvicorn", "python_multipart"):
        hidden = tmp_path / module
        hidden.mkdir()
        (hidden / f"{module}.py").write_text(f"raise ModuleNotFoundError(name={module!r})")
        done = subprocess.run(
            [*PETSTORE, "console", "--data", str(tmp_path / "data"), "--port", "1024"],
            capture_output=True, text=True, timeout=30, env={"PYTHONPATH": str(hidden), "PATH": "/usr/bin"},
        )  # fmt: skip
        assert done.returncode == 2
        assert done.stderr == f"petstore: the console needs the package {module}: pip install 'petstore[console]'\n"


def test_the_console_is_not_on_the_service_s_port(server: Server) -> None:
    for path in ("/sign-in", "/live/overview", "/static/base.css"):
        assert httpx.get(server.origin + path).status_code == 404
