"""Spans, bars, sparklines, wording and operator names, without a store."""

import re

import pytest

from petstore.cli.usage import sparkline
from petstore.errors import OperatorError
from petstore.operators import could_be_token, mint_token, new_operator
from petstore.reports.charts import bars_of
from petstore.store.schema import spellings
from petstore.usage import SPANS, Measure

NOW = 1_800_000_123.9


@pytest.mark.parametrize(
    ("name", "bars", "key_bars"), [("hour", 60, 60), ("day", 96, 24), ("week", 168, 168), ("month", 120, 120)]
)
def test_a_span_ends_with_the_current_interval(name: str, bars: int, key_bars: int) -> None:
    for now in (NOW, NOW + 59.9, NOW + 3599, NOW + 86_399, 86_400.0 * 20_000):
        span = SPANS[name]  # type: ignore[index]  # the parameters are names of spans
        since = span.since(now)
        assert since % span.interval == 0
        assert since + span.length - span.interval <= now < since + span.length
        for seconds, most in ((span.bar, bars), (span.key_bar, key_bars)):
            starts = span.bars(now, seconds)
            assert starts[0] == since and starts[-1] <= now < starts[-1] + seconds
            assert most - span.interval // seconds <= len(starts) <= most


def test_rows_are_added_to_the_bar_that_contains_their_start() -> None:
    rows: list[tuple[int, Measure, int]] = [
        (0, "admitted", 1), (59, "admitted", 2), (60, "refused", 4), (119, "admitted", 8), (120, "admitted", 16),
        (-1, "admitted", 32),
    ]  # fmt: skip
    bars = bars_of(rows, [0, 60], 60)
    assert bars.requests["ok"] == [3, 8]
    assert bars.requests["refused"] == [0, 4]
    assert bars.totals() == [3, 12]
    assert (bars.sum_of(), bars.sum_of("ok"), bars.sum_of("refused", "banned")) == (15, 11, 4)


def test_an_error_in_a_later_bar_than_its_admission_makes_no_bar_negative() -> None:
    rows: list[tuple[int, Measure, int]] = [(0, "admitted", 5), (60, "client_error", 2), (61, "server_error", 1)]
    bars = bars_of(rows, [0, 60], 60)
    assert bars.requests["ok"] == [5, 0]
    assert (bars.requests["client_error"], bars.requests["server_error"]) == ([0, 2], [0, 1])
    assert bars.admitted == [5, 0]
    # The sums include all bars, and no request is counted twice.
    assert (bars.sum_of("ok"), bars.sum_of()) == (2, 5)


def test_errors_without_a_valid_key_do_not_reduce_the_requests_of_keys_that_are_ok() -> None:
    rows: list[tuple[int, Measure, int]] = [
        (0, "admitted", 4), (0, "client_error", 1), (0, "anonymous_ok", 10), (0, "anonymous_client_error", 20),
        (0, "anonymous_server_error", 30), (0, "anonymous_refused", 40), (0, "unauthorized", 50), (0, "banned", 60),
    ]  # fmt: skip
    assert bars_of(rows, [0], 60).sums == {
        "ok": 13, "client_error": 21, "unauthorized": 50, "refused": 40, "banned": 60, "server_error": 30
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([0, 0], "··"),
        ([1, 1], "██"),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8], "·▁▂▃▄▅▆▇█"),
        ([1, 10**12], "▁█"),
        ([1], "█"),
        ([1] * 60, "█" * 30),
        ([0] * 116 + [1, 1, 1, 1], "·" * 29 + "█"),
    ],
)
def test_a_sparkline_is_as_high_as_its_values(values: list[int], line: str) -> None:
    assert sparkline(values) == line


@pytest.mark.parametrize(
    ("text", "found"),
    [("Rex", ["rex"]), ("ä", ["Ä", "ä"]), ("", []), ("a\x00", []), ("\ud800", []), ("%_", ["%_"])],
)
def test_a_search_covers_all_spellings_of_a_text(text: str, found: list[str]) -> None:
    assert spellings(text) == found


def test_an_operator_s_token_has_the_form_of_a_key() -> None:
    token = mint_token()
    assert token.startswith("pets_op_") and len(token) == len("pets_op_") + 36
    assert could_be_token(token)
    assert not could_be_token(token[:-1] + ("x" if token[-1] != "x" else "y"))


@pytest.mark.parametrize("name", ["", " ada", "ada ", "a\nb", "a\x07", "x" * 65, "\u202eada", "a\u200bb"])
def test_an_operator_name_with_invisible_characters_is_refused(name: str) -> None:
    with pytest.raises(OperatorError):
        new_operator(name, 0)
    assert new_operator("Ada Lovelace, Zoë & Ко", 0).name == "Ada Lovelace, Zoë & Ко"


@pytest.mark.parametrize("name", [
    "console", "Console", "anonymous", "ANONYMOUS", "petstore serve --demo", "root (command line)", "A (Command line)",
])  # fmt: skip
def test_an_operator_cannot_have_the_name_of_another_actor(name: str) -> None:
    with pytest.raises(OperatorError, match=re.escape(f'the name "{name}" is reserved')):
        new_operator(name, 0)


def test_names_that_only_contain_a_reserved_name_are_allowed() -> None:
    for name in ("console 2", "anonymous ada", "(command line)", "ada (command line) 2"):
        assert new_operator(name, 0).name == name
