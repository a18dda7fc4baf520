"""Connections to PostgreSQL: how many, how long anyone waits, how they fail and heal, and the schema behind them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from importlib import resources
from typing import Any, TypeVar
from urllib.parse import urlsplit

import asyncpg

from petstore.errors import OperatorError, PetstoreError, Unavailable
from petstore.store import PATIENCE

WAITING_MAX = 1_000  # requests that may wait for a connection
CONNECT_SECONDS = 1.2
FAREWELL_SECONDS = 0.2
STATEMENT_MILLISECONDS = int(PATIENCE * 900)  # less than the patience, so that the reason can be told
IDLE_MILLISECONDS = 5_000  # within a transaction: whoever is silent for so long has gone, and others wait for its locks
MIGRATION_LOCK = 7_387_783  # any number, the same on every node
LONG = 3600.0  # patience of an operator's command, in seconds

MIGRATIONS = sorted(
    (file for file in resources.files("petstore.store").joinpath("migrations/postgres").iterdir()),
    key=lambda file: file.name,
)

T = TypeVar("T")
Connection = Any  # asyncpg's pool hands out proxies that its types do not name
Work = Callable[[Connection], Awaitable[T]]


class PostgresPool:
    """The connections of one worker. Opened when first needed: a worker may start before its database."""

    def __init__(self, url: str, *, size: int, pgbouncer: bool, schemas: Sequence[str], serving: bool = False) -> None:
        self._url = url
        self._hosts = each_host(url)
        self._size = size
        self._pgbouncer = pgbouncer
        self._schemas = schemas
        self._serving = serving
        self._pool: asyncpg.Pool | None = None
        self._opening: asyncio.Task[asyncpg.Pool] | None = None
        self._waiting = 0
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Work[T], patience: float = PATIENCE) -> T:
        """What `work` returns. It runs in a task of its own: a client that goes away leaves no statement half sent.

        Raises Unavailable, and whatever of ours `work` raises; OperatorError only where an operator looks on.
        """
        if self._waiting >= WAITING_MAX:
            raise Unavailable("too many requests wait for a connection to the store")
        self._waiting += 1
        task = asyncio.get_running_loop().create_task(self._run(work, patience))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(task)
        except OperatorError as error:
            if self._serving:  # a newer node has brought the schema on, say: the others go on until they are replaced
                raise Unavailable(str(error)) from error
            raise

    async def _run(self, work: Work[T], patience: float) -> T:
        waiting = True
        deadline = asyncio.get_running_loop().time() + patience + FAREWELL_SECONDS
        connection: Connection = None
        pool: asyncpg.Pool | None = None
        try:
            async with asyncio.timeout(patience):
                pool = await self._opened()
                connection = await pool.acquire()
                self._waiting -= 1
                waiting = False
                with _cut_off(connection, deadline):
                    return await work(connection)
        except PetstoreError:
            raise
        except Exception as error:
            raise await self._failed(error, pool, connection) from error
        finally:
            if waiting:
                self._waiting -= 1
            if pool is not None and connection is not None:
                await _give_back(pool, connection)

    async def _failed(self, error: Exception, pool: asyncpg.Pool | None, connection: Connection) -> PetstoreError:
        """Whatever the server complained of is told; a connection that may be out of step, or worse, is not kept."""
        if connection is not None and (not isinstance(error, asyncpg.PostgresError) or _is_gone(error)):
            with contextlib.suppress(asyncpg.InterfaceError):  # the pool has let go of it already
                connection.terminate()
        if pool is not None and _is_gone(error):
            await pool.expire_connections()
        if isinstance(error, asyncpg.ClientConfigurationError):
            return OperatorError(f"--store: {error}")
        if isinstance(error, TimeoutError):
            return Unavailable("the store did not answer in time")
        return Unavailable(f"the store failed: {type(error).__name__}: {error}")

    async def _opened(self) -> asyncpg.Pool:
        if self._pool is not None:
            return self._pool
        if self._opening is None:
            # By itself: a migration may take longer than whoever happens to be first has patience.
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._opening)

    async def _open(self) -> asyncpg.Pool:
        try:
            pool = await asyncpg.create_pool(self._url, **self._options())
            try:
                async with pool.acquire() as connection:
                    with _cut_off(connection, asyncio.get_running_loop().time() + CONNECT_SECONDS):
                        await _check_encoding(connection)
                        versions = {schema: await schema_version(connection, schema) for schema in self._schemas}
                    for schema in self._schemas:
                        if versions[schema] != len(MIGRATIONS):
                            await _migrate(connection, schema)
            except BaseException:
                pool.terminate()
                raise
            self._pool = pool
            return pool
        finally:
            self._opening = None

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "min_size": 1,
            "max_size": self._size,
            "timeout": CONNECT_SECONDS,
            "server_settings": {"application_name": "petstore"},
            "max_inactive_connection_lifetime": 60,
            "reset": _nothing_to_reset,
        }
        if self._pgbouncer:
            # In transaction mode each transaction may meet another server connection, which does not know what the
            # last one prepared, and PgBouncer refuses settings that it does not keep track of.
            options["statement_cache_size"] = 0
        else:
            options["server_settings"]["statement_timeout"] = str(STATEMENT_MILLISECONDS)
            options["server_settings"]["idle_in_transaction_session_timeout"] = str(IDLE_MILLISECONDS)
        if len(self._hosts) > 1:
            options["target_session_attrs"] = "read-write"  # of several hosts, the one that takes writes
            options["connect"] = self._connect
        return options

    async def _connect(self, _: str, **options: Any) -> Connection:
        """To the first host that will do, beginning with the last that did.

        Each has its share of the time: asyncpg would leave all of it to one that swallows packets.
        """
        options["timeout"] = CONNECT_SECONDS / len(self._hosts)
        *others, last = self._hosts  # as they are now: while this waits, another may find out more
        for host in others:
            with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InternalClientError):
                return await self._connect_to(host, options)
        return await self._connect_to(last, options)

    async def _connect_to(self, host: str, options: dict[str, Any]) -> Connection:
        connection = await asyncpg.connect(host, **options)
        self._hosts.sort(key=lambda each: each != host)
        return connection

    async def close(self) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=PATIENCE)
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening], timeout=PATIENCE)
        if self._pool is not None:
            with contextlib.suppress(TimeoutError):  # what is still open then is cut off
                await asyncio.wait_for(self._pool.close(), PATIENCE)


def each_host(url: str) -> list[str]:
    """The same URL, with one of its hosts each."""
    parts = urlsplit(url)
    login, at, hosts = parts.netloc.rpartition("@")
    return [parts._replace(netloc=login + at + host).geturl() for host in hosts.split(",")]


@contextlib.contextmanager
def _cut_off(connection: Connection, deadline: float) -> Iterator[None]:
    """A server that hangs does not answer a ROLLBACK either: then the connection ends, and with it the waiting."""

    def cut() -> None:
        with contextlib.suppress(asyncpg.InterfaceError):
            connection.terminate()

    timer = asyncio.get_running_loop().call_at(deadline, cut)
    try:
        yield
    finally:
        timer.cancel()


async def _check_encoding(connection: Connection) -> None:
    """Raises OperatorError."""
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise OperatorError(f"--store: the database is in {encoding}, which has no room for all names; use UTF8")


async def _nothing_to_reset(connection: Connection) -> None:
    """Nobody here leaves anything in a session, and asyncpg's own way would be another statement for each."""


