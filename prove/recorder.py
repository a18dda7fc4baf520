"""A recording disk: an SQLite VFS that records every write and every sync of the service.

The record shows what a power cut at any moment could have left. Synced data is on the disk, and each sector that was
written later is there or missing at random.
"""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import apsw

SECTOR = 512

Kind = Literal["write", "truncate", "sync", "delete", "sent", "acknowledged"]


class Event(NamedTuple):
    kind: Kind
    file: str  # the name of the file, or of the animal
    offset: int = 0  # the new size for a truncation, the animal's id for an acknowledgement
    data: bytes = b""


class Record:
    """The events in order: changes to files, and messages between the service and its clients."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ignore_syncs = False  # planted fault: the disk reports success without syncing
        self.sync_error = False  # every sync fails
        self._lock = threading.Lock()

    def add(self, event: Event) -> None:
        with self._lock:
            self.events.append(event)


class RecordingVfs(apsw.VFS):
    def __init__(self, record: Record) -> None:
        self.record = record
        self.disk = apsw.vfs_names()[0]  # the real VFS, which does the work
        super().__init__("recording", self.disk, makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "RecordingFile":
        return RecordingFile(self.record, self.disk, name, flags)

    def xDelete(self, name: str, sync_directory: bool) -> None:
        super().xDelete(name, sync_directory)
        self.record.add(Event("delete", Path(name).name))


class RecordingFile(apsw.VFSFile):
    def __init__(self, record: Record, disk: str, name: Any, flags: list[int]) -> None:
        super().__init__(disk, name, flags)
        self._record = record
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._name = Path(path).name if path else ""  # a temporary file has no name, and does not survive a power cut

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        if self._name:
            self._record.add(Event("write", self._name, offset, bytes(data)))

    def xTruncate(self, size: int) -> None:
        super().xTruncate(size)
        if self._name:
            self._record.add(Event("truncate", self._name, size))

    def xSync(self, flags: int) -> None:
        if self._record.sync_error:
            raise apsw.IOError("a planted fault: the sync failed")
        super().xSync(flags)
        if self._name and not self._record.ignore_syncs:
            self._record.add(Event("sync", self._name))


@contextmanager
def recording() -> Iterator[Record]:
    """Records writes and syncs of all databases that this process opens within this context."""
    record = Record()
    vfs = RecordingVfs(record)
    try:
        yield record
    finally:
        vfs.unregister()


def after_power_cut(events: list[Event], dice: random.Random) -> dict[str, bytes]:
    """Returns what the files could contain after a power cut immediately after the last of these events."""
    files: dict[str, bytes] = {}
    for name in {event.file for event in events if event.kind in ("write", "truncate", "delete")}:
        own = [event for event in events if event.file == name]
        synced = max((number for number, event in enumerate(own, 1) if event.kind in ("sync", "delete")), default=0)
        content = bytearray()
        present = False
        for number, event in enumerate(own):
            if event.kind == "delete":
                content, present = bytearray(), False
            elif number < synced or dice.random() < 0.5:
                _apply(content, event, dice if number >= synced else None)
                present = True
        if present:
            files[name] = bytes(content)
    return files


def _apply(content: bytearray, event: Event, dice: random.Random | None) -> None:
    """Applies an event. With `dice`, only some sectors of a write reach the disk, each of them completely."""
    if event.kind == "truncate":
        del content[event.offset :]
    for start in range(0, len(event.data), SECTOR):
        if dice is None or dice.random() < 0.7:
            at, part = event.offset + start, event.data[start : start + SECTOR]
            content.extend(bytes(max(0, at - len(content))))
            content[at : at + len(part)] = part
