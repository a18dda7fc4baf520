"""The gate's contract, on every backend."""

from petstore.gate import Gate, GatePolicy, Subject, bans_in_force, bucket_of
from petstore.keys import ENVIRONMENTS, Environment
from petstore.plans import Limits
from petstore.rate_limits import ADMITTED, BANNED, LIMITED, SECOND, BanPolicy, Decision, Windows
from petstore.settings import Settings
from tests.places import GatePlace

NOW = 1_800_000_000.0
PLENTY = Limits(10**9, 10**9)


async def ask(gate: Gate, key_id: str, limits: Limits, now: float = NOW) -> Decision:
    passed = await gate.admit("live", key_id, limits, await gate.keys_version("live"), now)
    assert passed is not None
    return passed[0]


async def versions(gate: Gate) -> dict[tuple[Environment, Subject], int]:
    found: dict[tuple[Environment, Subject], int] = {}
    for environment in ENVIRONMENTS:
        keys = await gate.keys_version(environment)
        passed = await gate.admit(environment, "key_v", PLENTY, keys, NOW)
        assert passed is not None
        found[environment, "catalogue"], found[environment, "keys"] = passed[1], keys
    return found


def test_limits_hold_and_counters_outlive_the_process(gate_at: GatePlace) -> None:
    async def three(gate: Gate) -> list[Decision]:
        return [await ask(gate, "key_a", Limits(5, 100)) for _ in range(3)]

    async def in_order(gate: Gate) -> bool:
        return not gate.degraded()

    assert gate_at.use(in_order)
    first, second = gate_at.use(three), gate_at.use(three)
    assert [d.outcome for d in first + second] == [ADMITTED] * 5 + [LIMITED]
    assert [d.remaining for d in first + second] == [4, 3, 2, 1, 0, 0]


def test_nothing_is_counted_under_an_outdated_version_of_the_keys(gate_at: GatePlace) -> None:
    async def work(gate: Gate) -> None:
        for environment in ENVIRONMENTS:
            version = await gate.keys_version(environment)
            await gate.raise_version(environment, "keys")
            assert await gate.admit(environment, "key_a", Limits(2, 2), version, NOW) is None
        assert (await ask(gate, "key_a", Limits(2, 2))).remaining == 1

    gate_at.use(work)


def test_versions_rise_and_apart(gate_at: GatePlace) -> None:
    async def work(gate: Gate) -> None:
        before = await versions(gate)
        for environment, subject in before:
            await gate.raise_version(environment, subject)
            after = await versions(gate)
            assert {name for name in after if after[name] != before[name]} == {(environment, subject)}
            assert after[environment, subject] > before[environment, subject]
            before = after

    gate_at.use(work)


def test_addresses_have_a_window_of_their_own_in_each_environment(gate_at: GatePlace) -> None:
    async def work(gate: Gate) -> None:
        assert (await gate.peek_address("live", "192.0.2.1", NOW)).remaining == 2
        outcomes = [(await gate.admit_address("live", "192.0.2.1", NOW)).outcome for _ in range(3)]
        assert outcomes == [ADMITTED, ADMITTED, LIMITED]
        assert (await gate.peek_address("live", "192.0.2.1", NOW)).remaining == 0
        assert (await gate.admit_address("staging", "192.0.2.1", NOW)).outcome is ADMITTED
        assert (await gate.admit_address("live", "192.0.2.2", NOW)).outcome is ADMITTED
        assert (await gate.admit_address("live", "192.0.2.1", NOW + 60)).outcome is ADMITTED
        # A window that ended with one request counts no less than another one.
        assert (await gate.peek_address("live", "192.0.2.1", NOW + 120)).remaining == 2
        outcomes = [(await gate.admit_address("live", "192.0.2.1", NOW + 120)).outcome for _ in range(3)]
        assert outcomes == [ADMITTED, ADMITTED, LIMITED]

    gate_at.use(work, GatePolicy(address_per_minute=2))


def test_an_ipv6_network_is_one_client() -> None:
    assert bucket_of("2001:db8::1") == bucket_of("2001:db8::ffff:ffff:ffff:ffff")
    assert bucket_of("2001:db8::1") != bucket_of("2001:db8:0:1::1")
    assert bucket_of("::ffff:192.0.2.1") == bucket_of("192.0.2.1") != bucket_of("192.0.2.2")
    assert bucket_of("no address") == bucket_of("") == b"?"


def test_what_is_not_said_is_as_the_settings_have_it() -> None:
    settings = Settings()
    bans = BanPolicy(settings.ban_seconds * SECOND, settings.ban_ceiling * SECOND, settings.ban_strikes)
    assert GatePolicy() == GatePolicy(bans, settings.address_per_minute, settings.gate_outage)


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


def test_what_is_remembered_can_be_taken_from_one_gate_and_put_into_another(gate_at: GatePlace) -> None:
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
        assert max(map(len, portions)) < 2_000  # Redis takes the number that it is asked for as a hint
        assert sorted(row for rows in portions for row in rows) == sorted(many.items())
        assert (await ask(gate, "key_0007", Limits(100, 100))).remaining == 29

    gate_at.use(work)
