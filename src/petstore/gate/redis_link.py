"""The ways to Redis: one server, or a primary that Sentinels name; `redis_cluster.py` has the third. redis-py connects,
authenticates and asks Sentinels; which command goes out when is decided here."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from redis import exceptions
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from petstore.errors import OperatorError, Unavailable
from petstore.gate.redis import VERSIONS, Request, Step, answers_in, packed, versions_in

if TYPE_CHECKING:
    from petstore.gate.redis_cluster import ClusterLink

CONNECT_SECONDS = 0.8
SENTINEL_SECONDS = 0.3
SCAN_COUNT = 1_000
OPTIONS = ("db", "username", "password", "client_name", "protocol", "socket_timeout", "socket_keepalive",
           "retry_on_timeout", "health_check_interval")  # fmt: skip
TLS_OPTIONS = (*OPTIONS, "ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_certfile", "ssl_keyfile", "ssl_password",
               "ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version", "ssl_ciphers")  # fmt: skip
OPTIONS_OF = {"redis": OPTIONS, "valkey": OPTIONS, "rediss": TLS_OPTIONS, "valkeys": TLS_OPTIONS}
SCRIPT = resources.files("petstore.gate").joinpath("admit.lua").read_text()

_VERSIONS_SIZE = 32
_TROUBLE = (exceptions.RedisError, OSError, asyncio.IncompleteReadError)


def open_link(url: str) -> "SingleLink | ClusterLink":
    """Raises OperatorError when the URL cannot be understood.

    redis://host:port/db, rediss:// (TLS), valkey://, valkeys:// (TLS); redis+sentinel://host:port,host:port/name;
    redis+cluster://host:port,host:port.
    """
    from petstore.gate.redis_cluster import ClusterLink

    scheme = url.partition(":")[0]
    try:
        _check_options(url, OPTIONS_OF.get(scheme, ()))
        if scheme == "redis+sentinel":
            return SingleLink(*_sentinels(url))
        if scheme == "redis+cluster":
            return ClusterLink(_hosts(url), _login(url))
        options = parse_url("redis" + url.removeprefix("valkey") if url.startswith("valkey") else url)
        if "db" not in options and urlsplit(url).path.strip("/"):
            raise ValueError(f"{urlsplit(url).path}: the database must be a number")
    except ValueError as error:
        raise OperatorError(f"--gate: {error}") from error
    return SingleLink(dict(options))


def _check_options(url: str, known: Sequence[str]) -> None:
    """Raises ValueError. redis-py would take offence at an unknown one when it connects, in words of its own."""
    unknown = [name for name in parse_qs(urlsplit(url).query, keep_blank_values=True) if name not in known]
    if not all(map(str.isidentifier, unknown)):
        raise ValueError("its query cannot be understood; write ? and @ in a password as %3F and %40")
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no such option; known here: {', '.join(known) or 'none'}")


def _login(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    found = {"username": parts.username, "password": parts.password}
    return {name: unquote(value) for name, value in found.items() if value}


def _hosts(url: str) -> list[tuple[str, int]]:
    """Raises ValueError."""
    hosts = []
    for place in urlsplit(url).netloc.rpartition("@")[2].split(","):
        host, _, port = place.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{place}: give host:port, several with a comma in between")
        hosts.append((host.strip("[]"), int(port)))
    return hosts


def _sentinels(url: str) -> tuple[dict[str, Any], Sentinel, str]:
    service = urlsplit(url).path.strip("/")
    if not service:
        raise ValueError("name the service: redis+sentinel://host:26379,host:26379/name")
    # One that is away must leave time for the others within a step's patience; redis-py would try it for seconds.
    brief: Any = {"socket_timeout": SENTINEL_SECONDS, "socket_connect_timeout": SENTINEL_SECONDS,
                  "retry": Retry(NoBackoff(), 0)}  # fmt: skip
    sentinels = Sentinel(_hosts(url), sentinel_kwargs=brief)  # type: ignore[no-untyped-call]  # no types here
    return _login(url), sentinels, service


class SingleLink:
    """One connection to one server, which is found anew after every fault."""

    def __init__(self, options: dict[str, Any], sentinels: Sentinel | None = None, service: str = "") -> None:
        from redis.asyncio.connection import Connection

        self._kind: Any = options.pop("connection_class", Connection)
        self._options = {**options, "socket_connect_timeout": CONNECT_SECONDS, "decode_responses": False}
        self._sentinels = sentinels
        self._service = service
        self._connection: Any = None
        self._stepped: Any = None  # the connection of the last step
        self._script = b""
        self._turn = asyncio.Lock()  # one exchange at a time

    async def step(self, now: str, bans: Sequence[int], raised: int, requests: Sequence[Request]) -> Step:
        names = [VERSIONS, *[request.name for request in requests]]
        reply: bytes = await self._evaluate(names, [now, *bans, raised, packed(requests)])
        self.stepped()
        return Step(versions_in(reply), answers_in(memoryview(reply)[_VERSIONS_SIZE:]))

    @property
    def in_use(self) -> bool:
        return self._turn.locked()

    def stepped(self) -> None:
        self._stepped = self._connection

    def connected(self) -> bool:
        return self._stepped is self._connection and self._open()

    def _open(self) -> bool:
        reader = getattr(self._connection, "_reader", None)  # of redis-py's own; it has no other way to tell
        return reader is not None and not reader.at_eof() and reader.exception() is None

    async def names(self, pattern: str) -> AsyncIterator[list[bytes]]:
        place = b"0"
        while True:
            place, found = await self._call("SCAN", place, "MATCH", pattern, "COUNT", SCAN_COUNT)
            if found:
                yield found
            if place == b"0":
                return

    async def values(self, names: Sequence[bytes | str]) -> list[bytes | None]:
        return await self._call("MGET", *names) if names else []

    async def put(self, records: Sequence[tuple[str, bytes, int]]) -> None:
        for reply in await self.replies([("SET", name, value, "PX", life) for name, value, life in records]):
            if isinstance(reply, Exception):
                raise _failed(reply)

    async def command(self, *words: str) -> Any:
        """Any command, for those who look at the server itself. Raises Unavailable."""
        return await self._call(*words)

    async def servers(self) -> "dict[str, SingleLink]":
        """Each server that keeps records, by what to call it. Raises Unavailable."""
        return {"Redis": self}

    async def close(self) -> None:
        await self._drop(nowait=False)  # TLS says goodbye, and is answered
        for sentinel in self._sentinels.sentinels if self._sentinels else ():
            with contextlib.suppress(*_TROUBLE):
                await sentinel.aclose()

    async def _evaluate(self, names: Sequence[str], arguments: Sequence[Any]) -> Any:
        if not self._script:
            self._script = await self._call("SCRIPT", "LOAD", SCRIPT)
        try:
            return await self._call("EVALSHA", self._script, len(names), *names, *arguments)
        except _ScriptMissing:  # the server was restarted, or another one took over
            self._script = await self._call("SCRIPT", "LOAD", SCRIPT)
            return await self._call("EVALSHA", self._script, len(names), *names, *arguments)

    async def _call(self, *words: Any) -> Any:
        """One command, one answer. A server that complains is not used again: another may be the primary by now."""
        async with self._turn:
            (reply,) = await self._exchange([words])
            if isinstance(reply, exceptions.NoScriptError):
                raise _ScriptMissing(str(reply)) from reply
            if isinstance(reply, Exception):
                await self._drop()
                raise _failed(reply) from reply
            return reply

    async def replies(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """To all of them, in one exchange; a complaint of the server is an answer too. Raises Unavailable."""
        async with self._turn:
            return await self._exchange(commands)

    async def _exchange(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """After anything else than answers the connection is not used again."""
        try:
            if not self._open():  # never was, or the server has closed it while nobody asked
                await self._drop()
                self._connection = await self._prepared()
            await self._connection.send_packed_command(self._connection.pack_commands(commands))
            return [await self._answer() for _ in commands]
        except _TROUBLE as error:
            await self._drop()
            raise _failed(error) from error
        except BaseException:
            await self._drop()
            raise

    async def _answer(self) -> Any:
        try:
            return await self._connection.read_response()
        except exceptions.ResponseError as complaint:
            return complaint

    async def _prepared(self) -> Any:
        """A connection to the server, or to the one that is the primary at the moment."""
        options = dict(self._options)
        if self._sentinels is not None:
            options["host"], options["port"] = await self._sentinels.discover_master(self._service)
        return self._kind(**options)

    async def _drop(self, *, nowait: bool = True) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*_TROUBLE):
                await connection.disconnect(nowait=nowait)


def _failed(error: Exception) -> Unavailable:
    return Unavailable(f"the gate failed: {type(error).__name__}: {error}")


class _ScriptMissing(Unavailable):
    """Never leaves this file."""
