"""`petstore check`: its findings, exit codes and JSON. It changes nothing."""

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import apsw
import pytest

from harness.certificates import self_signed
from harness.commands import Commands
from harness.servers import Server, serving
from petstore import data_dir
from tests.findings import faults

EMBEDDED = {"settings", "last backup", "data directory", "store, live", "store, staging", "gate", "free space", "clock"}


@pytest.fixture
def embedded(tmp_path: Path) -> Commands:
    server = Server(tmp_path / "data")
    server.fill(1)
    return Commands(server)


def test_check_without_faults_prints_one_line_per_subject(embedded: Commands) -> None:
    report = embedded.json("check")
    assert report["ok"] is True
    assert set(report["findings"]) == EMBEDDED
    lines = embedded.text("check").splitlines()
    assert len(lines) == len(EMBEDDED)
    assert all(line.startswith("ok ") for line in lines)
    assert "; 1 animal, 0 keys" in report["about"]["store, live"]


def test_check_with_a_fault_exits_with_1(embedded: Commands) -> None:
    embedded.data.chmod(0o755)
    done = embedded.run("check")
    assert done.returncode == 1
    assert [line[7:].strip() for line in done.stdout.splitlines() if line.startswith("FAULT")] == ["data directory"]
    assert "chmod -R go=" in done.stdout


@pytest.mark.on("sqlite-lmdb")
def test_check_without_data_exits_with_2(without_data: Commands) -> None:
    assert without_data.fails_in_one_line("check") == f"{without_data.data} has no Petstore data: it does not exist"
    without_data.fails_in_one_line("check", "--nothing")
    without_data.data.mkdir()
    assert without_data.fails_in_one_line("check") == f"{without_data.data} has no Petstore data"


@pytest.mark.on("postgres-redis")
def test_check_of_servers_without_data_names_the_missing_schemas(without_data: Commands) -> None:
    done = without_data.run("check")
    assert done.returncode == 1 and "there is no schema petstore_live yet" in done.stdout


def state(data: Path) -> dict[str, tuple[str, float]]:
    return {
        str(path.relative_to(data)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime)
        for path in sorted(data.rglob("*"))
        if path.is_file() and not path.name.endswith(("-shm", "-lock"))  # readers write to these
    }


def test_check_changes_nothing(embedded: Commands) -> None:
    before = state(embedded.data)
    embedded.text("check")
    assert state(embedded.data) == before
    with serving(embedded.data) as server:
        embedded.text("pets", "add", "--name", "Mia", "--category-id", "1")
        server.kill()
    before = state(embedded.data)
    assert "live.db-wal" in before
    report = embedded.json("check")
    assert "2 animals" in report["about"]["store, live"]  # the second animal is only in the write-ahead log
    assert state(embedded.data) == before


