"""Every command in the documents works. A test here or in a listed file runs it, or there is a reason not to run it."""

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import httpx
import pytest

from harness.backends import Postgres
from harness.commands import Commands, Processes
from harness.servers import PETSTORE, Key, Server, serving
from petstore.cli import cli
from petstore.gate.redis_script import VERSIONS_RECORD, key_record
from petstore.plans import Limits

ROOT = Path(__file__).parents[2]
# Documents whose commands another test runs in order.
RUN_WHOLE = {"README.md": "tests/cli/test_tutorial.py", "docs/tutorial.md": "tests/cli/test_tutorial.py"}
DOCUMENTS = sorted(
    str(file.relative_to(ROOT))
    for pattern in (
        "*.md",
        "docs/*.md",
        "docs/contributing/*.md",
        "docs/reference/client.md",
        "docs/reference/cluster.md",
        "docs/reference/containers.md",
        "client/*.md",
        "bench/*.md",
        "prove/*.md",
    )
    for file in ROOT.glob(pattern)
    if not file.name.startswith("CHANGELOG")
)

# Regular expressions that match the start of commands, and the tests that run these commands.
RUN_BY = {
    r"curl .*(?:\$BASE|\$STAGING)|etag=|export (?:BASE|STAGING)": (
        "tests/web/test_api_document.py::test_every_curl_of_the_document_answers_what_it_shows"
    ),
    r"openapi-python-client": "client/tests/test_generated.py::test_a_generated_python_client_works",
    r"npx openapi-typescript": (
        "client/tests/test_generated.py::test_a_generated_typescript_client_compiles_strictly_and_works"
    ),
    r"python -m petstore_client": (
        "client/tests/test_command.py::test_add_and_get_print_the_animal_and_get_warns_of_its_removal"
    ),
    r"petstore serve": "tests/project/test_docs.py::test_the_drill_works_word_by_word",
    r"petstore console": "tests/cli/test_tutorial.py::test_every_line_runs_and_prints_what_is_shown",
    r"(?:/opt/petstore/)?\.venv/bin/petstore deploy-files": (
        "tests/project/test_packaging.py::test_deploy_files_writes_every_file_and_units_that_start_this_command"
    ),
    r"curl http://127.0.0.1:8080/metrics": "tests/observability/test_monitoring.py",
    r"curl -sk http://127.0.0.1:8080/readyz": "tests/server/test_serve_running.py",
    r"pg_dump|pg_restore|psql": (
        "tests/project/test_document_commands.py::test_a_dump_is_made_and_restored_word_by_word"
    ),
    r"PGDATA=|mv \$PGDATA|cat >> \$PGDATA|touch \$PGDATA|cd / && runuser -u postgres -- pg_basebackup": (
        "tests/maintenance/test_point_in_time.py::test_the_database_returns_to_a_moment_before_a_mistake"
    ),
    r"/opt/petstore/.venv/bin/petstore verify": (
        "tests/verify/test_deployments.py::test_nothing_is_broken_across_three_nodes"
    ),
    r"make prove": "tests/project/test_prove.py",
    r"make docs": "tests/project/test_documents.py::test_an_outdated_reference_is_found_and_rewritten",
}  # fmt: skip
# Commands that no test runs, and why.
NOT_RUN = {
    r"(?:systemctl|journalctl) ": "needs systemd as the first process of the machine",
    r"(?:useradd|install|apt|ufw|sed) ": "changes users, packages, the firewall and files of the machine",
    r"\$\{EDITOR:-vi\} ": "a person edits a file",
    r"certbot ": "needs a public name and Let's Encrypt",
    r"(?:set -a; )?\. /": "reads the settings of an installed service",
    r"rm ": "deletes files of an installed service",
    r"(?:df|ls|fuser|pgrep) ": "shows the state of an installed service",
    r"(?:\S*/)?pip (?:install|download)|python3 -m venv": "make release-check installs the wheel in a new environment",
    r"podman ": "make container-check builds the image and uses it, as root",
    r"(?:openssl s_client|ssh) ": "needs another machine",
    r"openssl rand |runuser -u postgres -- psql ": "chooses passwords; needs the superuser of PostgreSQL",
    r"redis-cli ": "no redis-cli is installed with the Redis of the tests",
    r"export PETSTORE_": "sets a variable of the reader's shell",
    r"make (?:check|test)": "it is what runs the checks and the tests",
    r"make (?:help|setup)": "lists the commands; makes the environment that the tests run in",
}


