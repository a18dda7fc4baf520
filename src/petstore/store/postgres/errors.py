"""PostgreSQL's errors become ours, by their type, which stands for an SQLSTATE."""

import asyncpg

from petstore.errors import OperatorError, PetstoreError, Unavailable

# Only a bug causes these: a value, a row or a statement that PostgreSQL cannot take, whatever its state.
BUGS = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.SyntaxOrAccessError)
# But these of them, an operator causes: missing rights, a table that was dropped.
NOT_BUGS = (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedTableError)
DRIVER = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
# After one of these, other connections to the server are likely to be of no use either.
GONE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,  # shut down, crashed, starting up
    asyncpg.ReadOnlySQLTransactionError,  # 25006: no longer the primary, though it answers
    OSError,
)


def translate(error: Exception) -> Exception:
    """Unavailable or OperatorError for what the server or the network reports; ours and bugs stay themselves."""
    if isinstance(error, PetstoreError) or is_bug(error):
        return error
    if isinstance(error, asyncpg.ClientConfigurationError):
        return OperatorError(f"--store: {error}")
    if isinstance(error, TimeoutError):
        return Unavailable("the store did not answer in time")
    return Unavailable(f"the store failed: {type(error).__name__}: {error}")


def is_bug(error: Exception) -> bool:
    return not isinstance(error, DRIVER) or (isinstance(error, BUGS) and not isinstance(error, NOT_BUGS))


def is_gone(error: Exception) -> bool:
    """Whether other connections to this server are likely to be of no use either."""
    return isinstance(error, GONE) and not isinstance(error, asyncpg.QueryCanceledError | TimeoutError)
