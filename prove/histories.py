"""Recorded histories of a catalogue that only grows, and the check that they are linearizable in the order of ids.

The model is a set. A create adds one id, at one moment between its invocation and its response. A read looks at some
ids at one moment between its own: it *saw* those that were there and *missed* those that were not. Let A(k) be the
moment of the create of id k. The history is right when moments can be chosen, each within its interval, so that

  (1)  A(j) < A(k)                     for j < k: ids grow with time,
  (2)  A(saw) < read < A(missed)       for all that the read saw and missed.

Why one pass decides it. By (1) only the highest id that a read saw and the lowest that it missed matter. If the first
is the higher, (1) and (2) contradict each other. Otherwise take the creates in the order of ids and give everything the
earliest moment that is allowed:

  read  = max(its invocation, A(highest seen))
  A(k)  = max(its invocation, A(the id before), every read whose lowest missed id is k)

Each value uses only creates of lower ids, so they can be computed one after another. By induction no valid choice has
an earlier moment for anything. So if one of these comes after its response there is no valid choice at all; and if none
does, these moments are one (equal ones may be pulled apart in this order, since intervals are measured to be closed).
What was never acknowledged may have happened at any time after it was sent, or never: its response is infinity.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Create(NamedTuple):
    """`pet_id` as the answer told it."""

    invoked: float
    responded: float
    pet_id: int


class Read(NamedTuple):
    """Of the ids that exist at the end, the highest that it saw and the lowest that it looked for and missed."""

    invoked: float
    responded: float
    saw: float
    missed: float
    what: str = ""


def read_of(invoked: float, responded: float, seen: Sequence[int], looked: Iterable[int], what: str) -> Read:
    """`looked` are the existing ids, ascending, that a read would have shown; `seen` those that it did show."""
    shown = set(seen)
    missed = next((pet_id for pet_id in looked if pet_id not in shown), math.inf)
    return Read(invoked, responded, max(seen, default=-math.inf), missed, what)


def violations(creates: Iterable[Create], reads: Iterable[Read]) -> list[str]:
    """What cannot be explained; empty when the history is linearizable."""
    found = []
    by_missed: dict[float, list[Read]] = {}
    by_seen: dict[float, list[Read]] = {}
    for read in reads:
        if read.saw >= read.missed:
            found.append(f"{read.what} saw {read.saw} and missed {read.missed}, which is older")
            continue
        by_missed.setdefault(read.missed, []).append(read)
        by_seen.setdefault(read.saw, []).append(read)
    earliest: dict[float, float] = {-math.inf: -math.inf}
    moment, because = -math.inf, "nothing"
    last = -math.inf
    for create in sorted(creates, key=lambda create: create.pet_id):
        if create.pet_id == last:
            found.append(f"id {create.pet_id} was given twice")
        last = create.pet_id
        for read in by_missed.get(create.pet_id, ()):
            if max(read.invoked, earliest[read.saw]) > moment:
                moment = max(read.invoked, earliest[read.saw])
                because = f"{read.what}, invoked at {read.invoked:.6f}, saw {read.saw} and missed {read.missed}"
        if create.invoked > moment:
            moment, because = create.invoked, f"create {create.pet_id} was invoked at {create.invoked:.6f}"
        if moment > create.responded:
            found.append(f"create {create.pet_id} was answered at {create.responded:.6f}, but {because}")
            moment = create.responded  # one fault is told once
        earliest[create.pet_id] = moment
        found += [
            f"{read.what} saw {create.pet_id} by {read.responded:.6f}, but {because}"
            for read in by_seen.get(create.pet_id, ())
            if moment > read.responded
        ]
    return found
