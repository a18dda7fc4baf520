"""Recovery of the gate's file. The note next to the file decides whether it can be used after a start."""

import errno
import os
import signal
from pathlib import Path

import lmdb
import pytest

from harness.gates import PLENTY, ask, use_lmdb
from petstore.gate import Gate, recovery
from petstore.gate.recovery import (
    FORMAT,
    FORMAT_RECORD,
    SYNCED,
    is_clean,
    mark_clean,
    mark_in_use,
    readable,
    recover,
)
from petstore.plans import Limits

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A gate file with one record, and its lock file."""
    path = tmp_path / "gate.mdb"
    with lmdb.open(str(path), subdir=False, map_size=1 << 20) as env, env.begin(write=True) as txn:
        txn.put(FORMAT_RECORD, FORMAT)
    assert path.with_name("gate.mdb-lock").exists()
    return path


def note(file: Path) -> Path:
    return file.with_name("gate.mdb-boot")


def hide_boot_id(patch: pytest.MonkeyPatch) -> None:
    """Hides the boot id, as a sandbox does."""
    patch.setattr(recovery, "BOOT_ID_FILE", Path("no such file"))


def test_note_names_the_boot_while_in_use_and_says_synced_afterwards(file: Path) -> None:
    mark_in_use(file)
    assert note(file).read_text() == BOOT_ID
    mark_clean(file)
    assert note(file).read_text() == SYNCED
    assert sorted(path.name for path in file.parent.iterdir()) == ["gate.mdb", "gate.mdb-boot", "gate.mdb-lock"]


def test_an_unchanged_note_is_not_written_again(file: Path) -> None:
    mark_in_use(file)
    before = note(file).stat().st_ino
    mark_in_use(file)
    assert note(file).stat().st_ino == before


@pytest.mark.parametrize("text", [None, "synced", BOOT_ID], ids=["no note", "synced", "this boot"])
def test_a_clean_file_is_used(file: Path, text: str | None) -> None:
    if text is not None:
        note(file).write_text(text)
    assert recover(file) is None
    assert file.exists() and readable(file)


def test_a_file_in_use_during_another_boot_is_set_aside_with_its_lock(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = file.read_bytes()
    note(file).write_text("another boot")
    damaged = recover(file)
    assert damaged is not None and damaged.name.startswith("gate.mdb.damaged-")
    assert damaged.read_bytes() == content
    assert not file.exists() and not file.with_name("gate.mdb-lock").exists()
    assert [record.message for record in caplog.records] == ["gate file damaged"]
    assert caplog.records[0].__dict__["fields"]["set_aside"] == str(damaged)


def test_counting_starts_over_after_a_power_cut(tmp_path: Path) -> None:
    """The file is not used even if it is still readable. `make prove` tests files with pages of different ages."""

    def remaining() -> int:
        return use_lmdb(tmp_path, lambda gate: ask(gate, "key_1", Limits(5, 5))).remaining

    path = tmp_path / "gate.mdb"
    assert remaining() == 4
    assert recover(path) is None  # the same boot
    mark_clean(path)
    assert recover(path) is None
    assert remaining() == 3
    note(path).write_text("another boot")
    assert recover(path) is not None
    assert remaining() == 4


@pytest.mark.parametrize("damage", ["truncated", "overwritten", "holes"])
def test_a_damaged_file_is_set_aside(tmp_path: Path, damage: str) -> None:
    async def fill(gate: Gate) -> None:
        for number in range(3_000):
            await ask(gate, f"key_{number}", PLENTY)

    use_lmdb(tmp_path, fill)
    path = tmp_path / "gate.mdb"
    if damage == "truncated":
        os.truncate(path, 40_000)
    elif damage == "holes":
        content = bytearray(path.read_bytes())
        content[8192:-8192] = bytes(len(content) - 16384)
        path.write_bytes(content)
    else:
        path.write_bytes(os.urandom(100_000))
    damaged = recover(path)
    assert damaged is not None and damaged.exists()
    assert use_lmdb(tmp_path, lambda gate: ask(gate, "key_1", Limits(5, 5))).remaining == 4


def test_without_a_file_nothing_is_created(tmp_path: Path) -> None:
    assert recover(tmp_path / "gate.mdb") is None
    mark_clean(tmp_path / "gate.mdb")
    assert list(tmp_path.iterdir()) == []


def test_an_unreadable_file_is_set_aside_without_output(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mark_in_use(file)
    file.write_bytes(os.urandom(8192))
    assert not readable(file)
    assert recover(file) is not None
    assert capfd.readouterr() == ("", "")


def test_with_a_hidden_boot_id_a_readable_file_is_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_boot_id(monkeypatch)
    mark_in_use(file)
    assert recover(file) is None
    file.write_bytes(os.urandom(8192))
    assert recover(file) is not None


def test_a_note_without_boot_id_is_clean_only_while_the_file_is_in_use(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        hide_boot_id(patch)
        mark_in_use(file)
    assert note(file).read_text() not in (SYNCED, BOOT_ID)
    assert is_clean(file, in_use=True)
    assert not is_clean(file)


def test_a_reader_without_boot_id_takes_a_file_in_use_as_clean(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark_in_use(file)
    hide_boot_id(monkeypatch)
    assert is_clean(file, in_use=True)
    assert not is_clean(file)
    mark_clean(file)
    assert is_clean(file)


def test_a_file_of_another_boot_is_never_clean(file: Path) -> None:
    note(file).write_text("another boot")
    assert not is_clean(file) and not is_clean(file, in_use=True)


def test_the_note_is_synced_before_the_file_is_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, str]] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            content = " ".join(sorted(each.name for each in path.iterdir()))
        else:
            content = path.read_bytes()[:40].decode("latin-1")
        synced.append(("part" if path.suffix == ".part" else path.name, content))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    directory = (file.parent.name, "gate.mdb gate.mdb-boot gate.mdb-lock")
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    mark_in_use(file)
    assert synced == [("part", BOOT_ID), directory]
    synced.clear()
    mark_clean(file)
    assert [name for name, _ in synced] == ["gate.mdb", "part", file.parent.name]
    assert synced[1:] == [("part", SYNCED), directory]
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


def test_reading_creates_no_lock_file(file: Path) -> None:
    file.with_name("gate.mdb-lock").unlink()
    assert readable(file)
    assert [path.name for path in file.parent.iterdir()] == ["gate.mdb"]


def test_a_crash_of_the_reading_process_is_silent_and_harmless(
    file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A damaged file can crash the process that reads it. Inherited signal handlers must not hide the crash."""

    def crash(*_: object, **__: object) -> None:
        os.write(2, b"a message of the library")
        os.kill(os.getpid(), signal.SIGSEGV)

    monkeypatch.setattr(lmdb, "open", crash)
    earlier = signal.signal(signal.SIGSEGV, lambda *_: os._exit(0))
    try:
        assert not readable(file)
    finally:
        signal.signal(signal.SIGSEGV, earlier)
    assert capfd.readouterr() == ("", "")


def test_a_note_that_cannot_be_written_leaves_no_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        mark_in_use(file)
    assert sorted(path.name for path in file.parent.iterdir()) == ["gate.mdb", "gate.mdb-lock"]
