"""What is special about the Redis gate: its script, its clock, and what is done about its faults."""

import asyncio
import contextlib
import inspect
import os
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import lmdb
import pytest
from redis import Redis as Client
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection

from petstore.errors import OperatorError, Unavailable
from petstore.gate import Gate, GatePolicy, bans_in_force, open_gate
from petstore.gate import redis as redis_module
from petstore.gate.fallback import FallbackGate
from petstore.gate.lmdb import LmdbGate
from petstore.gate.redis import KEY_LIVE, RedisGate, Request, answers_in, name_of, versions_in
from petstore.gate.redis_link import TLS_OPTIONS, SingleLink, open_link
from petstore.plans import Limits
from petstore.rate_limits import ADMITTED, DAY, LIMITED, MINUTE, SECOND, BanPolicy, Outcome, Windows, admit
from tests.backends import Redis
from tests.places import GatePlace
from tests.test_gate import NOW, PLENTY, ask, versions

REQUESTS = int(os.environ.get("PETSTORE_TEST_REQUESTS", "50000"))
REFUSE = GatePolicy(outage="refuse")
EDGES = [0, 1, 999, 59_999, 60_000, 60_001, 86_399_999, 86_400_000, 86_400_001, -5_000, -70_000]


def keys_of(redis: Redis, url: str) -> list[bytes]:
    with contextlib.closing(Client.from_url(url)) as client:
        return list(client.scan_iter(count=1000))


def test_random_requests_are_decided_as_the_rules_say_and_charged_wholly(redis: Redis) -> None:
    """The script against windows.py: the same decisions, and the same record at the end, so no half charges.

    PETSTORE_TEST_REQUESTS sets how many: 50,000 by default, a million for a long run.
    """
    dice = random.Random(2030)

    async def compare() -> int:
        compared = 0
        while compared < REQUESTS:
            link = open_link(redis.url())
            policy = BanPolicy(
                dice.choice([1_000, 60_000]), dice.choice([60_000, 3_600_000]), dice.choice([0, 0, 1, 3])
            )
            limits = [Limits(dice.randint(1, 12), dice.randint(1, 60)) for _ in range(50)]
            expected = [Windows()] * len(limits)
            now, version = 1_800_000_000_000, (await link.step("", policy, 0, [])).versions[1]
            pace = dice.choice([5, 500, 8_000, 70_000, 4_000_000])
            for _ in range(125):
                now += dice.choice(EDGES) if dice.random() < 0.1 else dice.randint(0, pace)
                asking = [dice.randrange(len(limits)) for _ in range(400)]
                step = await link.step(
                    str(now), policy, 0, [_request(number, limits[number], version) for number in asking]
                )
                for number, answer in zip(asking, step.answers, strict=True):
                    expected[number], decision = admit(expected[number], limits[number], policy, now)
                    assert not isinstance(answer, Unavailable)
                    assert (decision.outcome, decision.remaining, decision.reset, decision.wait) == (
                        answer[0], answer[3], answer[4], answer[5],
                    )  # fmt: skip
                    assert (decision.window == "day", decision.limit) == (answer[1] == 1, answer[2])
                compared += len(asking)
            assert await _windows(link, len(limits)) == expected
            await link.close()
        return compared

    assert asyncio.run(compare()) >= REQUESTS


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://h?foo=bar&db=1&x=", "--gate: foo, x: no such option; known here: db, username"),
        ("valkey://h?ssl_ca_certs=x", "--gate: ssl_ca_certs: no such option; known here: db, username"),
        ("rediss://h?host=x", "host: no such option; known here: db, .*ssl_ca_certs"),
        ("redis+sentinel://h:1/name?db=1", "db: no such option; known here: none"),
        ("redis+cluster://h:1?db=1", "db: no such option; known here: none"),
    ],
)
def test_an_option_that_the_url_cannot_have_is_named_beside_those_it_can(url: str, told: str) -> None:
    with pytest.raises(OperatorError, match=told):
        open_link(url)


def test_every_option_that_is_called_known_is_one_of_the_driver() -> None:
    kinds = (AbstractConnection, Connection, SSLConnection)
    assert set(TLS_OPTIONS) <= {name for kind in kinds for name in inspect.signature(kind.__init__).parameters}


def _request(number: int, limits: Limits, version: int) -> Request:
    nobody: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    return Request(name_of(f"key_{number}"), KEY_LIVE, version, limits.per_minute, limits.per_day, nobody)  # type: ignore[arg-type]  # nobody waits


