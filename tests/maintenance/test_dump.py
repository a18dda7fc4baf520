"""The nightly dump of PostgreSQL, as deploy/petstore-dump.sh makes and tries it."""

import os
import subprocess
from pathlib import Path

import pytest

from harness.backends import Postgres, Redis, shared
from harness.commands import Commands
from harness.servers import Server

SCRIPT = Path(__file__).parents[2] / "deploy/petstore-dump.sh"


@pytest.fixture
def cluster(tmp_path: Path, postgres: Postgres) -> Commands:
    petstore = Commands(Server(tmp_path / "data"))
    petstore.server.store, petstore.server.gate = postgres.url(), shared(Redis).url()
    postgres.execute("DROP DATABASE IF EXISTS petstore_dump_test")
    postgres.execute("CREATE DATABASE petstore_dump_test")
    return petstore


def dump(petstore: Commands, postgres: Postgres, folder: Path) -> "subprocess.CompletedProcess[str]":
    """With the programs of the server's own version."""
    folder.mkdir(exist_ok=True)
    variables = {"PETSTORE_STORE": str(petstore.server.store), "PATH": f"{postgres.programs}:{os.environ['PATH']}"}
    return subprocess.run(
        ["sh", str(SCRIPT), str(folder)], env=os.environ | variables, capture_output=True, text=True, timeout=60
    )


def test_a_dump_is_restored_before_it_is_kept(cluster: Commands, postgres: Postgres, tmp_path: Path) -> None:
    cluster.json("keys", "create", "--plan", "free")
    cluster.text("pets", "add", "--name", "Rex", "--category-id", "1")
    tried = postgres.url_of("petstore_dump_test")
    postgres.execute("CREATE SCHEMA petstore_live", tried)
    postgres.execute("CREATE TABLE petstore_live.of_another_version (id int)", tried)
    for number in range(20):
        (tmp_path / "dumps").mkdir(exist_ok=True)
        (tmp_path / f"dumps/petstore-20260101T0000{number:02}Z.dump").touch()
    done = dump(cluster, postgres, tmp_path / "dumps")
    assert done.returncode == 0, done.stderr
    kept = sorted(path.name for path in (tmp_path / "dumps").iterdir())
    assert len(kept) == 14 and kept[-1] > "petstore-2026010" and not any(name.endswith(".part") for name in kept)
    assert (tmp_path / "dumps" / kept[-1]).stat().st_mode & 0o077 == 0
    cluster.server.store = tried
    assert [pet["name"] for pet in cluster.json("pets", "list")] == ["Rex"]


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ("?sslmode=disable&sslrootcert=/etc/ssl/ca.pem", 0),
        ("?dbname={database}", 1),  # which libpq prefers: the database to try would be the service's own
    ],
)
def test_what_a_url_says_behind_its_database_cannot_make_the_trial_drop_the_service_s_tables(
    cluster: Commands, postgres: Postgres, tmp_path: Path, parameters: str, code: int
) -> None:
    cluster.json("keys", "create", "--plan", "free")
    cluster.text("pets", "add", "--name", "Rex", "--category-id", "1")
    store = str(cluster.server.store)
    cluster.server.store = store + parameters.format(database=store.rpartition("/")[2])
    done = dump(cluster, postgres, tmp_path / "dumps")
    assert (done.returncode, len(list((tmp_path / "dumps").glob("*.dump")))) == (code, 1 - code), done.stderr
    tables = "SELECT nspname FROM pg_namespace WHERE nspname = 'petstore_live'"
    assert len(postgres.execute(tables, postgres.url_of("petstore_dump_test"))) == 1 - code
    cluster.server.store = store
    assert [pet["name"] for pet in cluster.json("pets", "list")] == ["Rex"]


def test_a_dump_that_cannot_be_restored_fails_and_removes_nothing(
    cluster: Commands, postgres: Postgres, tmp_path: Path
) -> None:
    done = dump(cluster, postgres, tmp_path / "dumps")  # of a database without tables
    assert done.returncode != 0 and done.stderr
    assert not list((tmp_path / "dumps").glob("*.dump"))
