"""The nightly dump of PostgreSQL, as made and tested by deploy/petstore-dump.sh."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.backends import Postgres, Redis, shared
from harness.commands import Commands
from harness.servers import Server

SCRIPT = Path(__file__).parents[2] / "deploy/petstore-dump.sh"
URLS = SCRIPT.with_name("petstore-urls.sh")


@pytest.fixture
def cluster(tmp_path: Path, postgres: Postgres) -> Commands:
    petstore = Commands(Server(tmp_path / "data"))
    petstore.server.store, petstore.server.gate = postgres.url(), shared(Redis).url()
    postgres.execute("DROP DATABASE IF EXISTS petstore_dump_test")
    postgres.execute("CREATE DATABASE petstore_dump_test")
    return petstore


def dump(
    petstore: Commands, postgres: Postgres, directory: Path, script: Path = SCRIPT, **more: str
) -> "subprocess.CompletedProcess[str]":
    """Runs the script with the PostgreSQL programs of the server's version."""
    directory.mkdir(exist_ok=True)
    variables = {"PETSTORE_STORE": str(petstore.server.store), "PATH": f"{postgres.programs}:{os.environ['PATH']}"}
    return subprocess.run(
        ["/bin/sh", str(script), str(directory)], env=os.environ | variables | more, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip


def recording_programs(postgres: Postgres, directory: Path, log: Path) -> None:
    """Wraps programs so that they log their arguments and the password that is in their environment."""
    directory.mkdir()
    search = f"{postgres.programs}:{os.environ['PATH']}"
    for name in (
        "pg_dump",
        "psql",
        "pg_restore",
        "awk",
        "cat",
        "date",
        "dirname",
        "flock",
        "grep",
        "head",
        "ls",
        "mv",
        "rm",
        "sed",
    ):
        program = directory / name
        record = 'printf "%s " "$0" "$@"; printf "password=%s\\n" "${PGPASSWORD-}"'
        program.write_text(f'#!/bin/sh\n{{ {record}; }} >> {log}\nexec {shutil.which(name, path=search)} "$@"\n')
        program.chmod(0o700)


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
        ("?dbname={database}", 1),  # libpq prefers this name, so the script would restore into the service's database
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
    done = dump(cluster, postgres, tmp_path / "dumps")  # a database without tables
    assert done.returncode != 0 and done.stderr
    assert not list((tmp_path / "dumps").glob("*.dump"))


def test_repeated_failures_leave_at_most_one_unfinished_dump(
    cluster: Commands, postgres: Postgres, tmp_path: Path
) -> None:
    directory = tmp_path / "dumps"
    directory.mkdir()
    kept = {"petstore-20260101T000000Z.dump", "petstore-by-hand.dump.part", "other.part"}
    for name in (*kept, "petstore-20260101T000001Z.dump.part", "petstore-20260101T000002Z.dump.part"):
        (directory / name).touch()
    assert dump(cluster, postgres, directory).returncode != 0  # a database without tables
    (unfinished,) = {path.name for path in directory.iterdir()} - kept
    assert unfinished > "petstore-20260102"
    cluster.json("keys", "create", "--plan", "free")
    assert dump(cluster, postgres, directory).returncode == 0
    (finished,) = {path.name for path in directory.iterdir()} - kept
    assert finished.endswith("Z.dump")


def test_a_missing_test_database_is_named(cluster: Commands, postgres: Postgres, tmp_path: Path) -> None:
    postgres.execute("DROP DATABASE petstore_dump_test")
    done = dump(cluster, postgres, tmp_path / "dumps")
    assert done.returncode == 1 and list((tmp_path / "dumps").iterdir()) == []
    assert "CREATE DATABASE petstore_dump_test OWNER petstore" in done.stderr
    assert "PETSTORE_STORE must be" not in done.stderr


def test_a_dump_waits_for_another_one_and_then_gives_up(cluster: Commands, postgres: Postgres, tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    script = Path(shutil.copy(SCRIPT, tmp_path / "deploy"))
    shutil.copy(URLS, tmp_path / "deploy")
    script.write_text(SCRIPT.read_text().replace("--timeout 60", "--timeout 0.1"))
    unfinished = tmp_path / "dumps/petstore-20260101T000001Z.dump.part"
    unfinished.parent.mkdir()
    unfinished.touch()
    other = os.open(unfinished.parent, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        done = dump(cluster, postgres, unfinished.parent, script)
    finally:
        os.close(other)
    assert done.returncode == 1 and "another dump or backup" in done.stderr
    assert f"fuser -v {unfinished.parent}" in done.stderr
    assert unfinished.exists()


@pytest.mark.parametrize("given", ["in the variable", "in a file", "behind the question mark"])
def test_no_process_has_the_password_in_its_arguments(
    cluster: Commands, postgres: Postgres, tmp_path: Path, given: str
) -> None:
    cluster.json("keys", "create", "--plan", "free")
    log, programs, file = tmp_path / "log", tmp_path / "programs", tmp_path / "url"
    recording_programs(postgres, programs, log)
    store = str(cluster.server.store)
    user, at, place = store.removeprefix("postgresql://").partition("@")
    assert at and ":" not in user
    if given == "behind the question mark":
        cluster.server.store = f"{store}?password=s3%2Fcr%25t&application_name=dump"
    else:
        cluster.server.store = f"postgresql://{user}:s3%2Fcr%25t@{place}"
    variables = {"PATH": str(programs)}  # only the wrapped programs can be found
    if given == "in a file":
        file.write_text(f"{cluster.server.store}\n")
        cluster.server.store, variables = "", variables | {"PETSTORE_STORE_FILE": str(file)}
    done = dump(cluster, postgres, tmp_path / "dumps", SCRIPT, **variables)
    assert done.returncode == 0, done.stderr
    calls = [line.rpartition("password=") for line in log.read_text().splitlines()]
    assert not [arguments for arguments, _, _ in calls if "s3" in arguments and "cr" in arguments]
    used = [password for arguments, _, password in calls if arguments.startswith(f"{programs}/p")]
    assert len(used) == 5 and set(used) == {"s3/cr%t"}


def test_a_password_of_a_key_file_is_refused_because_it_would_be_an_argument(
    cluster: Commands, postgres: Postgres, tmp_path: Path
) -> None:
    cluster.server.store = f"{cluster.server.store}?sslkey=/etc/petstore.key&sslpassword=s3cret"
    log, programs = tmp_path / "log", tmp_path / "programs"
    recording_programs(postgres, programs, log)
    done = dump(cluster, postgres, tmp_path / "dumps", PATH=str(programs))
    assert done.returncode != 0 and "sslpassword" in done.stderr and "s3cret" not in done.stderr
    assert not log.exists() or "s3cret" not in log.read_text()


def test_only_dumps_that_the_timer_has_made_are_removed(cluster: Commands, postgres: Postgres, tmp_path: Path) -> None:
    cluster.json("keys", "create", "--plan", "free")
    directory = tmp_path / "dumps"
    directory.mkdir()
    by_hand = ["petstore-2026-01-01T0230.dump", "petstore-before-upgrade.dump", "petstore-0.dump"]
    for name in (*by_hand, *(f"petstore-20260101T0000{number:02}Z.dump" for number in range(20))):
        (directory / name).touch()
    assert dump(cluster, postgres, directory).returncode == 0
    kept = {path.name for path in directory.iterdir()}
    assert kept >= set(by_hand) and len(kept) == len(by_hand) + 14


@pytest.mark.parametrize(
    ("gate", "options", "password"),
    [
        ("redis://cache:6379/0", "-u redis://cache:6379/0", ""),
        ("redis://:s3%40cret@cache", "-u redis://cache", "s3@cret"),
        ("valkeys://petstore:s3cret@cache:1/2?ssl_ca_certs=/ca", "-u rediss://cache:1/2 --user petstore", "s3cret"),
    ],
)
def test_redis_cli_gets_the_password_from_its_environment(gate: str, options: str, password: str) -> None:
    script = f'. {URLS}; echo "$GATE|${{REDISCLI_AUTH-}}"'
    variables = {"PATH": os.environ["PATH"], "PETSTORE_GATE": gate}
    done = subprocess.run(["sh", "-euc", script], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == f"{options}|{password}\n"