def test_check_works_while_the_service_is_running(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        server.fill(10)
        assert faults(Commands(server)) == {}


@pytest.mark.parametrize(("name", "subject"), [("gate.mdb", "gate"), ("live.db", "store, live")])
def test_damaged_data_are_found(embedded: Commands, name: str, subject: str) -> None:
    (embedded.data / name).write_bytes(b"damaged" * 10_000)
    assert set(faults(embedded)) == {subject}


def test_a_damaged_page_is_found(embedded: Commands) -> None:
    with (embedded.data / "staging.db").open("rb+") as file:
        file.seek(3 * 4096)
        file.write(b"\xff" * 4096)
    assert set(faults(embedded)) == {"store, staging"}


def test_a_missing_file_is_found(embedded: Commands) -> None:
    (embedded.data / "staging.db").unlink()
    assert "missing" in faults(embedded)["store, staging"][0]


def test_a_newer_schema_is_found(embedded: Commands) -> None:
    with apsw.Connection(str(embedded.data / "live.db")) as connection:
        connection.execute("PRAGMA user_version = 1000")
    assert "newer" in faults(embedded)["store, live"][0]


def test_a_clock_that_was_set_back_is_found(embedded: Commands) -> None:
    with apsw.Connection(str(embedded.data / "live.db")) as connection:
        connection.execute("UPDATE audit SET at = ?", (time.time() + 3600,))
    assert "clock" in faults(embedded)["clock"][0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_lost_and_found_is_no_fault(embedded: Commands) -> None:
    (embedded.data / "lost+found").mkdir()
    shutil.chown(embedded.data / "lost+found", "nobody")
    assert faults(embedded) == {}


def test_an_old_last_backup_is_a_warning(embedded: Commands, tmp_path: Path) -> None:
    assert embedded.json("check")["about"]["last backup"] == "none yet"
    hours = 3600.0
    os.utime(embedded.data / "lock", (0, time.time() - 27 * hours))
    report = embedded.json("check")  # a warning is not a fault, so the exit code is 0
    suggested = f"`petstore backup DIR --keep 24 --data {embedded.data}`"
    assert report["warnings"] == {"last backup": [f"there is no backup; make one with {suggested}"]}
    embedded.text("backup", str(tmp_path / "backups"), "--keep", "24")
    assert embedded.json("check")["warnings"] == {}
    os.utime(embedded.data / "last-backup", (0, time.time() - 27 * hours))
    assert "it is 27 hours old; " in embedded.json("check")["warnings"]["last backup"][0]
    assert "WARN   last backup" in embedded.text("check")


def test_a_public_url_without_a_trusted_proxy_is_a_warning(embedded: Commands) -> None:
    public = ("--public-url", "https://api.example.com")
    (warning,) = embedded.json("check", *public)["warnings"]["settings"]
    assert warning.startswith("--public-url without --trusted-proxy") and "/metrics" in warning
    assert embedded.json("check", *public, "--trusted-proxy", "127.0.0.1")["warnings"] == {}


def test_a_trusted_network_of_all_addresses_is_a_warning(embedded: Commands) -> None:
    for network in ("0.0.0.0/0", "::/0"):
        (warning,) = embedded.json("check", "--trusted-proxy", network)["warnings"]["settings"]
        assert warning.startswith(f"--trusted-proxy {network}: every client can claim any address")


def test_an_interrupted_restore_is_found(embedded: Commands) -> None:
    ready = embedded.data / data_dir.READY
    for name in (data_dir.NEW, data_dir.OLD):
        (ready / name).mkdir(parents=True)
    assert set(faults(embedded)) == {"restore"}
    embedded.text("pets", "list")  # completes the restore
    assert faults(embedded) == {}


def test_low_space_and_network_file_systems_are_found(embedded: Commands, tmp_path: Path) -> None:
    assert "MiB are free" in faults(embedded, free_bytes=2**62)["free space"][0]
    assert "more files" in faults(embedded, free_files=2**62)["free space"][0]
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/pets {tmp_path.resolve()} nfs4 rw 0 0\n")
    assert "network file system (nfs4)" in faults(embedded, mounts=mounts)["data directory"][0]
    mounts.write_text("/dev/sda1 / ext4 rw 0 0\n")
    assert faults(embedded, mounts=mounts) == {}


def test_check_examines_settings_given_as_options_and_as_variables(
    embedded: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*options: str) -> str:
        done = embedded.run("check", "--json", *options)
        assert (done.returncode, done.stderr) == (1, "")
        return str(json.loads(done.stdout)["findings"]["settings"][0])

    assert "--tls-cert" in wrong("--tls-cert", "x.pem", "--tls-key", "y.pem")
    assert "--trusted-proxy" in wrong("--trusted-proxy", "proxy")
    monkeypatch.setenv("PETSTORE_PUBLIC_URL", "nonsense")
    assert "--public-url" in wrong()


@pytest.mark.parametrize(("days", "wrong"), [(90, None), (5, "expires in")])
def test_a_certificate_that_expires_soon_is_found(
    embedded: Commands, tmp_path: Path, days: int, wrong: str | None
) -> None:
    made = self_signed(tmp_path, days)
    found = faults(embedded, tls_cert=made.chain, tls_key=made.key)
    assert (wrong is None and found == {}) or (wrong is not None and wrong in found["certificate"][0])


def test_a_file_that_is_removed_during_the_check_is_no_fault(
    embedded: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Path.iterdir
    monkeypatch.setattr(
        Path, "iterdir", lambda path: [*there(path), path / "gate.mdb-boot.1"] if path == embedded.data else there(path)
    )
    assert faults(embedded) == {}


def test_a_data_directory_that_is_not_utf_8_is_refused_in_one_line(tmp_path: Path) -> None:
    odd = Commands(Server(tmp_path / "data\udcff"))
    for words in (["check"], ["pets", "list"]):
        assert "not UTF-8" in odd.fails_in_one_line(*words)


def test_a_mistyped_variable_is_a_warning(embedded: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PETSTORE_PROT", "9000")
    monkeypatch.setenv("PETSTORE_CONSOLE_PORT", "9001")
    report = embedded.json("check")
    assert report["warnings"]["settings"] == [
        "PETSTORE_PROT is not a setting and is ignored; did you mean PETSTORE_PORT?"
    ]


def test_a_wrong_value_is_reported_under_the_name_of_its_variable(
    embedded: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PETSTORE_PORT", "abc")
    assert embedded.fails_in_one_line("check").startswith(
        "Invalid value for PETSTORE_PORT: 'abc' is not a whole number"
    )


def test_the_message_about_an_option_before_the_command_says_where_it_belongs(embedded: Commands) -> None:
    message = embedded.fails_in_one_line("--data", "x", "keys", "list")
    assert "Put options after the command: `petstore keys list --data x`." in message
    message = embedded.fails_in_one_line("--store", "postgresql://ada:secret@db/pets", "keys", "list")
    assert "`petstore keys list --store postgresql://ada@db/pets`" in message and "secret" not in message
