"""Which gate file is believed after a start: the note beside it, to the letter."""

import errno
import os
import signal
from pathlib import Path

import lmdb
import pytest

from petstore.gate import recovery as trust
from petstore.gate.doctor import inspect_file
from tests.places import GatePlace
from tests.users import as_nobody, folder_of_nobody, only_as_root

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A gate file with something in it, and its lock."""
    path = tmp_path / "gate.mdb"
    with lmdb.open(str(path), subdir=False, map_size=1 << 20) as env, env.begin(write=True) as txn:
        txn.put(b"name", b"value")
    assert path.with_name("gate.mdb-lock").exists()
    return path


def note(file: Path) -> Path:
    return file.with_name("gate.mdb-boot")


def test_a_file_in_use_bears_the_name_of_this_boot_and_one_at_rest_does_not(file: Path) -> None:
    trust.mark_in_use(file)
    assert note(file).read_text() == BOOT
    trust.mark_clean(file)
    assert note(file).read_text() == trust.SYNCED
    assert sorted(path.name for path in file.parent.iterdir()) == ["gate.mdb", "gate.mdb-boot", "gate.mdb-lock"]


def test_a_note_that_says_so_already_is_not_written_again(file: Path) -> None:
    trust.mark_in_use(file)
    before = note(file).stat().st_ino
    trust.mark_in_use(file)
    assert note(file).stat().st_ino == before


@pytest.mark.parametrize("text", [None, "synced", BOOT], ids=["no note", "synced", "this boot"])
def test_a_file_is_believed(file: Path, text: str | None) -> None:
    if text is not None:
        note(file).write_text(text)
    assert trust.recover(file) is None
    assert file.exists() and trust.readable(file)


def test_a_file_that_was_in_use_in_another_boot_is_set_aside_with_its_lock(file: Path) -> None:
    content = file.read_bytes()
    note(file).write_text("another boot")
    aside = trust.recover(file)
    assert aside is not None and aside.name.startswith("gate.mdb.damaged-")
    assert aside.read_bytes() == content
    assert not file.exists() and not file.with_name("gate.mdb-lock").exists()


@only_as_root
def test_a_file_of_somebody_else_is_left_alone() -> None:
    with folder_of_nobody() as folder:
        path = folder / "gate.mdb"
        GatePlace(folder).use(lambda gate: gate.keys_version("live"))
        assert trust.readable(path)
        assert as_nobody(lambda: trust.recover(path)) == (
            f"OperatorError: {path}: no rights to read and write it; chown it to the user of this service"
        )
        assert "may not be read" in as_nobody(lambda: inspect_file(path, in_use=False))
        assert path.exists()


def test_what_is_not_there_is_not_set_aside(tmp_path: Path) -> None:
    assert trust.recover(tmp_path / "gate.mdb") is None
    trust.mark_clean(tmp_path / "gate.mdb")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_read_is_not_believed_and_nobody_dies_of_it(
    file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(os.urandom(8192))
    assert not trust.readable(file)
    assert trust.recover(file) is not None
    assert capfd.readouterr() == ("", "")


def test_where_boots_have_no_name_a_file_is_believed_that_can_be_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "_BOOT", file.with_name("no such file"))
    trust.mark_in_use(file)
    assert trust.recover(file) is None
    file.write_bytes(os.urandom(8192))
    assert trust.recover(file) is not None


def test_a_file_in_use_in_a_boot_without_a_name_is_not_one_at_rest(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as hidden:
        hidden.setattr(trust, "_BOOT", file.with_name("no such file"))
        trust.mark_in_use(file)
    assert note(file).read_text() not in (trust.SYNCED, BOOT)
    assert trust.is_clean(file, in_use=True)
    assert not trust.is_clean(file)  # whoever used it is gone, and perhaps the machine went down with them


def test_whoever_cannot_tell_the_boot_believes_those_who_use_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust.mark_in_use(file)
    monkeypatch.setattr(trust, "_BOOT", file.with_name("no such file"))
    assert trust.is_clean(file, in_use=True)
    assert not trust.is_clean(file)
    trust.mark_clean(file)
    assert trust.is_clean(file)


def test_a_file_that_is_in_use_in_another_boot_is_believed_by_nobody(file: Path) -> None:
    note(file).write_text("another boot")
    assert not trust.is_clean(file) and not trust.is_clean(file, in_use=True)


def test_a_note_is_on_disk_with_its_name_before_the_file_is_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, str]] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            content = " ".join(sorted(each.name for each in path.iterdir()))
        else:
            content = path.read_bytes()[:40].decode("latin-1")
        synced.append((path.name, content))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    folder = (file.parent.name, "gate.mdb gate.mdb-boot gate.mdb-lock")
    part = f"gate.mdb-boot.{os.getpid()}"
    before = len(list(Path("/proc/self/fd").iterdir()))
    trust.mark_in_use(file)
    assert synced == [(part, BOOT), folder]
    synced.clear()
    trust.mark_clean(file)
    assert [name for name, _ in synced] == ["gate.mdb", part, file.parent.name]
    assert synced[1:] == [(part, trust.SYNCED), folder]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_reading_leaves_nothing_behind(file: Path) -> None:
    file.with_name("gate.mdb-lock").unlink()
    assert trust.readable(file)
    assert [path.name for path in file.parent.iterdir()] == ["gate.mdb"]


def test_a_reader_that_dies_of_a_signal_takes_nobody_with_it_and_says_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As reading a damaged map may end: in the child, whatever the parent does with such signals."""

    def fault(*_: object, **__: object) -> None:
        os.write(2, b"a library's last words")
        os.kill(os.getpid(), signal.SIGSEGV)

    monkeypatch.setattr(lmdb, "open", fault)
    earlier = signal.signal(signal.SIGSEGV, lambda *_: os._exit(0))
    try:
        assert not trust.readable(file)
    finally:
        signal.signal(signal.SIGSEGV, earlier)
    assert capfd.readouterr() == ("", "")


def test_a_note_that_cannot_be_written_leaves_nothing_behind(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        trust.mark_in_use(file)
    assert sorted(path.name for path in file.parent.iterdir()) == ["gate.mdb", "gate.mdb-lock"]
