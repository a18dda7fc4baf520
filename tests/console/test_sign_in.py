"""Signing in and out: the link, tokens, sessions, and the limit for failed sign-ins."""

import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.certificates import self_signed
from harness.commands import Commands
from harness.consoles import Console, ConsoleClient, is_sign_in_page, running_console, text_of
from harness.servers import Server, serving
from petstore.audit import AuditEntry
from petstore.console.sessions import SESSIONS_MAX, Sessions
from petstore.operators import Operator, mint_token


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Uses one pair of backends, because the tests do not depend on the backend."""
    with serving(tmp_path_factory.mktemp("sign_in") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def console(server: Server) -> Iterator[Console]:
    with running_console(server) as running:
        yield running


def test_the_link_signs_in_once(own_console: Console) -> None:
    first, second = own_console.client(), own_console.client()
    assert second.http.head(own_console.link).status_code == 401  # a link preview
    done = first.get(own_console.link)
    assert (done.status_code, done.headers["location"]) == (303, "/live/overview")
    assert "Signed in as console" in text_of(first.get("/live/overview"))
    again = second.get(own_console.link)
    assert again.status_code == 401 and is_sign_in_page(again)
    assert is_sign_in_page(second.get("/live/overview"))


def test_the_link_expires_after_an_hour(own_console: Console) -> None:
    own_console.server.move_clock(3600)
    assert own_console.client().get(own_console.link).status_code == 401


def test_a_session_ends_after_twelve_hours(own_console: Console) -> None:
    client = own_console.client()
    client.get(own_console.link)
    for minutes in range(25, 12 * 60, 25):
        own_console.server.move_clock(60 * minutes)
        assert client.get("/live/keys").status_code == 200
    own_console.server.move_clock(12 * 3600 + 1)
    assert client.get("/live/keys").status_code == 401


def test_an_idle_session_ends_after_thirty_minutes(own_console: Console) -> None:
    client = own_console.client()
    client.get(own_console.link)
    own_console.server.move_clock(29 * 60)
    assert client.get("/live/keys").status_code == 200
    own_console.server.move_clock(58 * 60)
    assert client.get("/live/keys").status_code == 200
    own_console.server.move_clock(89 * 60)
    assert client.get("/live/keys").status_code == 401


def test_the_automatic_refresh_of_a_page_does_not_keep_a_session_open(own_console: Console) -> None:
    client = own_console.client()
    client.get(own_console.link)
    own_console.server.move_clock(20 * 60)
    assert client.get("/live/overview/refresh").status_code == 200
    own_console.server.move_clock(31 * 60)
    refused = client.get("/live/overview/refresh")
    assert (refused.status_code, refused.headers["hx-refresh"]) == (401, "true")


def test_the_cookie_is_http_only_and_same_site_strict(own_console: Console) -> None:
    cookie = own_console.client().get(own_console.link).headers["set-cookie"]
    assert cookie.startswith(f"petstore_console_{own_console.port}=")
    words = {word.strip().lower() for word in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= words
    assert "secure" not in words  # plain HTTP on loopback


def test_under_https_the_cookie_is_a_host_cookie_and_hsts_is_sent(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    options = ["--tls-cert", str(certificate), "--tls-key", str(key)]
    with running_console(Server(tmp_path / "data"), *options, scheme="https") as own_console:
        client = own_console.client()
        signed_in = client.get(own_console.link)
        assert signed_in.status_code == 303
        assert client.get("/live/keys").headers["strict-transport-security"] == "max-age=31536000"
        signed_out = client.post("/sign-out")
        assert client.get("/live/keys").status_code == 401
    for response in (signed_in, signed_out):
        cookie = response.headers["set-cookie"].lower()
        assert cookie.startswith(f"__host-petstore_console_{own_console.port}=")
        assert "; secure" in cookie and "; path=/" in cookie and "domain" not in cookie


def test_a_copied_cookie_does_not_work_after_signing_out(console: Console, operator: ConsoleClient) -> None:
    cookies = dict(operator.http.cookies)
    assert operator.post("/sign-out").status_code == 303
    stolen = console.client()
    stolen.http.cookies.update(cookies)
    assert is_sign_in_page(stolen.get("/live/keys"))


def test_the_eleventh_failure_with_one_token_prefix_within_a_minute_is_429(own_console: Console) -> None:
    client = own_console.client()
    for i in range(10):
        assert client.post("/sign-in", token=f"pets_op_same{i}").status_code == 401
    refused = client.post("/sign-in", token="pets_op_same10")
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert "Too many failed sign-ins" in text_of(refused)
    own_console.server.move_clock(61)
    assert client.post("/sign-in", token="pets_op_same11").status_code == 401


def test_failed_sign_ins_do_not_lock_out_an_operator_with_the_same_address(own_console: Console) -> None:
    attacker = own_console.client()
    for _ in range(40):
        attacker.post("/sign-in", token=mint_token())
        attacker.post("/sign-in", token="pets_op_nonsense")
    assert own_console.client().post("/sign-in", token=own_console.add_operator("ada")).status_code == 303
    assert own_console.client().get(own_console.link).status_code == 303


def test_behind_a_trusted_proxy_failures_count_per_client(tmp_path: Path) -> None:
    with running_console(Server(tmp_path / "data"), "--trusted-proxy", "127.0.0.1") as console:

        def try_token(forwarded_for: str) -> int:
            headers = {"Origin": console.origin, "X-Forwarded-For": forwarded_for}
            return console.client().http.post("/sign-in", data={"token": "same"}, headers=headers).status_code

        assert [try_token(f"10.0.0.{i}, 203.0.113.1") for i in range(11)] == [401] * 10 + [429]
        assert try_token("203.0.113.2") == 401
        failures = [entry for entry in Commands(console.server).entries() if entry.action == "sign-in failed"]
        assert [entry.subject for entry in failures] == ["203.0.113.2", "203.0.113.1"]


def test_the_forwarded_address_of_an_untrusted_client_is_ignored(own_console: Console) -> None:
    for i in range(11):
        headers = {"Origin": own_console.origin, "X-Forwarded-For": f"203.0.113.{i}"}
        response = own_console.client().http.post("/sign-in", data={"token": "same"}, headers=headers)
        assert response.status_code == (401 if i < 10 else 429)


def test_failed_sign_ins_are_in_the_audit_log_once_a_minute_with_the_number_of_others(own_console: Console) -> None:
    client, log = own_console.client(), Commands(own_console.server)

    def failures() -> list[AuditEntry]:
        return [entry for entry in log.entries() if entry.action == "sign-in failed"]

    for i in range(50):
        client.post("/sign-in", token=f"{i}")
    assert [(entry.actor, entry.subject, entry.detail) for entry in failures()] == [("anonymous", "127.0.0.1", "")]
    own_console.server.move_clock(61)
    client.post("/sign-in", token="x")
    assert failures()[0].detail == "and 49 more since the previous entry"
    client.post("/sign-in", token="y")
    assert len(failures()) == 2
    assert own_console.output.read_text().count("sign-in failed") == 2


def test_signing_out_is_in_the_audit_log(own_console: Console) -> None:
    own_console.sign_in("ada").post("/sign-out")
    newest = Commands(own_console.server).entries()[0]
    assert (newest.actor, newest.action, newest.subject) == ("ada", "sign out", "ada")


def test_signing_out_everywhere_ends_all_sessions_of_the_operator_and_no_other(own_console: Console) -> None:
    token = own_console.add_operator("ada")
    laptop, phone, other = own_console.client(), own_console.client(), own_console.sign_in("grace")
    for client in (laptop, phone):
        assert client.post("/sign-in", token=token).status_code == 303
    assert laptop.post("/sign-out/everywhere").status_code == 303
    assert [client.get("/live/keys").status_code for client in (laptop, phone, other)] == [401, 401, 200]
    newest = Commands(own_console.server).entries()[0]
    assert (newest.actor, newest.action, newest.detail) == ("ada", "sign out everywhere", "2 sessions")
    assert laptop.post("/sign-in", token=token).status_code == 303


def test_an_operator_who_signs_in_again_and_again_ends_no_session_of_others() -> None:
    sessions = Sessions(lambda: 0.0)
    viewer, other = Operator("vic", 1.0, role="viewer"), Operator("ada", 2.0)
    cookies = [sessions.begin(other), *(sessions.begin(viewer) for _ in range(SESSIONS_MAX + 1))]
    open_ones = [sessions.find(cookie) is not None for cookie in cookies]
    assert open_ones == [True, False, *[True] * SESSIONS_MAX]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_of_another_site_count_as_no_failure_and_keep_the_link(own_console: Console, site: str) -> None:
    client, wrong = own_console.client(), own_console.link.replace(own_console.link_token, "A" * 43)
    for link in [wrong] * 11 + [own_console.link]:
        page = client.get(link, **{"Sec-Fetch-Site": site})
        assert page.status_code == 401 and is_sign_in_page(page)
        assert "refresh" not in page.headers, "a reloaded request would come from the console itself"
    assert client.get(own_console.link, **{"Sec-Fetch-Site": "none"}).status_code == 303


@pytest.mark.parametrize("token", ["A" * 43, "no token at all"])
def test_a_wrong_link_counts_as_a_failure(own_console: Console, token: str) -> None:
    wrong = own_console.link.replace(own_console.link_token, token)
    for _ in range(10):
        assert own_console.client().get(wrong, **{"Sec-Fetch-Site": "none"}).status_code == 401
    assert own_console.client().get(wrong).status_code == 429


def test_an_operator_token_in_the_url_does_not_sign_in(own_console: Console) -> None:
    """A token in a URL would remain in the browser's history."""
    client, token = own_console.client(), own_console.add_operator("ada")
    refused = client.get(f"/sign-in?token={token}")
    assert refused.status_code == 401 and is_sign_in_page(refused)
    assert "cannot sign you in from here" in text_of(refused) and "set-cookie" not in refused.headers
    for _ in range(10):
        assert client.get("/sign-in?token=x").status_code == 401
    assert client.post("/sign-in", token=token).status_code == 303


