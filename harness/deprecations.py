"""Runs the service with a different set of deprecated operations.

`python -m harness.deprecations getPet,listPets serve …` runs `petstore serve …` with only these operations deprecated,
and `python -m harness.deprecations "" serve …` runs it with none.
"""

import contextlib
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from petstore import operations
from petstore.operations import Deprecation, Operation, OperationName

SINCE = datetime(2027, 1, 1, tzinfo=UTC)
SUNSET = datetime(2035, 6, 1, tzinfo=UTC)  # the first sunset; the others follow one day apart


def table(*deprecated: OperationName) -> tuple[Operation, ...]:
    """Returns the table of operations with exactly these operations deprecated."""
    return tuple(
        each._replace(
            deprecation=Deprecation(
                SINCE, SUNSET + timedelta(days=deprecated.index(each.name)), f"/{each.name}", f"GET /{each.name}"
            )
            if each.name in deprecated
            else None
        )
        for each in operations.OPERATIONS
    )


def _install(rows: tuple[Operation, ...]) -> None:
    """Replaces the table in every module that uses it."""
    present = operations.OPERATIONS
    for module in [*sys.modules.values()]:
        if module.__name__.startswith("petstore.") and getattr(module, "OPERATIONS", None) is present:
            module.OPERATIONS = rows  # type: ignore[attr-defined]  # modules accept any attribute


@contextlib.contextmanager
def deprecating(*names: OperationName) -> Iterator[tuple[Operation, ...]]:
    """Deprecates exactly these operations in this process."""
    before = operations.OPERATIONS
    _install(table(*names))
    try:
        yield operations.OPERATIONS
    finally:
        _install(before)


def program(*names: OperationName) -> list[str]:
    """Returns the value of `Server.program` that deprecates these operations."""
    return ["harness.deprecations", ",".join(names)]


def main() -> None:
    _, names, *words = sys.argv
    _install(table(*filter(None, names.split(","))))
    from harness.programs import run  # only now, so that the modules that it imports use the new table

    run(["harness.deprecations", names], words)


if __name__ == "__main__":
    main()
