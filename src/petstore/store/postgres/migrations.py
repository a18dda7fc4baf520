"""Recognises a PostgreSQL schema that Petstore has written, and brings it up to date."""

from collections.abc import Sequence
from typing import Any

import asyncpg

from petstore.errors import OperatorError
from petstore.store.schema import UNRECOGNISED, Migration, known_migrations, pending

MIGRATION_LOCK = 7_387_783  # any number, the same on every node
APPLICATION_NAME = "petstore"  # of connections
KNOWN = known_migrations("postgres")


async def schema_version(connection: Any, schema: str) -> int:
    """Returns 0 for a schema that does not exist or is empty.

    Raises OperatorError for a schema that has tables and that Petstore has not written.
    """
    tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
    if not tables:
        return 0
    if ("format",) in map(tuple, tables):
        version: int | None = await connection.fetchval(
            f"SELECT version FROM {schema}.format WHERE product = 'petstore'"
        )
        if version is not None:
            return version
    raise OperatorError(f"the schema {schema} {UNRECOGNISED}; use another database")


async def migrate(connection: Any, schema: str, migrations: Sequence[Migration] = KNOWN) -> None:
    """Create the schema, or bring it to the newest version, while other nodes may use it.

    Must be called inside a transaction that may take long. Each migration happens once, however many nodes start at
    the same time. Raises OperatorError.
    """
    try:
        await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
        # Not IF NOT EXISTS: that reads a cache, which may not have what another node did while this one waited.
        if not await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = $1", schema):
            await connection.execute(f"CREATE SCHEMA {schema}")
        needed = await _pending(connection, schema, migrations)
        await connection.execute(f"SET LOCAL search_path = {schema}")
        for migration in needed:
            await connection.execute(migration.sql)
            await connection.execute("UPDATE format SET version = $1", migration.version)
    except asyncpg.InsufficientPrivilegeError as error:
        raise OperatorError(
            f"the database user may not create the schema {schema}: GRANT CREATE ON DATABASE … TO …"
        ) from error


async def is_migrated(connection: Any, schema: str, migrations: Sequence[Migration] = KNOWN) -> bool:
    """Whether the schema exists and has the newest version. Raises OperatorError if this version cannot use it."""
    return not await _pending(connection, schema, migrations)


async def _pending(connection: Any, schema: str, migrations: Sequence[Migration]) -> list[Migration]:
    version = await schema_version(connection, schema)
    try:
        return pending(migrations, version)
    except OperatorError as error:
        raise OperatorError(f"the schema {schema} {error}") from None


async def check_encoding(connection: Any) -> None:
    """Raises OperatorError."""
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise OperatorError(f"--store: the database is in {encoding}, which has no room for all names; use UTF8")
