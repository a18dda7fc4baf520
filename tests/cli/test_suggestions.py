"""The commands that messages suggest work as printed.

`TYPED` has every command that a message in the source suggests. If a command is missing from it,
`test_every_suggested_command_is_typed_here` fails and names the command.
"""

import ast
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from harness.backends import Postgres, Redis, free_port, shared
from harness.commands import Commands
from harness.consoles import Console
from harness.served import Served, wait_for
from harness.servers import READY_WITHIN, Server
from petstore.cli import COMMANDS
from petstore.cli.addresses import recorded_console, recorded_service

SOURCE = Path(__file__).parents[2] / "src/petstore"
WRITER = SOURCE / "cli/suggestions.py"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
PROGRAMS = "petstore|rm|mv|chmod|chown|kill|curl|sudo|systemctl|pip|psql|pg_dump|pg_restore|redis-cli"
SUGGESTED = re.compile(f"`((?:{PROGRAMS}) [^`]+)`")
IN_PAGES = re.compile(f"<code>((?:{PROGRAMS}) [^<]+)</code>")
BARE = re.compile(f"(?<![`/.\\w-])petstore (?:{'|'.join(COMMANDS)})\\b")

# Each command as written in the source, what an operator types for it, and a part of its output. `Place` has the values
# of the names in capital letters.
TYPED = {
    "petstore {typed}": ("petstore keys list", "KEY"),
    "petstore audit --env {key.environment} --search {key.id}": (
        "petstore audit --env live --search KEY", "create key"
    ),
    "petstore backup DIR --keep 24": ("petstore backup DIR --keep 24", "1 animal and 1 key in live"),
    "petstore check": ("petstore check", "ok     gate"),
    "petstore keys create --plan free": ("petstore keys create --plan free", "live, free"),
    "petstore keys create --plan free{wanted}": ("petstore keys create --plan free --env staging", "staging, free"),
    "petstore keys create --plan pro": ("petstore keys create --plan pro", "live, pro"),
    "petstore keys end-overlap {key.id}": ("petstore keys end-overlap KEY", "no longer works"),
    "petstore keys identify": ("petstore keys identify", "KEY"),
    "petstore keys list": ("petstore keys list", "KEY"),
    "petstore keys revoke {key_id}": ("petstore keys revoke KEY", "is revoked"),
    "petstore keys rotate ID": ("petstore keys rotate KEY", "pets_live_"),
    "petstore keys rotate {key.id}": ("petstore keys rotate KEY", "pets_live_"),
    "petstore operators add NAME": ("petstore operators add grace", "pets_op_"),
    "petstore operators list": ("petstore operators list", "ada"),
    "petstore operators revoke {shlex.quote(operator.name)}": ("petstore operators revoke ada", "no longer sign in"),
    "petstore operators revoke {shlex.quote(name)}": ("petstore operators revoke ada", "no longer sign in"),
    "petstore pets add --name NAME --category-id N{chosen}": ("petstore pets add --name Rex --category-id 1", "Rex"),
    "petstore pets import FILE": ("petstore pets import FILE", "added to live"),
    "petstore pets import FILE --dry-run": ("petstore pets import FILE --dry-run", "nothing was added"),
    "petstore pets import FILE{chosen}": ("petstore pets import FILE --env staging", "added to staging"),
    "petstore pets imports": ("petstore pets imports", "IMPORT"),
    "petstore pets list{_env(environment)}": ("petstore pets list --env live", "Mia"),
    "petstore pets remove --env {environment} --added-by KEY --since {since}": (
        "petstore pets remove --env live --added-by IMPORT --since 2026-01-01T00:00:00Z", "removed from live"
    ),
    "petstore pets restore {ids}{_env(environment)}": ("petstore pets restore 1", "Rex"),
    "petstore pets restore {removal_id}{_env(environment)}": ("petstore pets restore REMOVAL", "1 animal restored"),
    "petstore pets undo-import {begun.id}": ("petstore pets undo-import IMPORT", "removed from live"),
    "petstore restore FILE --force": ("petstore restore BACKUP --force", "The replaced data is in"),
    "chmod -R go= {shlex.quote(str(data))}": ("chmod -R go= DATA", ""),
    "chmod 600 {shlex.quote(str(key))}": ("chmod 600 FILE", ""),
    "chmod go-w {shlex.quote(str(data))}": ("chmod go-w DATA", ""),
    "chown -R {me} {shlex.quote(str(data))}": ("chown -R USER DATA", ""),
    "kill -CONT {pid}": ("kill -CONT $$", ""),  # $$ is the shell's own process id
    "sudo -u {user} petstore …": ("petstore keys list", "KEY"),  # … means the current command
}  # fmt: skip
RUNNING = {
    "petstore console": ("petstore console", "The console shows"),
    "petstore serve": ("petstore serve", "Petstore listens on"),
    "petstore serve --cors-origin ORIGIN": ("petstore serve --cors-origin https://example.com", "Petstore listens on"),
}
SYSTEMD = {"systemctl start petstore": "petstore.service"}  # the command, and the unit that it needs

