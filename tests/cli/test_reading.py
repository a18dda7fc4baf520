"""Commands that only read create nothing, migrate nothing and change no row."""

import json
from pathlib import Path
from typing import Any

import click
import httpx
import pytest

from harness.backends import Postgres, shared
from harness.commands import Commands
from harness.servers import Server, started
from harness.stores import StorePlace
from petstore.cli import cli
from petstore.store.schema import COUNTERS, TABLES
from tests.cli.test_no_data import commands_below

# Every command that only reads, with arguments that match existing data. KEY is replaced with a key's id.
READING = [
    ["keys", "list"], ["keys", "show", "KEY"], ["pets", "list"], ["pets", "show", "1"],
    ["pets", "list", "--search", "Re"], ["pets", "imports"], ["pets", "export", "-"],
    ["pets", "import", "FILE", "--dry-run"], ["bans", "list"], ["audit"], ["operators", "list"], ["check"],
]  # fmt: skip
# Every other command that takes --data. `usage` writes because it collects what the gate has counted.
WRITING = [
    ["serve"], ["console"], ["backup"], ["restore"], ["copy"], ["usage"], ["bans", "lift"], ["operators", "add"],
    ["operators", "revoke"], ["keys", "create"], ["keys", "update"], ["keys", "suspend"], ["keys", "resume"],
    ["keys", "rotate"], ["keys", "end-overlap"], ["keys", "revoke"], ["keys", "identify"], ["pets", "add"],
    ["pets", "update"],
    ["pets", "set-status"], ["pets", "remove"], ["pets", "restore"], ["pets", "import"], ["pets", "undo-import"],
]  # fmt: skip
LOCKS = ("lock", "-turn", "-wal", "-shm", "-lock", "-boot")


def test_every_command_is_listed() -> None:
    def has_data(command: click.Command) -> bool:
        return any(param.name == "data" for param in command.params)

    found = {words for words, command in commands_below(cli).items() if has_data(command)}
    known = {tuple(words[:2]) if words[0] in ("keys", "pets", "bans", "operators") else tuple(words[:1])
             for words in (*READING, *WRITING)}  # fmt: skip
    assert known == found


def rows_of(server: Server) -> Any:
    """Returns every row of every table, without the code that commands use to open a store."""
    place = StorePlace(server.data, server.store)
    found = {}
    for table in (*TABLES, *(() if server.store else (COUNTERS._replace(name="sqlite_sequence"),))):
        for schema in ("petstore_live", "petstore_staging") if server.store else ("main",):
            found[schema, table.name] = sorted(map(repr, place.by_hand(f"SELECT * FROM {schema}.{table.name}")))
    return found


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if not path.name.endswith(LOCKS))


@pytest.fixture(params=["own", "cluster"])
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> Commands:
    """The data of a service that was killed before it had collected all usage."""
    server = Server(tmp_path / "data", request.param)
    petstore = Commands(server)
    petstore.text("operators", "add", "ada")
    petstore.text("pets", "add", "--name", "Rex", "--category-id", "1")
    key = server.key()
    with started(server):
        assert httpx.get(server.url("/pets"), headers=key.headers).status_code == httpx.codes.OK
        server.kill()
    return petstore


@pytest.mark.thorough
@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_reading_command_changes_nothing(killed: Commands, words: list[str], tmp_path: Path) -> None:
    server = killed.server
    file = tmp_path / "pets.jsonl"
    file.write_text(json.dumps({"name": "Ada", "categoryId": 2}) + "\n")
    key_id = StorePlace(server.data, server.store).by_hand(
        f"SELECT id FROM {'petstore_live.' if server.store else ''}keys ORDER BY created LIMIT 1"
    )[0][0]
    rows, names = rows_of(server), names_in(server.data)
    done = killed.run(*(key_id if word == "KEY" else str(file) if word == "FILE" else word for word in words))
    is_fine = done.returncode == 0 or words == ["check"]  # the test server runs without fsync, which is a fault
    assert is_fine and done.stdout, done.stderr
    assert (rows_of(server), names_in(server.data)) == (rows, names)


@pytest.mark.parametrize("words", [["keys", "list"], ["pets", "list"], ["bans", "list"], ["audit"]], ids=" ".join)
def test_a_reading_command_creates_no_part_of_the_data_that_is_missing(tmp_path: Path, words: list[str]) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    petstore.text("pets", "add", "--name", "Rex", "--category-id", "1")
    (petstore.data / "gate.mdb").unlink()
    petstore.text(*words)
    assert not (petstore.data / "gate.mdb").exists()
    (petstore.data / "staging.db").unlink()
    assert "serve --data" in petstore.fails_in_one_line(*words)
    assert not (petstore.data / "staging.db").exists()


def test_a_reading_command_does_not_create_the_schemas_of_a_database(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    server.data.mkdir()
    server.store, server.gate = shared(Postgres).url(), Server(tmp_path / "other", "cluster").gate
    assert "no Petstore data" in Commands(server).fails_in_one_line("pets", "list")
    assert (
        shared(Postgres).execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'petstore%'", server.store) == []
    )
