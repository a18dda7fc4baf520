"""Temporary bans: what leads to one, how long it lasts, what it does not affect, and how an operator lifts it."""

import math
import subprocess
import time
from collections.abc import Callable

import pytest

from harness.commands import Commands
from harness.servers import Key, Server
from harness.wire import Response, asking
from petstore.plans import Limits

Start = Callable[..., Server]

DAY = 86_400
ATTEMPTS = 5


def ask(server: Server, key: Key, times: int = 1) -> list[Response]:
    return asking(server.port, times, key.headers)


def outcomes(responses: list[Response]) -> list[str]:
    return [response.code or str(response.status) for response in responses]


def ban(server: Server, key: Key) -> Response:
    """Sends requests until the key is banned. Returns the last response."""
    last = ask(server, key, 2 * key.record.per_minute + 1)[-1]
    assert last.code == "key_banned"
    return last


def length(banned: Response) -> int:
    return int(banned.headers["retry-after"])


def bans_in_force(server: Server) -> dict[str, dict[str, float]]:
    return {entry.pop("key_id"): entry for entry in Commands(server).json("bans", "list")}


def lift(server: Server, key: Key) -> subprocess.CompletedProcess[str]:
    return Commands(server).run("bans", "lift", key.id)


def test_more_strikes_in_a_row_than_the_limit_per_minute_ban(timed: Server) -> None:
    key = timed.key(limits=Limits(3, 1000))
    assert outcomes(ask(timed, key, 8)) == ["200"] * 3 + ["rate_limit_exceeded"] * 3 + ["key_banned"] * 2


def test_an_admitted_request_clears_the_strikes(timed: Server) -> None:
    key = timed.key(limits=Limits(2, 1000))
    for minute in range(4):
        timed.move_clock(61 * minute)
        assert outcomes(ask(timed, key, 4)) == ["200"] * 2 + ["rate_limit_exceeded"] * 2


def test_strikes_against_an_exhausted_day_ban_too(timed: Server) -> None:
    key = timed.key(limits=Limits(3, 1))
    assert outcomes(ask(timed, key)) == ["200"]
    for minute in (2, 4, 6):  # refused once in each of three minutes
        timed.move_clock(61 * minute)
        assert outcomes(ask(timed, key)) == ["rate_limit_exceeded"]
    timed.move_clock(61 * 8)
    assert outcomes(ask(timed, key, 2)) == ["key_banned"] * 2


def test_banned_answer_names_the_end_of_the_day_when_that_is_later(timed: Server) -> None:
    key = timed.key(limits=Limits(3, 2))
    before = time.time()
    ask(timed, key, 2)
    day_ends = math.ceil(before + DAY)
    banned = ask(timed, key, 4)[-1]
    assert banned.code == "key_banned"
    assert day_ends <= int(banned.headers["x-ratelimit-reset"]) <= math.ceil(time.time() + DAY)
    assert (banned.headers["x-ratelimit-limit"], banned.remaining) == ("2", 0)
    assert DAY - 10 < length(banned) <= DAY
    timed.move_clock(DAY - 30)  # the ban ended long ago, but the day has not
    assert outcomes(ask(timed, key)) == ["rate_limit_exceeded"]


def test_banned_answer_names_the_end_of_the_minute_when_that_is_later(start: Start) -> None:
    own = start("--ban-seconds", "1", "--ban-strikes", "1")
    key = own.key(limits=Limits(2, 1000))
    banned = ask(own, key, 4)[-1]
    assert banned.code == "key_banned"
    assert 50 < length(banned) <= 60
    own.move_clock(length(banned))
    assert outcomes(ask(own, key)) == ["200"]


