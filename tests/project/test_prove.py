"""Runs every proof of `make prove` in its short form, and again with a planted fault that it must find."""

import contextlib
from pathlib import Path

import pytest

from harness.claims import Broken, hold
from harness.servers import Server, started
from prove.__main__ import run
from prove.cases import all_cases
from prove.load import Answer
from prove.obeyed import Removal
from prove.proof import PROOFS, SHORT, Parts
from prove.soak import Watch


@pytest.mark.proof
@pytest.mark.parametrize("name", PROOFS)
def test_the_proof_holds(name: str) -> None:
    outcome, figures = run(name, SHORT)
    if outcome == "SKIPPED":
        pytest.skip(str(figures["because"]))
    assert outcome == "ok", figures["because"]


@pytest.mark.proof
@pytest.mark.parametrize("name", PROOFS)
def test_the_proof_finds_a_planted_fault(name: str) -> None:
    outcome, figures = run(name, SHORT._replace(plant=True))
    if outcome == "SKIPPED":
        pytest.skip(str(figures["because"]))
    assert outcome == "FAILED"
    assert "the proof itself failed" not in str(figures["because"])


@pytest.mark.parametrize(
    ("gone", "seen", "claim"),
    [
        ({1}, [2, 3, 4, 5, 6], ""),
        ({1}, [2, 4, 6], ""),
        (set(), [1, 2, 3, 5, 6], "missed"),
        (set(), [2, 4, 4, 6], "twice"),
        (set(), [4, 2, 6], "out of order"),
        ({1}, [1, 2, 4, 6], "removed before"),
        (set(), [2, 4, 6, 7], "does not exist"),
    ],
)
def test_a_traversal_during_removals_is_judged(gone: set[int], seen: list[int], claim: str) -> None:
    removal = Removal(1, 6)  # 1, 3 and 5 are removed
    with pytest.raises(Broken, match=claim) if claim else contextlib.nullcontext():
        removal.judge(gone, seen)


@pytest.mark.parametrize(
    ("plant", "holds", "fails"),
    [
        (False, [True, True], False),
        (False, [True, False], True),
        (True, [False, False], True),
        (True, [True, False], False),
    ],
)
def test_a_planted_fault_must_be_found_in_every_part(plant: bool, holds: list[bool], fails: bool) -> None:
    parts = Parts(SHORT._replace(plant=plant))
    for each in holds:
        with parts.part():
            hold(each, "a claim")
    with pytest.raises(Broken, match="a claim") if fails else contextlib.nullcontext():
        parts.judge()


def test_every_proof_and_every_deviation_is_documented() -> None:
    document = (Path(__file__).parents[2] / "prove/README.md").read_text()
    assert [name for name in PROOFS if f"| [{name}]" not in document] == []
    assert [case.rule for case in all_cases() if case.deviates and case.rule not in document] == []
    assert f"{len(all_cases())} messages" in document


def test_the_table_has_no_case_twice_and_more_than_a_hundred_on_messages() -> None:
    cases = all_cases()
    assert len({(case.section, case.rule) for case in cases}) == len(cases)
    assert sum(case.section.startswith("9112") for case in cases) > 100


def test_a_write_is_excused_by_the_machine_only_for_the_time_that_the_machine_was_late(tmp_path: Path) -> None:
    with started(Server(tmp_path / "data")) as server:
        watch = Watch(server, every=1.0, plant=False)
    watch.late = [(10.0, 10.2), (10.3, 10.4), (20.0, 21.0)]
    assert watch.seconds_late(Answer(due=10.1, seconds=0.25, status=201)) == pytest.approx(0.15)
    assert watch.seconds_late(Answer(due=9.0, seconds=0.5, status=201)) == 0.0
    assert watch.seconds_late(Answer(due=9.0, seconds=12.0, status=503)) == pytest.approx(1.3)
