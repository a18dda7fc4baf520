"""The way to a Redis Cluster: which shard has what, one exchange with each, and what is done when one does not answer.

Nothing is sent twice that may have been done: a command counts requests.
"""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, NoScriptError

from petstore.errors import Unavailable
from petstore.gate.redis import (
    ALL_VERSIONS,
    KEY_STAGING,
    OUTDATED,
    VERSIONS,
    Answer,
    Request,
    Step,
    Versions,
    answers_in,
    keys_version_of,
    packed,
    versions_in,
)
from petstore.gate.redis_link import SCRIPT, SingleLink
from petstore.observability.logs import event

SHARD_SECONDS = 0.6  # that an exchange with one shard may take: the others' answers wait for it, once
LOOK_SECONDS = 0.3  # the same, for a look at the Cluster itself
DIRECTIONS_MAX = 3  # from shard to shard that one command follows: a slot that has moved may be on its way again
LOOK_EVERY = 0.2  # seconds between two looks while a shard does not answer, or says that the Cluster is down

_SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()  # Redis' name of the script
_LOAD = ("SCRIPT", "LOAD", SCRIPT)
_OUTDATED: Answer = (OUTDATED,) * 6  # nobody looks beyond the first

Place = tuple[str, int]
Command = tuple[Any, ...]


