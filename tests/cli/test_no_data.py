"""Commands before any data exists. Commands that need data create none, and the commands in hints work as printed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from harness.backends import Postgres, shared
from harness.commands import Commands
from harness.servers import Server
from petstore.cli.help import REDIS_URLS, backends
from petstore.cli.suggestions import BACKEND_OPTIONS
from petstore.gate import REDIS_SCHEMES
from petstore.gate.redis_url import open_link
from tests.cli.samples import COMMANDS, SAMPLES, Sample

# Commands that act on existing data and must not create any. A dry run also works without data.
NEED_DATA = [each for each in SAMPLES if each.access in ("read", "write") and "--dry-run" not in each.words]


@pytest.mark.parametrize("sample", NEED_DATA, ids=lambda sample: sample.words)
def test_a_command_that_needs_data_creates_none(without_data: Commands, sample: Sample, tmp_path: Path) -> None:
    server, words = without_data.server, sample.arguments(tmp_path)
    subject, cause = (server.store, "") if server.store else (server.data, ": it does not exist")
    assert without_data.fails_in_one_line(*words, stdin=sample.stdin) == f"{subject} has no Petstore data{cause}"
    assert not server.data.exists()
    if server.store:
        schemas = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'petstore%'"
        assert shared(Postgres).execute(schemas, server.store) == []
    server.data.mkdir()
    without_data.fails_in_one_line(*words, stdin=sample.stdin)
    assert list(server.data.iterdir()) == []


def test_data_on_servers_are_read_without_a_data_directory(tmp_path: Path) -> None:
    node = Commands(Server(tmp_path / "node", "cluster"))
    node.text("pets", "add", "--name", "Rex", "--category-id", "1")
    elsewhere = Commands(Server(tmp_path / "laptop"))
    elsewhere.server.store, elsewhere.server.gate = node.server.store, node.server.gate
    assert [pet["name"] for pet in elsewhere.json("pets", "list")] == ["Rex"]
    assert elsewhere.json("pets", "set-status", "1", "sold")["status"] == "sold"
    assert not elsewhere.data.exists()
    elsewhere.server.gate = None  # so that the gate is a file in the directory
    assert elsewhere.fails_in_one_line("pets", "list") == f"{elsewhere.data} has no Petstore data: it does not exist"


def test_a_store_that_is_away_is_not_taken_for_one_without_data(tmp_path: Path) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    petstore.server.store, petstore.server.gate = "postgresql://127.0.0.1:1/x", "redis://127.0.0.1:1"
    assert "no Petstore data" not in petstore.fails_in_one_line("pets", "list")


WITH_BACKENDS = [
    words
    for words, command in COMMANDS.items()
    if any(param.name == "data" for param in command.params) and words != ("check",)  # its help refers to that of serve
]


@pytest.mark.parametrize("words", WITH_BACKENDS, ids=" ".join)
def test_backend_options_are_at_the_end_of_every_help_page(words: tuple[str, ...]) -> None:
    command = COMMANDS[words]
    page = command.get_help(click.Context(command, info_name="petstore"))
    own, title, backend = page.partition("\nOptions:\n")[2].partition("\nBackend options:\n")
    assert title and backend == "  --data, --store, --gate  The data to use. See petstore help backends."
    options = {param.opts[0]: param.name for param in command.params if isinstance(param, click.Option)}
    assert {option for option, name in options.items() if name not in BACKEND_OPTIONS} <= options_in(own)
    for only_there in ("--clock-file", "--pgbouncer", "redis+sentinel"):
        assert only_there not in page


def test_the_page_of_the_backend_options_has_them_all(without_data: Commands) -> None:
    page = without_data.text("help", "backends")
    options = (param for param in backends.params if isinstance(param, click.Option))
    assert {param.opts[0] for param in options} == options_in(page)
    for scheme in REDIS_SCHEMES:
        assert f"{scheme}://" in page
    for url, _ in REDIS_URLS:
        open_link(url)


@pytest.mark.parametrize("words", [(), ("keys",), ("keys", "create"), ("help",)], ids=" ".join)
def test_help_shows_the_page_of_a_command(without_data: Commands, words: tuple[str, ...]) -> None:
    assert without_data.text("help", *words) == without_data.text(*words, "--help")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_help_page_fits_a_screen(without_data: Commands, words: tuple[str, ...]) -> None:
    lines = without_data.text(*words, "--help").splitlines()
    assert len(lines) <= (80 if words == ("serve",) else 40)  # each setting takes a line or two
    assert max(map(len, lines)) <= 100


def options_in(section: str) -> set[str]:
    return {found[1] for found in re.finditer(r"^  (?:-\w, )?(--[a-z-]+)", section, re.MULTILINE)}


@pytest.mark.parametrize("expires", ["0d", "0s", "0w"])
def test_a_key_that_is_expired_from_the_start_is_refused(petstore: Commands, expires: str) -> None:
    message = petstore.fails_in_one_line("keys", "create", "--plan", "free", "--expires", expires)
    assert "--expires" in message and "the minimum is 1s" in message
    assert petstore.json("keys", "list") == []


def test_export_replaces_a_file_only_with_force(petstore: Commands, tmp_path: Path) -> None:
    petstore.text("pets", "add", "--name", "Rex", "--category-id", "1")
    file = tmp_path / "out.jsonl"
    file.write_text("precious")
    assert "--force" in petstore.fails_in_one_line("pets", "export", str(file))
    assert file.read_text() == "precious"
    petstore.text("pets", "export", str(file), "--force")
    assert "Rex" in file.read_text() and not file.is_symlink()


PETSTORE = Path(sys.executable).with_name("petstore")


def variables(path: str, data: Path) -> dict[str, str]:
    """Returns environment variables with which Python finds the same modules from any working directory."""
    return {**os.environ, "PATH": path, "PETSTORE_DATA": str(data), "PYTHONPATH": os.pathsep.join(sys.path)}


def hint(words: list[str], cwd: Path, path: str, data: Path) -> str:
    """Returns the command that an empty list suggests in its hint."""
    done = subprocess.run(
        [*words, "keys", "list"],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=variables(path, data),
        timeout=60,
        check=True,
    )
    start, end = "No keys yet. Create one with `", f" keys create --plan free --data {data}`.\n"
    assert done.stdout.startswith(start) and done.stdout.endswith(end)
    return done.stdout.removeprefix(start).removesuffix(end)


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["on the path", "in a checkout", "elsewhere", "as a module"])
def test_the_commands_in_hints_work_where_they_are_printed(tmp_path: Path, place: str) -> None:
    data = tmp_path / "data"
    Server(data).create()
    checkout = tmp_path / "checkout"
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/bin/petstore").symlink_to(PETSTORE)
    script, system = f"{checkout}/.venv/bin/petstore", "/usr/bin:/bin"
    words, cwd, path, expected = {
        "on the path": ([script], tmp_path, f"{checkout}/.venv/bin:{system}", "petstore"),
        "in a checkout": ([".venv/bin/petstore"], checkout, system, ".venv/bin/petstore"),
        "elsewhere": ([script], data, system, script),
        "as a module": ([sys.executable, "-m", "petstore"], tmp_path, system, f"{sys.executable} -m petstore"),
    }[place]
    printed = hint(words, cwd, path, data)
    assert printed == expected
    shell = f"{printed} keys create --plan free"
    subprocess.run(["sh", "-c", shell], check=True, capture_output=True, cwd=cwd, env=variables(path, data), timeout=60)


def completed(petstore: Commands, line: str) -> list[str]:
    """Returns the completions of the last word of a line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_PETSTORE_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [str(PETSTORE)], capture_output=True, text=True, env={**petstore.variables, **words}, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [item.partition(",")[2] for item in done.stdout.split()]


