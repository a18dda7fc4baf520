"""The table of checks: complete, documented, and within the number of requests that the command may send."""

import re

import pytest

from petstore.verify import checks
from petstore.verify.checks import CHECKS, Check
from petstore.verify.runner import LIST_PAGES_MAX, REQUESTS_MAX

PROBES = 6  # three addresses, the limit key, errors on demand, and the write scope


def test_every_check_has_a_unique_name() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names) > 60


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_promise_is_a_sentence_on_one_line(check: Check) -> None:
    assert re.fullmatch(r"[A-Z`][^\n]+[^.\n]\.", check.promise)


def test_every_check_of_a_topic_is_in_the_table() -> None:
    listed = {check.run for check in CHECKS}
    topics = [topic for topic in vars(checks).values() if getattr(topic, "__name__", "").startswith("petstore.verify.")]
    found = {
        each
        for topic in topics
        for each in vars(topic).values()
        if getattr(each, "__annotations__", {}).keys() == {"session", "return"}
        and each.__module__ == topic.__name__
        and "Findings" in str(each.__annotations__["return"])
        and not each.__name__.startswith("_")
    }
    assert found <= listed


def test_three_addresses_stay_within_the_limit_of_the_plan_pro() -> None:
    most = PROBES + 3 * LIST_PAGES_MAX + sum(check.most_requests(3) for check in CHECKS)
    assert most <= 300 < REQUESTS_MAX == 400