def test_the_token_of_the_link_can_be_entered_in_the_form(own_console: Console) -> None:
    assert own_console.client().post("/sign-in", token=own_console.link_token).status_code == 303


def test_a_sign_in_with_a_file_or_a_large_body_is_refused(console: Console) -> None:
    client, headers = console.client(), {"Origin": console.origin}
    assert client.http.post("/sign-in", files={"token": ("x", b"x")}, headers=headers).status_code == 400
    assert client.post("/sign-in", token="x", next="x" * 70_000).status_code == 413
    headers["Content-Type"] = "application/x-www-form-urlencoded"
    assert client.http.post("/sign-in", content=iter([b"x" * 1_000] * 100), headers=headers).status_code == 413


@pytest.mark.parametrize("length", ["Content-Length: 500", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("media", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_forms_that_break_off_or_are_malformed_are_no_errors_of_ours(
    own_console: Console, length: str, media: str
) -> None:
    host = own_console.origin.removeprefix("http://")
    head = f"POST /sign-in HTTP/1.1\r\nHost: {host}\r\nOrigin: {own_console.origin}\r\nContent-Type: {media}\r\n"
    with socket.create_connection(("127.0.0.1", own_console.port)) as connection:
        connection.sendall(f"{head}{length}\r\n\r\nZZ\r\n".encode())
        connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    printed = own_console.output.read_text()
    assert "internal error" not in printed and "boundary" not in printed


def test_signing_in_leads_to_the_requested_page(console: Console, new_name: Callable[[], str]) -> None:
    client = console.client()
    page = client.get("/staging/animals?q=Rex")
    (wanted,) = re.findall(r'name="next" value="([^"]+)"', page.text)
    for token in ("pets_op_wrong", "", "wrong"):
        refused = client.post("/sign-in", token=token, next=wanted)
        assert refused.status_code == 401
        assert re.findall(r'name="next" value="([^"]+)"', refused.text) == [wanted]
    done = client.post("/sign-in", token=console.add_operator(new_name()), next=wanted)
    assert done.headers["location"] == "/staging/animals?q=Rex"


def test_the_sign_in_page_takes_the_next_page_from_its_address(console: Console) -> None:
    for wanted, kept in (("/live/keys", "/live/keys"), ("//evil.example", "/live/overview"), ("", "/live/overview")):
        page = console.client().get(f"/sign-in?next={wanted}")
        assert re.findall(r'name="next" value="([^"]+)"', page.text) == [kept]


@pytest.mark.parametrize(
    "wanted",
    ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:1", "", "/\n/x", "//[x", "http://["],
)
def test_signing_in_does_not_lead_to_another_site(console: Console, new_name: Callable[[], str], wanted: str) -> None:
    done = console.client().post("/sign-in", token=console.add_operator(new_name()), next=wanted)
    assert done.headers["location"] == "/live/overview"


def test_the_sign_in_page_reloads_after_a_link_on_another_site(console: Console) -> None:
    """The browser does not send a strict cookie after a click on a cross-site link, but it does on a reload."""
    client = console.client()
    assert client.get("/live/keys", **{"Sec-Fetch-Site": "cross-site"}).headers["refresh"] == "0"
    assert "refresh" not in client.get("/live/keys", **{"Sec-Fetch-Site": "same-origin"}).headers
