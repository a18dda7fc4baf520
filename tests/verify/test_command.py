"""`petstore verify` as an operator runs it: its output, its exit codes, and what it must never print."""

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator

import pytest

from harness.backends import free_port
from harness.commands import Commands
from harness.faulty_proxy import RemovesHeader, RepeatsPosts, faulty_proxy
from harness.servers import Key, Server, serving
from petstore.errors import OperatorError
from petstore.keys import mint
from petstore.plans import Limits
from petstore.verify.runner import prepare
from petstore.verify.session import Session
from petstore.verify.transport import parse_address
from tests.cli.test_streams import on_a_terminal


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("verified") / "data", "own", "--address-per-minute", "100000") as server:
        server.fill(10)
        yield server


@pytest.fixture
def command(service: Server, monkeypatch: pytest.MonkeyPatch) -> Commands:
    for name in ("PETSTORE_VERIFY_KEY", "PETSTORE_VERIFY_LIMIT_KEY"):
        monkeypatch.delenv(name, raising=False)
    return Commands(service)


@pytest.fixture
def live(service: Server) -> Key:
    return service.key_in_stock()


def test_each_promise_is_a_line_and_the_exit_code_is_0(command: Commands, service: Server, live: Key) -> None:
    done = command.run("verify", service.url(""), "--key", live.secret)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert re.fullmatch(
        r"ok +authentication\.missing_key +A request without an API key is rejected with 401 and an `Error` body\.",
        lines[0],
    )
    assert re.fullmatch(r"skipped +creating\.created +it would add animals, .+; allow it with --write", lines[5])
    assert re.fullmatch(r"\d+ ok, 0 broken, \d+ skipped \(\d+ requests, \d+ s\)", lines[-1])
    assert re.fullmatch(r"This command sends up to \d+ requests\. It adds no animals\.\n", done.stderr)


def test_it_never_sends_more_requests_than_it_announced(command: Commands, service: Server, live: Key) -> None:
    done = command.run("verify", service.url(""), "--write", "--key", live.secret)
    announced, sent = (re.search(r"(\d+) requests", text) for text in (done.stderr, done.stdout))
    assert announced is not None and sent is not None
    assert 100 < int(sent[1]) <= int(announced[1]) <= 400


def test_a_broken_promise_is_explained_and_the_exit_code_is_1(command: Commands, service: Server, live: Key) -> None:
    with faulty_proxy(service.port, RemovesHeader) as port:
        done = command.run("verify", f"http://127.0.0.1:{port}/v1", "--key", live.secret)
    assert done.returncode == 1
    after = done.stdout.partition("BROKEN   every_response.rate_limit_headers ")[2].splitlines()
    assert after[1].startswith("         expected `X-RateLimit-Reset` for GET /pets?limit=1; received ")
    assert after[1].endswith("; likely cause: a proxy removed `X-RateLimit-Reset`")
    assert re.fullmatch(r" +and \d+ more", after[4])


