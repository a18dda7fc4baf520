"""The contract of the gate, on every backend."""

import asyncio
import itertools
import random

import pytest

from harness.gates import NOW, PLENTY, all_versions, ask
from harness.stores import GatePlace
from petstore.changes import CHANGES
from petstore.errors import Unavailable
from petstore.gate import Gate, GatePolicy, bans_in_force, bucket_of
from petstore.keys import ENVIRONMENTS
from petstore.plans import Limits
from petstore.rate_limits import ADMITTED, BANNED, LIMITED, SECOND, BanPolicy, Decision, Windows
from tests.naive_limits import NaiveLimits, random_limits, random_policy, random_times


def test_limits_hold_and_counters_survive_a_restart(gate_at: GatePlace) -> None:
    async def three(gate: Gate) -> list[Decision]:
        assert not gate.degraded()
        return [await ask(gate, "key_a", Limits(5, 100)) for _ in range(3)]

    first, second = gate_at.use(three), gate_at.use(three)
    assert [d.outcome for d in first + second] == [ADMITTED] * 5 + [LIMITED]
    assert [d.remaining for d in first + second] == [4, 3, 2, 1, 0, 0]


def test_nothing_is_counted_under_an_outdated_version_of_the_keys(gate_at: GatePlace) -> None:
    async def work(gate: Gate) -> None:
        for environment in ENVIRONMENTS:
            version = await gate.keys_version(environment)
            await gate.announce(environment, ["keys"])
            assert await gate.admit(environment, "key_a", Limits(2, 2), version, NOW, "other") is None
        assert (await ask(gate, "key_a", Limits(2, 2))).remaining == 1

    gate_at.use(work)


ANY_CHANGES = [changes for count in range(4) for changes in itertools.combinations(CHANGES, count)]


def test_announced_changes_get_new_versions_and_no_others_do(gate_at: GatePlace) -> None:
    async def work(gate: Gate) -> None:
        before = await all_versions(gate)
        for environment, changes in itertools.product(ENVIRONMENTS, ANY_CHANGES):
            await gate.announce(environment, changes)
            after = await all_versions(gate)
            assert {name for name in after if after[name] != before[name]} == {(environment, each) for each in changes}
            assert all(after[environment, each] > before[environment, each] for each in changes)
            before = after

    gate_at.use(work)


def test_an_address_has_a_window_in_each_environment(gate_at: GatePlace) -> None:
    async def work(gate: Gate) -> None:
        assert (await gate.peek_address("live", "192.0.2.1", NOW)).remaining == 2
        outcomes = [(await gate.admit_address("live", "192.0.2.1", NOW)).outcome for _ in range(3)]
        assert outcomes == [ADMITTED, ADMITTED, LIMITED]
        assert (await gate.peek_address("live", "192.0.2.1", NOW)).remaining == 0
        assert (await gate.admit_address("staging", "192.0.2.1", NOW)).outcome is ADMITTED
        assert (await gate.admit_address("live", "192.0.2.2", NOW)).outcome is ADMITTED
        assert (await gate.admit_address("live", "192.0.2.1", NOW + 60)).outcome is ADMITTED
        # A peek after the end of a window must not open a new one.
        assert (await gate.peek_address("live", "192.0.2.1", NOW + 120)).remaining == 2
        outcomes = [(await gate.admit_address("live", "192.0.2.1", NOW + 120)).outcome for _ in range(3)]
        assert outcomes == [ADMITTED, ADMITTED, LIMITED]

    gate_at.use(work, GatePolicy(address_per_minute=2))


def test_an_ipv6_network_is_one_client() -> None:
    assert bucket_of("2001:db8::1") == bucket_of("2001:db8::ffff:ffff:ffff:ffff")
    assert bucket_of("2001:db8::1") != bucket_of("2001:db8:0:1::1")
    assert bucket_of("::ffff:192.0.2.1") == bucket_of("192.0.2.1") != bucket_of("192.0.2.2")
    assert bucket_of("no address") == bucket_of("") == b"?"


