"""The PostgreSQL connection pool, with its limits, timeouts and recovery. Also translates asyncpg's exceptions."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import asyncpg

from petstore.errors import DiskFull, OperatorError, PetstoreError, Unavailable
from petstore.job_control import unstoppable
from petstore.store import StorePolicy
from petstore.store.postgres import migrations
from petstore.store.schema import NOT_MIGRATED, Migration
from petstore.store.writing import log_bug

# Errors. Each exception type corresponds to a class of SQLSTATE codes.

# These errors are bugs, except for NOT_BUGS. They mean that PostgreSQL rejected the value, the row or the statement.
BUGS = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.SyntaxOrAccessError)
# Subclasses of BUGS that are not bugs: an operator can cause them by revoking permissions or dropping a table.
NOT_BUGS = (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedTableError)
DRIVER = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
# These errors suggest that other connections to the server are broken as well.
GONE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,  # the server crashed, or is shutting down or starting up
    asyncpg.ReadOnlySQLTransactionError,  # the server was demoted to a replica, but still responds
    OSError,
)


def translate(error: Exception) -> Exception:
    """Converts server and network errors to Unavailable or OperatorError. Returns other errors unchanged."""
    if isinstance(error, PetstoreError) or is_bug(error):
        return error
    if isinstance(error, asyncpg.ClientConfigurationError):
        return OperatorError(f"--store: {error}")
    if isinstance(error, TimeoutError):
        return Unavailable("the store did not respond in time")
    cause = f"{type(error).__name__}: {error}"
    if isinstance(error, asyncpg.DiskFullError):
        return DiskFull("PostgreSQL", cause)
    return Unavailable(f"the store failed: {cause}")


@contextlib.contextmanager
def translating() -> Iterator[None]:
    """Converts server and network errors raised in the `with` block to Unavailable or OperatorError."""
    try:
        yield
    except DRIVER as error:
        fault = translate(error)
        if fault is error:
            raise
        raise fault from error


def is_bug(error: Exception) -> bool:
    return not isinstance(error, DRIVER) or (isinstance(error, BUGS) and not isinstance(error, NOT_BUGS))


def is_gone(error: Exception) -> bool:
    """Returns whether other connections to this server are probably broken as well."""
    return isinstance(error, GONE) and not isinstance(error, asyncpg.QueryCanceledError | TimeoutError)


# Connections

T = TypeVar("T")
Connection = Any  # asyncpg has no public type for pooled connections
Work = Callable[[Connection], Awaitable[T]]


class Connections(Protocol):
    async def run(self, work: Work[T], timeout_seconds: float | None = None) -> T:
        """Calls `work` with a connection and returns the result."""

    async def close(self) -> None: ...


class PostgresPool:
    """Implements `Connections` for one process.

    Connects on first use, because a worker may start before the database does.
    """

    def __init__(
        self,
        url: str,
        schemas: Sequence[str],
        policy: StorePolicy,
        known_migrations: Sequence[Migration] = migrations.KNOWN,
    ) -> None:
        self._url = url
        self._hosts = each_host(url)
        self._schemas = schemas
        self._policy = policy
        self._migrations = known_migrations
        self._bounds = policy.bounds
        self._timeouts = policy.bounds.timeouts
        self._pool: asyncpg.Pool | None = None
        self._opening: asyncio.Task[asyncpg.Pool] | None = None
        self._closed = False
        self._waiting = 0
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Work[T], timeout_seconds: float | None = None) -> T:
        """See `Connections`.

        `work` runs in a separate task, so that cancelling the caller does not interrupt a statement. The timeout
        defaults to the one for a single call in a request. Raises Unavailable if the store fails. Passes on other
        exceptions from `work`. In a service, however, OperatorError becomes Unavailable.
        """
        if self._closed:
            raise Unavailable("the store is closed")
        if self._waiting >= self._bounds.queued_reads:
            raise Unavailable("too many requests are waiting for a connection to the store")
        self._waiting += 1
        seconds = self._timeouts.call if timeout_seconds is None else timeout_seconds
        task = asyncio.get_running_loop().create_task(self._run(work, seconds))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_unseen_bug)
            raise
        except OperatorError as error:
            # For example, a newer version may have migrated the schema. This node keeps running until it is replaced.
            if self._policy.serving:
                raise Unavailable(str(error)) from error
            raise

    async def _run(self, work: Work[T], seconds: float) -> T:
        waiting = True
        deadline = asyncio.get_running_loop().time() + seconds + self._timeouts.disconnect
        connection: Connection = None
        pool: asyncpg.Pool | None = None
        try:
            async with asyncio.timeout(seconds):
                pool = await self._opened()
                connection = await pool.acquire()
                self._waiting -= 1
                waiting = False
                with unstoppable, terminate_at(deadline, connection):
                    return await work(connection)
        except PetstoreError:
            raise
        except Exception as error:
            await _discard(error, pool, connection)
            fault = translate(error)
            if fault is error:
                raise
            raise fault from error
        finally:
            if waiting:
                self._waiting -= 1
            if pool is not None and connection is not None:
                await self._release(pool, connection)

    async def _opened(self) -> asyncpg.Pool:
        if self._pool is not None:
            return self._pool
        if self._opening is None:
            # Use a separate task, because a migration may take longer than the first caller's timeout.
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._opening)

    async def _open(self) -> asyncpg.Pool:
        try:
            options = pool_options(len(self._hosts), self._policy)
            if len(self._hosts) > 1:
                options["connect"] = self._connect
            pool = await asyncpg.create_pool(self._url, **options)
            try:
                async with pool.acquire() as connection:
                    deadline = asyncio.get_running_loop().time() + self._timeouts.step
                    with terminate_at(deadline, connection):
                        await migrations.check_encoding(connection)
                        outdated = [each for each in self._schemas if await self._needs_migration(connection, each)]
                    for schema in outdated:
                        with unstoppable:
                            async with long_transaction(connection):
                                await migrations.migrate(connection, schema, self._migrations)
            except BaseException:
                pool.terminate()
                raise
            self._pool = pool
            return pool
        finally:
            self._opening = None

    async def _needs_migration(self, connection: Connection, schema: str) -> bool:
        """Returns whether the schema needs a migration.

        Raises OperatorError if the schema cannot be used, or if the policy does not allow migrations.
        """
        if await migrations.is_migrated(connection, schema, self._migrations):
            return False
        if not self._policy.migrate:
            raise OperatorError(f"the schema {schema} {NOT_MIGRATED}")
        return True

    async def _connect(self, _: str, **options: Any) -> Connection:
        """Connects to the first host that responds. Tries the most recently used host first.

        Divides the timeout among the hosts, because asyncpg would spend all of it on a host that drops packets.
        """
        options["timeout"] = self._timeouts.step / len(self._hosts)
        *others, last = self._hosts  # a copy, because another connection attempt may change the order
        for host in others:
            with contextlib.suppress(*DRIVER):
                return await self._connect_to(host, options)
        return await self._connect_to(last, options)

    async def _connect_to(self, host: str, options: dict[str, Any]) -> Connection:
        connection = await asyncpg.connect(host, **options)
        self._hosts.sort(key=lambda each: each != host)
        return connection

    async def _release(self, pool: asyncpg.Pool, connection: Connection) -> None:
        with contextlib.suppress(*DRIVER):
            # Use a timeout, because asyncpg sends a final message, and a hung server would not respond to it.
            await pool.release(connection, timeout=self._timeouts.disconnect)

    async def close(self) -> None:
        """Waits up to one call's timeout for running calls to finish, and then closes the connections."""
        self._closed = True
        timeout = self._timeouts.call
        if self._running:
            await asyncio.wait(self._running, timeout=timeout)
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening], timeout=timeout)
        if self._pool is not None:
            with contextlib.suppress(TimeoutError):  # on a timeout, asyncpg terminates open connections
                await asyncio.wait_for(self._pool.close(), timeout)


