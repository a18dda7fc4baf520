"""How the Redis gate treats records that it cannot have written, and errors in its script."""

import asyncio
import contextlib
import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.backends import Redis
from harness.gates import NOW, PLENTY, REFUSE, all_versions, answers_again, ask
from harness.stores import GatePlace
from petstore.errors import Unavailable
from petstore.gate import Gate, bans_in_force
from petstore.gate import redis_script as script
from petstore.gate.redis_script import VERSIONS_RECORD, address_record, key_record
from petstore.gate.redis_url import open_link
from petstore.plans import Limits
from petstore.rate_limits import ADMITTED, LIMITED, SECOND

START = int(NOW * SECOND)
FIVE = Limits(5, 50)
ADDRESS = "192.0.2.77"


def packed(*fields: int) -> bytes:
    return struct.pack(f"<{len(fields)}q", *fields)


# Redis commands that store a value of another type. `forge` inserts the record's name.
OTHER_TYPES: dict[str, tuple[Any, ...]] = {
    "list": ("RPUSH", "x"), "hash": ("HSET", "field", "x"), "set": ("SADD", "x"),
    "sorted set": ("ZADD", "1", "x"), "stream": ("XADD", "*", "field", "x"),
}  # fmt: skip
LENGTHS = {f"{length} bytes": ("SET", b"\x7f" * length) for length in (0, 1, 15, 17, 47, 63, 5_000)}
INTEGER_MAX = 2**63 - 1
FIELDS = {
    "negative use": ("SET", packed(START, -(10**15), START, -(10**15), 0, 0, 0, 0)),
    "no environment": ("SET", packed(START, 0, START, 0, 0, 0, 0, 0, 7, 9, 1, 1)),
    "negative environment": ("SET", packed(START, 0, START, 0, 0, 0, 0, 0, -1, 9, 1, 1)),
    "largest numbers": ("SET", packed(*[INTEGER_MAX] * 14)),
    "smallest numbers": ("SET", packed(*[-INTEGER_MAX] * 14)),
}
FORGED = OTHER_TYPES | LENGTHS | FIELDS


@pytest.fixture(params=["redis", "redis-cluster"])
def place(request: pytest.FixtureRequest, redis: Redis, tmp_path: Path) -> GatePlace:
    servers = redis if request.param == "redis" else request.getfixturevalue("redis_cluster")
    return GatePlace(tmp_path, servers.url())


def forge(place: GatePlace, name: str, command: tuple[Any, ...]) -> None:
    async def inside() -> None:
        assert place.url is not None
        link = open_link(place.url)
        await link.send([("DEL", name)])
        await link.send([(command[0], name, *command[1:])])
        await link.close()

    asyncio.run(inside())


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_forged_record_of_a_key_is_replaced_and_the_limit_holds(place: GatePlace, forged: tuple[Any, ...]) -> None:
    async def work(gate: Gate) -> None:
        outcomes = [(await ask(gate, "key_forged", FIVE)).outcome for _ in range(6)]
        assert outcomes == [ADMITTED] * 5 + [LIMITED]
        (counted,) = [each async for some in gate.admissions(["key_forged"]) for each in some]
        assert (counted.environment, counted.total) == ("live", 5)

    forge(place, key_record("key_forged"), forged)
    place.use(work, REFUSE)


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_forged_record_hides_no_other_key_from_operators(place: GatePlace, forged: tuple[Any, ...]) -> None:
    async def before(gate: Gate) -> None:
        for _ in range(4):
            await ask(gate, "key_banned", Limits(1, 100))

    async def work(gate: Gate) -> None:
        assert [ban.key_id for ban in await bans_in_force(gate, NOW) if ban.key_id != "key_forged"] == ["key_banned"]
        assert len(await gate.windows(["key_forged", "key_banned"])) == 2
        totals = [each async for some in gate.admissions() for each in some]
        assert [each.total for each in totals if each.key_id == "key_banned"] == [1]
        assert all(0 < each.total < 2**53 for each in totals)
        assert await gate.lift("key_banned")

    place.use(before, REFUSE)
    forge(place, key_record("key_forged"), forged)
    place.use(work, REFUSE)


