"""Checks a PostgreSQL server and its schemas without changing anything. Does not migrate older schemas."""

import contextlib
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

import asyncpg

from petstore.errors import OperatorError
from petstore.keys import ENVIRONMENTS, Environment
from petstore.store.postgres.batched_creates import SEQUENCES
from petstore.store.postgres.database import schema_of
from petstore.store.postgres.migrations import APPLICATION_NAME, is_migrated, schema_version
from petstore.store.postgres.pool import Connection, each_host
from petstore.store.schema import NEWEST_SCHEMA
from petstore.timeouts import CLIENT

STATEMENT_TIMEOUT = 5.0  # seconds; limits the wait for another transaction's lock
_SAFETY = {
    "fsync": "animals can be lost in a power cut",
    "full_page_writes": "animals can be lost in a power cut",
    "synchronous_commit": "animals can be lost in a crash",
}


class ServerReport(NamedTuple):
    server: list[str]  # problems with the server
    stores: dict[Environment, list[str]]  # problems with each environment
    about: dict[Environment, str]  # a description of each environment's schema
    ahead: float  # how many seconds the server's clock is ahead of this machine's clock


async def check_server(url: str, connections: int) -> ServerReport:
    """Checks a server, including whether it accepts as many connections as this node can open (`connections`).

    If the server cannot be checked, raises OSError, TimeoutError or asyncpg.PostgresError.
    """
    async with _connected(url) as connection, connection.transaction(readonly=True):
        before = time.time()
        now: float = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
        ahead = now - (before + time.time()) / 2
        server = await _server(connection, connections)
        stores, about = {}, {}
        for environment in ENVIRONMENTS:
            stores[environment], about[environment] = await _store(connection, schema_of(environment))
        return ServerReport(server, stores, about, ahead)


async def has_schemas(url: str) -> bool:
    """Returns whether the database contains Petstore's schemas.

    If the server cannot be queried, raises OSError, TimeoutError or asyncpg.PostgresError.
    """
    async with _connected(url) as connection:
        return all([await schema_version(connection, schema_of(environment)) > 0 for environment in ENVIRONMENTS])


async def clients(url: str) -> list[str]:
    """Returns the addresses from which Petstore's processes are connected to the database.

    Raises the same exceptions as `has_schemas`.
    """
    async with _connected(url) as connection:
        rows = await connection.fetch(
            "SELECT DISTINCT coalesce(host(client_addr), 'this machine') FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = $1 AND pid <> pg_backend_pid()",
            APPLICATION_NAME,
        )
    return sorted(address for (address,) in rows)


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Connection]:
    connection = await _connect(each_host(url))
    try:
        yield connection
    finally:
        with contextlib.suppress(TimeoutError):
            await connection.close(timeout=CLIENT.disconnect)


async def _connect(hosts: list[str]) -> Connection:
    """Like the service, connects to the host that accepts writes. If no host accepts writes, connects to any host."""
    outage: Exception = OSError("no host")
    for wanted in ("read-write", "any"):
        for host in hosts:
            try:
                return await asyncpg.connect(
                    host,
                    timeout=CLIENT.step,
                    command_timeout=STATEMENT_TIMEOUT,
                    statement_cache_size=0,
                    target_session_attrs=wanted,
                )
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InternalClientError) as error:
                outage = error
    raise outage


async def _server(connection: Connection, connections: int) -> list[str]:
    rows = await connection.fetch("SELECT name, setting FROM pg_settings WHERE name = ANY($1)", list(_SAFETY))
    faults = [f"PostgreSQL runs with {name} = off: {_SAFETY[name]}" for name, value in rows if value == "off"]
    if await connection.fetchval("SELECT pg_is_in_recovery()"):
        faults.append("PostgreSQL is a replica and does not accept writes")
    limit = int(await connection.fetchval("SELECT current_setting('max_connections')"))
    reserved = int(await connection.fetchval("SELECT current_setting('superuser_reserved_connections')"))
    if connections > limit - reserved:
        faults.append(
            f"this node can open {connections} connections (workers × --postgres-pool),"
            f" but PostgreSQL accepts only {limit - reserved}"
        )
    return faults


async def _store(connection: Connection, schema: str) -> tuple[list[str], str]:
    try:
        is_newest = await is_migrated(connection, schema)
    except OperatorError as error:
        return [str(error)], ""
    version = await schema_version(connection, schema)
    if version == 0:
        return [f"there is no schema {schema} yet; `petstore serve` creates it"], ""
    if not is_newest:
        return [], f"schema {version}; `petstore serve` migrates it to {NEWEST_SCHEMA}"
    faults = []
    for table, sequence in SEQUENCES.items():
        last = await connection.fetchval(f"SELECT last_value FROM {schema}.{sequence}")
        highest = await connection.fetchval(f"SELECT coalesce(max(id), 0) FROM {schema}.{table}")
        if last < highest:
            faults.append(f"{schema}.{sequence} is behind {schema}.{table}: ids would be assigned twice")
    return faults, f"schema {version}"
