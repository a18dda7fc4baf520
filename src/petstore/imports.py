"""Imports of animals from files."""

from typing import Literal, NamedTuple

import msgspec

from petstore.errors import OperatorError
from petstore.pets import new_id
from petstore.wording import counted, when

ImportState = Literal["running", "interrupted", "done", "undoing", "undone"]


class Import(msgspec.Struct, frozen=True):
    """An import of animals from a file. `at` is in Unix seconds."""

    id: str
    at: float
    actor: str
    name: str  # the name of the file
    sha256: str  # the hash of the file
    total: int  # animals in the file
    added: int  # animals added so far
    state: ImportState


class Undone(NamedTuple):
    """The progress of undoing an import."""

    removed: int  # animals removed so far, either by undoing the import or by an operator
    kept: int  # animals kept because an operator has edited them
    left: int = 0  # animals still to be removed


def new_import_id() -> str:
    return new_id("imp_")


def import_in_words(found: Import) -> str:
    return f"{found.id}, {counted(found.added, 'animal')}, {when(found.at)}"


def check_same_file(begun: Import, total: int) -> None:
    """Raises OperatorError if an earlier import found a different number of animals in the same content."""
    if begun.total != total:  # the earlier import used a different format
        raise OperatorError(
            f"{begun.id} imported the same content as {counted(begun.total, 'animal')}, not {total:,};"
            " use the same --format again"
        )