async def _windows(link: object, count: int) -> list[Windows]:

    assert isinstance(link, SingleLink)
    return await RedisGate(link, GatePolicy()).windows([f"key_{number}" for number in range(count)])


def test_redis_own_clock_counts_and_not_the_one_of_the_node(redis: Redis, tmp_path: Path) -> None:
    async def work() -> list[Outcome]:
        gate = open_gate(redis.url(), tmp_path, GatePolicy())
        decisions = [await ask(gate, "key_a", Limits(2, 9), shifted) for shifted in (0.0, 4e9, time.time() - 999)]
        assert abs(decisions[0].reset / 1000 - time.time() - 60) < 5
        await gate.close()
        return [decision.outcome for decision in decisions]

    assert asyncio.run(work()) == [ADMITTED, ADMITTED, LIMITED]


def test_every_record_expires_and_has_its_keys_id_as_hash_tag(redis: Redis, tmp_path: Path) -> None:
    place = GatePlace(tmp_path, redis.url())

    async def work(gate: Gate) -> None:
        for _ in range(4):
            await ask(gate, "key_a", Limits(1, 100))
        await ask(gate, "key_b", Limits(1, 100))
        await gate.admit_address("live", "192.0.2.1", NOW)
        await gate.peek_address("staging", "192.0.2.1", NOW)
        await gate.raise_version("staging", "keys")
        await gate.lift("key_a")
        await gate.put_windows([("key_c", Windows(1, 2, 3, 4)), ("key_d", Windows(ban_start=5, ban_end=7_205, bans=1))])

    place.use(work)
    assert place.url is not None
    with contextlib.closing(Client.from_url(place.url)) as client:
        names = list(client.scan_iter(count=1000))
        assert len(names) == 6
        assert all(0 < client.pttl(name) <= 31 * 86_400_000 for name in names)
        for name, ban in (("key_c", 0), ("key_d", 7_200)):  # a day's window, the ban, and a minute to spare
            assert 0 <= DAY + ban + MINUTE - client.pttl(name_of(name)) < 5_000
    assert {b"petstore:key:{key_a}", b"petstore:key:{key_b}", b"petstore:key:{key_c}"} < set(names)


def test_a_server_that_has_lost_the_script_gets_it_again(redis: Redis, tmp_path: Path) -> None:
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
    loads = done.get("cmdstat_script|load") or done["cmdstat_script"]  # subcommands are told apart since Redis 7
    assert (loads, done["cmdstat_evalsha"]) == (1, 5)


def test_after_an_exchange_that_was_given_up_nobody_gets_its_answer(redis: Redis) -> None:
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
def test_an_outage_is_told_at_once_and_heals_by_itself(own_redis: Redis, tmp_path: Path, fault: str) -> None:
    async def work(gate: Gate) -> None:
        await ask(gate, "key_a", PLENTY)
        version = await gate.keys_version("live")
        {"stopped": own_redis.stop, "killed": own_redis.kill, "hung": own_redis.hang}[fault]()
        with pytest.raises(Unavailable):
            await ask(gate, "key_a", PLENTY)
        for _ in range(200):  # nobody waits for a gate that is known to be down
            with pytest.raises(Unavailable, match="down"):
                await gate.keys_version("live")
            with pytest.raises(Unavailable, match="down"):
                await gate.admit("live", "key_a", PLENTY, version, NOW)
        assert not gate.degraded()  # there is no stand-in
        own_redis.go_on() if fault == "hung" else own_redis.start()
        assert await healed(gate)
        assert (await ask(gate, "key_a", PLENTY)).remaining <= PLENTY.per_day - 3  # nothing was forgotten

    GatePlace(tmp_path, own_redis.url()).use(work, REFUSE)


async def healed(gate: Gate, key_id: str = "key_a") -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(Unavailable):
            await ask(gate, key_id, PLENTY)
            return True
        await asyncio.sleep(0.02)  # the poll of a condition, bounded
    return False


def test_an_operator_who_asks_for_much_waits_no_longer_than_others(own_redis: Redis, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("every", "back"), [(0.005, False), (3600, True)])
def test_a_redis_that_is_down_is_asked_now_and_then_and_believed_when_it_answers(
    own_redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: float, *, back: bool
) -> None:
    monkeypatch.setattr(redis_module, "PROBE_EVERY", every)

    async def work(gate: Gate) -> None:
        assert isinstance(gate, RedisGate)
        own_redis.kill()
        with pytest.raises(Unavailable):
            await gate.keys_version("live")
        if back:
            own_redis.start()
        for _ in range(50):
            await asyncio.sleep(0.005)
            assert gate.down

    GatePlace(tmp_path, own_redis.url()).use(work, REFUSE)


