"""What mutation testing changes, and what it leaves alone."""

import pytest

from prove import mutants

SAMPLE = '''"""A text with 1 number."""
from typing import Protocol

class Contract(Protocol):
    limit: int = 10

def decide(used: int, more: bool = True) -> str | None:
    step(used + 1)
    if not more or used >= 3:
        return f"{used} of " + "3"
    return None
'''


@pytest.fixture
def found() -> list[mutants.Mutant]:
    return mutants.mutants_of("sample.py", SAMPLE)


def test_each_mutant_is_one_small_change(found: list[mutants.Mutant]) -> None:
    assert {(mutant.before, mutant.after) for mutant in found} == {
        ("True", "False"),
        ("step(used + 1)", "None"),
        ("used + 1", "used - 1"),
        ("1", "2"),
        ("not more or used >= 3", "not more and used >= 3"),
        ("not more", "not not more"),
        ("used >= 3", "used > 3"),
        ("3", "4"),
        ("return f'{used} of ' + '3'", "return None"),
    }


def test_a_mutant_is_the_whole_module_and_can_be_run(found: list[mutants.Mutant]) -> None:
    assert len({mutant.source for mutant in found}) == len(found)
    for mutant in found:
        compile(mutant.source, mutant.module, "exec")


def test_a_change_is_known_again_after_its_line_has_moved(found: list[mutants.Mutant]) -> None:
    moved = mutants.mutants_of("sample.py", "\n\n" + SAMPLE)
    assert [m.name for m in moved] != [m.name for m in found]
    assert [mutants.change_of(m.name) for m in moved] == [mutants.change_of(m.name) for m in found]


def test_what_is_new_is_found_although_lines_have_moved(found: list[mutants.Mutant]) -> None:
    more = SAMPLE.replace("step(used + 1)", "step(used + 1)\n    step(used + 1)\n    step(7)")
    seen, new = mutants.part(mutants.mutants_of("sample.py", more), [mutant.name for mutant in found])
    assert len(seen) == len(found)
    assert sorted(mutant.before for mutant in new) == ["1", "7", "step(7)", "step(used + 1)", "used + 1"]


def test_every_suite_has_modules_and_tests() -> None:
    for suite in mutants.SUITES.values():
        assert all(list(mutants.SOURCE.glob(pattern)) for pattern in suite.modules)
        assert all((mutants.ROOT / "tests" / name).exists() for name in suite.tests)
