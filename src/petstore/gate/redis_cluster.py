"""The link to a Redis Cluster. It finds the shard that owns a slot, and handles shards that do not respond.

It never resends a command that a shard may already have executed, because that could count the request twice.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError

from petstore.errors import Unavailable
from petstore.gate import redis_script as script
from petstore.gate.redis_link import IfNew, ServerAddress, SingleLink, time_limit, unavailable
from petstore.gate.redis_script import Command, ScriptCall, ScriptReply, ScriptResult, Versions
from petstore.observability.logs import event, logger

SHARD_TIMEOUT = 0.6  # seconds to wait for one shard before returning the other shards' results
SLOTS_TIMEOUT = 0.3  # timeout in seconds for a probe or for loading the slots from one server
REFRESH_INTERVAL = 0.2  # seconds between refreshes while a shard is down or a slot has no owner
REDIRECTS_MAX = 20  # maximum redirects to follow per command; a slot can move several times

_OUTDATED: ScriptResult = (script.OUTDATED,) * 6  # a result with the outcome OUTDATED; the other values are not used


class ClusterLink:
    """Implements `Link`, which documents the methods.

    Records are distributed across the shards, but all versions are in one slot. A script can access only one slot, so
    each batch is sent in two parts: first the versions, then the records. Calls with an outdated version of the keys
    are not sent, so their requests are not counted.

    If a shard does not respond, it receives no more commands until a probe succeeds. In the meantime, only the records
    on that shard are unavailable.
    """

    def __init__(self, hosts: Sequence[ServerAddress], options: dict[str, Any]) -> None:
        """`options` are the arguments for a redis-py connection, without host and port."""
        self._hosts = hosts
        self._options = options
        self._seeds = list(hosts)  # the servers to load the slots from, in order of preference
        self._links: dict[ServerAddress, SingleLink] = {}
        self._owners: list[ServerAddress | None] = []  # the owner of each slot
        self._refreshed_at = 0.0
        self._down: set[ServerAddress] = set()
        self._refresh_task: asyncio.Task[None] | None = None

    # Methods of Link

    async def run_script(
        self, now: str, bans: Sequence[int], announced: int, calls: Sequence[ScriptCall]
    ) -> ScriptReply:
        await self._ensure_slots()
        versions = await self._run_on_versions(now, bans, announced)
        return versions, await self._run_on_records(now, bans, versions, calls)

    async def names(self, pattern: str) -> AsyncIterator[list[bytes]]:
        for link in (await self.servers()).values():
            async for names in link.names(pattern):
                yield names

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        await self._ensure_slots()
        replies = await self._send(commands, [command[1] for command in commands])
        for reply in replies:
            if isinstance(reply, Exception):
                raise unavailable(reply)
        return replies

    async def servers(self) -> dict[str, SingleLink]:
        """Returns the links to all servers that store records, keyed by the names that messages use for them.

        Raises Unavailable if the slots cannot be loaded, or if a slot has no owner.
        """
        await self._ensure_slots()
        if None in self._owners:
            raise Unavailable("some slots have no owner")
        return {f"Redis at {host}:{port}": self._link((host, port)) for host, port in set(filter(None, self._owners))}

    async def close(self) -> None:
        if self._refresh_task is not None:
            self._refresh_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refresh_task
        await asyncio.gather(*(link.close() for link in self._links.values()))

    # The two parts of a batch

    async def _run_on_versions(self, now: str, bans: Sequence[int], announced: int) -> Versions:
        server = self._owners[_slot(script.VERSIONS_RECORD)]
        if server is None:
            self._refresh_soon()
            raise Unavailable("no shard of the Redis Cluster owns the slot that contains the versions")
        command, announce_all = (
            script.script_command([script.VERSIONS_RECORD], now, bans, bits, [])
            for bits in (announced, script.ALL_CHANGES)
        )
        (reply,) = await self._exchange(server, [command], if_new=lambda: [announce_all])
        if isinstance(reply, AskError):
            reply = await self._follow(server, reply, command, if_moved=announce_all)
        if isinstance(reply, Exception):
            raise unavailable(reply)
        return script.unpack_versions(reply)

    async def _run_on_records(
        self, now: str, bans: Sequence[int], versions: Versions, calls: Sequence[ScriptCall]
    ) -> list[ScriptResult | Unavailable]:
        results: list[ScriptResult | Unavailable] = [_OUTDATED] * len(calls)
        calls_of: dict[str, list[int]] = {}  # maps each record to the indexes of its calls
        for number, call in enumerate(calls):
            if not script.is_outdated(call, versions):
                calls_of.setdefault(call.record, []).append(number)
        commands = [
            script.script_command([record] * len(numbers), now, bans, "", [calls[n] for n in numbers])
            for record, numbers in calls_of.items()
        ]
        replies = await self._send(commands, list(calls_of))
        for numbers, reply in zip(calls_of.values(), replies, strict=True):
            if isinstance(reply, Exception):
                found: Sequence[ScriptResult | Unavailable] = [unavailable(reply)] * len(numbers)
            else:
                found = script.unpack_results(reply)
            for number, result in zip(numbers, found, strict=True):
                results[number] = result
        return results

    # Exchanges

    async def _send(self, commands: Sequence[Command], names: Sequence[bytes | str]) -> list[Any]:
        """Sends the commands to their shards concurrently. Returns a reply or an error for each command."""
        replies: list[Any] = [Unavailable("no shard of the Redis Cluster owns this slot")] * len(commands)
        commands_of: dict[ServerAddress, list[int]] = {}  # maps each server to the indexes of its commands
        for number, name in enumerate(names):
            server = self._owners[_slot(name)]
            if server is not None:
                commands_of.setdefault(server, []).append(number)
            else:
                self._refresh_soon()
        exchanges = (
            self._exchange_and_follow(server, [commands[n] for n in numbers]) for server, numbers in commands_of.items()
        )
        for numbers, found in zip(commands_of.values(), await asyncio.gather(*exchanges), strict=True):
            for number, reply in zip(numbers, found, strict=True):
                replies[number] = reply
        return replies

    async def _exchange_and_follow(self, server: ServerAddress, commands: Sequence[Command]) -> list[Any]:
        replies = await self._exchange(server, commands)
        moving = [number for number, reply in enumerate(replies) if isinstance(reply, AskError)]
        followed = (self._follow(server, replies[number], commands[number]) for number in moving)
        for number, reply in zip(moving, await asyncio.gather(*followed), strict=True):
            replies[number] = reply
        return replies

    async def _follow(
        self, server: ServerAddress, reply: Any, command: Command, if_moved: Command | None = None
    ) -> Any:
        """Follows redirects and returns the reply from the slot's current owner.

        Resending is safe, because a server that redirects a command does not execute it. If the slot has moved, sends
        `if_moved` instead of `command`, because the new owner's versions might be out of date.
        """
        for _ in range(REDIRECTS_MAX):
            if not isinstance(reply, AskError):  # MovedError is a subclass
                break
            server = (_host(reply.host, server[0]), reply.port)
            before: list[Command] = [script.LOAD_SCRIPT]
            if isinstance(reply, MovedError):
                self._refresh_soon()
                command = if_moved or command
            else:
                before.append(("ASKING",))
            reply = (await self._exchange(server, [*before, command]))[-1]
        return reply

    async def _exchange(
        self, server: ServerAddress, commands: Sequence[Command], if_new: IfNew | None = None
    ) -> list[Any]:
        """Sends the commands and returns a reply or an error for each. For `if_new`, see `SingleLink.replies`."""
        if server in self._down:
            return [Unavailable("a shard of the Redis Cluster is down")] * len(commands)
        try:
            async with time_limit(SHARD_TIMEOUT):
                replies = await self._link(server).replies(commands, if_new)
        except Unavailable as error:
            self._mark_down(server, str(error))
            return [error] * len(commands)
        if any(isinstance(reply, ClusterDownError) for reply in replies):
            # The server is no longer part of the Cluster or cannot reach it, so ask other servers for the slots. Limit
            # the refresh rate, because every batch may get this reply.
            self._ask_last(server)
            if time.monotonic() - self._refreshed_at > REFRESH_INTERVAL:
                self._refresh_soon()
        return replies

    def _link(self, server: ServerAddress) -> SingleLink:
        if server not in self._links:
            self._links[server] = SingleLink({**self._options, "host": server[0], "port": server[1]})
        return self._links[server]

    # Slots and their owners

    async def _ensure_slots(self) -> None:
        if not self._owners:
            await self._load_slots()

    async def _load_slots(self) -> None:
        """Loads the owners of the slots from the first seed that responds. Raises Unavailable if none responds."""
        failure = Unavailable("no shard of the Redis Cluster responds")
        for server in [seed for seed in self._seeds if seed not in self._down]:
            try:
                async with time_limit(SLOTS_TIMEOUT):
                    shards = await self._link(server).command("CLUSTER", "SLOTS")
            except Unavailable as error:
                failure = error
                self._ask_last(server)  # so that the next attempt tries other seeds first
                continue
            self._owners = owners_in(shards, server[0])
            self._refreshed_at = time.monotonic()
            self._seeds = list(dict.fromkeys([server, *filter(None, self._owners), *self._hosts]))
            if None in self._owners:  # this server may have been removed from the Cluster
                self._ask_last(server)
            await self._close_unused_links()
            return
        raise failure

    def _ask_last(self, server: ServerAddress) -> None:
        self._seeds.sort(key=lambda seed: seed == server)

    async def _close_unused_links(self) -> None:
        owners = set(self._owners)
        self._down &= owners
        # Keep busy links open, because their servers may be taking over a slot.
        unused = [server for server, link in self._links.items() if server not in owners and not link.busy]
        await asyncio.gather(*(self._links.pop(server).close() for server in unused))

    def _mark_down(self, server: ServerAddress, cause: str) -> None:
        if server not in self._down:
            self._down.add(server)
            event(logging.ERROR, "shard down", shard=f"{server[0]}:{server[1]}", cause=cause)
        self._refresh_soon()

    def _refresh_soon(self) -> None:
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = asyncio.get_running_loop().create_task(self._refresh())

    async def _refresh(self) -> None:
        """Probes shards that are down and reloads the slots until all shards respond and all slots have an owner."""
        while True:
            try:
                await asyncio.gather(*(self._probe(server) for server in self._down))
                await self._load_slots()
                if not self._down and None not in self._owners:
                    return
            except Unavailable:
                pass
            except Exception:  # keep running despite the bug, because nothing else marks shards as up
                logger.exception("gate failed")
            await asyncio.sleep(REFRESH_INTERVAL)

    async def _probe(self, server: ServerAddress) -> None:
        """Runs the script without records, so that it changes nothing. Marks the shard as up if the script succeeds.

        PING is not enough, because it succeeds even if the shard rejects writes during a failover.
        """
        with contextlib.suppress(Unavailable):
            async with time_limit(SLOTS_TIMEOUT):
                (reply,) = await self._link(server).replies([script.script_command([], "", (0, 0, 0), "", [])])
            if isinstance(reply, Exception):
                return
            self._down.discard(server)
            event(logging.WARNING, "shard back", shard=f"{server[0]}:{server[1]}")


def owners_in(shards: Sequence[Any], asked_host: str) -> list[ServerAddress | None]:
    """Parses the reply to CLUSTER SLOTS and returns the owner of each slot."""
    owners: list[ServerAddress | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    for first, last, (host, port, *_), *_ in shards:
        server = (_host(host.decode() if host else "", asked_host), int(port))
        owners[first : last + 1] = [server] * (last + 1 - first)
    return owners


def _host(named: str, asked_host: str) -> str:
    """Returns the host named in a reply, or `asked_host` if the server does not know its own address."""
    return asked_host if named in ("", "?") else named


def _slot(name: bytes | str) -> int:
    return key_slot(name.encode() if isinstance(name, str) else name)
