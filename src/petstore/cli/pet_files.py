"""The commands `petstore pets import`, `pets imports`, `pets undo-import` and `pets export`."""

import asyncio
import contextlib
import os
import pwd
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import click

from petstore import data_dir
from petstore.backends import Backends
from petstore.cli.data import act, actor, check_data, on_data
from petstore.cli.options import (
    Command,
    check_parent,
    confirm,
    data_options,
    env_option,
    limit_option,
    settings_from,
    yes_option,
)
from petstore.cli.output import Output, Table, data_output, progress, reaching
from petstore.errors import OperatorError
from petstore.files import check_target, os_errors_of, replacing
from petstore.formats.pet_files import (
    BAD_ROWS_MAX,
    BATCH,
    EXPORTED,
    FORMATS,
    Checked,
    Format,
    PetFile,
    format_of,
    write_pets,
)
from petstore.formats.pet_texts import IMPORTED
from petstore.imports import Import, Undone, import_in_words
from petstore.keys import Environment
from petstore.wording import could_be_id, counted, printable, when

NAMED_MAX = 10  # the maximum number of ids in a message
KEPT_IDS_MAX = 1_000  # the maximum number of ids in JSON output


IMPORT_HELP = f"""Add all animals from FILE, which is a .jsonl, .ndjson, .csv or .json file, or - for standard input.

\b
.jsonl contains one object per line:  {{"name": "Rex", "categoryId": 1, "status": "available"}}
.csv starts with a header line:       {",".join(IMPORTED)}
.json contains one array of objects.
A .csv file may use semicolons or tabs instead of commas.
Animals get new ids. The id, added_by and added_at fields of an exported file are ignored.

The whole file is checked first. If any row is bad, nothing is added. Animals become visible as they are added, and
clients can create animals during the import. After an interruption, run the same command again to resume the import.
If a file with the same content has already been imported, the command asks for confirmation. To list imports, use pets
imports. To undo an import, use pets undo-import. With --dry-run, the exit code is 1 if FILE cannot be imported.
"""


@click.command(
    name="import", cls=Command, help=IMPORT_HELP, short_help="Add all animals from a .jsonl, .csv or .json file."
)
@click.argument("file", type=click.Path(path_type=Path, readable=False, allow_dash=True))
@env_option
@click.option(
    "--format", "written_as", type=click.Choice(FORMATS), help="The format of FILE. [default: based on the file name]"
)
@click.option(
    "--dry-run", is_flag=True, help="Check FILE and list bad rows and other problems, without adding any animals."
)
@yes_option
@data_options
def import_(
    file: Path,
    environment: Environment,
    written_as: Format | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **where: Any,
) -> None:
    name = "standard input" if str(file) == "-" else str(file)
    if str(file) == "-" and written_as is None:
        raise OperatorError("standard input has no file name; use --format jsonl, csv or json")
    written_as = written_as or format_of(name)
    try:
        with _spooled(file, name) as source:
            pets = PetFile(name, source, written_as)
            if dry_run:
                _dry_run(where, environment, name, pets, as_json)
                return
            with progress("Checking", os.fstat(source.fileno()).st_size) as bar:
                checked = asyncio.run(pets.check(reaching(bar)))
            _warn(checked)
            begun = _begin(where, environment, name, checked, yes)
            if begun.added:
                of = f"{begun.added:,} of {counted(begun.total, 'animal')}"
                click.echo(f"Resuming {begun.id}, which has already added {of}.", err=True)
            imported = act(where, lambda backends: _add(backends, environment, begun, pets, checked), access="write")
    except KeyboardInterrupt:
        click.echo("\nInterrupted. Run the same command again to resume.", err=True)
        raise
    data = {"added": imported.added, "import": imported.id, "environment": environment}
    Output(data, f"{counted(imported.added, 'animal')} added to {environment} (import {imported.id}).").print(as_json)


def _begin(where: Mapping[str, Any], environment: Environment, name: str, checked: Checked, yes: bool) -> Import:
    """Begins or resumes an import. If a file with the same content was imported before, asks for confirmation."""
    repeats = ""

    async def begin(backends: Backends) -> Import:
        imports, by = backends.stores[environment].imports, actor(backends.clock())
        return await imports.begin(Path(name).name, checked.sha256, checked.animals, by, repeats)

    while (begun := act(where, begin, access="create")).state == "done":
        confirm(f"{name} has already been imported: {import_in_words(begun)}. Import it again?", yes)
        repeats = begun.id
    return begun


