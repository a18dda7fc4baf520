"""Spans, bars, sparklines, spellings of a search, and background values: the arithmetic, without a store."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from petstore.admin.charts import bars_of
from petstore.cli.usage import sparkline
from petstore.console.background import BackgroundValue
from petstore.console.rendering import lasting
from petstore.errors import OperatorError, Unavailable
from petstore.operators import could_be_token, mint_token, new_operator
from petstore.store.schema import spellings
from petstore.usage import SPANS

NOW = 1_800_000_123.9


@pytest.mark.parametrize(("name", "bars", "key_bars"), [("hour", 60, 60), ("day", 96, 24), ("month", 120, 120)])
def test_a_span_ends_with_the_current_interval(name: str, bars: int, key_bars: int) -> None:
    for now in (NOW, NOW + 59.9, NOW + 3599, NOW + 86_399, 86_400.0 * 20_000):
        span = SPANS[name]  # type: ignore[index]  # the names are the parameters
        since = span.since(now)
        assert since % span.interval == 0
        assert since + span.length - span.interval <= now < since + span.length
        for seconds, most in ((span.bar, bars), (span.key_bar, key_bars)):
            starts = span.bars(now, seconds)
            assert starts[0] == since and starts[-1] <= now < starts[-1] + seconds
            assert most - span.interval // seconds <= len(starts) <= most


def test_rows_are_summed_in_their_bars() -> None:
    rows = [(0, "ok", 1), (59, "ok", 2), (60, "refused", 4), (119, "ok", 8), (120, "ok", 16), (-1, "ok", 32)]
    bars = bars_of(rows, [0, 60], 60)  # type: ignore[arg-type]  # these are response classes
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
def test_a_search_covers_all_spellings_of_a_text(text: str, found: list[str]) -> None:
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
def test_a_remaining_time_has_two_units(seconds: float, words: str) -> None:
    assert lasting(seconds) == words


def test_a_token_of_an_operator_has_a_checksum() -> None:
    token = mint_token()
    assert token.startswith("pets_op_") and len(token) == len("pets_op_") + 36
    assert could_be_token(token)
    assert not could_be_token(token[:-1] + ("x" if token[-1] != "x" else "y"))


@pytest.mark.parametrize("name", ["", " ada", "ada ", "a\nb", "a\x07", "x" * 65, "\u202eada", "a\u200bb"])
def test_an_operator_name_with_invisible_characters_is_refused(name: str) -> None:
    with pytest.raises(OperatorError):
        new_operator(name, 0)
    assert new_operator("Ada Lovelace, Zoë & Ко", 0).name == "Ada Lovelace, Zoë & Ко"


class Slow:
    """A computation that waits for an event."""

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


def with_slow_value(
    work: Callable[[Slow, BackgroundValue[int]], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("petstore.console.background.PATIENCE", 0.01)

    async def inside() -> None:
        slow = Slow()
        await work(slow, BackgroundValue(slow))

    asyncio.run(inside())


def test_a_background_value_is_computed_once_and_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(slow: Slow, value: BackgroundValue[int]) -> None:
        assert await asyncio.gather(*(value.latest() for _ in range(5))) == [None] * 5
        slow.go.set()
        known = await value.latest()
        assert known is not None and known.value == 1
        for _ in range(5):
            known = await value.latest()
        assert slow.times == 1

    with_slow_value(work, monkeypatch)


def test_an_outdated_background_value_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(slow: Slow, value: BackgroundValue[int]) -> None:
        slow.go.set()
        await value.latest()
        value.outdated()
        known = await value.latest()
        assert known is not None and known.value == 2

    with_slow_value(work, monkeypatch)


def test_a_background_value_keeps_the_last_result_on_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(slow: Slow, value: BackgroundValue[int]) -> None:
        slow.go.set()
        await value.latest()
        slow.fails = True
        value.outdated()
        known = await value.latest()
        assert known is not None and known.value == 1

    with_slow_value(work, monkeypatch)
