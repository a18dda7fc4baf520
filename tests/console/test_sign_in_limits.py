"""The limits for failed sign-ins, with a fake clock."""

from petstore.console.sessions import ENTRIES_PER_MINUTE, FailureThrottle, SignInLimits


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_many_addresses_get_at_most_ten_audit_entries_a_minute() -> None:
    clock = Clock()
    throttle = FailureThrottle(clock)
    recorded = [throttle.add(f"203.0.113.{i}") for i in range(100)]
    assert recorded == [0] * ENTRIES_PER_MINUTE + [None] * 90
    clock.now += 60
    assert throttle.add("203.0.113.1") == 90
    assert throttle.add("203.0.113.1") is None
    assert throttle.take_others() == 1


def test_a_clock_that_is_set_back_does_not_stop_the_records() -> None:
    clock = Clock()
    throttle = FailureThrottle(clock)
    assert throttle.add("203.0.113.1") == 0
    clock.now -= 3600
    assert throttle.add("203.0.113.1") == 0


def test_addresses_of_one_ipv6_network_share_a_counter() -> None:
    limits = SignInLimits(Clock())
    for i in range(10):
        limits.add_failure(f"2001:db8::{i}", "pets_op_abcd")
    assert limits.retry_after("2001:db8::ffff", "pets_op_abcdef") == 60
    assert limits.retry_after("2001:db8:0:1::1", "pets_op_abcdef") == 0
    assert limits.retry_after("2001:db8::ffff", "pets_op_abce") == 0
