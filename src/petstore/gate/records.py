"""The record of a key, which both gates store in the same bytes; admit.lua has the same layout.

The record only grows. A shorter record reads as zeros, and bytes behind the known ones are kept: so versions of the
service with more and with fewer operations share a gate, and a new operation needs no migration.
"""

import secrets
import struct
from collections.abc import Sequence

from petstore.keys import ENVIRONMENTS, Environment
from petstore.operations import OperationName
from petstore.rate_limits import Windows
from petstore.usage import AdmissionTotal

_windows = struct.Struct("<8q")  # the fields of Windows
_origin = struct.Struct("<2q")  # of the counts: the environment's number, the epoch; 0: nothing was counted
_count = struct.Struct("<q")  # of the admissions for an operation, in the order of the operations' numbers
_WIDTH = _count.size
_ORIGIN = _windows.size
_COUNTS = _ORIGIN + _origin.size

EMPTY = bytes(_windows.size)
SIZE_MAX = 4096  # far more than all counts
COUNT_MAX = 2**53  # Lua counts with doubles
# Returns a plain tuple. The rules unpack it anyway, and building a named tuple would cost as much as the rules.
unpack_fields = _windows.unpack_from


def unpack_windows(record: bytes) -> Windows:
    return Windows._make(unpack_fields(record))


def pack_windows(w: Windows) -> bytes:
    """The first bytes of a record, up to the counts."""
    return _windows.pack(*w)


def with_windows(record: bytes, w: Windows) -> bytearray:
    changed = bytearray(record)
    _windows.pack_into(changed, 0, *w)
    return changed


def with_admission(record: bytes, w: Windows, environment: Environment, number: int) -> bytearray:
    """The same, and one more admission for the operation with this number. The first of all begins a new epoch."""
    changed = bytearray(record)
    _windows.pack_into(changed, 0, *w)
    place = _COUNTS + number * _WIDTH
    missing = place + _WIDTH - len(changed)
    if missing > 0:
        changed.extend(bytes(missing))
    (before,) = _count.unpack_from(changed, place)
    if not before and not _origin.unpack_from(changed, _ORIGIN)[1]:
        _origin.pack_into(changed, _ORIGIN, ENVIRONMENTS.index(environment), secrets.randbits(62))
    _count.pack_into(changed, place, before + 1)
    return changed


def valid_record(stored: bytes | None) -> bytes:
    """The record that Redis has stored. A missing one, or one with a size that no record has, is empty."""
    return stored if stored is not None and len(EMPTY) <= len(stored) <= SIZE_MAX else EMPTY


def admissions_in(key_id: str, record: bytes, names: Sequence[OperationName]) -> list[AdmissionTotal]:
    """What was counted; `names` are those of the operations in the order of their numbers.

    Numbers that the gate cannot have counted are ignored: they must not stop the collection for all other keys.
    """
    if len(record) < _COUNTS:
        return []
    environment, epoch = _origin.unpack_from(record, _ORIGIN)
    if not 0 <= environment < len(ENVIRONMENTS):
        return []
    counts = struct.unpack_from(f"<{(len(record) - _COUNTS) // _WIDTH}q", record, _COUNTS)
    return [
        AdmissionTotal(ENVIRONMENTS[environment], key_id, name, epoch, count)
        for name, count in zip(names, counts, strict=False)  # an earlier version has not counted all of them
        if 0 < count < COUNT_MAX
    ]
