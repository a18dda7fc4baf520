"""`petstore check`: what it finds, what it says to scripts, and that it changes nothing."""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from petstore import data_dir as folder
from petstore.cli.check import check
from petstore.maintenance import doctor as checks
from petstore.settings import Settings
from tests.commands import Commands
from tests.servers import Server, serving
from tests.users import as_nobody, only_as_root

OPENSSL = shutil.which("openssl")
EMBEDDED = {"settings", "folder", "store, live", "store, staging", "gate", "free space", "clock"}


@pytest.fixture
def embedded(tmp_path: Path) -> Commands:
    server = Server(tmp_path / "data")
    server.fill(1)
    return Commands(server)


def faults(commands: Commands, **settings: Any) -> dict[str, list[str]]:
    """What is found wrong, by subject: in this process, without the time it takes to start the command."""
    server = commands.server
    chosen = Settings(**{"data": server.data, "store": server.store, "gate": server.gate, **settings})
    found = asyncio.run(checks.findings(chosen))
    return {finding.subject: finding.faults for finding in found if finding.faults}


def test_sound_data_are_found_sound_one_line_a_subject(embedded: Commands) -> None:
    report = embedded.json("check")
    assert report["ok"] is True
    assert set(report["findings"]) == EMBEDDED
    lines = embedded.text("check").splitlines()
    assert len(lines) == len(EMBEDDED)
    assert all(line.startswith("ok ") for line in lines)
    assert "1 animals" in report["about"]["store, live"]


def test_a_fault_is_marked_and_the_exit_code_is_1(embedded: Commands) -> None:
    embedded.data.chmod(0o755)
    done = embedded.run("check")
    assert done.returncode == 1
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAULT")] == ["folder"]
    assert "chmod 700" in done.stdout


def test_without_data_the_exit_code_is_2(petstore: Commands) -> None:
    assert str(petstore.data) in petstore.fails_in_one_line("check")
    petstore.fails_in_one_line("check", "--nothing")


def state(data: Path) -> dict[str, tuple[str, float]]:
    return {
        str(path.relative_to(data)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime)
        for path in sorted(data.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm")  # SQLite's readers mark their places there
    }


def test_nothing_is_changed_after_a_stop_and_after_a_kill(embedded: Commands) -> None:
    before = state(embedded.data)
    embedded.text("check")
    assert state(embedded.data) == before
    with serving(embedded.data) as server:
        embedded.text("pets", "add", "--name", "Mia", "--category-id", "1")
        server.kill()
    before = state(embedded.data)
    assert "live.db-wal" in before
    report = embedded.json("check")
    assert "2 animals" in report["about"]["store, live"]  # the second is in the log alone
    assert state(embedded.data) == before


def test_an_older_schema_is_left_as_it_is_and_told_of(embedded: Commands) -> None:
    with apsw.Connection(str(embedded.data / "live.db")) as connection:
        connection.execute("DROP TABLE operators; DROP TABLE copying; PRAGMA user_version = 1")
    before = state(embedded.data)
    report = embedded.json("check")
    assert "schema 1" in report["about"]["store, live"]
    assert state(embedded.data) == before


def test_a_running_service_is_checked_too(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        server.fill(10)
        assert faults(Commands(server)) == {}


@pytest.mark.parametrize(("name", "subject"), [("gate.mdb", "gate"), ("live.db", "store, live")])
def test_damaged_data_are_found(embedded: Commands, name: str, subject: str) -> None:
    (embedded.data / name).write_bytes(b"damaged" * 10_000)
    assert set(faults(embedded)) == {subject}


def test_a_page_that_has_gone_bad_is_found(embedded: Commands) -> None:
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
        connection.execute("UPDATE deeds SET at = ?", (time.time() + 3600,))
    assert "clock" in faults(embedded)["clock"][0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_found(embedded: Commands) -> None:
    shutil.chown(embedded.data / "live.db", "nobody")
    (fault,) = faults(embedded)["folder"]
    assert "live.db" in fault and "nobody" in fault


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_a_file_system_keeps_at_its_root_is_no_fault(embedded: Commands) -> None:
    (embedded.data / "lost+found").mkdir()
    shutil.chown(embedded.data / "lost+found", "nobody")
    assert faults(embedded) == {}


def test_a_restore_that_was_cut_short_is_found(embedded: Commands) -> None:
    ready = embedded.data / folder.READY
    for name in (folder.NEW, folder.OLD):
        (ready / name).mkdir(parents=True)
    (ready / folder.MEMBERS).write_text("\n".join(folder.DATA))
    assert set(faults(embedded)) == {"restore"}
    embedded.text("pets", "list")  # finishes it
    assert faults(embedded) == {}


def test_low_space_and_network_disks_are_found(
    embedded: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checks, "LOW_SPACE", 2**62)
    assert "left" in checks._space(embedded.data)[0][0]
    here = checks._file_system(tmp_path)
    assert here
    monkeypatch.setattr(checks, "NETWORK_FILES", (here,))
    assert any(here in fault for fault in checks._folder(embedded.data))


def test_the_settings_of_the_service_are_checked_by_option_and_by_variable(
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


@pytest.mark.skipif(OPENSSL is None, reason="needs the openssl command to make a certificate")
@pytest.mark.parametrize(("days", "wrong"), [(90, None), (5, "expires in")])
def test_a_certificate_that_ends_soon_is_found(
    embedded: Commands, tmp_path: Path, days: int, wrong: str | None
) -> None:
    certificate, private = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [str(OPENSSL), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", str(days), "-subj", "/CN=localhost",
         "-keyout", str(private), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    found = faults(embedded, tls_cert=certificate, tls_key=private)
    assert (wrong is None and found == {}) or (wrong is not None and wrong in found["certificate"][0])


def test_a_file_that_comes_and_goes_meanwhile_is_no_fault(embedded: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: [*there(path), path / "gate.mdb-boot.1"])
    assert faults(embedded) == {}


@only_as_root
def test_a_folder_that_may_not_be_entered_is_no_fault_but_a_check_that_could_not_be_made(embedded: Commands) -> None:
    words = ["--data", str(embedded.data)]
    assert as_nobody(lambda: check.main(words, standalone_mode=False)) == (
        f"OperatorError: --data {embedded.data}: Permission denied"
    )


def test_a_folder_whose_name_is_not_utf_8_is_refused_in_one_line(tmp_path: Path) -> None:
    odd = Commands(Server(tmp_path / "data\udcff"))
    for words in (["check"], ["pets", "list"]):
        assert "not UTF-8" in odd.fails_in_one_line(*words)
