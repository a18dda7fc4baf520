"""Links to Redis: the interface, and the link to a single server or to the primary that Sentinels report.

redis-py connects and authenticates. This module decides which commands to send and when to reconnect.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol, cast

from redis.asyncio.connection import Connection
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.exceptions import NoScriptError, RedisError, ResponseError

from petstore.errors import Unavailable
from petstore.gate import redis_script as script
from petstore.gate.redis_script import Command, ScriptCall, ScriptReply
from petstore.timeouts import CLIENT

SCAN_COUNT = 1_000  # names to check per SCAN command
# OSError includes TimeoutError. IncompleteReadError means that the server closed the connection during a reply.
DRIVER_ERRORS = (RedisError, OSError, asyncio.IncompleteReadError)

ServerAddress = tuple[str, int]  # host and port
IfNew = Callable[[], Sequence[Command]]


class Link(Protocol):
    """A link to Redis. If a method fails, it raises Unavailable, and the next call reconnects."""

    async def run_script(
        self, now: str, bans: Sequence[int], announced: int, calls: Sequence[ScriptCall]
    ) -> ScriptReply:
        """Runs one batch. On a new connection, announces all changes, in case the server's versions are out of date."""

    def names(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """Yields the names of records that match the pattern, in batches. A name can appear more than once."""

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """Sends the commands and returns their replies. The second word of each command must be a record's name."""

    async def close(self) -> None: ...


def unavailable(error: Exception) -> Unavailable:
    """Converts redis-py errors and network errors to Unavailable.

    Any other error is a bug and is raised unchanged, so that it is logged with a traceback and the client gets a 500.
    """
    if isinstance(error, Unavailable):
        return error
    if not isinstance(error, DRIVER_ERRORS):
        raise error
    return Unavailable(f"the gate failed: {type(error).__name__}: {error}")


@contextlib.asynccontextmanager
async def time_limit(seconds: float) -> AsyncIterator[None]:
    """Raises Unavailable if the `with` block takes longer than this many seconds."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Unavailable("the gate did not respond in time") from None


class SingleLink:
    """Implements `Link` with one connection to one server. After an error, the next command reconnects."""

    def __init__(self, options: dict[str, Any], sentinel: Sentinel | None = None, service: str = "") -> None:
        """`options` are the arguments for a redis-py connection.

        If `sentinel` is given, the options have no host and port, and the link connects to the service's primary.
        """
        self._options = {**options, "socket_connect_timeout": CLIENT.gate_connection, "decode_responses": False}
        self._connection_class: Any = self._options.pop("connection_class", Connection)
        self._sentinel = sentinel
        self._service = service
        self._connection: Any = None
        self._carried_script = False  # whether the script has been run on this connection
        self._lock = asyncio.Lock()  # held during an exchange

    async def run_script(
        self, now: str, bans: Sequence[int], announced: int, calls: Sequence[ScriptCall]
    ) -> ScriptReply:
        records = [script.VERSIONS_RECORD, *[call.record for call in calls]]

        def command(bits: int) -> Command:
            return script.script_command(records, now, bans, bits, calls)

        (reply,) = await self.replies([command(announced)], if_new=lambda: [command(script.ALL_CHANGES)])
        return script.unpack_reply(await self._checked(reply))

    async def names(self, pattern: str) -> AsyncIterator[list[bytes]]:
        cursor = b"0"
        while True:
            async with time_limit(CLIENT.gate):
                cursor, found = await self.command("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
            if found:
                yield found
            if cursor == b"0":
                return

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        return [await self._checked(reply) for reply in await self.replies(commands)]

    async def servers(self) -> "dict[str, SingleLink]":
        """Returns the links to all servers that store records, keyed by the names that messages use for them."""
        return {"Redis": self}

    @property
    def busy(self) -> bool:
        return self._lock.locked()

    async def command(self, *words: Any) -> Any:
        """Sends one command and returns the reply. Raises Unavailable on failure."""
        (reply,) = await self.send([words])
        return reply

    async def replies(self, commands: Sequence[Command], if_new: IfNew | None = None) -> list[Any]:
        """Sends the commands together and returns their replies. Error replies are returned, not raised.

        On a connection that has not run the script yet, sends the commands from `if_new` in place of `commands`,
        because the server's versions might be out of date after a failover. Raises Unavailable if the connection fails.
        """
        async with self._lock:
            try:
                await self._ensure_connection()
                if if_new is not None and not self._carried_script:
                    commands = if_new()
                replies = await self._exchange(commands)
                missing = [number for number, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
                if missing:  # these commands were not executed, so it is safe to resend them
                    repeated = await self._exchange([script.LOAD_SCRIPT, *(commands[number] for number in missing)])
                    for number, reply in zip(missing, repeated[1:], strict=True):
                        replies[number] = reply
            except DRIVER_ERRORS as error:
                await self._disconnect()
                raise unavailable(error) from error
            except BaseException:  # replies to a cancelled exchange may still arrive on the connection
                await self._disconnect()
                raise
            if if_new is not None and not isinstance(replies[-1], Exception):
                self._carried_script = True
            return replies

    async def close(self) -> None:
        await self._disconnect(nowait=False)  # wait for the TLS shutdown
        if self._sentinel is not None:
            await asyncio.gather(*(client.aclose() for client in self._sentinel.sentinels))

    async def _checked(self, reply: Any) -> Any:
        """Returns the reply. If it is an error, disconnects in case the primary has changed, and raises Unavailable."""
        if isinstance(reply, Exception):
            await self._disconnect()
            raise unavailable(reply) from reply
        return reply

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        await self._connection.send_packed_command(self._connection.pack_commands(commands))
        return [await self._read_reply() for _ in commands]

    async def _read_reply(self) -> Any:
        try:
            return await self._connection.read_response()
        except ResponseError as error:
            return error

    async def _ensure_connection(self) -> None:
        if self._connection is not None:
            if self._connection.is_connected and not self._reader.at_eof() and self._reader.exception() is None:
                return
            await self._disconnect()
        options = dict(self._options)
        if self._sentinel is not None:
            options["host"], options["port"] = await self._find_primary(self._sentinel)
        self._connection = self._connection_class(**options)
        await self._connection.connect()
        # redis-py has no public way to detect that the server has closed an idle connection.
        self._reader: asyncio.StreamReader = self._connection._reader

    async def _find_primary(self, sentinel: Sentinel) -> ServerAddress:
        try:
            return cast(ServerAddress, await sentinel.discover_master(self._service))
        except MasterNotFoundError:  # redis-py's message lists all options of each Sentinel, but not why it failed
            asked = (each.sentinel_masters() for each in sentinel.sentinels)
            replies = await asyncio.gather(*asked, return_exceptions=True)
            failures = [str(reply) for reply in replies if isinstance(reply, Exception)]
            cause = "; ".join(failures) or "it is down, or its name is wrong"
            raise Unavailable(f"no Sentinel reports a working primary for {self._service}: {cause}") from None

    async def _disconnect(self, *, nowait: bool = True) -> None:
        connection, self._connection = self._connection, None
        self._carried_script = False
        if connection is not None:
            with contextlib.suppress(*DRIVER_ERRORS):
                await connection.disconnect(nowait=nowait)
