"""Recorded histories of a catalogue that only grows, and a check that they are linearizable in the order of ids.

The model is a set. A create adds one id at a moment between its invocation and its response. A read looks at some ids
at a moment between its invocation and its response. It *saw* the ids that existed, and *missed* those that did not. Let
A(k) be the moment of the create of id k. The history is linearizable if we can choose a moment within each interval so
that

  (1)  A(j) < A(k)                     for j < k, because ids increase with time,
  (2)  A(saw) < read < A(missed)       for all ids that the read saw or missed.

One pass is enough to decide this. Because of (1), only the highest id that a read saw and the lowest id that it missed
matter. If the highest seen id is greater than the lowest missed id, (1) and (2) contradict each other. Otherwise, go
through the creates in the order of ids, and choose the earliest allowed moment for each create and read:

  read  = max(its invocation, A(highest seen))
  A(k)  = max(its invocation, A(the previous id), every read whose lowest missed id is k)

Each value depends only on creates with lower ids, so the values can be computed one after another. By induction, no
valid choice has an earlier moment for any create or read. So if one of these moments is later than the response, there
is no valid choice. Otherwise, these moments are a valid choice. (Equal moments can be separated in this order, because
the measured intervals are closed.) A create that was never acknowledged may have happened at any time after it was
sent, or not at all, so its response is at infinity.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Create(NamedTuple):
    """A create. `pet_id` is the id in the response."""

    invoked: float
    responded: float
    pet_id: int


class Read(NamedTuple):
    """A read, with the highest id that it saw and the lowest id that it missed, of the ids that exist at the end."""

    invoked: float
    responded: float
    saw: float
    missed: float
    what: str = ""


def read_of(invoked: float, responded: float, seen: Sequence[int], looked: Iterable[int], what: str) -> Read:
    """Returns a read. `looked` are the existing ids in its range, in ascending order. `seen` are those that it got."""
    shown = set(seen)
    missed = next((pet_id for pet_id in looked if pet_id not in shown), math.inf)
    return Read(invoked, responded, max(seen, default=-math.inf), missed, what)


def violations(creates: Iterable[Create], reads: Iterable[Read]) -> list[str]:
    """Returns the violations. There are none if the history is linearizable."""
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
            moment = create.responded  # report each fault only once
        earliest[create.pet_id] = moment
        found += [
            f"{read.what} saw {create.pet_id} by {read.responded:.6f}, but {because}"
            for read in by_seen.get(create.pet_id, ())
            if moment > read.responded
        ]
    return found
