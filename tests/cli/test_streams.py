"""The output of commands on narrow terminals and on streams that are closed, full or not UTF-8."""

import contextlib
import json
import os
import pty
import pwd
import subprocess
import termios
from pathlib import Path

import pytest

from harness.commands import Commands
from harness.servers import PETSTORE, Server

HOSTILE = "a\x9b31mred\N{RIGHT-TO-LEFT OVERRIDE}🐶"
HARMLESS = r"a\u009b31mred\u202e🐶"


@pytest.fixture
def embedded(tmp_path: Path) -> Commands:
    commands = Commands(Server(tmp_path / "data"))
    commands.server.create()
    return commands


def shell(petstore: Commands, words: str, streams: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a shell that redirects its streams."""
    command = ["sh", "-c", f'exec "$@" {words} {streams}', "sh", *PETSTORE]
    variables = {**petstore.variables, **variables}
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, env=variables)


def on_a_terminal(petstore: Commands, *words: str, columns: int) -> list[str]:
    """Runs a command on a terminal of this width. Returns the lines that it prints."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    variables = {**petstore.variables, "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen([*PETSTORE, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=variables):
        os.close(theirs)
        printed = b""
        with contextlib.suppress(OSError):  # raised once no process has the terminal open
            while some := os.read(ours, 65_536):
                printed += some
    os.close(ours)
    return printed.decode().replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_key_id_is_never_broken(embedded: Commands, columns: int) -> None:
    names = ["ö" * 200, "the billing service of the production in the west", ""]
    ids = [embedded.json("keys", "create", "--plan", "enterprise", "--per-minute", "1", "--per-day", "1",
                         "--name", name)["id"] for name in names]  # fmt: skip
    lines = on_a_terminal(embedded, "keys", "list", columns=columns)
    assert [line.split()[0] for line in lines if line.startswith("key_")] == ids[::-1]
    assert "".join(lines).count("ö") == 200, "a part of the name is missing"
    assert max(map(len, lines)) <= max(columns, 80)
    assert [key_id in " ".join(on_a_terminal(embedded, "audit", columns=columns)) for key_id in ids] == [True] * 3


def test_a_long_subject_is_broken_into_lines(embedded: Commands, tmp_path: Path) -> None:
    file = tmp_path / f"{'ö' * 120}.jsonl"
    file.write_text('{"name": "Rex", "categoryId": 1}\n')
    embedded.text("pets", "import", str(file))
    lines = on_a_terminal(embedded, "audit", columns=80)
    assert "".join(lines).count("ö") == 120
    assert len(lines) < 12


def test_control_characters_are_not_printed(embedded: Commands) -> None:
    assert f"1  {HARMLESS}  category 1" in embedded.text("pets", "add", "--name", HOSTILE, "--category-id", "1")
    assert f"1  {HARMLESS}  category 1" in embedded.text("pets", "set-status", "1", "sold")
    assert HARMLESS in embedded.text("pets", "list")
    for words in (["pets", "list", "--json"], ["pets", "show", "1", "--json"]):
        assert HARMLESS in embedded.text(*words)
    assert embedded.json("pets", "list")[0]["name"] == HOSTILE
    assert HOSTILE in embedded.text("pets", "export", "-")
    assert HARMLESS in "".join(on_a_terminal(embedded, "pets", "export", "-", columns=200))
    odd = "東京\u3000犬 🐕\u200d🦺"  # contains an ideographic space and an emoji with a zero-width joiner
    assert f"2  {odd}  category 1" in embedded.text("pets", "add", "--name", odd, "--category-id", "1")


@pytest.mark.parametrize("group", ["", "keys", "pets", "bans", "operators"])
def test_a_group_without_a_command_prints_its_help(embedded: Commands, group: str) -> None:
    words = group.split()
    done = embedded.run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == embedded.text(*words, "--help")


def test_a_list_of_animals_says_how_to_get_the_next_page(embedded: Commands) -> None:
    for name in ("Rex", "Mia", "Bo"):
        embedded.text("pets", "add", "--name", name, "--category-id", "1")
    done = embedded.run("pets", "list", "--limit", "2", "--json")
    assert [pet["name"] for pet in json.loads(done.stdout)] == ["Rex", "Mia"]
    assert done.stderr == "There are more results. To see them, run the same command with --after 2.\n"
    assert embedded.run("pets", "list", "--limit", "3").stderr == ""


def test_commands_work_without_standard_error(embedded: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.jsonl"
    file.write_text('{"name": "Rex", "categoryId": 1}\n')
    assert shell(embedded, f"pets import {file}", "2>&-").stdout.startswith("1 animal added to live")
    assert shell(embedded, f"backup {tmp_path / 'backup.zip'}", "2>&-").returncode == 0
    assert (tmp_path / "backup.zip").exists()
    assert shell(embedded, "pets nothing", "2>&-").returncode == 2


@pytest.mark.parametrize("words", ["pets list", "pets list --json", "pets export -"])
def test_commands_work_without_standard_output(embedded: Commands, words: str) -> None:
    embedded.text("pets", "add", "--name", "Rex", "--category-id", "1")
    done = shell(embedded, words, ">&-")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", ["pets list", "pets list --json", "pets export -"])
def test_a_full_standard_output_is_reported_in_one_line(embedded: Commands, words: str) -> None:
    embedded.text("pets", "add", "--name", "Rex", "--category-id", "1")
    done = shell(embedded, words, ">/dev/full")
    assert (done.returncode, done.stderr) == (2, "petstore: No space left on device\n")


@pytest.mark.parametrize("form", ["", "--json"])
def test_a_secret_that_cannot_be_printed_is_reported(embedded: Commands, form: str) -> None:
    lost = "petstore: cannot write to standard output: No space left on device. The secret is lost. "
    done = shell(embedded, f"keys create --plan free {form}", ">/dev/full")
    (key,) = embedded.json("keys", "list")
    assert done.returncode == 2 and done.stderr.startswith(lost)
    remedy = f"petstore keys rotate {key['id']} --data {embedded.data}`.\n"
    assert done.stderr.endswith(remedy)
    done = shell(embedded, f"keys rotate {key['id']} --yes {form}", ">/dev/full")
    assert done.stderr.startswith(lost) and done.stderr.endswith(remedy)
    done = shell(embedded, f"operators add ada {form}", ">/dev/full")
    assert (done.returncode, done.stderr) == (2, f"{lost}Revoke this operator and add them again with the same name.\n")


@pytest.mark.parametrize("words", ["keys create --plan free", "operators add ada"])
def test_a_secret_with_standard_output_closed_is_reported(embedded: Commands, words: str) -> None:
    done = shell(embedded, words, ">&-")
    assert done.returncode == 2
    assert done.stderr.startswith("petstore: standard output is closed, so the secret is lost. ")


def test_a_name_that_the_terminal_cannot_show_is_escaped_and_json_is_utf_8(embedded: Commands) -> None:
    embedded.text("pets", "add", "--name", "Zoë 🐶", "--category-id", "1")
    assert "Zo\\xeb \\U0001f436" in shell(embedded, "pets list", "", PYTHONIOENCODING="ascii").stdout
    for words in ("pets list --json", "pets export -"):
        assert "Zoë 🐶" in shell(embedded, words, "", PYTHONIOENCODING="ascii").stdout


@pytest.mark.parametrize("words", [["pets", "export"], ["backup"]], ids=" ".join)
@pytest.mark.parametrize("name", ["file/x.csv", "x" * 255 + ".csv"], ids=["below a file", "too long"])
def test_a_file_that_cannot_be_created_is_named(
    embedded: Commands, tmp_path: Path, words: list[str], name: str
) -> None:
    (tmp_path / "file").write_text("not a directory")
    embedded.text("pets", "add", "--name", "Rex", "--category-id", "1")
    message = embedded.fails_in_one_line(*words, str(tmp_path / name))
    assert str(tmp_path / name) in message
    assert message.endswith(("Not a directory", "File name too long"))


def test_a_user_without_a_name_is_in_the_audit_log_by_number(
    embedded: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in ("SUDO_USER", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    embedded.text("keys", "create", "--plan", "free")
    assert embedded.entries()[0].actor == f"uid {os.getuid()} (command line)"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["audit", "--before", "99999999999999999999"], "--before"),
        (["audit", "--before", "0"], "--before"),
        (["keys", "show", "\udcff"], r"no key has the id \udcff"),
        (["keys", "list", "--before", "\udcff"], r"no key has the id \udcff"),
        (["bans", "lift", "\udcff"], r"no key has the id \udcff"),
        (["usage", "\udcff"], r"no key has the id \udcff"),
        (["usage", "--after", "\0"], r"no key has the id \u0000"),
        (["operators", "revoke", "\udcff"], r"no active operator is named \udcff"),
        (["operators", "revoke", "a\0b"], r"a\u0000b"),
    ],
    ids=lambda value: ascii(value),
)
def test_ids_that_no_key_can_have_are_refused_in_one_line(petstore: Commands, words: list[str], names: str) -> None:
    assert names in petstore.fails_in_one_line(*words)


@pytest.mark.parametrize(
    "words", [["audit", "--who"], ["audit", "--search"], ["keys", "list", "--search"], ["pets", "list", "--search"]],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("text", ["\udcff", "a\0b"], ids=ascii)
def test_a_search_for_a_text_that_no_store_can_have_finds_nothing(
    petstore: Commands, words: list[str], text: str
) -> None:
    petstore.text("keys", "create", "--plan", "free")
    petstore.text("pets", "add", "--name", "Rex", "--category-id", "1")
    assert petstore.json(*words, text) == []


def test_a_data_directory_that_is_not_utf_8_is_refused_in_one_line(embedded: Commands, tmp_path: Path) -> None:
    message = embedded.fails_in_one_line("keys", "list", "--data", str(tmp_path / "\udcff"))
    assert message.endswith("is not UTF-8; choose another")
