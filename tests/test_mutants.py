"""What mutation testing changes, and what it leaves alone."""

from pathlib import Path

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
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[mutants.Mutant]:
    (tmp_path / "sample.py").write_text(SAMPLE)
    monkeypatch.setattr(mutants, "SOURCE", tmp_path)
    return mutants.mutants_of(tmp_path / "sample.py")


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


def test_a_change_is_known_again_after_its_line_has_moved(found: list[mutants.Mutant], tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text("\n\n" + SAMPLE)
    moved = mutants.mutants_of(tmp_path / "sample.py")
    assert [m.name for m in moved] != [m.name for m in found]
    assert [mutants.change_of(m.name) for m in moved] == [mutants.change_of(m.name) for m in found]


def test_every_suite_has_modules_and_tests() -> None:
    for suite in mutants.SUITES.values():
        assert all(list(mutants.SOURCE.glob(pattern)) for pattern in suite.modules)
        assert all((mutants.ROOT / "tests" / name).exists() for name in suite.tests)
