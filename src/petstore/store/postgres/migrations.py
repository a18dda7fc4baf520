"""Recognises PostgreSQL schemas created by Petstore, and migrates them to the newest version."""

from collections.abc import Sequence
from typing import Any

import asyncpg

from petstore.errors import OperatorError
from petstore.store.schema import UNRECOGNISED, Migration, known_migrations, pending

MIGRATION_LOCK = 7_387_783  # an arbitrary lock id that every node uses
APPLICATION_NAME = "petstore"  # shown in pg_stat_activity
KNOWN = known_migrations("postgres")


async def schema_version(connection: Any, schema: str) -> int:
    """Returns the version of a schema, or 0 if it does not exist or is empty.

    Raises OperatorError if the schema contains tables but was not created by Petstore.
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
    """Creates the schema or migrates it to the newest version, even while other nodes are using it.

    Must be called inside `long_transaction`. Each migration runs once, even if several nodes start at the same time.
    Raises OperatorError if the schema cannot be created or migrated.
    """
    try:
        await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
        # CREATE SCHEMA IF NOT EXISTS checks a cache, which may be missing a schema just created by another node.
        if not await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = $1", schema):
            await connection.execute(f"CREATE SCHEMA {schema}")
        needed = await _pending(connection, schema, migrations)
        await connection.execute(f"SET LOCAL search_path = {schema}")
        for migration in needed:
            await connection.execute(migration.sql)
            await connection.execute("UPDATE format SET version = $1", migration.version)
    except asyncpg.InsufficientPrivilegeError as error:
        raise OperatorError(
            f"the database user is not allowed to create the schema {schema}; run GRANT CREATE ON DATABASE … TO …"
        ) from error


async def is_migrated(connection: Any, schema: str, migrations: Sequence[Migration] = KNOWN) -> bool:
    """Returns whether the schema is up to date. Raises OperatorError if this version of Petstore cannot use it."""
    return not await _pending(connection, schema, migrations)


async def _pending(connection: Any, schema: str, migrations: Sequence[Migration]) -> list[Migration]:
    version = await schema_version(connection, schema)
    try:
        return pending(migrations, version)
    except OperatorError as error:
        raise OperatorError(f"the schema {schema} {error}") from None


async def check_encoding(connection: Any) -> None:
    """Raises OperatorError if the database encoding is not UTF-8."""
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise OperatorError(f"--store: the database encoding is {encoding}, which cannot store all names; use UTF8")
