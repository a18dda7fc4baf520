"""Commands that only read create nothing, migrate nothing and change no row."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.backends import Postgres, shared
from harness.commands import Commands
from harness.servers import Server, started
from harness.stores import StorePlace
from petstore.store.schema import COUNTERS, TABLES
from tests.cli.samples import COMMANDS, SAMPLES, Sample

READING = [sample for sample in SAMPLES if sample.access == "read"]
LOCKS = ("lock", "-turn", "-wal", "-shm", "-lock", "-boot")


def test_every_command_has_a_sample() -> None:
    with_data = {words for words, found in COMMANDS.items() if any(param.name == "data" for param in found.params)}
    assert with_data - {sample.command for sample in SAMPLES} == set(), "add these commands to tests/cli/samples.py"
    assert {sample.command for sample in SAMPLES} - with_data == set(), "tests/cli/samples.py names other commands"


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
@pytest.mark.parametrize("sample", [*READING, Sample("check", "whole")], ids=lambda sample: sample.words)
def test_a_reading_command_changes_nothing(killed: Commands, sample: Sample, tmp_path: Path) -> None:
    server = killed.server
    key_id = StorePlace(server.data, server.store).by_hand(
        f"SELECT id FROM {'petstore_live.' if server.store else ''}keys ORDER BY created LIMIT 1"
    )[0][0]
    rows, names = rows_of(server), names_in(server.data)
    done = killed.run(*sample.arguments(tmp_path, key_id))
    is_fine = done.returncode == 0 or sample.words == "check"  # the test server runs without fsync, which is a fault
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