def test_while_redis_is_away_a_node_goes_on_by_itself_and_trusts_no_memory(own_redis: Redis, tmp_path: Path) -> None:
    async def work(gate: Gate) -> None:
        limits = Limits(3, 100)
        before = await gate.keys_version("live")
        first = await gate.admit("live", "key_a", limits, before, NOW)
        own_redis.kill()
        assert await gate.admit("live", "key_a", limits, before, NOW) is None  # read the key again
        assert gate.degraded()
        own = await gate.keys_version("live")
        passed = [await gate.admit("live", "key_a", limits, own, NOW) for _ in range(4)]
        assert [p and p[0].outcome for p in passed] == [ADMITTED] * 3 + [LIMITED]
        versions = [p[1] for p in [first, *passed] if p]
        assert len(set(versions)) == len(versions) == 5  # no page that was read before may be served
        await gate.raise_version("live", "catalogue")
        own_redis.start()
        assert await until(lambda: not gate.degraded())
        assert await gate.admit("live", "key_a", limits, own, NOW) is None
        after = await gate.keys_version("live")
        assert after > before
        back = await gate.admit("live", "key_a", limits, after, NOW)
        assert back is not None and back[0].remaining == 1

    GatePlace(tmp_path, own_redis.url()).use(work)


def test_the_stand_in_counts_addresses_is_swept_and_is_closed(own_redis: Redis, tmp_path: Path) -> None:
    stand_in: list[LmdbGate] = []

    async def work(gate: Gate) -> None:
        assert isinstance(gate, FallbackGate)
        await gate.sweep(NOW)  # there is none yet
        own_redis.kill()
        counted = [(await gate.admit_address("live", "192.0.2.7", NOW)).remaining for _ in range(3)]
        assert counted == [599, 598, 597]
        assert (await gate.peek_address("live", "192.0.2.7", NOW)).remaining == 597
        before = await gate.keys_version("live")
        await gate.raise_version("live", "keys")
        assert await gate.keys_version("live") == before + 1
        assert isinstance(gate._own, LmdbGate) and gate._own is gate._own
        stand_in.append(gate._own)
        remembered = gate._own.records
        await gate.sweep(NOW + 60)
        assert gate._own.records == remembered - 1

    GatePlace(tmp_path, own_redis.url()).use(work)
    with pytest.raises(lmdb.Error):
        stand_in[0]._env.stat()


def test_a_ban_that_redis_names_twice_is_listed_once(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCAN may do so while the table of names grows or shrinks."""
    names = SingleLink.names

    async def twice(link: SingleLink, pattern: str) -> AsyncIterator[list[bytes]]:
        async for found in names(link, pattern):
            yield found
            yield found

    async def work(gate: Gate) -> list[str]:
        await gate.put_windows((key, Windows(ban_end=int(NOW + 60) * SECOND, bans=1)) for key in ("key_a", "key_b"))
        return sorted(ban.key_id for ban in await bans_in_force(gate, NOW))

    monkeypatch.setattr(SingleLink, "names", twice)
    assert GatePlace(tmp_path, redis.url()).use(work, REFUSE) == ["key_a", "key_b"]


async def until(condition: object) -> bool:
    assert callable(condition)
    for _ in range(500):
        if condition():
            return True
        await asyncio.sleep(0.02)  # the poll of a condition, bounded
    return False


def test_a_redis_that_has_lost_its_memory_makes_nobody_trust_an_old_version(redis: Redis, tmp_path: Path) -> None:
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


def test_whoever_opens_the_gate_trusts_nothing_of_before(redis: Redis, tmp_path: Path) -> None:
    """It may come after a failover, to a server that does not know the newest versions."""

    place = GatePlace(tmp_path, redis.url())
    before, after = place.use(versions), place.use(versions)
    assert all(after[name] > before[name] for name in before), (before, after)


def test_replies_are_taken_apart_by_size() -> None:
    assert versions_in(bytes(32)) == (0, 0, 0, 0)
    assert answers_in(bytes(96)) == [(0,) * 6] * 2