async def _add(backends: Backends, environment: Environment, begun: Import, pets: PetFile, checked: Checked) -> Import:
    with progress("Adding", checked.animals) as bar:
        imports = backends.stores[environment].imports
        return await imports.add_pets(begun, partial(pets.batches, checked), backends.clock, reaching(bar))


def _warn(checked: Checked) -> None:
    if checked.warning:
        click.echo(checked.warning, err=True)


@contextlib.contextmanager
def _spooled(file: Path, name: str) -> Iterator[BinaryIO]:
    """Opens a file so that it can be read more than once. Copies a pipe or any other file that is not seekable.

    Raises OperatorError if the file is a device, which might be endless. A terminal is accepted as standard input.
    """
    with os_errors_of(name), contextlib.ExitStack() as stack:
        if str(file) != "-":
            source: Any = stack.enter_context(_opened(file))
        elif sys.stdin is None:
            raise OperatorError("standard input is closed")
        else:
            source = sys.stdin.buffer
        if str(file) != "-" or not source.isatty():
            _check_not_device(os.fstat(source.fileno()), name)
        if not source.seekable():
            copy = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(source, copy)
            source = copy
        yield source


def _opened(file: Path) -> BinaryIO:
    """Opens a file. Raises OperatorError if permission is denied or the file is a device.

    If permission is denied, the message names the current user, because the operator might expect a different user.
    """
    try:
        _check_not_device(file.stat(), str(file))  # check before opening, because opening some devices has side effects
        return file.open("rb")
    except PermissionError:
        try:
            user = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:  # in a container, the user might have no name
            user = f"uid {os.geteuid()}"
        raise OperatorError(
            f"{file}: the user {user} does not have permission to read this file;"
            " change the file's permissions, or pipe the file to this command and use - as FILE"
        ) from None


def _check_not_device(found: os.stat_result, name: str) -> None:
    """Raises OperatorError if the file is a device."""
    if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
        raise OperatorError(f"{name} is a device; import a file or a pipe instead")


def _earlier_import(where: Mapping[str, Any], environment: Environment, sha256: str) -> Import | None:
    """Returns an earlier import of a file with the same content, or None if there is none."""
    settings = settings_from(where)
    data_dir.check_ours(settings.data)
    try:
        asyncio.run(check_data(settings))
    except OperatorError:  # there is no data yet
        return None
    return act(where, lambda backends: backends.stores[environment].imports.earlier(sha256, backends.clock()))


def _dry_run(where: Mapping[str, Any], environment: Environment, name: str, pets: PetFile, as_json: bool) -> None:
    """Checks a file without importing it. Prints each bad row as soon as it is found."""
    listed: list[dict[str, Any]] = []

    def bad(line: int, reason: str) -> None:
        if as_json:
            listed.append({"line": line, "reason": reason})
        else:
            click.echo(printable(f"line {line}: {reason}"))

    checked = asyncio.run(pets.read(bad))
    _warn(checked)
    good, faults = checked.animals, checked.bad_rows
    earlier = _earlier_import(where, environment, checked.sha256)
    data = {
        "added": 0, "import": None, "animals": good, "bad_rows": faults, "bad": listed,
        "earlier_import": earlier.id if earlier else None, "unknown_columns": checked.unknown_columns,
    }  # fmt: skip
    sentences = [f"{name}: {counted(good, 'animal')}, {counted(faults, 'bad row')}; nothing was added."]
    if faults == BAD_ROWS_MAX:
        sentences.append(f"Stopped checking after {faults:,} bad rows.")
    if not good and not faults:
        sentences.append("The file contains no animals, so it cannot be imported.")
    if earlier is not None and earlier.state == "done":
        sentences.append(f"The file has already been imported: {import_in_words(earlier)}.")
    elif earlier is not None:
        sentences.append(f"Found an earlier import of this file ({earlier.state}): {import_in_words(earlier)}.")
    Output(data, *sentences).print(as_json)
    if faults or not good:
        raise click.exceptions.Exit(1)


@click.command(cls=Command, short_help="List imports, newest first.")
@env_option
@limit_option(20)
@on_data("read")
async def imports(backends: Backends, environment: Environment, limit: int) -> Output:
    """List imports, newest first. To resume an interrupted import, import the same file again."""
    found = await backends.stores[environment].imports.page(backends.clock(), limit=limit)
    rows = [
        [each.id, printable(each.name), each.state, f"{each.added:,}", f"{each.total:,}", when(each.at), each.actor]
        for each in found
    ]
    table = Table(["id", "file", "state", "added", "of", "when", "by"], rows, f"No imports in {environment}.")
    return Output(found, table)


