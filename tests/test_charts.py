"""Spans, bars, sparklines, spellings, and figures that take their time: the arithmetic, without any store."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from petstore.admin.charts import _bars
from petstore.cli.usage import sparkline
from petstore.console.background import BackgroundValue
from petstore.console.rendering import lasting
from petstore.errors import OperatorError, Unavailable
from petstore.operators import could_be_token, mint_token, new_operator
from petstore.store.schema import spellings
from petstore.usage import SPANS

NOW = 1_800_000_123.9


@pytest.mark.parametrize(("name", "bars", "key_bars"), [("hour", 60, 60), ("day", 96, 24), ("month", 120, 120)])
def test_a_span_ends_with_the_step_that_is_under_way(name: str, bars: int, key_bars: int) -> None:
    for now in (NOW, NOW + 59.9, NOW + 3599, NOW + 86_399, 86_400.0 * 20_000):
        span = SPANS[name]  # type: ignore[index]  # the names are the parameters
        since = span.since(now)
        assert since % span.interval == 0
        assert since + span.length - span.interval <= now < since + span.length
        for seconds, most in ((span.bar, bars), (span.key_bar, key_bars)):
            starts = span.bars(now, seconds)
            assert starts[0] == since and starts[-1] <= now < starts[-1] + seconds
            assert most - span.interval // seconds <= len(starts) <= most


def test_rows_are_put_into_the_bars_they_lie_in() -> None:
    rows = [(0, "ok", 1), (59, "ok", 2), (60, "refused", 4), (119, "ok", 8), (120, "ok", 16), (-1, "ok", 32)]
    bars = _bars(rows, [0, 60], 60)  # type: ignore[arg-type]  # the answers are spelled right
    assert bars.answers["ok"] == [3, 8]
    assert bars.answers["refused"] == [0, 4]
    assert bars.totals() == [3, 12]
    assert (bars.sum_of(), bars.sum_of("ok"), bars.sum_of("refused", "banned")) == (15, 11, 4)


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
def test_a_text_is_looked_for_in_all_its_spellings(text: str, found: list[str]) -> None:
    assert spellings(text) == found


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (61, "1 min"),
        (3600, "1 h"),
        (3661, "1 h 1 min"),
        (86_400, "1 d"),
        (90_000, "1 d 1 h"),
    ],
)
def test_a_time_to_go_is_told_in_two_units(seconds: float, words: str) -> None:
    assert lasting(seconds) == words


def test_an_operator_s_token_has_the_form_of_a_key() -> None:
    token = mint_token()
    assert token.startswith("pets_op_") and len(token) == len("pets_op_") + 36
    assert could_be_token(token)
    assert not could_be_token(token[:-1] + ("x" if token[-1] != "x" else "y"))


@pytest.mark.parametrize("name", ["", " ada", "ada ", "a\nb", "a\x07", "x" * 65, "\u202eada", "a\u200bb"])
def test_a_name_that_would_not_read_well_in_a_log_is_refused(name: str) -> None:
    with pytest.raises(OperatorError):
        new_operator(name, 0)
    assert new_operator("Ada Lovelace, Zoë & Ко", 0).name == "Ada Lovelace, Zoë & Ко"


class Slow:
    """Something to reckon that waits until it is let go."""

    def __init__(self) -> None:
        self.times = 0
        self.go = asyncio.Event()
        self.fails = False

    async def __call__(self) -> int:
        self.times += 1
        await self.go.wait()
        if self.fails:
            raise Unavailable("away")
        return self.times


def reckoned(work: Callable[[Slow, BackgroundValue[int]], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("petstore.console.background.PATIENCE", 0.01)

    async def inside() -> None:
        slow = Slow()
        await work(slow, BackgroundValue(slow))

    asyncio.run(inside())


def test_nobody_waits_long_for_a_figure_and_it_is_reckoned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(slow: Slow, reckoning: BackgroundValue[int]) -> None:
        assert await asyncio.gather(*(reckoning.latest() for _ in range(5))) == [None] * 5
        slow.go.set()
        known = await reckoning.latest()
        assert known is not None and known.value == 1
        for _ in range(5):
            known = await reckoning.latest()
        assert slow.times == 1

    reckoned(work, monkeypatch)


def test_what_was_changed_here_is_reckoned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(slow: Slow, reckoning: BackgroundValue[int]) -> None:
        slow.go.set()
        await reckoning.latest()
        reckoning.outdated()
        known = await reckoning.latest()
        assert known is not None and known.value == 2

    reckoned(work, monkeypatch)


def test_a_figure_that_cannot_be_reckoned_stays_the_last_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(slow: Slow, reckoning: BackgroundValue[int]) -> None:
        slow.go.set()
        await reckoning.latest()
        slow.fails = True
        reckoning.outdated()
        known = await reckoning.latest()
        assert known is not None and known.value == 1

    reckoned(work, monkeypatch)
