"""Brings a schema of PostgreSQL to its newest version."""

from typing import Any

import asyncpg

from petstore.errors import OperatorError
from petstore.store.schema import OLDEST_SCHEMA, migrations

MIGRATION_LOCK = 7_387_783  # any number, the same on every node
APPLICATION_NAME, EARLIER_NAME = "petstore 2", "petstore"  # of connections, this version's and those of 1.1


async def migrate(connection: Any, schema: str) -> None:
    """Inside a transaction that may take long: each step happens once, however many nodes start at the same time.

    Raises OperatorError when another version has written the schema or still uses it, or when rights are missing.
    """
    try:
        await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
        # Not IF NOT EXISTS: that reads a cache, which may not have what another node did while this one waited.
        if not await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = $1", schema):
            await connection.execute(f"CREATE SCHEMA {schema}")
            await connection.execute(f"CREATE TABLE {schema}.migrations (number int PRIMARY KEY)")
        version = await schema_version(connection, schema)
        try:
            needed = migrations("postgres", version)
        except OperatorError as error:
            raise OperatorError(f"the database {error}") from None
        if version == OLDEST_SCHEMA:
            await _check_nodes_stopped(connection)
        await connection.execute(f"SET LOCAL search_path = {schema}")
        for number, file in needed:
            await connection.execute(file.read_text())
            await connection.execute("INSERT INTO migrations VALUES ($1)", number)
    except asyncpg.InsufficientPrivilegeError as error:
        raise OperatorError(
            f"the database user may not make the schema {schema}: GRANT CREATE ON DATABASE … TO …"
        ) from error


async def _check_nodes_stopped(connection: Any) -> None:
    """Raises OperatorError while a process of release 1.1 is connected: it would fail on the new schema."""
    others = await connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1",
        EARLIER_NAME,
    )
    if others:
        raise OperatorError(
            f"Petstore 1.1 still uses the database ({others} connections): stop every node of it, then start this one"
        )


async def check_encoding(connection: Any) -> None:
    """Raises OperatorError."""
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise OperatorError(f"--store: the database is in {encoding}, which has no room for all names; use UTF8")


async def schema_version(connection: Any, schema: str) -> int:
    known = "SELECT count(*) FROM pg_tables WHERE schemaname = $1 AND tablename = 'migrations'"
    if not await connection.fetchval(known, schema):
        return 0
    found: int = await connection.fetchval(f"SELECT coalesce(max(number), 0) FROM {schema}.migrations")
    return found