def test_a_key_that_was_marked_valid_is_known_to_all_until_it_is_forgotten(gate_at: GatePlace) -> None:
    one, other = b"1" * 32, b"2" * 32

    async def mark(gate: Gate) -> None:
        assert not await gate.was_valid(one)
        await gate.mark_valid(one, NOW, valid=True)

    async def look(gate: Gate) -> None:
        assert await gate.was_valid(one) and not await gate.was_valid(other)
        await gate.mark_valid(one, NOW, valid=False)
        await asyncio.sleep(0.002)  # Redis expires it after a millisecond
        assert not await gate.was_valid(one)

    gate_at.use(mark)
    gate_at.use(look)


def test_bans_are_listed_and_lifted(gate_at: GatePlace) -> None:
    async def work(gate: Gate) -> None:
        outcomes = [(await ask(gate, "key_a", Limits(1, 9))).outcome for _ in range(3)]
        assert outcomes == [ADMITTED, LIMITED, BANNED]
        (ban,) = await bans_in_force(gate, NOW)
        assert (ban.key_id, ban.since, ban.until, ban.times) == ("key_a", NOW, NOW + 60, 1)
        assert await bans_in_force(gate, NOW + 60) == []
        assert not await gate.lift("key_b")
        assert await gate.lift("key_a")
        assert await bans_in_force(gate, NOW) == []

    gate_at.use(work)


def test_ban_policy_is_a_setting(gate_at: GatePlace) -> None:
    async def work(gate: Gate) -> None:
        outcomes = [(await ask(gate, "key_a", Limits(1, 9))).outcome for _ in range(6)]
        assert outcomes == [ADMITTED, LIMITED, LIMITED, LIMITED, BANNED, BANNED]
        assert (await bans_in_force(gate, NOW))[0].until == NOW + 5

    gate_at.use(work, GatePolicy(BanPolicy(5 * SECOND, 7 * SECOND, 3)))


def test_records_can_be_read_and_replaced(gate_at: GatePlace) -> None:
    start = int(NOW * SECOND)
    many = {f"key_{number:04}": Windows(start, number, start, 10 * number) for number in range(2_500)}

    async def work(gate: Gate) -> None:
        assert await gate.windows(["key_0007"]) == [Windows()]
        await gate.put_windows(many.items())
        assert await gate.windows(["key_0007", "key_none", "key_2499"]) == [
            many["key_0007"],
            Windows(),
            many["key_2499"],
        ]
        portions = [rows async for rows in gate.all_windows()]
        assert max(map(len, portions)) < 2_000  # Redis treats the requested count as a hint
        assert sorted(row for rows in portions for row in rows) == sorted(many.items())
        assert (await ask(gate, "key_0007", Limits(100, 100))).remaining == 29

    gate_at.use(work)


@pytest.mark.thorough
def test_random_requests_are_decided_as_the_naive_model_decides_them(gate_at: GatePlace) -> None:
    dice = random.Random(2030)
    requests = 20_000

    async def compare(gate: Gate) -> int:
        version, compared = await gate.keys_version("live"), 0
        for now in random_times(dice, 48):
            asking = dice.choices(list(naive), k=250)
            calls = (gate.admit("live", key_id, limits[key_id], version, now / SECOND, "other") for key_id in asking)
            for key_id, admitted in zip(asking, await asyncio.gather(*calls), strict=True):
                assert admitted is not None and admitted[0] == naive[key_id].ask(limits[key_id], now)
            compared += len(asking)
        return compared

    compared = 0
    while compared < requests:
        policy = random_policy(dice)
        key_ids = [f"key_{compared}_{number}" for number in range(200)]
        naive = {key_id: NaiveLimits(policy) for key_id in key_ids}
        limits = {key_id: random_limits(dice) for key_id in key_ids}
        compared += gate_at.use(compare, GatePolicy(policy, outage="refuse"))
    assert compared >= requests


def test_a_gate_can_be_closed_at_any_time(gate_at: GatePlace) -> None:
    async def work() -> None:
        unused = gate_at.open()
        await unused.close()
        await unused.close()
        used = gate_at.open(GatePolicy(outage="refuse"))
        await ask(used, "key_a", PLENTY)
        await used.close()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(used.keys_version("live"), 30)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(work())