@pytest.mark.parametrize("limits", [Limits(1, 1000), Limits(2, 3), Limits(3, 1)], ids=["minute", "both", "day"])
def test_retry_after_is_true_for_every_429(timed: Server, limits: Limits) -> None:
    """A client that waits for Retry-After is admitted, whether it exceeded a limit, was banned, or both."""
    key = timed.key(limits=limits)
    clock, codes = 0, set()
    for refusals in (0, 1, 2, 5, 3, 8, 4):
        while (response := ask(timed, key)[0]).status == 200:
            pass
        if refusals:
            response = ask(timed, key, refusals)[-1]
        assert response.status == 429
        codes.add(response.code)
        clock += length(response)
        timed.move_clock(clock)
        assert outcomes(ask(timed, key)) == ["200"]
    assert codes == {"rate_limit_exceeded", "key_banned"}


def test_banned_answer_names_the_end_of_the_ban(timed: Server) -> None:
    key = timed.key(limits=Limits(2, 1000))
    before = time.time()
    banned = ban(timed, key)
    assert banned.status == 429
    assert length(banned) == 60
    assert math.ceil(before + 60) <= int(banned.headers["x-ratelimit-reset"]) <= math.ceil(time.time() + 60)
    assert (banned.headers["x-ratelimit-limit"], banned.remaining) == ("2", 0)


def test_ban_ends_exactly_when_retry_after_says(timed: Server) -> None:
    for _ in range(ATTEMPTS):
        timed.move_clock(0)
        key = timed.key(limits=Limits(2, 1000))
        began = time.monotonic()
        wait = length(ban(timed, key))
        timed.move_clock(wait - 1)
        early = ask(timed, key)
        if time.monotonic() - began < 0.9:  # otherwise the machine stalled and the second has passed
            break
    assert outcomes(early) == ["key_banned"]
    timed.move_clock(wait)
    assert outcomes(ask(timed, key)) == ["200"]


def test_requests_during_a_ban_do_not_extend_it(timed: Server) -> None:
    key = timed.key(limits=Limits(2, 1000))
    reset = ban(timed, key).headers["x-ratelimit-reset"]
    timed.move_clock(30)
    during = ask(timed, key, 20)
    assert {response.headers["x-ratelimit-reset"] for response in during} == {reset}
    assert max(length(response) for response in during) <= 30


def test_banned_requests_consume_nothing(timed: Server) -> None:
    key = timed.key(limits=Limits(2, 4))
    ban(timed, key)
    assert set(outcomes(ask(timed, key, 10))) == {"key_banned"}
    timed.move_clock(61)
    after = ask(timed, key, 2)
    assert [(r.status, r.headers["x-ratelimit-limit"], r.remaining) for r in after] == [(200, "4", 1), (200, "4", 0)]


def test_bans_double_up_to_an_hour(timed: Server) -> None:
    key = timed.key(limits=Limits(1, 1000))
    clock, lengths = 0, []
    for _ in range(8):
        lengths.append(length(ban(timed, key)))
        clock += lengths[-1] + 1
        timed.move_clock(clock)
    assert lengths == [60, 120, 240, 480, 960, 1920, 3600, 3600]


@pytest.mark.parametrize(("later", "expected"), [(DAY - 30, 120), (DAY + 1, 60)], ids=["within 24 h", "after 24 h"])
def test_earlier_bans_are_forgotten_after_24_hours(timed: Server, later: int, expected: int) -> None:
    key = timed.key(limits=Limits(1, 1000))
    assert length(ban(timed, key)) == 60
    timed.move_clock(later)
    assert length(ban(timed, key)) == expected


def test_ban_never_touches_another_key(timed: Server) -> None:
    banned, other = timed.key(limits=Limits(2, 1000)), timed.key(limits=Limits(2, 1000))
    ban(timed, banned)
    assert outcomes(ask(timed, other, 3)) == ["200", "200", "rate_limit_exceeded"]


@pytest.mark.parametrize("stop", [Server.stop, Server.kill], ids=["restart", "kill -9"])
def test_ban_survives(timed: Server, stop: Callable[[Server], object]) -> None:
    key = timed.key(limits=Limits(2, 1000))
    reset = ban(timed, key).headers["x-ratelimit-reset"]
    stop(timed)
    timed.start()
    (after,) = ask(timed, key)
    assert (after.code, after.headers["x-ratelimit-reset"]) == ("key_banned", reset)