def each_host(url: str) -> list[str]:
    """Splits a URL with several hosts into one URL per host."""
    parts = urlsplit(url)
    login, at, hosts = parts.netloc.rpartition("@")
    return [parts._replace(netloc=login + at + host).geturl() for host in hosts.split(",")]


def pool_options(hosts: int, policy: StorePolicy) -> dict[str, Any]:
    """Returns the arguments for `asyncpg.create_pool`."""
    bounds = policy.bounds
    options: dict[str, Any] = {
        "min_size": 1,
        "max_size": policy.pool_size,
        "timeout": bounds.timeouts.step,
        "server_settings": {"application_name": migrations.APPLICATION_NAME},
        "max_inactive_connection_lifetime": 60,
        "reset": _nothing_to_reset,
    }
    if policy.pgbouncer:
        # In PgBouncer's transaction mode, each transaction may use a different server connection, on which prepared
        # statements may be missing. PgBouncer also rejects settings that it does not track.
        options["statement_cache_size"] = 0
    else:
        settings = options["server_settings"]
        settings["statement_timeout"] = _milliseconds(bounds.timeouts.step)
        settings["idle_in_transaction_session_timeout"] = _milliseconds(bounds.idle_transaction_timeout)
        # Without this, PostgreSQL would replan a page query each time because of the LIMIT (182 µs instead of 107 µs).
        settings["plan_cache_mode"] = "force_generic_plan"
    if hosts > 1:
        options["target_session_attrs"] = "read-write"  # connect only to a host that accepts writes
    return options


@contextlib.asynccontextmanager
async def long_transaction(connection: Connection) -> AsyncIterator[None]:
    """Runs a block in a transaction without server timeouts. Must not be used for client requests."""
    async with connection.transaction():
        await connection.execute(
            "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0;"
            " SET LOCAL plan_cache_mode = auto"
        )
        yield


@contextlib.contextmanager
def terminate_at(deadline: float, connection: Connection) -> Iterator[None]:
    """Terminates the connection at the deadline, because a hung server would not respond to ROLLBACK.

    Any exception raised after the deadline becomes a TimeoutError, because asyncpg may raise even an AttributeError.
    """
    ended = False

    def end() -> None:
        nonlocal ended
        ended = True
        _terminate(connection)

    timer = asyncio.get_running_loop().call_at(deadline, end)
    try:
        yield
    except Exception as error:
        if ended:
            raise TimeoutError from error
        raise
    finally:
        timer.cancel()


def _terminate(connection: Connection) -> None:
    with contextlib.suppress(asyncpg.InterfaceError):  # the pool has already closed the connection
        connection.terminate()


async def _discard(error: Exception, pool: asyncpg.Pool | None, connection: Connection) -> None:
    """Terminates the connection if its protocol state is unknown. If the server is gone, replaces all connections."""
    if connection is not None and (not isinstance(error, asyncpg.PostgresError) or is_gone(error)):
        _terminate(connection)
    if pool is not None and is_gone(error):
        await pool.expire_connections()


async def _nothing_to_reset(connection: Connection) -> None:
    """Does nothing. Our statements leave no session state, and asyncpg's reset would take another round trip."""


def _log_unseen_bug(task: "asyncio.Task[Any]") -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, PetstoreError):
        log_bug(error)


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))
