"""Simulated pools of any size on random networks: no ban, no early request, and every call ends."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from petstore_client import RateLimited, TimedOut
from petstore_client._operations import PERMIT_TIMEOUT, Options
from simulation import Model, Pool, Trip

LONG_WAITS = Options(max_retries=1, max_wait=1e6)


@settings(deadline=None, max_examples=30)
@given(
    workers=st.integers(1, 150), calls=st.integers(1, 4), limit=st.integers(1, 60), seed=st.integers(0, 2**32),
    slowest=st.sampled_from([0.0, 0.01, 0.4]),
)  # fmt: skip
def test_a_pool_is_refused_at_most_once_in_each_window(
    workers: int, calls: int, limit: int, seed: int, slowest: float
) -> None:
    rng = random.Random(seed)
    model = Model(limit)
    pool = Pool(model, LONG_WAITS, lambda: Trip(rng.uniform(0, slowest), rng.uniform(0, slowest)), seed)
    pool.run(workers, calls)
    assert pool.failed == []
    assert len(model.created) == workers * calls
    assert model.bans == 0
    assert max(model.refusals.values(), default=0) <= 1
    assert pool.sent_too_early() == []


@settings(deadline=None, max_examples=15)
@given(
    workers=st.integers(1, 100), limit=st.integers(10, 300), seed=st.integers(0, 2**32),
    slowest=st.sampled_from([0.4, 5.0, 15.0]), loss=st.sampled_from([0.0, 0.2]),
)  # fmt: skip
def test_a_pool_is_not_banned_on_a_slow_network_that_loses_requests_and_responses(
    workers: int, limit: int, seed: int, slowest: float, loss: float
) -> None:
    rng = random.Random(seed)

    def trip() -> Trip:
        lost = rng.choice(["out", "back"]) if rng.random() < loss else ""
        return Trip(rng.uniform(0, slowest), rng.uniform(0, slowest), lost)

    model = Model(limit)
    pool = Pool(model, Options(max_retries=50, max_wait=1e6), trip, seed)
    pool.run(workers, 2)
    assert {type(raised) for raised in pool.failed} <= {TimedOut}, "on the slowest networks a call may get no permit"
    assert len(model.created) >= workers * 2 - len(pool.failed)
    assert model.bans == 0
    assert pool.sent_too_early() == []


@settings(deadline=None, max_examples=30)
@given(
    workers=st.integers(1, 100), limit=st.integers(6, 60), per_day=st.integers(1, 100), seed=st.integers(0, 2**32),
    slowest=st.sampled_from([0.01, 0.4, 5.0, 15.0]),
)  # fmt: skip
def test_a_pool_is_not_banned_when_its_day_is_used_up(
    workers: int, limit: int, per_day: int, seed: int, slowest: float
) -> None:
    """Nothing ends the row of refusals then. The lowest limit is six: the first requests start before it is known."""
    rng = random.Random(seed)
    model = Model(limit, per_day)
    pool = Pool(model, Options(max_wait=3600), lambda: Trip(rng.uniform(0, slowest), rng.uniform(0, slowest)), seed)
    pool.run(workers, 3)
    assert {type(raised) for raised in pool.failed} <= {RateLimited, TimedOut}
    assert len(model.created) <= per_day
    assert model.bans == 0
    assert pool.sent_too_early() == []


def test_the_model_bans_workers_that_do_not_share_a_client() -> None:
    model = Model(60)
    for _ in range(200):
        Pool(model, Options(max_retries=0), lambda: Trip(0, 0)).run(workers=1, calls=1)
    assert model.bans > 0


def test_eight_workers_with_a_free_key_succeed_with_the_default_options() -> None:
    model = Model(60)
    pool = Pool(model, Options(), lambda: Trip(0.002, 0.002))
    pool.run(workers=8, calls=25)
    assert pool.failed == []
    assert len(model.created) == 200
    assert sum(model.refusals.values()) == 3, "one refusal at the end of each of the first three windows"


def test_calls_that_would_wait_longer_than_max_wait_raise_rate_limited() -> None:
    model = Model(60)
    pool = Pool(model, Options(), lambda: Trip(0.002, 0.002))
    pool.run(workers=200, calls=1)
    assert {type(raised) for raised in pool.failed} == {RateLimited}
    assert len(model.created) + len(pool.failed) == 200
    assert len(model.created) >= 119
    assert model.bans == 0
    assert pool.longest_call < 3 * 90 + 1, "no call waits longer than max_wait before any of its three attempts"


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 120))
def test_every_call_ends_soon_if_nothing_can_be_connected_to(workers: int) -> None:
    """Each attempt fails after 5 s."""
    pool = Pool(Model(60), Options(), lambda: Trip(5.0, 0.0, "unsent"))
    pool.run(workers, 1)
    assert len(pool.failed) == workers
    assert pool.longest_call < 30


def test_a_call_without_a_permit_times_out_if_the_service_does_not_respond() -> None:
    pool = Pool(Model(60), Options(), lambda: Trip(30.0, 0.0, "out"))
    pool.run(workers=200, calls=1)
    assert any(isinstance(raised, TimedOut) for raised in pool.failed)
    assert len(pool.failed) == 200
    assert pool.longest_call < 3 * (PERMIT_TIMEOUT + 30) + 3
