"""What every gate decides when the clock steps back, with and without a ban, and when a key's limits change."""

import math

import pytest

from harness.gates import NOW, ask
from harness.stores import GatePlace
from petstore.gate import Gate, bans_in_force
from petstore.plans import Limits
from petstore.rate_limits import ADMITTED, BANNED, DAY, LIMITED, MINUTE, SECOND, Decision

DAY_SECONDS = DAY // SECOND
FEW = Limits(3, 100)  # the fourth refusal in a row triggers a one-minute ban
FEW_A_DAY = Limits(3, 6)


async def ask_times(gate: Gate, count: int, limits: Limits, now: float) -> list[Decision]:
    return [await ask(gate, "key_a", limits, now) for _ in range(count)]


async def ban(gate: Gate, limits: Limits, now: float) -> Decision:
    """Uses up the minute's limit and then gets the key banned."""
    decisions = await ask_times(gate, 7, limits, now)
    assert [each.outcome for each in decisions] == [ADMITTED] * 3 + [LIMITED] * 3 + [BANNED]
    return decisions[-1]


async def check_wait(gate: Gate, limits: Limits, now: float, wait: int) -> None:
    """Asserts that the key is admitted once the `Retry-After` time has passed, but not a second earlier."""
    retry_after = math.ceil(wait / SECOND)
    assert (await ask(gate, "key_a", limits, now + retry_after - 1)).outcome is not ADMITTED
    assert (await ask(gate, "key_a", limits, now + retry_after)).outcome is ADMITTED


# The clock steps back


@pytest.mark.parametrize("back", [1, 30, 59])
def test_a_clock_that_steps_back_over_the_end_of_a_minute_opens_no_second_window(gate_at: GatePlace, back: int) -> None:
    async def work(gate: Gate) -> None:
        await ask_times(gate, 3, FEW, NOW)
        second = NOW + MINUTE / SECOND  # the start of the next window
        assert [each.outcome for each in await ask_times(gate, 4, FEW, second)] == [ADMITTED] * 3 + [LIMITED]
        refused = await ask(gate, "key_a", FEW, second - back)
        assert (refused.outcome, refused.wait) == (LIMITED, MINUTE + back * SECOND)
        await check_wait(gate, FEW, second - back, refused.wait)

    gate_at.use(work)


@pytest.mark.parametrize("back", [1, 3_600, DAY_SECONDS - 1])
def test_a_clock_that_steps_back_over_the_end_of_a_day_opens_no_second_day(gate_at: GatePlace, back: int) -> None:
    limits = Limits(100, 3)

    async def work(gate: Gate) -> None:
        await ask_times(gate, 3, limits, NOW)
        second = NOW + DAY_SECONDS
        assert [each.outcome for each in await ask_times(gate, 4, limits, second)] == [ADMITTED] * 3 + [LIMITED]
        refused = await ask(gate, "key_a", limits, second - back)
        assert (refused.outcome, refused.window, refused.wait) == (LIMITED, "day", DAY + back * SECOND)
        await check_wait(gate, limits, second - back, refused.wait)

    gate_at.use(work)


@pytest.mark.parametrize("back", [1, 60, 61, 3_600, DAY_SECONDS])
def test_a_ban_stays_in_force_when_the_clock_steps_back_by_up_to_a_day(gate_at: GatePlace, back: int) -> None:
    """After a step of a window's length or more, the gate ignores that window, but not the ban."""

    async def work(gate: Gate) -> None:
        banned = await ban(gate, FEW_A_DAY, NOW)
        again = await ask(gate, "key_a", FEW_A_DAY, NOW - back)
        assert (again.outcome, again.reset, again.wait) == (BANNED, banned.reset, banned.wait + back * SECOND)
        assert [each.until for each in await bans_in_force(gate, NOW - back)] == [NOW + 60]
        await check_wait(gate, FEW_A_DAY, NOW - back, again.wait)

    gate_at.use(work)