def test_the_shell_completes_key_ids_and_names(tmp_path: Path) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    assert completed(petstore, "petstore keys show k") == []
    assert not petstore.data.exists()
    ada = petstore.json("keys", "create", "--plan", "free", "--name", "Ada's laptop")["id"]
    bob = petstore.json("keys", "create", "--plan", "free", "--name", "Bob", "--env", "staging")["id"]
    assert set(completed(petstore, "petstore keys show key_")) == {ada, bob}
    assert completed(petstore, f"petstore bans lift {ada[:10]}") == [ada]
    assert completed(petstore, "petstore usage bo") == [bob]
    assert completed(petstore, "petstore keys rev") == ["revoke"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(petstore: Commands, shell: str) -> None:
    script = petstore.text("completion", shell)
    assert "_PETSTORE_COMPLETE" in script
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True, timeout=30)


def test_bash_completes_by_the_printed_script(tmp_path: Path) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    made = petstore.json("keys", "create", "--plan", "free", "--name", "Ada")["id"]
    lines = """eval "$(petstore completion bash)"
        COMP_WORDS=(petstore keys show ad) COMP_CWORD=3; _petstore_completion petstore; echo "${COMPREPLY[@]}"
    """
    path = f"{PETSTORE.parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-c", lines],
        capture_output=True,
        text=True,
        env=variables(path, petstore.data),
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [made]