class _Undoing(NamedTuple):
    """An import, and how many of its animals have been removed or kept."""

    environment: Environment
    imported: Import
    counts: Undone
    kept_ids: list[int]  # at most KEPT_IDS_MAX


@click.command(name="undo-import", cls=Command, short_help="Remove the animals that an import added.")
@click.argument("import_id", metavar="IMPORT")
@yes_option
@data_options
def undo_import(import_id: str, yes: bool, as_json: bool, **where: Any) -> None:
    """Remove the animals that an import added, except those that an operator has changed since.

    IMPORT is the import's id, as shown by petstore pets imports. To resume after an interruption, repeat the command.
    """
    before = act(where, lambda backends: _undoing(backends, import_id))
    if before.imported.state != "undone":
        confirm(_question(before), yes)

    async def work(backends: Backends) -> _Undoing:
        counts = await backends.stores[before.environment].imports.undo(import_id, actor(backends.clock()))
        return (await _undoing(backends, import_id))._replace(counts=counts)

    try:
        after = act(where, work, access="write")
    except KeyboardInterrupt:
        click.echo("\nInterrupted. Run the same command again to resume.", err=True)
        raise
    removed, kept, _ = after.counts
    data = {
        "import": import_id, "environment": after.environment, "removed": removed, "kept": kept,
        "kept_ids": after.kept_ids,
    }  # fmt: skip
    sentences = [f"{counted(removed, 'animal')} removed from {after.environment}."]
    if kept:
        ids = ", ".join(map(str, after.kept_ids[:NAMED_MAX])) + (" …" if kept > NAMED_MAX else "")
        sentences.append(f"Kept {counted(kept, 'animal')} changed since the import. Ids: {ids}")
    Output(data, *sentences).print(as_json)


async def _undoing(backends: Backends, import_id: str) -> _Undoing:
    """Finds an import in either environment. Raises OperatorError if it does not exist."""
    for environment, store in backends.stores.items() if could_be_id(import_id) else ():
        found = await store.imports.get(import_id, backends.clock())
        if found is not None:
            counts = await store.imports.undone(import_id)
            ids = await store.imports.kept_ids(import_id, KEPT_IDS_MAX) if counts.kept else []
            return _Undoing(environment, found, counts, ids)
    raise OperatorError(f"no import has the id {import_id}; list the ids with `petstore pets imports`")


def _question(undoing: _Undoing) -> str:
    environment, imported, (removed, kept, left), _ = undoing
    begun = f"{counted(removed, 'animal')} already removed. " if imported.state == "undoing" else ""
    stay = f" {counted(kept, 'animal')} changed since the import will be kept." if kept else ""
    of_import = f"added by {imported.id} ({printable(imported.name)})"
    return f"{begun}Remove {counted(left, 'animal')} {of_import} from {environment}?{stay}"


@click.command(cls=Command, short_help="Write all animals to a .jsonl or .csv file.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@env_option
@click.option("--with-added-by", is_flag=True, help="Include who added each animal, and when.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@data_options
def export(file: Path, environment: Environment, with_added_by: bool, force: bool, as_json: bool, **where: Any) -> None:
    """Write all animals to FILE, a .jsonl or .csv file. If FILE is -, write JSON lines to standard output."""
    written_as = "jsonl" if str(file) == "-" else format_of(str(file), EXPORTED)
    if str(file) != "-":
        check_parent(file)
        check_target(file)
    if str(file) != "-" and not force and os.path.lexists(file):
        raise OperatorError(f"{file} already exists; choose another name, or replace it with --force")

    async def write(backends: Backends, target: IO[str]) -> int:
        store = backends.stores[environment]
        with progress("Exporting", sum((await store.pets.count()).values())) as bar:
            return await write_pets(
                lambda after: store.pets.page(after=after, limit=BATCH, status=None), written_as, target,
                reaching(bar), store.pets.origins if with_added_by else None,
            )  # fmt: skip

    if str(file) == "-":
        act(where, lambda backends: write(backends, data_output()))
        return
    with os_errors_of(file), replacing(file) as target:
        count = act(where, lambda backends: write(backends, target))
    Output({"exported": count}, f"{counted(count, 'animal')} written to {file}.").print(as_json)
