"""The totals of admissions in the gate's file, by key and operation.

The record of a key's windows has eight spare bytes. `admit` counts in them, four counters of 14 bits under a mark, and
moves them to a record of totals when one of them is half full. With a record of its own, raised by each request, the
calls of LMDB took 3.8 µs instead of 2.5. The mark tells counters from what earlier versions wrote there.
"""

import secrets
import struct
from collections.abc import Iterable
from typing import Any

from petstore.keys import ENVIRONMENTS, Environment
from petstore.operations import COUNTED, OperationName
from petstore.rate_limits import WINDOWS_LAYOUT
from petstore.usage import AdmissionTotal

KEY, TOTALS = b"k", b"t"  # the kinds of the records of windows and of totals
BITS = 14
MARK = 0xA << BITS * len(COUNTED)
MARK_BITS = 0xFF << BITS * len(COUNTED)
HALF_FULL = sum(1 << BITS * n + BITS - 1 for n in range(len(COUNTED)))

ONE: dict[OperationName, int] = {operation: 1 << BITS * n for n, operation in enumerate(COUNTED)}
COUNTABLE = MARK_BITS | HALF_FULL  # `recent & COUNTABLE == MARK`: one more admission can be counted

_key = struct.Struct(WINDOWS_LAYOUT.replace("8x", "Q"))
pack_key, unpack_key = _key.pack, _key.unpack  # the windows, with the spare bytes in the middle
_totals = struct.Struct(f"<{2 + len(COUNTED)}q")  # the environment's number, epoch, totals
_NO_COUNTS = [0] * len(COUNTED)


def recent_in(record: bytes) -> int:
    """The spare bytes: what was counted since the totals were last raised."""
    return int(unpack_key(record)[4])


def start_counting(txn: Any, environment: Environment, key: bytes, recent: int, *, is_new: bool) -> int:
    """The spare bytes to count in from now on, of a record that has no mark or a counter that is half full.

    A key without totals gets a new epoch. So does one whose record has no mark: an earlier version has written it and
    dropped what was counted, so that the totals are too low. `is_new`: there was no record.
    """
    if txn.get(TOTALS + key) is None or not (is_new or _is_marked(recent)):
        number = ENVIRONMENTS.index(environment)
        txn.put(TOTALS + key, _totals.pack(number, secrets.randbits(62), *_NO_COUNTS))
    move(txn, key, recent)
    return MARK


def move(txn: Any, key: bytes, recent: int) -> None:
    """Raise the totals of a key by what its spare bytes say."""
    number, epoch, *totals = _totals.unpack(txn.get(TOTALS + key))
    raised = [total + count for total, count in zip(totals, _counts(recent), strict=True)]
    txn.put(TOTALS + key, _totals.pack(number, epoch, *raised))


def has_counts(recent: int) -> bool:
    return _is_marked(recent) and recent != MARK


def totals_of(keys: Iterable[bytes], txn: Any) -> list[AdmissionTotal]:
    """What was counted for these keys."""
    found = []
    for key in keys:
        stored, record = txn.get(TOTALS + key), txn.get(KEY + key)
        if stored is None:
            continue
        counts = _counts(recent_in(record)) if record else _NO_COUNTS
        number, epoch, *totals = _totals.unpack(stored)
        for operation, total, count in zip(COUNTED, totals, counts, strict=True):
            if total + count:
                found.append(AdmissionTotal(ENVIRONMENTS[number], key.decode(), operation, epoch, total + count))
    return found


def _is_marked(recent: int) -> bool:
    return recent & MARK_BITS == MARK


def _counts(recent: int) -> list[int]:
    if not _is_marked(recent):
        return _NO_COUNTS
    return [recent >> BITS * n & (1 << BITS) - 1 for n in range(len(COUNTED))]