@pytest.mark.parametrize("forged", (OTHER_TYPES | LENGTHS).values(), ids=OTHER_TYPES | LENGTHS)
def test_forged_versions_are_replaced_by_new_ones(place: GatePlace, forged: tuple[Any, ...]) -> None:
    async def work(gate: Gate) -> None:
        before = await all_versions(gate)
        await asyncio.to_thread(forge, place, VERSIONS_RECORD, forged)
        found = await all_versions(gate)
        assert all(found[name] > before[name] for name in before)
        await gate.announce("live", ["keys"])
        announced = await all_versions(gate)
        assert {name for name in found if announced[name] != found[name]} == {("live", "keys")}

    place.use(work, REFUSE)


@pytest.mark.parametrize("number", [INTEGER_MAX, -INTEGER_MAX, 2**53, -1])
def test_a_change_is_announced_whatever_the_version_was(place: GatePlace, number: int) -> None:
    """Otherwise, a revoked key would still work."""

    async def work(gate: Gate) -> None:
        await gate.keys_version("live")
        await asyncio.to_thread(forge, place, VERSIONS_RECORD, ("SET", packed(*[number] * 6)))
        found = [await gate.keys_version("live")]
        for _ in range(2):
            await gate.announce("live", ["keys"])
            found.append(await gate.keys_version("live"))
        assert len(set(found)) == 3

    place.use(work, REFUSE)


ADDRESS_FORGED = {**OTHER_TYPES, **LENGTHS, "negative use": ("SET", packed(START, -(10**15)))}


@pytest.mark.parametrize("forged", ADDRESS_FORGED.values(), ids=ADDRESS_FORGED)
def test_a_forged_record_of_an_address_is_replaced_and_the_limit_holds(
    place: GatePlace, forged: tuple[Any, ...]
) -> None:
    async def work(gate: Gate) -> None:
        assert (await gate.peek_address("live", ADDRESS, NOW)).remaining == 3
        outcomes = [(await gate.admit_address("live", ADDRESS, NOW)).outcome for _ in range(4)]
        assert outcomes == [ADMITTED] * 3 + [LIMITED]

    forge(place, address_record("live", ADDRESS), forged)
    place.use(work, REFUSE._replace(address_per_minute=3))


# A script that fails


@contextlib.contextmanager
def script_of(text: str) -> Iterator[None]:
    """Replaces the gate's script while the context is open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "LOAD_SCRIPT", ("SCRIPT", "LOAD", text))
        patch.setattr(script, "SCRIPT_SHA1", hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
        yield


ERRORS = {
    "a Lua error": "error('a bug')",
    "an unknown command": "return redis.call('NOSUCHCOMMAND')",
    "a failing command": "redis.call('SET', 'x', '1') return redis.call('LPUSH', 'x', '1')",
    "wrong syntax": "return (",
}


@pytest.mark.parametrize("text", ERRORS.values(), ids=ERRORS)
def test_a_script_that_fails_is_an_outage_until_it_works(place: GatePlace, text: str) -> None:
    async def work(gate: Gate) -> None:
        assert (await ask(gate, "key_a", PLENTY)).outcome is ADMITTED
        with script_of(text):
            for _ in range(3):
                with pytest.raises(Unavailable):
                    await ask(gate, "key_a", PLENTY)
        assert await answers_again(gate, "key_b")
        assert PLENTY.per_day - (await ask(gate, "key_a", PLENTY)).remaining == 2  # failed calls were not counted

    place.use(work, REFUSE)


@pytest.mark.parametrize("text", ERRORS.values(), ids=ERRORS)
def test_while_the_script_fails_the_fallback_holds_the_limit(place: GatePlace, text: str) -> None:
    async def work(gate: Gate) -> None:
        with script_of(text):
            outcomes = [(await ask(gate, "key_a", FIVE)).outcome for _ in range(6)]
            assert outcomes == [ADMITTED] * 5 + [LIMITED]
            assert gate.degraded()

    place.use(work)
