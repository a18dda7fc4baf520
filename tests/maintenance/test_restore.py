"""`petstore restore`: a damaged file changes nothing, and a crash leaves either the old or the new data."""

import contextlib
import hashlib
import json
import random
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from harness.commands import Commands
from harness.forged_backups import FORGED_SQL, rewrite
from harness.servers import Server
from harness.stores import ENTRY, GatePlace
from petstore import data_dir
from petstore.errors import OperatorError
from petstore.gate import Gate
from petstore.keys import ENVIRONMENTS
from petstore.maintenance import archive, backup
from petstore.maintenance.archive import Manifest
from petstore.settings import Settings


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data directories, `data` with the animal Old and `made` with the animal New, and a backup of `made`."""
    directory = tmp_path_factory.mktemp("template")
    for data, name in (("made", "New"), ("data", "Old")):
        Commands(Server(directory / data)).text("pets", "add", "--name", name, "--category-id", "1")
    Commands(Server(directory / "made")).text("backup", str(directory / "backup.zip"))
    return directory


@pytest.fixture
def old(template: Path, tmp_path: Path) -> Commands:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return Commands(Server(tmp_path / "data"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "backup.zip"


def names(commands: Commands) -> list[str]:
    return [pet["name"] for pet in commands.json("pets", "list")]


def state(data: Path) -> dict[str, str]:
    """Returns the digest of every file in a directory."""
    return {
        str(path.relative_to(data)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(data.rglob("*"))
        if path.is_file()
    }


@contextlib.contextmanager
def no_bar(_: int) -> Any:
    yield lambda _: None


def restore(commands: Commands, source: Path) -> None:
    """Restores as the command does, without the time that it takes to start a process."""
    backup.restore(Settings(data=commands.data), source, ENTRY, no_bar, force=True)


def test_restore_over_data_needs_force_and_keeps_the_old_data(old: Commands, file: Path) -> None:
    before = state(old.data)
    message = old.fails_in_one_line("restore", str(file))
    assert "already contains Petstore data" in message and "--force" in message
    assert state(old.data) == before
    restored = old.json("restore", str(file), "--force")
    assert names(old) == ["New"]
    assert old.entries()[0].action == "restore"
    kept = Commands(Server(Path(restored["kept"])))
    assert names(kept) == ["Old"]
    old.fails_in_one_line("restore", str(file))


def test_restore_names_keys_and_operators_that_are_active_again(tmp_path: Path) -> None:
    petstore, file = Commands(Server(tmp_path / "data")), tmp_path / "backup.zip"
    live, staging, kept = (
        petstore.json("keys", "create", "--plan", "free", "--env", env)["id"] for env in ("live", "staging", "live")
    )
    petstore.text("operators", "add", "Ada L")
    petstore.text("backup", str(file))
    for key_id in (live, staging):
        petstore.text("keys", "revoke", key_id, "--yes")
    petstore.text("operators", "revoke", "Ada L")
    said = petstore.run("restore", str(file), "--force").stderr
    for key_id in (live, staging):
        assert f"{key_id} was revoked after the backup, but the restore has made it valid again." in said
        assert f"keys revoke {key_id}" in said
    assert "The operator Ada L was revoked after the backup" in said and "operators revoke 'Ada L'" in said
    assert kept not in said
    assert petstore.run("restore", str(file), "--force").stderr == ""


def test_restore_into_an_empty_or_missing_directory(old: Commands, file: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o700)
    for name in ("empty", "not/there/yet"):
        commands = Commands(Server(tmp_path / name))
        assert "New" not in commands.text("restore", str(file))
        assert names(commands) == ["New"]
        assert not list(commands.data.glob("re*"))
        commands.text("check")


def test_an_altered_or_truncated_backup_is_refused_and_changes_nothing(old: Commands, file: Path) -> None:
    whole = file.read_bytes()
    before = state(old.data)
    dice = random.Random(4)
    ends = [*range(100), *range(len(whole) - 200, len(whole))]
    for at in [*ends, *(dice.randrange(len(whole)) for _ in range(300))]:
        file.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << dice.randrange(8))]) + whole[at + 1 :])
        with pytest.raises(OperatorError):
            restore(old, file)
    for length in [0, 1, 63, 64, 65, *(dice.randrange(len(whole)) for _ in range(100)), len(whole) - 1]:
        file.write_bytes(whole[:length])
        with pytest.raises(OperatorError):
            restore(old, file)
    file.write_bytes(whole + b"\0")
    with pytest.raises(OperatorError):
        restore(old, file)
    assert state(old.data) == before
    file.write_bytes(whole)
    restore(old, file)
    assert names(old) == ["New"]


@pytest.mark.parametrize("words", [["restore"], ["backup", "--verify"]], ids=" ".join)
@pytest.mark.parametrize("source", ["no such file", ".", __file__])
def test_a_file_that_is_not_a_backup_is_refused_in_one_line(
    old: Commands, tmp_path: Path, words: list[str], source: str
) -> None:
    old.fails_in_one_line(*words, str(tmp_path / source))


def rewritten(file: Path, change: Callable[[Path, Manifest], Manifest]) -> None:
    """Changes the content of a backup but keeps its checksum valid, as a faulty program might."""
    manifest = archive.read(file)
    work = file.with_name("work")
    work.mkdir()
    archive.unpack(file, manifest, work, lambda _: None)
    archive.write(file, work, change(work, manifest), lambda _: None)
    shutil.rmtree(work)


def described(work: Path, manifest: Manifest, **more: Any) -> Manifest:
    members = [
        archive.Member(m.name, (work / m.name).stat().st_size, m.schema, m.rows)
        for m in manifest.members
        if (work / m.name).exists()
    ]
    return Manifest(**{"format": 1, "petstore": "9.9", "began": manifest.began, "members": members, **more})


def damaged(work: Path, manifest: Manifest) -> Manifest:
    with (work / "live.db").open("rb+") as database:
        database.seek(2 * 4096)
        database.write(b"\xff" * 8192)
    return described(work, manifest)


def no_database(work: Path, manifest: Manifest) -> Manifest:
    (work / "staging.db").write_text("hello")
    return described(work, manifest)


def newer(work: Path, manifest: Manifest) -> Manifest:
    with apsw.Connection(str(work / "live.db")) as connection:
        connection.execute("PRAGMA user_version = 1000")
    return described(work, manifest)


def newer_and_says_so(work: Path, manifest: Manifest) -> Manifest:
    members = [archive.Member(m.name, m.bytes, 1000, m.rows) for m in manifest.members]
    return described(work, manifest, members=members)


def other_schema_than_it_says(work: Path, manifest: Manifest) -> Manifest:
    members = [archive.Member(m.name, m.bytes, m.schema - 1, m.rows) for m in manifest.members]
    return described(work, manifest, members=members)


def newer_format(work: Path, manifest: Manifest) -> Manifest:
    return described(work, manifest, format=2)


def other_size(work: Path, manifest: Manifest) -> Manifest:
    members = [archive.Member(m.name, m.bytes + 1, m.schema, m.rows) for m in manifest.members]
    return described(work, manifest, members=members)


def half(work: Path, manifest: Manifest) -> Manifest:
    (work / "staging.db").unlink()
    return described(work, manifest)


@pytest.mark.parametrize(
    "change",
    [damaged, no_database, newer, newer_and_says_so, other_schema_than_it_says, newer_format,
     other_size, half],
)  # fmt: skip
def test_a_backup_with_bad_members_is_refused_and_changes_nothing(
    old: Commands, file: Path, change: Callable[[Path, Manifest], Manifest]
) -> None:
    rewritten(file, change)
    before = state(old.data)
    with pytest.raises(OperatorError) as refused:
        restore(old, file)
    assert str(file) in str(refused.value)
    with pytest.raises(OperatorError):
        backup.verify(file)
    assert state(old.data) == before


@pytest.mark.parametrize("sql", FORGED_SQL.values(), ids=FORGED_SQL)
def test_a_forged_schema_is_refused(old: Commands, file: Path, sql: str) -> None:
    forged = old.data.with_name("forged.zip")
    rewrite(file, forged, sql)
    before = state(old.data)
    for words in (["restore", str(forged), "--force"], ["backup", "--verify", str(forged)]):
        assert re.search(r"Petstore's schema|is missing", old.fails_in_one_line(*words))
    assert state(old.data) == before


@pytest.mark.parametrize(
    "change", [{"format": 99, "petstore": "\x1b]0;x\x07\x9b2J"}, {"began": "\x1b[2J\u202enow"}], ids=str
)
def test_a_forged_manifest_sends_no_commands_to_the_terminal(old: Commands, file: Path, change: dict[str, Any]) -> None:
    rewritten(file, lambda work, manifest: msgspec.structs.replace(manifest, **change))
    said = old.run("restore", str(file), "--force")
    assert r"\u001b" in said.stdout + said.stderr
    assert not set("\x07\x1b\x9b\u202e") & set(said.stdout + said.stderr)


def test_a_backup_whose_ids_are_used_up_is_refused(old: Commands, file: Path) -> None:
    """Otherwise, every later restore would inherit the backup's last id."""
    forged = old.data.with_name("forged.zip")
    rewrite(file, forged, f"UPDATE sqlite_sequence SET seq = {2**63 - 1} WHERE name = 'pets'")
    before = state(old.data)
    assert "are used up" in old.fails_in_one_line("restore", str(forged), "--force")
    assert state(old.data) == before


