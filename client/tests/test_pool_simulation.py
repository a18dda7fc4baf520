"""Pools of any size on random networks, simulated: never a ban, never early, and an end to every call."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from petstore_client import RateLimited, TimedOut
from petstore_client._core import LONGEST_HOLD, Rules
from simulation import Model, Pool, Trip

PATIENT = Rules(retries=1, max_wait=1e6)


@settings(deadline=None, max_examples=30)
@given(
    workers=st.integers(1, 150), calls=st.integers(1, 4), limit=st.integers(1, 60), seed=st.integers(0, 2**32),
    slowest=st.sampled_from([0.0, 0.01, 0.4]),
)  # fmt: skip
def test_a_pool_asks_in_vain_at_most_once_a_window_and_is_never_banned(
    workers: int, calls: int, limit: int, seed: int, slowest: float
) -> None:
    chance = random.Random(seed)
    model = Model(limit)
    pool = Pool(model, PATIENT, lambda: Trip(chance.uniform(0, slowest), chance.uniform(0, slowest)))
    pool.run(workers, calls)
    assert pool.failed == []
    assert len(model.created) == workers * calls
    assert model.bans == 0
    assert max(model.strikes.values(), default=0) <= 1
    assert pool.sent_too_early() == []


@settings(deadline=None, max_examples=15)
@given(
    workers=st.integers(1, 100), limit=st.integers(10, 300), seed=st.integers(0, 2**32),
    slowest=st.sampled_from([0.4, 5.0, 15.0]), lossy=st.sampled_from([0.0, 0.2]),
)  # fmt: skip
def test_a_pool_is_never_banned_on_a_slow_network_that_loses_requests_and_answers(
    workers: int, limit: int, seed: int, slowest: float, lossy: float
) -> None:
    chance = random.Random(seed)

    def trip() -> Trip:
        lost = chance.choice(["out", "back"]) if chance.random() < lossy else ""
        return Trip(chance.uniform(0, slowest), chance.uniform(0, slowest), lost)

    model = Model(limit)
    pool = Pool(model, Rules(retries=50, max_wait=1e6), trip)
    pool.run(workers, 2)
    assert {type(raised) for raised in pool.failed} <= {TimedOut}, "on the slowest of them, a call may get no turn"
    assert len(model.created) >= workers * 2 - len(pool.failed)
    assert model.bans == 0
    assert pool.sent_too_early() == []


def test_a_pool_that_ignores_the_pace_would_be_banned() -> None:
    """The model has teeth: the same pool, each worker with a pace of its own."""
    model = Model(60)
    for _ in range(200):
        Pool(model, Rules(retries=0), lambda: Trip(0, 0)).run(workers=1, calls=1)
    assert model.bans > 0


def test_eight_workers_on_a_free_key_need_no_option() -> None:
    model = Model(60)
    pool = Pool(model, Rules(), lambda: Trip(0.002, 0.002))
    pool.run(workers=8, calls=25)
    assert pool.failed == []
    assert len(model.created) == 200
    assert sum(model.strikes.values()) == 3, "one question at the end of each of the first three windows"


def test_a_pool_larger_than_the_limit_raises_for_those_that_would_wait_longer_than_max_wait() -> None:
    model = Model(60)
    pool = Pool(model, Rules(), lambda: Trip(0.002, 0.002))
    pool.run(workers=200, calls=1)
    assert {type(raised) for raised in pool.failed} == {RateLimited}
    assert len(model.created) + len(pool.failed) == 200
    assert len(model.created) >= 119
    assert model.bans == 0
    assert pool.longest_call < 3 * 60 + 1, "nobody was held beyond max_wait, before any of the three tries"


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 120))
def test_when_nothing_answers_a_pool_still_ends_soon(workers: int) -> None:
    """Each try fails after 5 s, as connecting to nowhere does."""
    pool = Pool(Model(60), Rules(), lambda: Trip(5.0, 0.0, "unsent"))
    pool.run(workers, 1)
    assert len(pool.failed) == workers
    assert pool.longest_call < 30


def test_when_the_service_hangs_a_call_that_gets_no_turn_times_out() -> None:
    pool = Pool(Model(60), Rules(), lambda: Trip(30.0, 0.0, "out"))
    pool.run(workers=200, calls=1)
    assert any(isinstance(raised, TimedOut) for raised in pool.failed)
    assert len(pool.failed) == 200
    assert pool.longest_call < 3 * (LONGEST_HOLD + 30) + 3