@pytest.mark.parametrize("limits", [Limits(2, 1000), Limits(2, 4)], ids=["minute", "minute and day"])
@pytest.mark.parametrize("window", [60, DAY], ids=["over the end of a minute", "over the end of a day"])
def test_ban_outlasts_a_clock_that_steps_back(timed: Server, limits: Limits, window: int) -> None:
    """The key is banned in the first seconds of a window, and then the clock steps back into the previous window."""
    key = timed.key(limits=limits)
    assert outcomes(ask(timed, key)) == ["200"]
    timed.move_clock(window + 1)  # the window of the first request has ended
    reset = ban(timed, key).headers["x-ratelimit-reset"]
    timed.move_clock(window - 10)
    during = ask(timed, key, 5)
    assert set(outcomes(during)) == {"key_banned"}
    assert {response.headers["x-ratelimit-reset"] for response in during} == {reset}
    assert {response.remaining for response in during} == {0}
    assert 60 < length(during[-1]) <= 71
    timed.move_clock(window - 10 + length(during[-1]))
    assert outcomes(ask(timed, key)) == ["200"]


def test_operator_lists_the_bans_in_force(timed: Server) -> None:
    banned, other = timed.key(limits=Limits(2, 1000)), timed.key(limits=Limits(2, 1000))
    reset = int(ban(timed, banned).headers["x-ratelimit-reset"])
    assert outcomes(ask(timed, other, 3))[-1] == "rate_limit_exceeded"
    found = bans_in_force(timed)
    assert other.id not in found
    assert math.ceil(found[banned.id]["until"]) == reset
    assert found[banned.id]["times"] == 1


def test_a_lifted_key_is_admitted_from_the_next_request_on(timed: Server) -> None:
    key = timed.key(limits=Limits(2, 1000))
    ban(timed, key)
    timed.move_clock(30)
    assert outcomes(ask(timed, key)) == ["key_banned"]
    assert lift(timed, key).returncode == 0
    assert outcomes(ask(timed, key)) == ["rate_limit_exceeded"]  # the minute's limit is still used up
    assert key.id not in bans_in_force(timed)
    timed.move_clock(61)
    assert outcomes(ask(timed, key)) == ["200"]


def test_lifting_forgets_earlier_bans(timed: Server) -> None:
    key = timed.key(limits=Limits(1, 1000))
    ban(timed, key)
    assert lift(timed, key).returncode == 0
    timed.move_clock(61)
    assert length(ban(timed, key)) == 60


def test_lifting_touches_no_other_ban(timed: Server) -> None:
    lifted, other = timed.key(limits=Limits(1, 1000)), timed.key(limits=Limits(1, 1000))
    ban(timed, lifted)
    ban(timed, other)
    assert lift(timed, lifted).returncode == 0
    assert outcomes(ask(timed, other)) == ["key_banned"]


def test_lifting_what_is_not_banned_fails_in_one_line(timed: Server) -> None:
    done = lift(timed, timed.key())
    assert done.returncode == 2
    assert done.stderr.startswith("petstore: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.on("sqlite-lmdb")
def test_length_and_ceiling_are_settings(start: Start) -> None:
    own = start("--ban-seconds", "70", "--ban-ceiling", "200")
    key = own.key(limits=Limits(1, 1000))
    clock, lengths = 0, []
    for _ in range(4):
        lengths.append(length(ban(own, key)))
        clock += lengths[-1] + 1
        own.move_clock(clock)
    assert lengths == [70, 140, 200, 200]


def test_threshold_is_a_setting(start: Start) -> None:
    own = start("--ban-strikes", "1")
    key = own.key(limits=Limits(3, 1000))
    assert outcomes(ask(own, key, 5)) == ["200"] * 3 + ["rate_limit_exceeded", "key_banned"]
