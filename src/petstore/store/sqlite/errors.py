"""SQLite's errors become ours, by their type. A full disk, a lock or a damaged file is Unavailable: a 503."""

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from petstore.errors import PetstoreError, Unavailable

# Only a bug causes these: a statement, a value or a row that SQLite cannot take, whatever the state of the file.
BUGS = (
    apsw.SQLError, apsw.ConstraintError, apsw.MismatchError, apsw.MisuseError, apsw.RangeError, apsw.TooBigError,
    apsw.BindingsError, apsw.IncompleteExecutionError, apsw.CursorClosedError, apsw.ThreadingViolationError,
)  # fmt: skip


def translate(error: Exception) -> Exception:
    """Unavailable for what SQLite or the file system reports; ours and bugs stay themselves."""
    if isinstance(error, (PetstoreError, *BUGS)) or not isinstance(error, apsw.Error | OSError):
        return error
    damaged = isinstance(error, apsw.CorruptError | apsw.NotADBError)
    what_to_do = "; petstore check says which file is damaged" if damaged else ""
    outage = Unavailable(f"the store failed: {type(error).__name__}: {error}{what_to_do}")
    outage.__cause__ = error
    return outage


@contextmanager
def translating() -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise translate(error) from error
