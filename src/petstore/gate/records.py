"""The binary format of the record that stores a key's state. Both gates and admit.lua use this format.

New fields must be added at the end. Missing bytes are read as zeros, and unknown bytes at the end are preserved. As a
result, releases that count different operations can share a gate, and adding an operation requires no migration.
"""

import secrets
import struct
from collections.abc import Sequence

from petstore.keys import ENVIRONMENTS, Environment
from petstore.operations import OperationName
from petstore.rate_limits import Windows
from petstore.usage import AdmissionTotal

_windows = struct.Struct("<8q")  # the fields of Windows
_origin = struct.Struct("<2q")  # the environment's index, and the epoch, which is 0 if nothing has been counted
_count = struct.Struct("<q")  # how many requests were admitted for one operation; sorted by operation number
_WIDTH = _count.size
_ORIGIN = _windows.size
_COUNTS = _ORIGIN + _origin.size

EMPTY = bytes(_windows.size)
SIZE_MAX = 4096  # much larger than any valid record
COUNT_MAX = 2**53  # Lua stores numbers as doubles, which cannot represent every larger integer
# Returns a plain tuple, because creating a named tuple would take as long as `admit` itself.
unpack_fields = _windows.unpack_from


def unpack_windows(record: bytes) -> Windows:
    return Windows._make(unpack_fields(record))


def pack_windows(w: Windows) -> bytes:
    """Returns the first part of a record, which contains the windows."""
    return _windows.pack(*w)


def with_windows(record: bytes, w: Windows) -> bytearray:
    changed = bytearray(record)
    _windows.pack_into(changed, 0, *w)
    return changed


def with_admission(record: bytes, w: Windows, environment: Environment, number: int) -> bytearray:
    """Returns a copy of the record with these windows and with one admission added for the operation.

    The first admission starts an epoch.
    """
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
    """Returns the stored record, or an empty record if the stored record is missing or has an invalid size."""
    return stored if stored is not None and len(EMPTY) <= len(stored) <= SIZE_MAX else EMPTY


def admissions_in(key_id: str, record: bytes, names: Sequence[OperationName]) -> list[AdmissionTotal]:
    """Returns the admission totals in a record. An operation's number is its index in `names`.

    Ignores invalid values, so that other keys' totals can be collected even if one record is damaged.
    """
    if len(record) < _COUNTS:
        return []
    environment, epoch = _origin.unpack_from(record, _ORIGIN)
    if not 0 <= environment < len(ENVIRONMENTS):
        return []
    counts = struct.unpack_from(f"<{(len(record) - _COUNTS) // _WIDTH}q", record, _COUNTS)
    return [
        AdmissionTotal(ENVIRONMENTS[environment], key_id, name, epoch, count)
        for name, count in zip(names, counts, strict=False)  # other releases may count more or fewer operations
        if 0 < count < COUNT_MAX
    ]