class ClusterLink:
    """Records are spread over the shards, the versions lie in a slot of their own.

    No script may touch two slots, so a step has two halves: first the versions, then, under those, the records. What
    was asked under an outdated version of the keys is not sent, so nothing is counted for it.

    A shard that does not answer is left alone until it does: its records are unavailable at once, the others' are not.
    """

    def __init__(self, hosts: Sequence[Place], login: dict[str, Any]) -> None:
        self._hosts = hosts
        self._login = login
        self._seeds = list(hosts)  # whom to ask who has what, the most promising first
        self._links: dict[Place, SingleLink] = {}
        self._owners: list[Place | None] = []  # of each slot
        self._learned = 0.0  # when
        self._away: set[Place] = set()
        self._looking: asyncio.Task[None] | None = None

    # What the gate needs

    async def step(self, now: str, bans: Sequence[int], raised: int, requests: Sequence[Request]) -> Step:
        versions = await self._versions(now, bans, raised)
        return Step(versions, await self._records(now, bans, versions, requests))

    def connected(self) -> bool:
        place = self._owners[_slot(VERSIONS)] if self._owners else None
        return place in self._links and self._links[place].connected()

    async def names(self, pattern: str) -> AsyncIterator[list[bytes]]:
        await self._know()
        for place in filter(None, set(self._owners)):
            async for names in self._link(place).names(pattern):
                yield names

    async def values(self, names: Sequence[bytes | str]) -> list[bytes | None]:
        return await self._whole([("GET", name) for name in names], names)

    async def put(self, records: Sequence[tuple[str, bytes, int]]) -> None:
        commands = [("SET", name, value, "PX", life) for name, value, life in records]
        await self._whole(commands, [name for name, _, _ in records])

    async def servers(self) -> dict[str, SingleLink]:
        """Each server that keeps records, by what to call it. Raises Unavailable."""
        await self._know()
        if None in self._owners:
            raise Unavailable("some slots belong to no shard")
        return {f"Redis at {place[0]}:{place[1]}": self._link(place) for place in set(filter(None, self._owners))}

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        await asyncio.gather(*(link.close() for link in self._links.values()))

    # The two halves of a step

    async def _versions(self, now: str, bans: Sequence[int], raised: int) -> Versions:
        await self._know()
        place = self._place(VERSIONS)
        command, moved = (_script([VERSIONS], [now, *bans, bits, b""]) for bits in (raised, ALL_VERSIONS))
        (reply,) = await self._evaluated(place, [command])
        if isinstance(reply, AskError):
            # Whoever has them now may not know the newest.
            reply = await self._followed(place, reply, command, moved)
        if isinstance(reply, Exception):
            raise _outage(reply)
        self._link(place).stepped()
        return versions_in(reply)

    async def _records(
        self, now: str, bans: Sequence[int], versions: Versions, requests: Sequence[Request]
    ) -> list[Answer | Unavailable]:
        of_name: dict[str, list[int]] = {}
        answers: list[Answer | Unavailable] = [_OUTDATED] * len(requests)
        for number, request in enumerate(requests):
            if request.what > KEY_STAGING or request.asked_under == keys_version_of(request.what, versions):
                of_name.setdefault(request.name, []).append(number)
        commands = [
            _script([name] * len(numbers), [now, *bans, "", packed(requests[n] for n in numbers)])
            for name, numbers in of_name.items()
        ]
        replies = await self._all(commands, list(of_name))
        for numbers, reply in zip(of_name.values(), replies, strict=True):
            if isinstance(reply, Exception):
                found: Sequence[Answer | Unavailable] = [_outage(reply)] * len(numbers)
            else:
                found = answers_in(reply)
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer
        return answers

    # Exchanges

    async def _whole(self, commands: Sequence[Command], names: Sequence[bytes | str]) -> list[Any]:
        """Raises Unavailable when one answer is missing."""
        await self._know()
        replies = await self._all(commands, names)
        for reply in replies:
            if isinstance(reply, Exception):
                raise _outage(reply)
        return replies

    async def _all(self, commands: Sequence[Command], names: Sequence[bytes | str]) -> list[Any]:
        """One exchange with every shard that is concerned, all at once; a fault is the answer of its commands."""
        replies: list[Any] = [Unavailable("no shard of the gate has this slot")] * len(commands)
        of_place: dict[Place, list[int]] = {}
        for number, name in enumerate(names):
            place = self._owners[_slot(name)]
            if place is not None:
                of_place.setdefault(place, []).append(number)
            else:
                self._look()
        exchanges = (self._settled(place, [commands[n] for n in numbers]) for place, numbers in of_place.items())
        for numbers, found in zip(of_place.values(), await asyncio.gather(*exchanges), strict=True):
            for number, reply in zip(numbers, found, strict=True):
                replies[number] = reply
        return replies

    async def _settled(self, place: Place, commands: Sequence[Command]) -> list[Any]:
        """What a shard answers to each, and what others do where it names them."""
        replies = await self._evaluated(place, commands)
        elsewhere = [number for number, reply in enumerate(replies) if isinstance(reply, AskError)]
        followed = (self._followed(place, replies[number], commands[number]) for number in elsewhere)
        for number, reply in zip(elsewhere, await asyncio.gather(*followed), strict=True):
            replies[number] = reply
        return replies

    async def _followed(self, asked: Place, reply: Any, command: Command, moved: Command | None = None) -> Any:
        """A slot that has moved, or is about to, and was not touched where it was looked for.

        `moved`: what to say instead to one that has it for good.
        """
        for _ in range(DIRECTIONS_MAX):
            if not isinstance(reply, AskError):
                break
            asked = (_host(reply.host, asked[0]), reply.port)
            if isinstance(reply, MovedError):
                self._look()
                command = moved or command
                commands = [_LOAD, command]
            else:
                commands = [_LOAD, ("ASKING",), command]
            reply = (await self._asked(asked, commands))[-1]
        return reply

    async def _evaluated(self, place: Place, commands: Sequence[Command]) -> list[Any]:
        replies = await self._asked(place, commands)
        again = [number for number, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if again:  # a server that is new here; it has done nothing
            loaded = await self._asked(place, [_LOAD, *(commands[number] for number in again)])
            for number, reply in zip(again, loaded[1:], strict=True):
                replies[number] = reply
        return replies

    async def _asked(self, place: Place, commands: Sequence[Command]) -> list[Any]:
        if place in self._away:
            return [Unavailable("a shard of the gate is down")] * len(commands)
        try:
            async with asyncio.timeout(SHARD_SECONDS):
                replies = await self._link(place).replies(commands)
        except (Unavailable, TimeoutError) as error:
            cause = str(error) or "a shard of the gate did not answer in time"
            self._lost(place, cause)
            return [Unavailable(cause)] * len(commands)
        if any(isinstance(reply, ClusterDownError) for reply in replies):
            # It was taken out of the Cluster or is cut off from it, and knows less than the others.
            self._ask_last(place)
            if time.monotonic() - self._learned > LOOK_EVERY:  # it may say so in every step
                self._look()
        return replies

    # Who has what

    def _link(self, place: Place) -> SingleLink:
        if place not in self._links:
            self._links[place] = SingleLink({"host": place[0], "port": place[1], **self._login})
        return self._links[place]

    def _place(self, name: str) -> Place:
        place = self._owners[_slot(name)]
        if place is None:
            self._look()
            raise Unavailable("no shard of the gate has this slot")
        return place

    async def _know(self) -> None:
        if not self._owners:
            await self._learn()

    async def _learn(self) -> None:
        """Who has which slot, from the first server that can tell. Raises Unavailable."""
        failure: Exception = Unavailable("the gate has no shards")
        for place in list(self._seeds):
            if place in self._away:
                continue
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    shards = await self._link(place).command("CLUSTER", "SLOTS")
            except (Unavailable, TimeoutError) as error:
                failure = error
                self._ask_last(place)  # who asks has patience for some of them only
                continue
            self._owners = owners_in(shards, place[0])
            self._learned = time.monotonic()
            self._seeds = list(dict.fromkeys([place, *filter(None, self._owners), *self._hosts]))
            if None in self._owners:  # it may have been taken out of the Cluster or be cut off, and know of nobody
                self._ask_last(place)
            await self._forget()
            return
        raise _outage(failure)

    def _ask_last(self, place: Place) -> None:
        self._seeds.sort(key=lambda each: each == place)

    async def _forget(self) -> None:
        """Servers that have no slots any more."""
        owners = set(self._owners)
        self._away &= owners
        # What is in use stays: a slot may be on its way there.
        idle = [place for place, link in self._links.items() if place not in owners and not link.in_use]
        await asyncio.gather(*(self._links.pop(place).close() for place in idle))

    def _lost(self, place: Place, cause: str) -> None:
        if place not in self._away:
            self._away.add(place)
            event(logging.ERROR, "shard down", shard=f"{place[0]}:{place[1]}", cause=cause)
        self._look()

    def _look(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._until_whole())

    async def _until_whole(self) -> None:
        """Look whether those who did not answer do, and who has what, until all is known and all answer."""
        while True:
            await asyncio.gather(*(self._greet(place) for place in self._away))
            with contextlib.suppress(Exception):  # whatever it is, the next look may be better
                await self._learn()
                if not self._away and None not in self._owners:
                    return
            await asyncio.sleep(LOOK_EVERY)

    async def _greet(self, place: Place) -> None:
        """With the script, for nobody: while a shard takes no writes, in a failover say, it still answers to PING."""
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self._link(place).replies([_script([], ["", 0, 0, 0, "", b""])])  # a complaint is an answer too
                self._away.discard(place)
                event(logging.WARNING, "shard back", shard=f"{place[0]}:{place[1]}")


def _slot(name: bytes | str) -> int:
    return key_slot(name.encode() if isinstance(name, str) else name)


def _script(names: Sequence[str], arguments: Sequence[Any]) -> Command:
    return ("EVALSHA", _SHA, len(names), *names, *arguments)


def _outage(error: Exception) -> Unavailable:
    if isinstance(error, Unavailable):
        return error
    return Unavailable(f"a shard of the gate failed: {type(error).__name__}: {error}")


def _host(named: str, asked: str) -> str:
    """A server that does not know its name is where it was asked."""
    return asked if named in ("", "?") else named


def owners_in(shards: Sequence[Any], asked: str) -> list[Place | None]:
    """Of each slot, from the answer to CLUSTER SLOTS."""
    owners: list[Place | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    for first, last, (host, port, *_), *_ in shards:
        place = (_host(host.decode() if host else "", asked), int(port))
        owners[first : last + 1] = [place] * (last + 1 - first)
    return owners