def test_json_has_check_promise_result_and_detail(
    command: Commands, service: Server, live: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PETSTORE_VERIFY_KEY", live.secret)
    with faulty_proxy(service.port, RepeatsPosts) as port:
        done = command.run("verify", f"http://127.0.0.1:{port}/v1", "--write", "--json")
    results = json.loads(done.stdout)
    assert done.returncode == 1
    assert {tuple(each) for each in results} == {("check", "promise", "result", "detail")}
    assert {each["result"] for each in results} == {"ok", "broken", "skipped"}
    assert {bool(each["detail"]) for each in results if each["result"] == "ok"} == {False}
    (found,) = [each["detail"] for each in results if each["check"] == "creating.added_once"]
    assert "likely cause: a proxy retries POST requests" in found


def test_it_says_how_to_remove_the_animals_that_it_added(command: Commands, service: Server) -> None:
    key = service.key(environment="staging")
    done = command.run("verify", service.url("", "staging"), "--key", key.secret)
    assert re.search(
        r"run `petstore pets remove --env staging --added-by KEY --since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`\.$",
        done.stderr,
    )
    names = command.json("pets", "list", "--env", "staging", "--limit", "1000")
    assert {pet["name"].strip()[:7] for pet in names} == {"verify-"}
    assert f"Added {len(names)} animals." in done.stderr


def test_the_specification_is_a_smaller_level(command: Commands, service: Server, live: Key) -> None:
    results = command.run("verify", service.url(""), "--level", "spec", "--key", live.secret, "--json")
    assert {"limits.exact", "listing.array"} <= {each["check"] for each in json.loads(results.stdout)}
    assert "paging.complete" not in results.stdout


def test_a_terminal_shows_progress(command: Commands, service: Server, live: Key) -> None:
    printed = "\n".join(on_a_terminal(command, "verify", service.url(""), "--key", live.secret, columns=100))
    assert "Checking" in printed and "100%" in printed


# Exit code 2


def test_wrong_usage_is_one_line(command: Commands, service: Server, live: Key) -> None:
    assert "use --key or set PETSTORE_VERIFY_KEY" in command.fails_in_one_line("verify", service.url(""))
    for url in ("staging.example.com", "ftp://a/v1", "http://", "http://a/v1?x=1", "http://a b/v1", "http://a:b/v1"):
        assert "https://staging.example.com/v1" in command.fails_in_one_line("verify", url, "--key", live.secret), url
    message = command.fails_in_one_line("verify", "http://ada:hunter2@127.0.0.1/v1", "--key", live.secret)
    assert "password" in message and "hunter2" not in message
    assert "not valid in an API key" in command.fails_in_one_line("verify", service.url(""), "--key", "kéy")


def test_an_unreachable_address_is_named(command: Commands, service: Server, live: Key) -> None:
    dead = f"http://127.0.0.1:{free_port()}/v1"
    for words in ((dead,), (service.url(""), "--also", dead)):
        assert f"{dead} is unreachable" in command.fails_in_one_line("verify", *words, "--key", live.secret)
    message = command.fails_in_one_line("verify", service.origin, "--key", live.secret)
    assert message.endswith("/pets responds with 404; is it a base address, such as https://staging.example.com/v1?")


def test_a_refused_key_is_not_repeated(command: Commands, service: Server, live: Key) -> None:
    unknown = mint("live")
    for words in (("--key", unknown), ("--key", live.secret, "--limit-key", unknown)):
        message = command.fails_in_one_line("verify", service.url(""), *words)
        assert f"rejects the key for {words[-2]}: 401 The API key is not valid." in message
        assert unknown not in message


def test_a_key_whose_limit_does_not_suffice_is_refused_before_anything_is_added(
    command: Commands, service: Server
) -> None:
    key = service.key(environment="staging", limits=Limits(60, 1_000))
    before = command.json("pets", "list", "--env", "staging", "--limit", "1000")
    message = command.fails_in_one_line("verify", service.url("", "staging"), "--key", key.secret)
    needed = r"the checks send up to \d+ requests, but the key has only 59 left until \d\d:\d\d:\d\d UTC; "
    assert re.fullmatch(needed + "use a key with a higher limit", message)
    assert command.json("pets", "list", "--env", "staging", "--limit", "1000") == before
    spent = service.key(limits=Limits(1, 1_000))
    command.fails_in_one_line("verify", service.url(""), "--key", spent.secret)
    assert "has reached its limit" in command.fails_in_one_line("verify", service.url(""), "--key", spent.secret)


def test_too_many_addresses_are_refused(service: Server, live: Key) -> None:
    session = Session([parse_address(service.url(""))] * 12, live.secret)
    with contextlib.closing(session), pytest.raises(OperatorError, match="12 addresses require more than 400 requests"):
        prepare(session, "contract", write=True)


@contextlib.contextmanager
def responding(status: str, body: bytes) -> Iterator[str]:
    """Responds to every request with this status and JSON body. Yields the URL."""
    fields = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    head = f"HTTP/1.1 {status}\r\n{fields}\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(65_536)
                        connection.sendall(head.encode() + body)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_service_that_repeats_the_key_does_not_get_it_printed(command: Commands) -> None:
    """The service is another implementation whose keys have a different format."""
    secret = "another-form-of-key-17"
    body = f'[{{"id":1,"name":"{secret}\x9b31m","categoryId":1}}, 2]'.encode()
    with responding("200 OK", body) as url:
        done = command.run("verify", url, "--level", "spec", "--key", secret)
    assert done.returncode == 1
    assert "(the key)" in done.stdout
    assert secret not in done.stdout + done.stderr
    assert "\x9b" not in done.stdout


def test_a_message_in_another_language_is_readable_and_escaped(command: Commands) -> None:
    body = '{"code":"unauthorized","message":"Clé refusée: 1 € \x9b31m","status":401}'.encode()
    with responding("401 Unauthorized", body) as url:
        message = command.fails_in_one_line("verify", url, "--key", "any-key")
    assert message == f"{url} rejects the key for --key: 401 Clé refusée: 1 € \\u009b31m"
