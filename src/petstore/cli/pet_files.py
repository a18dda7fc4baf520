"""`petstore pets import`, `imports`, `undo-import` and `export`: animals from and to files."""

import asyncio
import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import click

from petstore import data_dir
from petstore.admin.pet_files import BATCH, PetFile, format_of, write_pets
from petstore.backends import Backends
from petstore.cli.admin import act, admin, check_data, on_data
from petstore.cli.options import Command, confirm, data_options, env_option, limit_option, settings_from, yes_option
from petstore.cli.output import Output, Table, counted, printable, program, progress, use_utf8, when
from petstore.errors import OperatorError
from petstore.keys import Environment
from petstore.pets import Import, Undone

NAMED_MAX = 10  # ids in a message
KEPT_IDS_MAX = 1_000  # ids in JSON


@click.command(name="import", cls=Command, short_help="Add all animals of a .jsonl or .csv file.")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@env_option
@click.option("--dry-run", is_flag=True, help="Only read FILE: count its animals and list every bad row.")
@yes_option
@data_options
def import_(file: Path, environment: Environment, dry_run: bool, yes: bool, as_json: bool, **where: Any) -> None:
    """Add all animals of FILE, a .jsonl, .ndjson or .csv file. If one row is bad, nothing is added.

    \b
    .jsonl has one object a line:  {"name": "Rex", "categoryId": 1, "status": "available"}
    .csv has a header line:        name,categoryId,status
    Ids in the file are ignored: the catalogue assigns new ones.

    FILE is checked whole first. Its animals are then visible as they are added, and creates go on meanwhile. After an
    interruption give the same command again: it goes on where it ended. A file that was imported before is recognised
    by its content, and the command asks first. pets imports lists the imports, pets undo-import removes one again.
    With --dry-run the exit code is 1 when FILE has bad rows.
    """
    format_of(str(file))
    with _spooled(file) as source:
        earlier = _earlier_import(where, environment, source)
        if dry_run:
            _dry_run(file, source, earlier, as_json)
            return
        if earlier is not None and earlier.state == "done":
            confirm(f"{file} was imported before: {_described(earlier)}. Import it again?", yes)

        async def work(backends: Backends) -> Import:
            with progress("Checking", os.fstat(source.fileno()).st_size) as check_bar, contextlib.ExitStack() as bars:
                bar: Any = None

                def adding(added: int, total: int) -> None:
                    nonlocal bar
                    if bar is None:
                        bar = bars.enter_context(progress("Importing", total))
                    bar.update(added - bar.pos)

                return await admin(backends, environment).import_pets(
                    file.name,
                    PetFile(str(file), source),
                    reading=lambda position: check_bar.update(position - check_bar.pos),
                    adding=adding,
                    waiting=_wait,
                )

        try:
            imported = act(where, work, create=True)
        except KeyboardInterrupt:
            click.echo("\nInterrupted: give the same command again to go on.", err=True)
            raise
    data = {"added": imported.added, "import": imported.id, "environment": environment}
    Output(data, f"{counted(imported.added, 'animal')} added to {environment} by import {imported.id}.").print(as_json)


async def _wait(running: Import) -> None:
    """While another process seems to import the same file. One that was killed gives no sign of life any more."""
    click.echo(f"{running.id} imports the same file and gave a sign of life within a minute: waiting …", err=True)
    await asyncio.sleep(5)


@contextlib.contextmanager
def _spooled(file: Path) -> Iterator[BinaryIO]:
    """The file, open for reading more than once: what can be read only once is copied first."""
    with data_dir.os_errors_of(file), file.open("rb") as source:
        if source.seekable():
            yield source
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(source, copy)
            copy.seek(0)
            yield copy


def _earlier_import(where: Mapping[str, Any], environment: Environment, source: BinaryIO) -> Import | None:
    """An import of the same content."""
    settings = settings_from(where)
    digest = hashlib.file_digest(source, "sha256").hexdigest()  # type: ignore[arg-type]  # it has readinto
    try:
        asyncio.run(check_data(settings))
    except OperatorError:  # there are no data yet
        return None
    return act(where, lambda backends: admin(backends, environment).earlier_import(digest))


def _described(earlier: Import) -> str:
    return f"{earlier.id}, {counted(earlier.added, 'animal')}, {when(earlier.at)}"


def _dry_run(file: Path, source: BinaryIO, earlier: Import | None, as_json: bool) -> None:
    """Prints each bad row as it is found: there may be millions."""

    async def work() -> tuple[int, int, list[dict[str, Any]]]:
        good, rows, bad = 0, 0, []
        async for line, row in PetFile(str(file), source).rows():
            rows += 1
            if not isinstance(row, str):
                good += 1
            elif as_json:
                bad.append({"line": line, "reason": row})
            else:
                click.echo(f"line {line}: {row}")
        return good, rows - good, bad

    good, faults, bad = asyncio.run(work())
    data = {
        "added": 0, "import": None, "animals": good, "bad_rows": faults, "bad": bad,
        "earlier_import": earlier.id if earlier else None,
    }  # fmt: skip
    sentences = [f"{file}: {counted(good, 'animal')}, {counted(faults, 'bad row')}; nothing was added."]
    if earlier is not None:
        sentences.append(f"It was imported before: {_described(earlier)}.")
    Output(data, *sentences).print(as_json)
    if faults:
        raise click.exceptions.Exit(1)