# Literals that name a command without suggesting it: help texts, and actors in the audit log.
NOT_SUGGESTED = {
    "The data to use. See petstore help backends.",
    "The service's settings. See petstore help serve and petstore help backends.",
    "petstore help backends",
    "petstore serve",
    "petstore serve --demo",
}


class Place(NamedTuple):
    """A data directory with all kinds of data, and the values of the placeholders."""

    data: Path
    secret: str
    values: dict[str, str]

    def run(self, words: str, answer: str = "y\n") -> "subprocess.CompletedProcess[str]":
        """Runs a command in a shell, in the parent directory of the data, with only PATH in its environment."""
        return subprocess.run(
            ["sh", "-c", words], cwd=self.data.parent, env={"PATH": PATH}, input=answer, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip

    def filled(self, words: str) -> str:
        return re.sub(r"\b[A-Z]+\b", lambda found: self.values.get(found[0], found[0]), words)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Place:
    directory = tmp_path_factory.mktemp("suggested")
    petstore = Commands(Server(directory / "my data"))
    made = petstore.json("keys", "create", "--plan", "free")
    secret = petstore.json("keys", "rotate", made["id"], "--overlap", "24h")["key"]
    petstore.text("operators", "add", "ada")
    petstore.text("pets", "add", "--name", "Rex", "--category-id", "1")
    removal = petstore.json("pets", "remove", "1", "--yes")["removal"]
    (directory / "animals.csv").write_text("name,categoryId\nMia,1\n")
    imported = petstore.json("pets", "import", str(directory / "animals.csv"))["import"]
    (directory / "more.csv").write_text("name,categoryId\nBo,1\n")
    petstore.text("backup", str(directory / "backup.zip"))
    values = {
        "KEY": made["id"], "IMPORT": imported, "REMOVAL": removal, "FILE": "more.csv", "BACKUP": "backup.zip",
        "DIR": "backups", "DATA": "'my data'", "USER": str(os.geteuid()),
    }  # fmt: skip
    return Place(directory / "my data", secret, values)


@pytest.fixture
def place(template: Place, tmp_path: Path) -> Place:
    """A copy of the data, which the test may change."""
    shutil.copytree(template.data.parent, tmp_path / "copy")
    return template._replace(data=tmp_path / "copy" / template.data.name)


def literals(file: Path) -> Iterator[str]:
    """Yields the string literals in a file, except docstrings. Calls of `suggestion` appear in backticks.

    Expressions in f-strings appear in braces.
    """
    tree = ast.parse(file.read_text())
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            inner.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            inner.update(map(id, node.values))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "suggestion":
            inner.add(id(node.args[0]))
            if file.parent == WRITER.parent and file != WRITER:
                yield f"`petstore {as_text(node.args[0])}`"
        elif isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in inner:
            yield as_text(node)


def as_text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    assert isinstance(node, ast.JoinedStr), f"write this command as a literal: {ast.unparse(node)}"
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
        for part in node.values
        if isinstance(part, ast.Constant | ast.FormattedValue)
    )


