"""Is the result of a pg_dump whole? Both schemas, all tables, all rows, the sequences, and the end marker.

A dump in the custom format is read through `pg_restore`, which writes it out as SQL; a plain one is that already.
"""

import gzip
import re
import shutil
import subprocess
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from petstore.errors import OperatorError
from petstore.keys import ENVIRONMENTS
from petstore.store.postgres.base import SEQUENCES, schema_of
from petstore.store.postgres.pool import MIGRATIONS
from petstore.store.tables import TABLES

_COPY = re.compile(rb"COPY (petstore_\w+)\.(\w+) \(([^)]*)\) FROM stdin;")
_SETVAL = re.compile(rb"SELECT pg_catalog\.setval\('(petstore_\w+)\.(\w+)', (\d+), \w+\);")
_END = b"-- PostgreSQL database dump complete"
NEEDED = [*(table.name for table in TABLES), "migrations"]


class Dump(NamedTuple):
    faults: list[str]
    rows: dict[str, int]  # by schema and table


class _Seen:
    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.sequences: dict[str, int] = {}
        self.highest: dict[str, int] = {}  # the first column of tables whose ids come from a sequence
        self.ended = False
        self.open: str | None = None  # a table whose rows have not ended


def check_dump(path: Path) -> Dump:
    """Raises OperatorError when the file cannot be read at all."""
    with _lines(path) as lines:
        seen = _read(lines)
    if not seen.rows:
        raise OperatorError(f"{path}: is neither a backup of Petstore nor a dump of its rows")
    faults = []
    if seen.open:
        faults.append(f"it breaks off within the rows of {seen.open}")
    if not seen.ended:
        faults.append("it has no end: it was cut short")
    for schema in map(schema_of, ENVIRONMENTS):
        missing = [name for name in NEEDED if f"{schema}.{name}" not in seen.rows]
        if len(missing) == len(NEEDED):
            faults.append(f"the schema {schema} is missing")
        else:
            faults += [f"the rows of {schema}.{name} are missing" for name in missing]
        faults += _behind(seen, schema)
    return Dump(faults, seen.rows)


def _behind(seen: _Seen, schema: str) -> Iterator[str]:
    for table, sequence in SEQUENCES.items():
        highest = seen.highest.get(f"{schema}.{table}", 0)
        if seen.sequences.get(f"{schema}.{sequence}", 0) < highest:
            yield f"{schema}.{sequence} is missing or behind {schema}.{table}: ids would be given twice"
    version = seen.highest.get(f"{schema}.migrations", 0)
    if version > len(MIGRATIONS):
        yield f"{schema} was written by a newer Petstore (schema {version}, this one knows {len(MIGRATIONS)})"


def _read(lines: Iterable[bytes]) -> _Seen:
    seen = _Seen()
    for line in lines:
        if seen.open is not None:
            if line.rstrip() == b"\\.":
                seen.open = None
            else:
                seen.rows[seen.open] += 1
                first = line.split(b"\t", 1)[0].strip()
                if first.isdigit():
                    seen.highest[seen.open] = max(seen.highest.get(seen.open, 0), int(first))
        elif copy := _COPY.match(line):
            seen.open = f"{copy[1].decode()}.{copy[2].decode()}"
            seen.rows[seen.open] = 0
        elif setval := _SETVAL.match(line):
            seen.sequences[f"{setval[1].decode()}.{setval[2].decode()}"] = int(setval[3])
        elif line.startswith(_END):
            seen.ended = True
    return seen


@contextmanager
def _lines(path: Path) -> Iterator[Iterable[bytes]]:
    """The dump as SQL, whatever its format. Raises OperatorError."""
    try:
        with path.open("rb") as file:
            start = file.peek(5)[:5]
            if start == b"PGDMP":
                with _restored(path) as lines:
                    yield lines
            elif start[:2] == b"\x1f\x8b":
                with gzip.open(path) as unzipped:
                    yield unzipped
            else:
                yield file
    except EOFError:
        raise OperatorError(f"{path}: was cut short") from None
    except zlib.error:
        raise OperatorError(f"{path}: is damaged") from None
    except OSError as error:
        raise OperatorError(f"{path}: {error.strerror or error}") from error


@contextmanager
def _restored(path: Path) -> Iterator[Iterable[bytes]]:
    program = shutil.which("pg_restore")
    if program is None:
        raise OperatorError(
            f"{path}: is in pg_dump's custom format; install PostgreSQL's pg_restore to have it checked"
        )
    command = [program, "--file=-", "--", str(path)]
    # No shell reads it, and the path is a word of its own.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:  # noqa: S603 # nosec B603
        assert running.stdout is not None and running.stderr is not None
        yield running.stdout
        complaint = running.stderr.read().decode(errors="replace").strip()
    if running.returncode != 0:
        raise OperatorError(f"{path}: pg_restore cannot read it: {complaint.splitlines()[-1] if complaint else '?'}")