async def _give_back(pool: asyncpg.Pool, connection: Connection) -> None:
    with contextlib.suppress(asyncpg.InterfaceError, asyncpg.PostgresError, OSError):
        # A connection that has to be closed is closed with a word of farewell, which a server that hangs does not hear.
        await pool.release(connection, timeout=FAREWELL_SECONDS)


def _is_gone(error: Exception) -> bool:
    """Whether other connections to this server are likely to be of no use either."""
    gone = (
        asyncpg.PostgresConnectionError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        asyncpg.OperatorInterventionError,  # shut down, crashed, starting up
        asyncpg.ReadOnlySQLTransactionError,  # 25006: no longer the primary, though it answers
        OSError,
    )
    return isinstance(error, gone) and not isinstance(error, asyncpg.QueryCanceledError | TimeoutError)


@contextlib.asynccontextmanager
async def at_leisure(connection: Connection) -> AsyncIterator[None]:
    """A transaction whose statements may take long: an operator's, never a request's."""
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0")
        yield


async def _migrate(connection: Connection, schema: str) -> None:
    """Bring a schema to its newest form, each step once, however many nodes start at the same time.

    Raises OperatorError when it is newer than the code or when rights are missing.
    """
    try:
        async with at_leisure(connection):
            await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
            # Not IF NOT EXISTS: that looks into a cache, which may not know yet what the lock was waited for.
            if not await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = $1", schema):
                await connection.execute(f"CREATE SCHEMA {schema}")
                await connection.execute(f"CREATE TABLE {schema}.migrations (number int PRIMARY KEY)")
            version = await schema_version(connection, schema)
            if version > len(MIGRATIONS):
                raise OperatorError(
                    f"the database was written by a newer Petstore (schema {version}, this one knows"
                    f" {len(MIGRATIONS)}); upgrade Petstore"
                )
            await connection.execute(f"SET LOCAL search_path = {schema}")
            for number, file in enumerate(MIGRATIONS[version:], version + 1):
                await connection.execute(file.read_text())
                await connection.execute("INSERT INTO migrations VALUES ($1)", number)
    except asyncpg.InsufficientPrivilegeError as error:
        raise OperatorError(
            f"the database user may not make the schema {schema}: GRANT CREATE ON DATABASE … TO …"
        ) from error


async def schema_version(connection: Connection, schema: str) -> int:
    known = "SELECT count(*) FROM pg_tables WHERE schemaname = $1 AND tablename = 'migrations'"
    if not await connection.fetchval(known, schema):
        return 0
    found: int = await connection.fetchval(f"SELECT coalesce(max(number), 0) FROM {schema}.migrations")
    return found