def suggested() -> dict[str, str]:
    """Returns every suggested command with a file that suggests it."""
    found: dict[str, str] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        for text in literals(file) if file != WRITER else ():
            found |= dict.fromkeys(SUGGESTED.findall(text), str(file))
    # The guide is a rendered document. `tests/project/test_document_commands.py` tests the commands in documents.
    for file in sorted(path for path in SOURCE.rglob("*.html") if path.name != "guide.html"):
        found |= dict.fromkeys(IN_PAGES.findall(file.read_text()), str(file))
    return found


def test_every_suggested_command_is_typed_here() -> None:
    missing = {words: file for words, file in suggested().items() if words not in {**TYPED, **RUNNING, **SYSTEMD}}
    assert not missing, "add these to TYPED"
    assert not {**TYPED, **RUNNING, **SYSTEMD}.keys() - suggested().keys(), "no message suggests these any more"


def test_every_suggested_command_is_in_backticks() -> None:
    """A command without backticks would be printed without the options that select the data."""
    found = [
        (str(file), text)
        for file in sorted(SOURCE.rglob("*.py"))
        if file.parent.name != "console"  # its pages mark commands up as code
        for text in literals(file)
        if BARE.search(SUGGESTED.sub("", text)) and text not in NOT_SUGGESTED
    ]
    assert not found


@pytest.mark.thorough
@pytest.mark.parametrize("words", TYPED)
def test_a_suggested_command_works_as_printed(place: Place, words: str) -> None:
    typed, printed = (place.filled(text) for text in TYPED[words])
    if typed.startswith("petstore "):
        typed += f" --data {shlex.quote(str(place.data))}"
    done = place.run(typed, f"{place.secret}\n" if "identify" in typed else "y\n")
    assert done.returncode == 0 and printed in done.stdout, done


