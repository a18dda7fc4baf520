"""The banner of `petstore serve`, with addresses and commands that work as printed."""

from pathlib import Path

import pytest

from petstore.cli.banner import print_banner
from petstore.cli.options import settings_from
from petstore.cli.serve import serve
from petstore.cli.suggestions import suggestion
from petstore.server.sockets import Address

SECRET = "pets_live_x"


def banner(capsys: pytest.CaptureFixture[str], *options: str, secrets: bool = True) -> list[str]:
    with serve.make_context("petstore", list(options)) as context:
        del context.params["demo"], context.params["show_first_key"]
        print_banner(settings_from(context.params), {"live": SECRET} if secrets else {}, demo=False)
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("host", "curl"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080/v1/pets"),
        ("0.0.0.0", "http://127.0.0.1:8080/v1/pets"),
        ("::", "http://localhost:8080/v1/pets"),
        ("::1", "'http://[::1]:8080/v1/pets'"),
        ("10.0.0.7", "http://10.0.0.7:8080/v1/pets"),
    ],
)
def test_the_curl_line_names_an_address_that_can_be_connected_to(
    capsys: pytest.CaptureFixture[str], host: str, curl: str
) -> None:
    assert f"curl -i {curl} -H 'Authorization: Bearer {SECRET}'" in banner(capsys, "--host", host)


def test_base_addresses_can_be_connected_to_when_all_interfaces_are_listened_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = banner(capsys, "--host", "0.0.0.0")
    assert lines[0] == "Petstore listens on http://0.0.0.0:8080"
    assert "live       http://127.0.0.1:8080/v1" in lines
    assert "reference  http://127.0.0.1:8080/docs" in lines


def test_curl_does_not_check_a_certificate_that_is_for_another_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = banner(capsys, "--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    assert f"curl -ik https://127.0.0.1:8080/v1/pets -H 'Authorization: Bearer {SECRET}'" in lines


def banner_of_sockets(capsys: pytest.CaptureFixture[str], *addresses: Address) -> list[str]:
    with serve.make_context("petstore", ["--port", "1"]) as context:
        del context.params["demo"], context.params["show_first_key"]
        print_banner(settings_from(context.params), {"live": SECRET}, demo=False, addresses=addresses)
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


def test_addresses_are_those_of_the_sockets_that_systemd_has_opened(capsys: pytest.CaptureFixture[str]) -> None:
    lines = banner_of_sockets(capsys, ("unix:/run/petstore.sock", None), ("::", 443), ("10.0.0.7", 8000))
    assert lines[0] == "Petstore listens on unix:/run/petstore.sock, http://[::]:443, http://10.0.0.7:8000"
    assert "live       http://localhost:443/v1" in lines
    assert f"curl -i http://localhost:443/v1/pets -H 'Authorization: Bearer {SECRET}'" in lines


def test_curl_connects_to_a_unix_socket(capsys: pytest.CaptureFixture[str]) -> None:
    lines = banner_of_sockets(capsys, ("unix:/run/petstore.sock", None))
    assert lines[0] == "Petstore listens on unix:/run/petstore.sock"
    curl = "curl -i --unix-socket /run/petstore.sock http://localhost/v1/pets"
    assert f"{curl} -H 'Authorization: Bearer {SECRET}'" in lines


@pytest.mark.parametrize("secrets", [True, False], ids=["first start", "later start"])
def test_every_start_names_the_console_and_what_to_do_about_a_lost_key(
    capsys: pytest.CaptureFixture[str], secrets: bool
) -> None:
    lines = banner(capsys, secrets=secrets)
    for words in ("console", "keys rotate ID", "keys create --plan pro"):
        command = suggestion(words, f"--data {Path.cwd()}/petstore-data")  # works in any directory
        assert any(line.startswith(f"{command}  ") for line in lines)


def test_commands_name_the_data_of_the_service(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PETSTORE_DATA", "my data")
    lines = banner(capsys, "--store", "postgresql://me:secret@db/pets")
    command = suggestion("console", f"--data '{Path.cwd()}/my data' --store postgresql://me@db/pets")
    assert any(line.startswith(command) for line in lines)
    assert not any("secret@" in line for line in lines)
