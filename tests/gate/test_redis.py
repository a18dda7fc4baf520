"""The Redis gate: its script, its clock, and outages."""

import asyncio
import contextlib
import inspect
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis import Redis as Client
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection

from harness.backends import Redis
from harness.gates import NOW, PLENTY, REFUSE, FaultyLink, all_versions, answers_again, ask, eventually, use_link
from harness.stores import GatePlace
from petstore.errors import OperatorError, Unavailable
from petstore.gate import Gate, GatePolicy, bans_in_force, open_gate
from petstore.gate.fallback import FallbackGate
from petstore.gate.records import admissions_in, unpack_windows
from petstore.gate.redis import RedisGate
from petstore.gate.redis_link import SingleLink
from petstore.gate.redis_script import (
    KEY_LIVE,
    VERSION_NUMBER,
    ScriptCall,
    decision_of,
    key_record,
    unpack_results,
    unpack_versions,
)
from petstore.gate.redis_tls import TLS_OPTIONS
from petstore.gate.redis_url import SERVER_OPTIONS, open_link
from petstore.operations import COUNTED
from petstore.plans import Limits
from petstore.rate_limits import ADMITTED, LIMITED, SECOND, BanPolicy, Outcome, Windows, admit

REQUESTS = 50_000
EDGES = [0, 1, 999, 59_999, 60_000, 60_001, 86_399_999, 86_400_000, 86_400_001, -5_000, -70_000]