@click.command(cls=Command, short_help="List the imports, the newest first.")
@env_option
@limit_option(20)
@on_data
async def imports(backends: Backends, environment: Environment, limit: int) -> Output:
    """List the imports, the newest first. An interrupted one is finished by importing the same file again."""
    found = await backends.stores[environment].imports.page(time.time(), limit=limit)
    rows = [
        [each.id, printable(each.name), each.state, f"{each.added:,}", f"{each.total:,}", when(each.at), each.actor]
        for each in found
    ]
    table = Table(["id", "file", "state", "added", "of", "when", "by"], rows, f"No imports in {environment}.")
    return Output(found, table)


class _Undoing(NamedTuple):
    """An import, and how far it is undone."""

    environment: Environment
    imported: Import
    counts: Undone
    kept_ids: list[int]  # the first of them


@click.command(name="undo-import", cls=Command, short_help="Remove the animals that an import has added.")
@click.argument("import_id", metavar="IMPORT")
@yes_option
@data_options
def undo_import(import_id: str, yes: bool, as_json: bool, **where: Any) -> None:
    """Remove the animals that an import has added, but for those that were changed since.

    IMPORT is the import's id, as pets imports shows it. After an interruption the same command goes on.
    """
    before = act(where, lambda backends: _undoing(backends, import_id))
    if before.imported.state != "undone":
        confirm(_question(before), yes)

    async def work(backends: Backends) -> _Undoing:
        await admin(backends, before.environment).undo_import(import_id)
        return await _undoing(backends, import_id)

    try:
        after = act(where, work)
    except KeyboardInterrupt:
        click.echo("\nInterrupted: give the same command again to go on.", err=True)
        raise
    removed, kept, _ = after.counts
    data = {
        "import": import_id, "environment": after.environment, "removed": removed, "kept": kept,
        "kept_ids": after.kept_ids,
    }  # fmt: skip
    sentences = [f"{counted(removed, 'animal')} removed from {after.environment}."]
    if kept:
        ids = ", ".join(map(str, after.kept_ids[:NAMED_MAX])) + (" …" if kept > NAMED_MAX else "")
        sentences.append(f"{counted(kept, 'animal')} stayed: changed since the import. Ids: {ids}")
    Output(data, *sentences).print(as_json)


async def _undoing(backends: Backends, import_id: str) -> _Undoing:
    """Raises OperatorError for an unknown import."""
    # PostgreSQL refuses a text with U+0000 or a lone surrogate: such a text is not looked up.
    for environment, store in backends.stores.items() if import_id.isascii() and import_id.isprintable() else ():
        found = await store.imports.get(import_id, time.time())
        if found is not None:
            counts = await store.imports.undone(import_id)
            ids = await store.imports.kept_ids(import_id, KEPT_IDS_MAX) if counts.kept else []
            return _Undoing(environment, found, counts, ids)
    raise OperatorError(f"no import has the id {import_id}; {program()} pets imports shows them")


def _question(undoing: _Undoing) -> str:
    environment, imported, (removed, kept, left), _ = undoing
    begun = f"{counted(removed, 'animal')} removed already. " if imported.state == "undoing" else ""
    stay = f" {kept:,} stay{'s' if kept == 1 else ''}." if kept else ""
    of_import = f"of {imported.id} ({printable(imported.name)}, {environment})"
    return f"{begun}Remove the {counted(left, 'animal')} {of_import} that were not changed since?{stay}"


@click.command(cls=Command, short_help="Write all animals to a .jsonl or .csv file.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@env_option
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@data_options
def export(file: Path, environment: Environment, force: bool, as_json: bool, **where: Any) -> None:
    """Write all animals to FILE, a .jsonl or .csv file, or as JSON lines to - (standard output)."""
    written_as = "jsonl" if str(file) == "-" else format_of(str(file))
    if str(file) != "-" and not force and os.path.lexists(file):
        raise OperatorError(f"{file}: exists; choose another name, or replace it with --force")

    async def write(backends: Backends, target: IO[str]) -> int:
        store = backends.stores[environment]
        with progress("Exporting", sum((await store.pets.count()).values())) as bar:
            return await write_pets(
                lambda after: store.pets.page(after=after, limit=BATCH, status=None), written_as, target,
                lambda count: bar.update(count - bar.pos),
            )  # fmt: skip

    if str(file) == "-":
        use_utf8()
        act(where, lambda backends: write(backends, sys.stdout))
        return
    # Under another name until it is complete: a reader never sees half an export.
    part = file.with_name(file.name + ".part")
    try:
        with data_dir.os_errors_of(file):
            with part.open("w", encoding="utf-8", newline="") as target:
                count = act(where, lambda backends: write(backends, target))
            part.replace(file)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    Output({"exported": count}, f"{counted(count, 'animal')} written to {file}.").print(as_json)
