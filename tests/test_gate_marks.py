"""The marks of keys that were found valid, in Redis: many questions are one command, and they end with Redis."""

import asyncio
from collections.abc import Sequence

import pytest

from petstore.errors import Unavailable
from petstore.gate.redis import RedisGate
from petstore.gate.redis_errors import QueueFull
from petstore.gate.redis_marks import ValidMarks
from tests.backends import Redis
from tests.gates import NOW, FaultyLink, use_link


def test_a_flood_of_questions_for_marks_is_a_few_commands(redis: Redis) -> None:
    async def work(gate: RedisGate, link: FaultyLink) -> None:
        asked: list[int] = []
        values = link.values

        async def counted(names: Sequence[bytes | str]) -> list[bytes | None]:
            asked.append(len(names))
            return await values(names)

        link.values = counted
        await gate.mark_valid(b"1" * 32, NOW, valid=True)
        digests = [number.to_bytes(32) for number in range(700)] + [b"1" * 32]
        found = await asyncio.gather(*(gate.was_valid(digest) for digest in digests))
        assert found == [False] * 700 + [True]
        assert asked == [500, 201]

    use_link(redis.url(), work)


def test_questions_for_marks_are_bounded(redis: Redis) -> None:
    async def work(gate: RedisGate, link: FaultyLink) -> None:
        async def hangs(names: Sequence[bytes | str]) -> list[bytes | None]:
            await asyncio.get_running_loop().create_future()
            raise AssertionError

        link.values = hangs
        marks = ValidMarks(link, waiting_max=2)
        waiting = []
        for _ in range(3):  # the first one is asked, the others wait
            waiting.append(asyncio.ensure_future(marks.has(bytes(32))))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        with pytest.raises(QueueFull):  # so that the fallback does not decide: Redis is not down
            await marks.has(bytes(32))
        await marks.close()
        assert {type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)} == {Unavailable}

    use_link(redis.url(), work)


def test_a_question_for_a_mark_fails_with_redis_and_at_the_end(redis: Redis) -> None:
    async def work(gate: RedisGate, link: FaultyLink) -> None:
        async def down(names: Sequence[bytes | str]) -> list[bytes | None]:
            raise Unavailable("a test")

        async def hangs(names: Sequence[bytes | str]) -> list[bytes | None]:
            await asyncio.get_running_loop().create_future()
            raise AssertionError

        for link.values in (down, hangs):
            asking = [asyncio.ensure_future(gate.was_valid(bytes([number]) * 32)) for number in range(3)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if link.values is hangs:
                await gate.close()
            assert {type(each) for each in await asyncio.gather(*asking, return_exceptions=True)} == {Unavailable}

    use_link(redis.url(), work)
