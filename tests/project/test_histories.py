"""The checker of `make prove ARGS=linearizability`. It finds planted faults and agrees with an exhaustive search."""

import itertools
import math
import random

import pytest

from prove.histories import Create, Read, read_of, violations

NEVER = math.inf
NOTHING = -math.inf


def test_a_history_that_can_be_explained_has_no_violations() -> None:
    creates = [Create(0, 2, 1), Create(1, 3, 2), Create(5, NEVER, 3)]
    reads = [Read(0, 1, NOTHING, 1), Read(1, 2, 1, 2), Read(3.5, 4, 2, 3), Read(6, 7, 3, NEVER), Read(6, 6.5, 2, 3)]
    assert violations(creates, reads) == []


@pytest.mark.parametrize(
    ("creates", "reads"),
    [
        ([Create(0, 1, 1)], [Read(2, 3, NOTHING, 1)]),
        ([Create(0, 9, 1)], [Read(1, 2, 1, NEVER), Read(3, 4, NOTHING, 1)]),
        ([Create(0, NEVER, 1)], [Read(1, 2, 1, NEVER), Read(3, 4, NOTHING, 1)]),
        ([Create(5, 6, 1)], [Read(1, 2, 1, NEVER)]),
        ([Create(0, 1, 2), Create(2, 3, 1)], []),
        ([Create(0, 1, 1), Create(0, 1, 1)], []),
        ([Create(0, 9, 1), Create(0, 9, 2)], [Read(0, 9, 2, 1)]),
        ([Create(0, 9, 1), Create(0, 9, 2)], [Read(1, 2, 2, NEVER), Read(3, 4, NOTHING, 1)]),
    ],
    ids=[
        "an acknowledged animal is missed", "a read goes back", "a read goes back on what was never acknowledged",
        "an animal is seen before it was sent", "ids shrink with time", "an id is given twice", "a gap",
        "a read goes back on an older animal",
    ],
)  # fmt: skip
def test_a_planted_violation_is_found(creates: list[Create], reads: list[Read]) -> None:
    assert violations(creates, reads) != []


def test_a_page_misses_the_first_that_it_does_not_show() -> None:
    assert read_of(0, 1, [4, 5], [4, 5, 6, 7], "list")[2:4] == (5, 6)
    assert read_of(0, 1, [], [], "list")[2:4] == (NOTHING, NEVER)


def test_the_checker_agrees_with_trying_all_orders() -> None:
    dice = random.Random(4)
    verdicts = []
    for _ in range(1_500):
        creates = [Create(*_interval(dice), pet_id) for pet_id in range(1, dice.randint(2, 4))]
        reads = []
        for _ in range(dice.randint(1, 3)):
            seen = dice.randint(0, len(creates))
            shown = list(range(1, seen + 1))
            reads.append(read_of(*_interval(dice), shown, [create.pet_id for create in creates], "read"))
        verdicts.append(violations(creates, reads) == [])
        assert verdicts[-1] == _some_order_explains(creates, reads), (creates, reads)
    assert 300 < sum(verdicts) < 1_200


def _interval(dice: random.Random) -> tuple[float, float]:
    start = dice.random()
    return start, start + dice.random() / 2


def _some_order_explains(creates: list[Create], reads: list[Read]) -> bool:
    """Returns whether some order respects the times and the ids, and explains what every read saw."""
    steps: list[Create | Read] = [*creates, *reads]
    for order in itertools.permutations(steps):
        in_time = all(a.invoked <= b.responded for a, b in itertools.combinations(order, 2))
        added: list[int] = []
        for step in order:
            if isinstance(step, Create):
                in_time = in_time and (not added or added[-1] < step.pet_id)
                added.append(step.pet_id)
            elif (step.saw != NOTHING and step.saw not in added) or step.missed in added:
                in_time = False
        if in_time:
            return True
    return False
