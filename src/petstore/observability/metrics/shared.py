"""The numbers of all workers of a node. Each writes its own into a small file once a second; any of them adds them up.

A worker that dies leaves its file, and the next one to start adds it to `past`: no counter ever goes back, not even
over a restart of the service. A file is allocated once and written in place, so a full disk does not stop the metrics.
"""

import contextlib
import fcntl
import os
import struct
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from petstore.observability.metrics import METRICS, Gauge, Histogram, Labels

SLOT = 256 * 1024  # bytes; all cells that can exist take half of it

Cell = float | list[float]
Values = dict[str, dict[Labels, Cell]]  # by the name of the metric

_head = struct.Struct("<QII")  # number, length and checksum of what follows
_KNOWN = {metric.name: metric for metric in METRICS}


class Record(msgspec.Struct, array_like=True):
    """`folded` names the files whose numbers are in these: should a process die before it removes them."""

    cells: list[tuple[str, Labels, Cell]]
    folded: list[str] = []


_decode = msgspec.msgpack.Decoder(Record).decode


class NumbersFile:
    """Written in place, in two slots by turns: one of them is always whole, whenever the writer dies."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._file, 0, 2 * SLOT)
        except OSError:
            os.close(self._file)
            raise
        self._number, _ = _newest(self._file)

    def hold(self) -> None:
        """Until this process ends: who finds the file free knows that its owner is dead. Raises OSError."""
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, values: Values, folded: Iterable[str] = ()) -> None:
        """Raises OSError."""
        cells = [(name, labels, cell) for name, found in values.items() for labels, cell in found.items()]
        data = msgspec.msgpack.encode(Record(cells, list(folded)))
        self._number += 1
        record = _head.pack(self._number, len(data), zlib.crc32(data)) + data
        assert len(record) <= SLOT  # the labels are a closed list
        os.pwrite(self._file, record, self._number % 2 * SLOT)

    def read(self) -> Record:
        return _newest(self._file)[1]

    def close(self) -> None:
        os.close(self._file)


class Workers:
    """The files of one node's workers, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: NumbersFile | None = None

    def join(self) -> None:
        """Take part, and settle what dead workers have left. Raises OSError."""
        self._folder.mkdir(exist_ok=True, mode=0o700)
        with self._locked(fcntl.LOCK_EX):
            self._fold()
            self._own = NumbersFile(self._folder / f"{time.time_ns()}-{os.getpid()}.worker")
            self._own.hold()

    def publish(self) -> None:
        """What this process has counted. Raises OSError."""
        if self._own is not None:
            self._own.write(of_this_process())

    def leave(self) -> None:
        """The file stays: its numbers belong to the total."""
        if self._own is not None:
            self.publish()
            self._own.close()
            self._own = None

    def total(self) -> tuple[Values, int]:
        """The sum over the node of what was published, and how many workers are alive. Raises OSError."""
        total: Values = {}
        alive = 0
        with self._locked(fcntl.LOCK_SH), self._opened(self._folder / "past") as past:
            record = past.read()
            _add(total, record, gauges=False)
            for _, file in self._files(but=record.folded):
                lives = not _is_free(file)
                alive += lives
                _add(total, _newest(file)[1], gauges=lives)
        return total, alive

    def _fold(self) -> None:
        with self._opened(self._folder / "past") as past:
            record = past.read()
            total: Values = {}
            _add(total, record, gauges=False)
            dead = []
            for name, file in self._files(but=record.folded):
                if _is_free(file):
                    _add(total, _newest(file)[1], gauges=False)
                    dead.append(name)
            gone = [*(name for name in record.folded if (self._folder / name).exists()), *dead]
            past.write(total, gone)
            for name in gone:
                (self._folder / name).unlink(missing_ok=True)

    def _files(self, *, but: list[str]) -> Iterator[tuple[str, int]]:
        for path in sorted(self._folder.glob("*.worker")):
            if path.name not in but:
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    yield path.name, file
                finally:
                    os.close(file)

    @contextlib.contextmanager
    def _opened(self, path: Path) -> Iterator[NumbersFile]:
        file = NumbersFile(path)
        try:
            yield file
        finally:
            file.close()

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, how)
            yield
        finally:
            os.close(lock)


def of_this_process() -> Values:
    return {metric.name: dict(metric.cells) for metric in METRICS if metric.cells}


def _newest(file: int) -> tuple[int, Record]:
    """The newest whole record and its number. None: an empty one, with number 0."""
    best: tuple[int, Record] = (0, Record([]))
    for start in (0, SLOT):
        head = os.pread(file, _head.size, start)
        if len(head) == _head.size:
            number, length, checksum = _head.unpack(head)
            data = os.pread(file, length, start + _head.size)
            if number > best[0] and zlib.crc32(data) == checksum:
                best = number, _decode(data)
    return best


def _is_free(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True


def _add(total: Values, record: Record, *, gauges: bool) -> None:
    for name, labels, cell in record.cells:
        metric = _KNOWN.get(name)
        if metric is None or (isinstance(metric, Gauge) and not gauges):
            continue  # what another version counted, or what was true of a process that is no more
        cells: dict[Labels, Any] = total.setdefault(name, {})
        if isinstance(metric, Histogram) and isinstance(cell, list) and len(cell) == len(metric.bounds) + 2:
            cells[labels] = [a + b for a, b in zip(cells.get(labels, [0] * len(cell)), cell, strict=True)]
        elif not isinstance(metric, Histogram) and not isinstance(cell, list):
            cells[labels] = cells.get(labels, 0) + cell