def test_the_script_decides_random_requests_as_the_rules_do(redis: Redis) -> None:
    """Decisions, windows and counts must match, even if the clock is set back."""
    dice = random.Random(2030)

    async def compare() -> int:
        compared = 0
        while compared < REQUESTS:
            link = open_link(redis.url())
            policy = BanPolicy(
                dice.choice([1_000, 60_000]), dice.choice([60_000, 3_600_000]), dice.choice([0, 0, 1, 3])
            )
            limits = [Limits(dice.randint(1, 12), dice.randint(1, 60)) for _ in range(50)]
            records = [key_record(f"key_{number}") for number in range(50)]
            expected = [Windows()] * 50
            counted: Counter[tuple[int, str]] = Counter()
            versions, _ = await link.run_script("", policy, 0, [])
            now, version = 1_800_000_000_000, versions[VERSION_NUMBER["live", "keys"]]
            pace = dice.choice([5, 500, 8_000, 70_000, 4_000_000])
            for _ in range(125):
                now += dice.choice(EDGES) if dice.random() < 0.1 else dice.randint(0, pace)
                keys = [dice.randrange(50) for _ in range(400)]
                future = asyncio.get_running_loop().create_future()  # nothing awaits it
                numbers = [dice.randrange(len(COUNTED)) for _ in keys]
                calls = [
                    ScriptCall(records[key], KEY_LIVE, version, *limits[key], future, number)
                    for key, number in zip(keys, numbers, strict=True)
                ]
                _, results = await link.run_script(str(now), policy, 0, calls)
                for key, number, result in zip(keys, numbers, results, strict=True):
                    expected[key], decision = admit(expected[key], limits[key], policy, now)
                    assert not isinstance(result, Unavailable)
                    assert decision_of(result) == decision
                    counted[key, COUNTED[number]] += decision.outcome is ADMITTED
                compared += len(keys)
            values = await link.send([("GET", record) for record in records])
            assert [unpack_windows(value) for value in values] == expected
            found = [admissions_in(str(key), value, COUNTED) for key, value in enumerate(values)]
            totals = {(int(each.key_id), each.operation): each.total for some in found for each in some}
            assert totals == +counted
            await link.close()
        return compared

    assert asyncio.run(compare()) >= REQUESTS


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://h?foo=bar&db=1&x=", "--gate: foo, x: unknown option; valid options: db, username"),
        ("valkey://h?ssl_ca_certs=x", "--gate: ssl_ca_certs: unknown option; valid options: db, username"),
        ("rediss://h?host=x", "host: unknown option; valid options: db, .*ssl_ca_certs"),
        ("redis+sentinel://h:1/name?db=1", "db: unknown option; valid options: sentinel_username, sentinel_password$"),
        ("redis+cluster://h:1?db=1", "db: unknown option; valid options: none"),
    ],
)
def test_the_message_about_an_unknown_url_option_lists_the_known_ones(url: str, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        open_link(url)


def test_every_known_option_is_one_of_the_driver() -> None:
    classes = (AbstractConnection, Connection, SSLConnection)
    assert {*SERVER_OPTIONS, *TLS_OPTIONS} <= {
        name for each in classes for name in inspect.signature(each.__init__).parameters
    }


def test_the_clock_of_redis_counts_and_not_that_of_the_node(redis: Redis, tmp_path: Path) -> None:
    async def work() -> list[Outcome]:
        gate = open_gate(redis.url(), tmp_path, GatePolicy())
        decisions = [await ask(gate, "key_a", Limits(2, 9), shifted) for shifted in (0.0, 4e9, time.time() - 999)]
        assert abs(decisions[0].reset / 1000 - time.time() - 60) < 5
        await gate.close()
        return [decision.outcome for decision in decisions]

    assert asyncio.run(work()) == [ADMITTED, ADMITTED, LIMITED]


def test_every_record_but_those_of_keys_expires(redis: Redis, tmp_path: Path) -> None:
    place = GatePlace(tmp_path, redis.url())

    async def work(gate: Gate) -> None:
        for _ in range(4):
            await ask(gate, "key_a", Limits(1, 100))
        await ask(gate, "key_b", Limits(1, 100))
        await gate.admit_address("live", "192.0.2.1", NOW)
        await gate.peek_address("staging", "192.0.2.1", NOW)
        await gate.announce("staging", ["keys"])
        await gate.lift("key_a")
        await gate.put_windows([("key_c", Windows(1, 2, 3, 4)), ("key_d", Windows(ban_start=5, ban_end=7_205, bans=1))])

    place.use(work)
    assert place.url is not None
    with contextlib.closing(Client.from_url(place.url)) as client:
        names = list(client.scan_iter(count=1000))
        assert len(names) == 6
        keys = {f"petstore/1/key/{{key_{letter}}}".encode() for letter in "abcd"}  # braces mark the hash tag
        assert all(name.startswith(b"petstore/1/") for name in names)
        assert all(client.pttl(name) == -1 for name in keys)  # counts must not expire before they are collected
        assert all(0 < client.pttl(name) <= 31 * 86_400_000 for name in set(names) - keys)


def test_the_script_is_loaded_again_when_the_server_lost_it(redis: Redis, tmp_path: Path) -> None:
    async def work(gate: Gate) -> int:
        await ask(gate, "key_a", PLENTY)
        with contextlib.closing(Client(port=redis.port)) as client:
            client.script_flush()
        return PLENTY.per_day - (await ask(gate, "key_a", PLENTY)).remaining

    assert GatePlace(tmp_path, redis.url()).use(work, REFUSE) == 2


def test_the_script_is_sent_once(own_redis: Redis, tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        for _ in range(5):
            await gate.keys_version("live")

    GatePlace(tmp_path, own_redis.url()).use(work, REFUSE)
    with contextlib.closing(Client(port=own_redis.port)) as client:
        done = {name: figures["calls"] for name, figures in client.info("commandstats").items()}
    loads = done.get("cmdstat_script|load") or done["cmdstat_script"]  # Redis 7 and later count subcommands
    assert (loads, done["cmdstat_evalsha"]) == (1, 6)  # the first EVALSHA came before the script was loaded


def test_the_reply_to_a_cancelled_command_goes_to_no_other(redis: Redis) -> None:
    async def work() -> None:
        link = open_link(redis.url())
        assert isinstance(link, SingleLink)
        slow = asyncio.create_task(link.command("BLPOP", "nothing", "0.2"))
        await asyncio.sleep(0.05)  # until it is sent
        slow.cancel()
        assert await link.command("ECHO", "mine") == b"mine"
        await link.close()

    asyncio.run(work())


@pytest.mark.parametrize("fault", ["stopped", "killed", "hung"])
def test_calls_fail_at_once_in_an_outage_which_ends_by_itself(own_redis: Redis, tmp_path: Path, fault: str) -> None:
    async def work(gate: Gate) -> None:
        await ask(gate, "key_a", PLENTY)
        version = await gate.keys_version("live")
        {"stopped": own_redis.stop, "killed": own_redis.kill, "hung": own_redis.hang}[fault]()
        with pytest.raises(Unavailable):
            await ask(gate, "key_a", PLENTY)
        for _ in range(200):  # no call waits for a timeout
            with pytest.raises(Unavailable, match="down"):
                await gate.keys_version("live")
            with pytest.raises(Unavailable, match="down"):
                await gate.admit("live", "key_a", PLENTY, version, NOW, "other")
        assert not gate.degraded()  # it has no fallback
        own_redis.go_on() if fault == "hung" else own_redis.start()
        assert await answers_again(gate)
        assert (await ask(gate, "key_a", PLENTY)).remaining <= PLENTY.per_day - 3  # nothing was forgotten

    GatePlace(tmp_path, own_redis.url()).use(work, REFUSE)


def test_reading_and_writing_records_has_a_time_limit(own_redis: Redis, tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        await ask(gate, "key_a", PLENTY)
        own_redis.hang()
        with pytest.raises(Unavailable, match="in time"):
            [rows async for rows in gate.all_windows()]
        with pytest.raises(Unavailable, match="in time"):
            await gate.put_windows([("key_b", Windows())])
        own_redis.go_on()
        assert [name async for rows in gate.all_windows() for name, _ in rows] == ["key_a"]

    GatePlace(tmp_path, own_redis.url()).use(work, REFUSE)


@pytest.mark.parametrize(("probe_interval", "restarted"), [(0.005, False), (3600, True)])
def test_a_gate_is_down_until_a_probe_is_answered(own_redis: Redis, probe_interval: float, *, restarted: bool) -> None:
    async def work(gate: RedisGate, link: FaultyLink) -> None:
        own_redis.kill()
        with pytest.raises(Unavailable):
            await gate.keys_version("live")
        if restarted:
            own_redis.start()
        for _ in range(50):
            await asyncio.sleep(0.005)
            assert gate.down

    use_link(own_redis.url(), work, probe_interval=probe_interval)


def test_while_redis_is_down_a_node_continues_without_caches(own_redis: Redis, tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        limits = Limits(3, 100)
        before = await gate.keys_version("live")
        first = await gate.admit("live", "key_a", limits, before, NOW, "other")
        own_redis.kill()
        assert await gate.admit("live", "key_a", limits, before, NOW, "other") is None  # look the key up again
        assert gate.degraded()
        version = await gate.keys_version("live")
        admitted = [await gate.admit("live", "key_a", limits, version, NOW, "other") for _ in range(4)]
        assert [a and a[0].outcome for a in admitted] == [ADMITTED] * 3 + [LIMITED]
        for versions in zip(*(a[1] for a in [first, *admitted] if a), strict=True):
            assert len(set(versions)) == len(versions) == 5  # so no cached page is used
        await gate.announce("live", ["added"])
        own_redis.start()
        assert await eventually(lambda: not gate.degraded())
        assert await gate.admit("live", "key_a", limits, version, NOW, "other") is None
        after = await gate.keys_version("live")
        assert after > before
        back = await gate.admit("live", "key_a", limits, after, NOW, "other")
        assert back is not None and back[0].remaining == 1

    GatePlace(tmp_path, own_redis.url()).use(work)


def test_the_fallback_counts_addresses_and_is_swept_and_closed(own_redis: Redis, tmp_path: Path) -> None:
    async def work() -> None:
        policy = GatePolicy()
        gate = FallbackGate(RedisGate(open_link(own_redis.url()), policy), tmp_path / "gate.mdb", policy)
        await gate.sweep(NOW)
        assert gate.fallback is None  # it is not needed yet
        own_redis.kill()
        counted = [(await gate.admit_address("live", "192.0.2.7", NOW)).remaining for _ in range(3)]
        assert counted == [599, 598, 597]
        assert (await gate.peek_address("live", "192.0.2.7", NOW)).remaining == 597
        before = await gate.keys_version("live")
        await gate.announce("live", ["keys"])
        assert await gate.keys_version("live") == before + 1
        assert gate.fallback is not None
        records = gate.fallback.records
        await gate.sweep(NOW + 60)
        assert gate.fallback.records == records - 1
        await gate.close()
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()

    asyncio.run(work())


def test_a_fallback_that_cannot_be_opened_is_an_outage(own_redis: Redis, tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "no such directory" / "gate.mdb"
        gate = FallbackGate(RedisGate(open_link(own_redis.url()), REFUSE), path, REFUSE)
        own_redis.kill()
        with pytest.raises(Unavailable, match="cannot be opened"):
            await gate.admit_address("live", "192.0.2.7", NOW)
        await gate.close()

    asyncio.run(work())


def test_a_ban_that_redis_names_twice_is_listed_once(redis: Redis) -> None:
    """SCAN may return a record twice while the number of records grows or shrinks."""

    async def work(gate: RedisGate, link: FaultyLink) -> list[str]:
        names = link.names

        async def twice(pattern: str) -> AsyncIterator[list[bytes]]:
            async for found in names(pattern):
                yield found
                yield found

        link.names = twice
        await gate.put_windows((key, Windows(ban_end=int(NOW + 60) * SECOND, bans=1)) for key in ("key_a", "key_b"))
        return sorted(ban.key_id for ban in await bans_in_force(gate, NOW))

    assert use_link(redis.url(), work) == ["key_a", "key_b"]


def test_versions_do_not_come_again_when_redis_lost_its_records(redis: Redis, tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        seen = set()
        for _ in range(5):
            version = await gate.keys_version("live")
            assert version not in seen
            seen.add(version)
            with contextlib.closing(Client.from_url(place.url or "")) as client:
                client.flushdb()

    place = GatePlace(tmp_path, redis.url())
    place.use(work)


def test_opening_the_gate_raises_all_versions(redis: Redis, tmp_path: Path) -> None:
    """After a failover, the server might not have the latest versions."""
    place = GatePlace(tmp_path, redis.url())
    before, after = place.use(all_versions), place.use(all_versions)
    assert all(after[name] > before[name] for name in before), (before, after)


def test_replies_are_unpacked_by_size() -> None:
    assert unpack_versions(bytes(48)) == (0,) * 6
    assert unpack_results(bytes(96)) == [(0,) * 6] * 2
