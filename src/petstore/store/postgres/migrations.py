"""Brings a schema of PostgreSQL to its newest version."""

from importlib import resources
from typing import Any

import asyncpg

from petstore.errors import OperatorError
from petstore.store.schema import NEWER

MIGRATIONS = sorted(
    resources.files("petstore.store").joinpath("migrations/postgres").iterdir(), key=lambda file: file.name
)
MIGRATION_LOCK = 7_387_783  # any number, the same on every node


async def migrate(connection: Any, schema: str) -> None:
    """Inside a transaction that may take long: each step happens once, however many nodes start at the same time.

    Raises OperatorError when a newer version has written the schema, or when rights are missing.
    """
    try:
        await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
        # Not IF NOT EXISTS: that reads a cache, which may not have what another node did while this one waited.
        if not await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = $1", schema):
            await connection.execute(f"CREATE SCHEMA {schema}")
            await connection.execute(f"CREATE TABLE {schema}.migrations (number int PRIMARY KEY)")
        version = await schema_version(connection, schema)
        if version > len(MIGRATIONS):
            raise OperatorError(f"the database {NEWER.format(version, len(MIGRATIONS))}")
        await connection.execute(f"SET LOCAL search_path = {schema}")
        for number, file in enumerate(MIGRATIONS[version:], version + 1):
            await connection.execute(file.read_text())
            await connection.execute("INSERT INTO migrations VALUES ($1)", number)
    except asyncpg.InsufficientPrivilegeError as error:
        raise OperatorError(
            f"the database user may not make the schema {schema}: GRANT CREATE ON DATABASE … TO …"
        ) from error


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
