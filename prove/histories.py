"""Checks that a recorded history is linearizable. The catalogue only grows, and ids increase with time.

The model is a set. A create operation adds one id at some moment between its invocation and its response. A read looks
up several ids at some moment between its invocation and its response: it *saw* those that existed, and *missed* those
that did not. Let A(k) be the moment at which id k was added. The history is linearizable if we can choose a moment for
each operation, between its invocation and its response, so that

  (1)  A(j) < A(k)                     for j < k, because ids increase with time,
  (2)  A(saw) < read < A(missed)       for all ids that the read saw or missed.

One pass is enough to decide this. Because of (1), only the highest id that a read saw and the lowest id that it missed
matter. If the highest id seen is greater than the lowest id missed, (1) and (2) contradict each other. Otherwise, go
through the create operations in the order of their ids, and choose the earliest allowed moment for each operation:

  read  = max(its invocation, A(highest seen))
  A(k)  = max(its invocation, A(the previous id), every read whose lowest missed id is k)

Each moment depends only on lower ids, so the moments can be computed one after another. By induction, no valid choice
has an earlier moment for any operation. If one of these moments is later than the operation's response, there is
therefore no valid choice. Otherwise, these moments are a valid choice. (Ties can be broken in the order of the ids,
because the measured intervals are closed.) An unacknowledged create operation may have taken effect at any time after
it was sent, or never, so its response time is infinity.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Create(NamedTuple):
    """A create operation. `pet_id` is the id in the response."""

    invoked: float
    responded: float
    pet_id: int


class Read(NamedTuple):
    """A read, with the highest id that it saw and the lowest id that it missed among those that exist at the end."""

    invoked: float
    responded: float
    saw: float
    missed: float
    what: str = ""


def read_of(invoked: float, responded: float, seen: Sequence[int], looked: Iterable[int], what: str) -> Read:
    """Returns a Read. `looked` has the existing ids in its range in ascending order, and `seen` those that it got."""
    shown = set(seen)
    missed = next((pet_id for pet_id in looked if pet_id not in shown), math.inf)
    return Read(invoked, responded, max(seen, default=-math.inf), missed, what)


def violations(creates: Iterable[Create], reads: Iterable[Read]) -> list[str]:
    """Describes each violation. The list is empty if the history is linearizable."""
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
            found.append(f"id {create.pet_id} was assigned twice")
        last = create.pet_id
        for read in by_missed.get(create.pet_id, ()):
            if max(read.invoked, earliest[read.saw]) > moment:
                moment = max(read.invoked, earliest[read.saw])
                because = f"{read.what}, invoked at {read.invoked:.6f}, saw {read.saw} and missed {read.missed}"
        if create.invoked > moment:
            moment, because = create.invoked, f"create {create.pet_id} was invoked at {create.invoked:.6f}"
        if moment > create.responded:
            found.append(f"create {create.pet_id} was answered at {create.responded:.6f}, but {because}")
            moment = create.responded  # so that each fault is reported only once
        earliest[create.pet_id] = moment
        found += [
            f"{read.what} saw {create.pet_id} by {read.responded:.6f}, but {because}"
            for read in by_seen.get(create.pet_id, ())
            if moment > read.responded
        ]
    return found