def responds(port: int) -> bool:
    """Returns whether a request gets a response. A process that only listens does not handle signals yet."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/", timeout=10).status_code > 0
    return False


@pytest.mark.thorough
@pytest.mark.parametrize("words", RUNNING)
def test_a_suggested_service_starts_as_printed(place: Place, words: str) -> None:
    typed, printed = RUNNING[words]
    port = free_port()
    ports = {"PETSTORE_PORT": str(port), "PETSTORE_CONSOLE_PORT": str(port), "PETSTORE_WORKERS": "1"}
    output = place.data.parent / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            ["sh", "-c", f"exec {typed} --data {shlex.quote(str(place.data))}"], env={"PATH": PATH, **ports},
            stdout=file, stderr=file,
        )  # fmt: skip
    try:
        assert wait_for(lambda: responds(port) or process.poll() is not None)
        assert wait_for(lambda: printed in output.read_text() or process.poll() is not None)
    finally:
        process.terminate()
        code = process.wait(timeout=READY_WITHIN)
    assert code == 0 and printed in output.read_text(), output.read_text()


def test_a_suggested_unit_exists() -> None:
    for unit in SYSTEMD.values():
        assert (SOURCE.parents[1] / "deploy" / unit).is_file()


# Wrong or incomplete commands, each with the command that its message suggests, spelled as in `TYPED`.
MESSAGES = [
    ("petstore keys show nokey", "petstore keys list"),
    ("petstore keys show SECRET", "petstore keys identify"),
    ("petstore keys list --env staging", "petstore keys create --plan free --env staging"),
    ("petstore keys rotate KEY --overlap 1h", "petstore keys end-overlap KEY"),
    ("petstore pets list --env staging", "petstore pets import FILE --env staging"),
    ("petstore pets show 99", "petstore pets list"),
    ("petstore pets show 1", "petstore pets restore 1"),
    ("petstore pets remove 2 --yes", "petstore pets restore rem_"),
    ("petstore pets undo-import imp_0", "petstore pets imports"),
    ("petstore operators revoke nobody", "petstore operators list"),
    ("petstore pets import bad.csv", "petstore pets import FILE --dry-run"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("words", "expected"), MESSAGES, ids=[words for words, _ in MESSAGES])
def test_a_printed_command_has_the_data_of_the_command_that_printed_it(place: Place, words: str, expected: str) -> None:
    (place.data.parent / "bad.csv").write_text("name,categoryId\n" + "Rex,x\n" * 101)
    given = f" --data {shlex.quote(str(place.data))}"
    done = place.run(place.filled(words).replace("SECRET", place.secret) + given)
    printed = [
        command
        for command in SUGGESTED.findall(done.stdout + done.stderr)
        if place.filled(expected) in place.filled(command)
    ]
    assert printed and place.secret not in done.stderr, done
    assert printed[0].endswith(given)
    done = place.run(place.filled(printed[0]), f"{place.secret}\n")
    assert done.returncode == 0, done


@pytest.mark.thorough
def test_the_commands_for_postgresql_work_as_printed(tmp_path: Path, postgres: Postgres) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    petstore.server.store, petstore.server.gate = postgres.url(), shared(Redis).url()
    petstore.text("pets", "add", "--name", "Rex", "--category-id", "1")
    file = str(tmp_path / "my dump")
    for words in (["backup", file], ["restore", file]):
        lines = [line for line in petstore.fails(*words).splitlines() if line.startswith("  ")]
        for line in lines:
            subprocess.run(["sh", "-c", line], env={"PATH": f"{postgres.programs}:{PATH}"}, check=True, timeout=60)
        petstore.text("pets", "add", "--name", "Bo", "--category-id", "1")
    assert [pet["name"] for pet in petstore.json("pets", "list")] == ["Rex", "Bo"]


def test_the_curl_line_of_a_new_key_reaches_the_running_service(tmp_path: Path) -> None:
    served = Served(tmp_path / "data").start()
    try:
        for environment in ("live", "staging"):
            done = Commands(served).run("keys", "create", "--plan", "free", "--env", environment)
            line = done.stderr.removeprefix("Try it: ")
            assert done.returncode == 0 and line.startswith("curl ") and line.count("\n") == 1
            sent = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True, timeout=30)
            assert sent.stdout.startswith("HTTP/1.1 200 ")
        assert Commands(served).run("keys", "create", "--plan", "free", "--json").stderr == ""
    finally:
        served.stop()
    assert recorded_service(tmp_path / "none").origin == "http://127.0.0.1:8080"


def test_adding_an_operator_prints_where_to_sign_in(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    console = Console(server)
    try:
        console.wait_until_ready()
        assert f"at {console.origin}/sign-in with this token" in Commands(server).text("operators", "add", "ada")
    finally:
        console.stop()
    assert recorded_console(tmp_path / "none") == "http://127.0.0.1:8081/sign-in"


@pytest.mark.parametrize("name", ["key_1", "imp_1", "KEY_x"])
def test_an_operator_cannot_have_the_name_of_a_key_or_an_import(petstore: Commands, name: str) -> None:
    assert "is reserved" in petstore.fails_in_one_line("operators", "add", name)


@pytest.mark.parametrize(
    "words", ["keys list", "pets add --name Rex --category-id 1", "check", "copy --to-store other"]
)
def test_an_error_names_a_server_that_cannot_be_reached(tmp_path: Path, words: str) -> None:
    where = ["--store", "postgresql://ada:secret@db.invalid/pets", "--gate", "redis://:secret@cache.invalid:1"]
    petstore = Commands(Server(tmp_path / "data"))
    done = petstore.run(*words.split(), *where, "--data", str(tmp_path / "data"), cwd=tmp_path)
    said = done.stdout + done.stderr
    assert done.returncode in (1, 2) and "db.invalid" in said and "secret" not in said