def test_a_ban_at_the_end_of_the_day_waits_for_the_day_too(gate_at: GatePlace) -> None:
    """The ban also stays in force if the clock steps back over the end of that day."""

    async def work(gate: Gate) -> None:
        await ask_times(gate, 3, FEW_A_DAY, NOW)
        late = NOW + DAY_SECONDS - 10
        banned = await ban(gate, FEW_A_DAY, late)  # the day's limit is used up too, and the ban outlasts the day
        assert banned.reset == int((late + 60) * SECOND)
        after = late + 61  # the next day, after the ban
        assert [each.outcome for each in await ask_times(gate, 4, FEW_A_DAY, after)] == [ADMITTED] * 3 + [LIMITED]
        again = await ask(gate, "key_a", FEW_A_DAY, late - 1)  # the ban is in force again
        assert again.outcome is BANNED
        await check_wait(gate, FEW_A_DAY, late - 1, again.wait)

    gate_at.use(work)


def test_a_clock_that_steps_back_by_more_than_a_day_ends_the_ban(gate_at: GatePlace) -> None:
    """Otherwise, a key that was banned while the clock was years ahead would stay banned for years."""

    async def work(gate: Gate) -> None:
        await ban(gate, FEW, NOW)
        before = NOW - DAY_SECONDS - 1
        assert await bans_in_force(gate, before) == []
        decisions = await ask_times(gate, 4, FEW, before)
        assert [each.outcome for each in decisions] == [ADMITTED] * 3 + [LIMITED]

    gate_at.use(work)


# A plan that changes within a window


def test_a_larger_plan_continues_the_open_windows(gate_at: GatePlace) -> None:
    async def work(gate: Gate) -> None:
        assert (await ask_times(gate, 4, Limits(3, 10), NOW))[-1].outcome is LIMITED
        decisions = await ask_times(gate, 3, Limits(5, 20), NOW + 1)
        assert [each.outcome for each in decisions] == [ADMITTED, ADMITTED, LIMITED]
        assert [each.remaining for each in decisions] == [1, 0, 0]
        assert decisions[-1].reset == int((NOW + 60) * SECOND)
        await check_wait(gate, Limits(5, 20), NOW + 1, decisions[-1].wait)

    gate_at.use(work)


def test_a_smaller_plan_counts_what_was_used_before(gate_at: GatePlace) -> None:
    async def work(gate: Gate) -> None:
        await ask_times(gate, 8, Limits(10, 100), NOW)
        refused = await ask(gate, "key_a", Limits(3, 5), NOW + 1)  # both limits are already exceeded
        assert (refused.outcome, refused.window, refused.limit, refused.remaining) == (LIMITED, "day", 5, 0)
        assert refused.reset == int((NOW + DAY_SECONDS) * SECOND)
        assert (await ask(gate, "key_a", Limits(10, 100), NOW + 2)).remaining == 1  # the refusal consumed nothing
        await check_wait(gate, Limits(3, 5), NOW + 1, refused.wait)

    gate_at.use(work)


def test_strikes_are_counted_against_the_limit_of_the_new_plan(gate_at: GatePlace) -> None:
    async def work(gate: Gate) -> None:
        await ask_times(gate, 10, Limits(5, 100), NOW)  # five strikes; the next one triggers a ban
        decisions = await ask_times(gate, 2, Limits(3, 100), NOW)
        assert [each.outcome for each in decisions] == [BANNED, BANNED]

    gate_at.use(work)


def test_a_ban_outlasts_a_change_of_the_plan(gate_at: GatePlace) -> None:
    async def work(gate: Gate) -> None:
        await ban(gate, FEW, NOW)
        larger = Limits(1_000, 100_000)
        refused = await ask(gate, "key_a", larger, NOW + 1)
        assert (refused.outcome, refused.limit, refused.wait) == (BANNED, 1_000, 59 * SECOND)
        await check_wait(gate, larger, NOW + 1, refused.wait)

    gate_at.use(work)
