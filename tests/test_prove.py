"""Every proof of `make prove` in its short form, and every proof once more with a fault that it must find."""

import pytest

from prove.__main__ import run
from prove.proof import PROOFS, SHORT


@pytest.mark.parametrize("name", PROOFS)
def test_the_proof_holds(name: str) -> None:
    outcome, figures = run(name, SHORT)
    if outcome == "SKIPPED":
        pytest.skip(str(figures["because"]))
    assert outcome == "ok", figures["because"]


@pytest.mark.parametrize("name", PROOFS)
def test_the_proof_finds_a_planted_fault(name: str) -> None:
    outcome, figures = run(name, SHORT._replace(plant=True))
    if outcome == "SKIPPED":
        pytest.skip(str(figures["because"]))
    assert outcome == "FAILED"
    assert "could not be tried" not in str(figures["because"])