def test_a_member_with_a_path_outside_the_directory_is_refused(old: Commands, file: Path, tmp_path: Path) -> None:
    def escaping(work: Path, manifest: Manifest) -> Manifest:
        (work / "../escaped").write_text("x")
        member = archive.Member("../escaped", 1, 1, {})
        return described(work, manifest, members=[*manifest.members, member])

    rewritten(file, escaping)
    (tmp_path / "escaped").unlink()
    with pytest.raises(OperatorError):
        restore(old, file)
    assert not list(tmp_path.rglob("escaped"))


class Crash(BaseException):
    """Simulates a power cut."""


def complete(data: Path) -> None:
    """Completes the restore, as the next command does."""
    with data_dir.shared_lock(data):
        pass


@pytest.mark.thorough
def test_a_crash_at_any_step_leaves_the_old_or_the_new_data(
    old: Commands, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(old.data, kept)
    outcomes = []
    for step in range(40):
        shutil.rmtree(old.data)
        shutil.copytree(kept, old.data)
        done = crash_at(step, lambda: restore(old, file), monkeypatch)
        # Crash again while the restore is being completed.
        crash_at(step % 3, lambda: complete(old.data), monkeypatch)
        complete(old.data)
        stores = {name: apsw.Connection(str(old.data / name)) for name in ("live.db", "staging.db")}
        found = stores["live.db"].execute("SELECT name FROM pets").get
        # Only restored data has this audit entry, in both environments.
        count = "SELECT count(*) FROM audit WHERE actor = ?"
        entries = [store.execute(count, (ENTRY.actor,)).get for store in stores.values()]
        for store in stores.values():
            assert store.pragma("integrity_check") == "ok"
            store.close()
        assert (found, entries) in (("Old", [0, 0]), ("New", [1, 1]))
        assert (old.data / "gate.mdb").exists() == (found == "Old")
        outcomes.append(found)
        if done:
            break
    else:
        raise AssertionError("the restore has more steps than this test")
    assert outcomes == sorted(outcomes, reverse=True), "once the new data is in use, it stays in use"
    assert set(outcomes) == {"Old", "New"}


def crash_at(step: int, work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Simulates a crash at change number `step` to the directory. Returns whether the work ended before the crash."""
    left = step
    rename, rmtree, unlink = Path.rename, shutil.rmtree, Path.unlink

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*given: Any, **named: Any) -> Any:
            nonlocal left
            if left < 0:
                return None  # nothing is changed after the crash
            if left == 0:
                left = -1
                raise Crash
            left -= 1
            return real(*given, **named)

        return instead

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", counted(rename))
        patch.setattr(Path, "unlink", counted(unlink))
        patch.setattr(shutil, "rmtree", counted(rmtree))
        try:
            work()
        except Crash:
            return False
        return True


def test_versions_after_a_restore_are_higher_than_any_before(old: Commands, file: Path) -> None:
    async def versions(gate: Gate) -> list[int]:
        return [await gate.keys_version("live"), await gate.keys_version("staging")]

    made = GatePlace(file.with_name("made")).use(versions)
    before = GatePlace(old.data).use(versions)
    restore(old, file)
    after = GatePlace(old.data).use(versions)
    assert min(after) > max(made + before)


def test_ids_of_the_replaced_data_are_not_used_again(old: Commands, file: Path) -> None:
    old.server.fill(9)
    old.server.fill(4, "staging")
    restore(old, file)
    for environment, last in (("live", 10), ("staging", 4)):
        added = old.json("pets", "add", "--name", "Next", "--category-id", "1", "--env", environment)
        assert added["id"] == last + 1


def test_damaged_data_can_be_replaced(old: Commands, file: Path) -> None:
    for name in ("live.db", "gate.mdb"):
        (old.data / name).write_bytes(b"damaged" * 10_000)
    restore(old, file)
    assert names(old) == ["New"]
    old.text("check")


def test_restore_names_old_files_that_cannot_be_read(old: Commands, file: Path) -> None:
    (old.data / "live.db").write_bytes(b"damaged" * 10_000)
    done = old.run("restore", str(file), "--force", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["kept"]
    assert done.stderr == ("The old live.db could not be read, so ids assigned after the backup might be reused.\n")


def test_a_restore_is_in_both_audit_logs(old: Commands, file: Path) -> None:
    old.text("restore", str(file), "--force")
    for environment in ENVIRONMENTS:
        assert old.entries(environment)[0].action == "restore"


def test_verify_prints_the_contents_of_a_backup(old: Commands, file: Path) -> None:
    assert old.json("backup", "--verify", str(file))["ok"] is True
    assert "is complete" in old.text("backup", "--verify", str(file))
    with zipfile.ZipFile(file) as opened:
        assert json.loads(opened.read("manifest.json"))["members"][0]["rows"]["pets"] == 1