class Line(NamedTuple):
    document: str
    command: str


def commands(document: str) -> list[Line]:
    return [
        Line(document, command.replace("\\\n", ""))
        for block in blocks(document)
        for command in re.findall(r"^[$#] ((?:.*\\\n)*.*)$", block, re.MULTILINE)
    ]


def blocks(document: str) -> list[str]:
    """Returns the command blocks of a document, without the indentation of blocks in lists."""
    found = re.findall(r"^ *```console\n(.*?)^ *```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for block in found]


ALL = [line for document in DOCUMENTS if document not in RUN_WHOLE for line in commands(document)]


def kinds(line: Line) -> list[str]:
    """Returns the tests that run a command, or the reasons why none does."""
    found = [by for pattern, by in (RUN_BY | NOT_RUN).items() if re.match(pattern, line.command)]
    return found or ["here"] * line.command.startswith("petstore ")


@pytest.mark.parametrize("document", sorted({line.document for line in ALL}))
def test_every_command_is_run_or_has_a_reason(document: str) -> None:
    assert [line.command for line in commands(document) if len(kinds(line)) != 1] == []


def test_every_reason_and_every_named_test_is_needed_and_exists() -> None:
    for pattern in RUN_BY | NOT_RUN:
        assert any(re.match(pattern, line.command) for line in ALL), f"no command begins with {pattern}"
    for test in (*RUN_BY.values(), *RUN_WHOLE.values()):
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), test
        assert not name or re.search(rf"^(?:async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), test


def test_commands_of_every_block_are_found() -> None:
    """Otherwise, commands after an unknown prompt would be missed."""
    assert len(ALL) > 120
    for document in DOCUMENTS:
        for block in blocks(document):
            assert block[:2] in ("$ ", "# ") or block.startswith("eval "), f"{document}: {block[:60]}"


# The tests below run a document's `petstore` commands in order, on one data directory, with other paths and ids.


class Installation:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.backups = directory / "backups"
        self.backups.mkdir()
        (directory / "animals.csv").write_text("name,categoryId,status\nRex,1,available\nAda,2,sold\n")
        with serving(directory / "data") as server:
            server.fill(21)
            self.key: Key = server.key("pro")
            httpx.post(server.url("/pets"), headers=self.key.headers, json={"name": "Rex", "categoryId": 1})
            self.banned = server.key(limits=Limits(1, 10))
            for _ in range(4):  # the first is admitted, and the second refusal bans the key
                httpx.get(server.url("/pets"), headers=self.banned.headers)
        self.server = Server(directory / "data")

    def run(self, command: str) -> None:
        command = re.sub(r" [<>] \S+", "", command)  # the test passes the input and captures the output
        words = shlex.split(self.with_names_of_this_installation(command), comments=True)[1:]
        if "--yes" in options_of(words) and "--yes" not in words:  # without a terminal, there is no prompt
            words.append("--yes")
        if words[:2] == ["keys", "identify"]:
            environment = Processes(self.server).variables
            done = subprocess.run([*PETSTORE, "keys", "identify"], env=environment, input=self.key.secret, text=True,
                                  capture_output=True, timeout=60)  # fmt: skip
        else:
            done = Commands(self.server).run(*words, cwd=self.directory)
        said = re.sub("^Try it: curl .*\n", "", done.stderr)
        assert (done.returncode, said) == (0, ""), f"{command}\n{done.stdout}{done.stderr}"

    def with_names_of_this_installation(self, command: str) -> str:
        made = sorted(self.backups.glob("2*.zip"))
        replaced = sorted((self.directory / "data").glob("replaced-*"))
        entries = Commands(self.server).entries() if "rem_…" in command else []
        removals = [entry.subject for entry in entries if entry.subject.startswith("rem_")]
        imports = Commands(self.server).json("pets", "imports", "--env", "staging") if "imp_…" in command else [{}]
        return (
            command.replace("key_…", self.banned.id if "bans lift" in command else self.key.id)
            .replace("imp_…", imports[0].get("id", ""))
            .replace("rem_…", removals[0] if removals else "")
            .replace("2026-11-18T14:00:00Z", "2001-01-01")
            .replace("/var/backups/petstore/20261115T023412Z.zip", str(made[-1]) if made else "")
            .replace("/var/backups/petstore", str(self.backups))
            .replace("/var/lib/petstore/replaced-…", str(replaced[-1]) if replaced else "")
            .replace("/var/lib/petstore-drill", str(self.directory / "drill"))
            .replace("$(date +%F)", "2026-11-15")
        )


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    yield Installation(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("document", sorted({line.document for line in ALL if kinds(line) == ["here"]}))
def test_every_petstore_command_works(document: str, installation: Installation) -> None:
    for line in commands(document):
        if kinds(line) != ["here"]:
            continue
        if re.fullmatch(r"petstore restore \S+", line.command):  # on a new machine
            shutil.move(installation.directory / "data", installation.directory / "lost")
        installation.run(line.command)


class Dump:
    """A dump of a database, made and restored with exactly the document's commands."""

    def __init__(self, store: str, postgres: Postgres, directory: Path) -> None:
        self.variables = {"STORE": store, "PATH": f"{postgres.programs}:{os.environ['PATH']}"}
        self.file = directory / "petstore.dump"
        lines = [line.command for line in commands("docs/scaling.md") if re.match(r"pg_|psql ", line.command)]
        assert [line.split()[0] for line in lines] == ["pg_dump", "pg_restore", "psql", "pg_restore"]
        self._make, *self._restore = lines

    def make(self) -> None:
        self.run(self._make)

    def restore(self) -> None:
        for line in self._restore:
            self.run(line)

    def run(self, line: str) -> str:
        command = re.sub(r"petstore-(?:\$\(.*?\)|\S+)\.dump", str(self.file), line)
        shell = ["bash", "-euc", command]
        return subprocess.run(
            shell, env=os.environ | self.variables, check=True, timeout=60, stdout=subprocess.PIPE, text=True
        ).stdout


def test_a_dump_is_made_and_restored_word_by_word(postgres: Postgres, tmp_path: Path) -> None:
    petstore = Commands(Server(tmp_path / "data", "cluster"))
    dump = Dump(str(petstore.server.store), postgres, tmp_path)
    petstore.text("pets", "add", "--name", "Rex", "--category-id", "1")
    dump.make()
    petstore.text("pets", "add", "--name", "Ada", "--category-id", "1")
    dump.restore()
    petstore.text("pets", "add", "--name", "Bo", "--category-id", "1")
    assert [pet["name"] for pet in petstore.json("pets", "list")] == ["Rex", "Bo"]


def pattern_of_records() -> str:
    """Returns the pattern that the document shows for records in Redis."""
    (pattern,) = re.findall(r"--pattern '(.+?)'", (ROOT / "docs/reference/cluster.md").read_text())
    return str(pattern)


def test_the_pattern_for_records_matches_their_names() -> None:
    assert fnmatch.fnmatchcase(key_record("key_1"), pattern_of_records())
    assert fnmatch.fnmatchcase(VERSIONS_RECORD, pattern_of_records())


# Commands in sentences use only names and options that exist.


def options_of(words: list[str]) -> set[str]:
    """Returns the options of the command that these words start with. Fails if there is no such command."""
    command: click.Command = cli
    context = click.Context(cli)
    for word in words:
        if not isinstance(command, click.Group) or word.startswith("-"):
            break
        inner = command.get_command(context, word)
        assert inner is not None, f"there is no command {word}: {' '.join(words)}"
        command = inner
    return {option for parameter in command.params for option in parameter.opts} | {"--help"}


@pytest.mark.parametrize("document", [*DOCUMENTS, "CHANGELOG.md"])
def test_every_petstore_command_in_a_sentence_exists_with_its_options(document: str) -> None:
    text = (ROOT / document).read_text()
    for command in re.findall(r"`petstore ([a-z][^`]*)`", text):
        words = command.replace("…", "X").split()
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= options_of(words), command


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        named = re.findall(r"(?:`|^\$ |^# )make ([a-z-]+)", text, re.MULTILINE)
        assert set(named) <= targets, document
