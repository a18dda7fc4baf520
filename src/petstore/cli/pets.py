"""`petstore pets`: the operator's view of the animals; import and export stream."""

import csv
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from petstore.cli import common_options, deed, env_option, json_option, print_json, print_table, progress, run
from petstore.errors import InvalidBody, OperatorError
from petstore.pets import INT64_MAX, INT64_MIN, NewPet, Pet, PetStatus, new_pet, parse_new_pet
from petstore.service import Backends
from petstore.settings import Settings

BATCH = 2_000
INT64 = click.IntRange(INT64_MIN, INT64_MAX)
STATUSES = [status.value for status in PetStatus]
COLUMNS = ["id", "name", "categoryId", "status"]


@click.group()
def pets() -> None:
    """List, add, import and export animals; change a status."""


@pets.command(name="list")
@common_options
@env_option
@click.option("--status", type=click.Choice(STATUSES), help="Only animals with this status.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.option("--after", type=INT64, default=0, metavar="ID", help="Only animals with a higher id.")
@json_option
def list_(environment: Any, status: str | None, limit: int, after: int, as_json: bool, **where: Any) -> None:
    """List animals in the order of their ids."""

    async def work() -> list[Pet]:
        async with Backends(Settings(**where)) as backends:
            wanted = PetStatus(status) if status else None
            return (await backends.stores[environment].page(after=after, limit=limit, status=wanted)).pets

    found = run(work())
    if as_json:
        print_json(found)
    else:
        rows = [[str(p.id), p.name, str(p.category_id), p.status.value] for p in found]
        print_table(COLUMNS, rows, "No animals: petstore pets add, or petstore pets import FILE")


@pets.command()
@common_options
@env_option
@click.option("--name", required=True)
@click.option("--category-id", type=INT64, required=True)
@click.option("--status", type=click.Choice(STATUSES), default="available", show_default=True)
@json_option
def add(environment: Any, name: str, category_id: int, status: str, as_json: bool, **where: Any) -> None:
    """Add one animal.

    \b
    Example:
      petstore pets add --name Rex --category-id 1
    """
    try:
        new = new_pet({"name": name, "categoryId": category_id, "status": status})
    except InvalidBody as error:
        raise OperatorError(error.message) from None

    async def work() -> Pet:
        async with Backends(Settings(**where)) as backends:
            store = backends.stores[environment]
            pet = (await store.add(new, time.time())).pet
            await store.record(deed("add animal", str(pet.id)))
            return pet

    _print_pet(run(work()), as_json)


@pets.command(name="set-status")
@click.argument("pet_id", metavar="ID", type=INT64)
@click.argument("status", type=click.Choice(STATUSES))
@common_options
@env_option
@json_option
def set_status(pet_id: int, status: str, environment: Any, as_json: bool, **where: Any) -> None:
    """Change an animal's status."""

    async def work() -> Pet | None:
        async with Backends(Settings(**where)) as backends:
            done = deed("set status", str(pet_id), status)
            return await backends.stores[environment].set_status(pet_id, PetStatus(status), done)

    pet = run(work())
    if pet is None:
        raise OperatorError(f"there is no animal {pet_id} in {environment}")
    _print_pet(pet, as_json)


@pets.command(name="import")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@common_options
@env_option
@json_option
def import_(file: Path, environment: Any, as_json: bool, **where: Any) -> None:
    """Add all animals of a .jsonl or .csv file, or none if a single row is bad.

    \b
    .jsonl has one object a line:  {"name": "Rex", "categoryId": 1, "status": "available"}
    .csv has a header line:        name,categoryId,status
    An id is ignored: the catalogue gives new ones.
    """
    rows = {".jsonl": _jsonl_rows, ".csv": _csv_rows}.get(file.suffix)
    if rows is None:
        raise OperatorError(f"{file}: the name must end in .jsonl or .csv")

    size = file.stat().st_size

    async def work() -> int:
        async with Backends(Settings(**where)) as backends:
            with file.open("rb") as source, progress("Importing", size) as bar:
                batches = _checked(file, rows(source), source, bar)
                return await backends.stores[environment].import_pets(batches, deed("import", file.name))

    count = run(work())
    if as_json:
        print_json({"imported": count})
    else:
        click.echo(f"{count:,} animals added to {environment}.")


@pets.command(name="export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@common_options
@env_option
@json_option
def export(file: Path, environment: Any, as_json: bool, **where: Any) -> None:
    """Write all animals to a .jsonl or .csv file, or as JSON lines to - (standard output)."""
    form = ".jsonl" if str(file) == "-" else file.suffix
    if form not in (".jsonl", ".csv"):
        raise OperatorError(f"{file}: the name must end in .jsonl or .csv")

    async def work(target: IO[str]) -> int:
        async with Backends(Settings(**where)) as backends:
            store = backends.stores[environment]
            after, count = 0, 0
            table = csv.writer(target, lineterminator="\n") if form == ".csv" else None
            if table:
                table.writerow(COLUMNS)
            with progress("Exporting", sum((await store.count()).values())) as bar:
                more = True
                while more:
                    page, more = await store.page(after=after, limit=BATCH, status=None)
                    if table:
                        table.writerows((p.id, p.name, p.category_id, p.status.value) for p in page)
                    else:
                        target.write("".join(msgspec.json.encode(p).decode() + "\n" for p in page))
                    count += len(page)
                    after = page[-1].id if page else after
                    bar.update(len(page))
            return count

    if str(file) == "-":
        run(work(sys.stdout))
        return
    # Under another name until it is whole: a reader never sees half an export.
    part = file.with_name(file.name + ".part")
    try:
        with part.open("w", encoding="utf-8", newline="") as target:
            count = run(work(target))
        part.replace(file)
    except OSError as error:
        raise OperatorError(f"{file}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    if as_json:
        print_json({"exported": count})
    else:
        click.echo(f"{count:,} animals written to {file}.")


def _jsonl_rows(source: IO[bytes]) -> Iterator[tuple[int, NewPet | str]]:
    for number, line in enumerate(source, 1):
        if line.strip():
            try:
                yield number, parse_new_pet(line)
            except InvalidBody as error:
                yield number, error.message


def _csv_rows(source: IO[bytes]) -> Iterator[tuple[int, NewPet | str]]:
    lines = (line.decode("utf-8" if number else "utf-8-sig") for number, line in enumerate(source))
    table = csv.DictReader(lines, strict=True)
    try:
        missing = {"name", "categoryId"} - set(table.fieldnames or ())
        if missing:
            yield 1, f"the header line lacks {' and '.join(sorted(missing))}"
            return
        for row in table:
            members: dict[str, Any] = {name: row[name] for name in ("name", "categoryId", "status") if row.get(name)}
            if re.fullmatch("-?[0-9]{1,19}", members.get("categoryId", "")):
                members["categoryId"] = int(members["categoryId"])
            try:
                yield table.line_num, new_pet(members)
            except InvalidBody as error:
                yield table.line_num, error.message
    except UnicodeDecodeError:
        yield table.line_num + 1, "not valid UTF-8"
    except csv.Error as error:
        yield table.line_num, f"not valid CSV: {error}"


async def _checked(
    file: Path, rows: Iterator[tuple[int, NewPet | str]], source: IO[bytes], bar: Any
) -> AsyncIterator[list[NewPet]]:
    """Batches of good rows; after the last one, an OperatorError that names every bad row."""
    batch: list[NewPet] = []
    bad: list[str] = []
    for number, row in rows:
        if isinstance(row, str):
            bad.append(f"\n  line {number}: {row}")
            continue
        batch.append(row)
        if len(batch) == BATCH:
            bar.update(source.tell() - bar.pos)
            if not bad:
                yield batch
            batch = []
    if bad:
        raise OperatorError(f"{file}: {len(bad):,} bad rows, so nothing was imported" + "".join(bad))
    yield batch
    bar.update(source.tell() - bar.pos)


def _print_pet(pet: Pet, as_json: bool) -> None:
    if as_json:
        print_json(pet)
    else:
        click.echo(f"{pet.id}  {pet.name}  category {pet.category_id}  {pet.status.value}")
