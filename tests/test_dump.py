"""Backup of a cluster: which PostgreSQL tool to use is told, its result is checked, and a restore by it works."""

import gzip
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from petstore.errors import OperatorError
from petstore.pets import NewPet
from petstore.service import Backends
from petstore.settings import without_password
from petstore.store.postgres.dump import check_dump
from tests.backends import Postgres, shared
from tests.commands import Commands
from tests.servers import Server


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL's programs of the server's own version come first."""
    monkeypatch.setenv("PATH", f"{shared(Postgres).programs}:{os.environ['PATH']}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """Four animals in each environment, with names that look like parts of a dump."""
    server = Server(tmp_path_factory.mktemp("cluster") / "data", "cluster")
    pets = [NewPet(name, 1) for name in ("Rex", "tab\tbed", "COPY petstore_live.pets (id) FROM stdin;", "\\.")]

    async def fill(backends: Backends) -> None:
        for store in backends.stores.values():
            for pet in pets:
                await store.add(pet, 0.0)

    server.act(fill)
    server.key("free")
    return Commands(server)


def shell(line: str) -> None:
    done = subprocess.run(line, shell=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def dump(cluster: Commands, target: Path, *options: str) -> Path:
    subprocess.run(
        ["pg_dump", *options, f"--file={target}", str(cluster.server.store)], check=True, capture_output=True
    )
    return target


def commands_in(message: str, program: str) -> list[str]:
    return [line.strip() for line in message.splitlines() if line.strip().startswith(program)]


def test_the_commands_that_are_told_back_up_and_restore_the_cluster(cluster: Commands, tmp_path: Path) -> None:
    file = tmp_path / "petstore.dump"
    told = cluster.fails("backup", str(file))
    assert not file.exists()
    (make,) = commands_in(told, "pg_dump")
    assert "appendonly" in told
    shell(make)
    assert cluster.json("backup", "--verify", str(file))["rows"]["petstore_live.pets"] == 4
    assert "is whole" in cluster.text("backup", "--verify", str(file))

    before = {env: cluster.json("pets", "list", "--env", env) for env in ("live", "staging")}
    cluster.text("pets", "add", "--name", "After", "--category-id", "1")
    (bring_back,) = commands_in(cluster.fails("restore", str(file)), "pg_restore")
    shell(bring_back)
    assert {env: cluster.json("pets", "list", "--env", env) for env in ("live", "staging")} == before
    cluster.text("pets", "add", "--name", "Next", "--category-id", "1", "--env", "staging")
    assert cluster.json("pets", "list", "--env", "staging")[-1]["id"] == before["staging"][-1]["id"] + 1


def test_no_password_is_printed(tmp_path: Path) -> None:
    commands = Commands(Server(tmp_path / "data"))
    for word in ("backup", "restore"):
        told = commands.fails(word, str(tmp_path / "x"), "--store", "postgresql://ada:s3cret@db.example/pets")
        assert "s3cret" not in told and "postgresql://ada@db.example/pets" in told
        query = "postgresql://db.example/pets?user=ada&sslpassword=s3cret&password=s3cret"
        told = commands.fails(word, str(tmp_path / "x"), "--store", query)
        assert "s3cret" not in told and "postgresql://db.example/pets?user=ada" in told


@pytest.mark.parametrize("form", ["custom", "plain", "gzip"])
def test_a_dump_is_whole_and_one_that_was_cut_short_is_not(cluster: Commands, tmp_path: Path, form: str) -> None:
    file = dump(cluster, tmp_path / "petstore.dump", f"--format={'custom' if form == 'custom' else 'plain'}")
    if form == "gzip":
        file.write_bytes(gzip.compress(file.read_bytes()))
    found = check_dump(file)
    assert (found.faults, found.rows["petstore_live.pets"]) == ([], 4)
    whole = file.read_bytes()
    end = whole.rindex(b"-- PostgreSQL database dump complete") if form == "plain" else len(whole) - 30
    for length in (0, 3, len(whole) // 4, len(whole) // 2, len(whole) * 3 // 4, end):
        file.write_bytes(whole[:length])
        assert refusal(file), length


def test_rows_that_break_off_are_named(cluster: Commands, tmp_path: Path) -> None:
    file = dump(cluster, tmp_path / "petstore.sql")
    text = file.read_text()
    file.write_text(text[: text.index("\n", text.index("COPY petstore_staging.pets ")) + 1])
    assert "within the rows of petstore_staging.pets" in refusal(file) and "no end" in refusal(file)


def test_a_file_that_cannot_be_read_is_told_of_with_the_reason(cluster: Commands, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert refusal(missing) == f"{missing}: No such file or directory"
    broken = dump(cluster, tmp_path / "petstore.dump", "--format=custom")
    broken.write_bytes(broken.read_bytes()[:100])
    assert "pg_restore: error" in refusal(broken)
    altered = gzip.compress(b"-- PostgreSQL\n")
    broken.write_bytes(altered[:10] + b"\xff" + altered[11:])  # no such kind of block
    assert refusal(broken) == f"{broken}: is damaged"


def refusal(file: Path) -> str:
    """Why a dump is refused; nothing if it is not."""
    try:
        return "; ".join(check_dump(file).faults)
    except OperatorError as error:
        return str(error)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["--schema=petstore_live"], "petstore_staging"),
        (["--exclude-table=petstore_live.secrets"], "petstore_live.secrets"),
        (["--schema-only"], "neither"),
        (["--data-only", "--table=petstore_*.pets"], "petstore_live.keys"),
        (["--inserts"], "neither"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_dump_that_lacks_something_is_refused(
    cluster: Commands, tmp_path: Path, options: list[str], wrong: str
) -> None:
    file = dump(cluster, tmp_path / "petstore.sql", *options)
    assert wrong in refusal(file)


def test_a_dump_without_its_sequences_or_of_a_newer_version_is_refused(cluster: Commands, tmp_path: Path) -> None:
    file = dump(cluster, tmp_path / "petstore.sql")
    text = file.read_text()
    file.write_text(re.sub(r"(?m)^SELECT pg_catalog.setval\('petstore_live.*$", "", text))
    wrong = refusal(file)
    assert "behind petstore_live.pets: ids would be given twice" in wrong
    assert "behind petstore_live.deeds: ids would be given twice" in wrong
    file.write_text(re.sub(r"(?m)^(COPY petstore_live.migrations .*)$", r"\1\n1000", text))
    assert "newer" in refusal(file)
    assert "newer" in cluster.fails_in_one_line("backup", "--verify", str(file))


def test_without_pg_restore_a_custom_dump_cannot_be_checked_and_that_is_said(
    cluster: Commands, tmp_path: Path, monkeypatch: Any
) -> None:
    file = dump(cluster, tmp_path / "petstore.dump", "--format=custom")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("pg_restore") is None
    assert "install" in refusal(file)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://ada:s3cret@[::1]:5432,db:5433/pets?user=a@b", "postgresql://ada@[::1]:5432,db:5433/pets?user=a@b"),
        ("redis://:s3cret@cache:6379/0", "redis://@cache:6379/0"),
        ("postgresql://db:5432/pets?user=a@b&PASSWORD=s3cret", "postgresql://db:5432/pets?user=a@b"),
        ("postgresql:///pets?host=/run/postgresql", "postgresql:///pets?host=/run/postgresql"),
        ("postgresql://ada:12#34@db/pets", "postgresql://…"),  # not encoded: it might be anything
        ("postgresql://ada:12?34@db/pets", "postgresql://…"),
        ("postgresql://ada:s3/cret@db/pets", "postgresql://…"),
        ("postgresql://ada:s3?cret@db/pets", "postgresql://…"),
        ("postgresql://ada/x:s3cret@db/pets", "postgresql://…"),
        ("postgresql://[ada:s3cret@db/pets", "postgresql://…"),
    ],
)  # fmt: skip
def test_a_url_is_shown_without_a_password_or_not_at_all(given: str, shown: str) -> None:
    assert without_password(given) == shown
