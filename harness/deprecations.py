"""The service with other operations deprecated than those of its table: none, one or several.

`python -m harness.deprecations getPet,listPets serve …` runs `petstore serve …` with these two deprecated, and
`python -m harness.deprecations "" serve …` with none.
"""

import contextlib
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from petstore import operations
from petstore.operations import Deprecation, Operation, OperationName

SINCE = datetime(2027, 1, 1, tzinfo=UTC)
SUNSET = datetime(2035, 6, 1, tzinfo=UTC)  # of the first; the others follow a day apart


def table(*deprecated: OperationName) -> tuple[Operation, ...]:
    """The operations, of which exactly these are deprecated."""
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
    """Put another table into every module that has it."""
    present = operations.OPERATIONS
    for module in [*sys.modules.values()]:
        if module.__name__.startswith("petstore.") and getattr(module, "OPERATIONS", None) is present:
            module.OPERATIONS = rows  # type: ignore[attr-defined]  # a module has any attribute


@contextlib.contextmanager
def deprecating(*names: OperationName) -> Iterator[tuple[Operation, ...]]:
    """In this process: exactly these operations are deprecated."""
    before = operations.OPERATIONS
    _install(table(*names))
    try:
        yield operations.OPERATIONS
    finally:
        _install(before)


def program(*names: OperationName) -> list[str]:
    """For `Server.program`."""
    return ["harness.deprecations", ",".join(names)]


def main() -> None:
    _install(table(*filter(None, sys.argv[1].split(","))))
    from petstore.cli import main as petstore  # imports most other modules: they get the new table

    sys.argv = ["petstore", *sys.argv[2:]]
    petstore()


if __name__ == "__main__":
    main()
