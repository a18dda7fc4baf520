"""`petstore pets`: lists, adds, changes, imports and exports animals."""

import contextlib
import sys
from pathlib import Path
from typing import IO, Any

import click

from petstore.admin.pet_files import COLUMNS, batches, form_of, write_pets
from petstore.cli.admin import admin, run
from petstore.cli.options import Int64, backend_options, env_option, json_option, settings_from
from petstore.cli.output import counted, print_json, print_more, print_table, printable, progress, use_utf8
from petstore.errors import InvalidBody, OperatorError
from petstore.pets import STATUSES, Page, Pet, PetStatus, new_pet
from petstore.service import Backends


@click.group()
def pets() -> None:
    """List, add, import and export animals; change a status."""


@pets.command(name="list")
@backend_options
@env_option
@click.option("--status", type=click.Choice(STATUSES), help="Only animals with this status.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, metavar="N", help="How many at most."
)
@click.option("--after", type=Int64(), default=0, metavar="ID", help="Only animals with a higher id.")
@json_option
def list_(environment: Any, status: PetStatus | None, limit: int, after: int, as_json: bool, **where: Any) -> None:
    """List animals in the order of their ids."""

    async def work() -> Page:
        async with Backends(settings_from(where)) as backends:
            return await backends.stores[environment].page(after=after, limit=limit, status=status)

    found, more = run(work())
    if as_json:
        print_json(found)
    else:
        rows = [[str(p.id), p.name, str(p.category_id), p.status] for p in found]
        print_table(COLUMNS, rows, "No animals: petstore pets add, or petstore pets import FILE")
    if more:
        print_more(f"--after {found[-1].id}")


@pets.command()
@backend_options
@env_option
@click.option("--name", required=True, help="The animal's name.")
@click.option("--category-id", type=Int64(), required=True, metavar="N", help="The number of its category.")
@click.option("--status", type=click.Choice(STATUSES), default="available", show_default=True, help="Its status.")
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
        async with Backends(settings_from(where)) as backends:
            return await admin(backends, environment).add_pet(new)

    _print_pet(run(work()), as_json)


@pets.command(name="set-status")
@click.argument("pet_id", metavar="ID", type=Int64())
@click.argument("status", type=click.Choice(STATUSES))
@backend_options
@env_option
@json_option
def set_status(pet_id: int, status: PetStatus, environment: Any, as_json: bool, **where: Any) -> None:
    """Change an animal's status. ID is the animal's id, as pets list shows it."""

    async def work() -> list[Pet]:
        async with Backends(settings_from(where)) as backends:
            return await admin(backends, environment).set_status([pet_id], status)

    changed = run(work())
    if not changed:
        raise OperatorError(f"no animal has the id {pet_id} in {environment}")
    _print_pet(changed[0], as_json)


@pets.command(name="import", short_help="Add all animals of a .jsonl or .csv file.")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@backend_options
@env_option
@json_option
def import_(file: Path, environment: Any, as_json: bool, **where: Any) -> None:
    """Add all animals of FILE, a .jsonl or .csv file. If one row is bad, nothing is added.

    \b
    .jsonl has one object a line:  {"name": "Rex", "categoryId": 1, "status": "available"}
    .csv has a header line:        name,categoryId,status
    Ids in the file are ignored: the catalogue assigns new ones.
    """
    form_of(str(file))
    size = file.stat().st_size

    async def work() -> int:
        async with Backends(settings_from(where)) as backends:
            with file.open("rb") as source, progress("Importing", size) as bar:
                rows = batches(str(file), source, lambda position: bar.update(position - bar.pos))
                return await admin(backends, environment).import_pets(file.name, rows)

    try:
        count = run(work())
    except KeyboardInterrupt:
        look = f"petstore audit --what import --env {environment}"
        click.echo(f"\nInterrupted. {look} shows whether the animals were added.", err=True)
        raise
    if as_json:
        print_json({"imported": count})
    else:
        click.echo(f"{counted(count, 'animal')} added to {environment}.")


@pets.command(name="export", short_help="Write all animals to a .jsonl or .csv file.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@backend_options
@env_option
@json_option
def export(file: Path, environment: Any, as_json: bool, **where: Any) -> None:
    """Write all animals to FILE, a .jsonl or .csv file, or as JSON lines to - (standard output)."""
    form = "jsonl" if str(file) == "-" else form_of(str(file))

    async def work(target: IO[str]) -> int:
        async with Backends(settings_from(where)) as backends:
            store = backends.stores[environment]
            with progress("Exporting", sum((await store.count()).values())) as bar:
                return await write_pets(store, form, target, lambda count: bar.update(count - bar.pos))

    if str(file) == "-":
        use_utf8()
        run(work(sys.stdout))
        return
    # Under another name until it is complete: a reader never sees half an export.
    part = file.with_name(file.name + ".part")
    try:
        with part.open("w", encoding="utf-8", newline="") as target:
            count = run(work(target))
        part.replace(file)
    except OSError as error:
        raise OperatorError(f"{file}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    if as_json:
        print_json({"exported": count})
    else:
        click.echo(f"{counted(count, 'animal')} written to {file}.")


def _print_pet(pet: Pet, as_json: bool) -> None:
    if as_json:
        print_json(pet)
    else:
        click.echo(f"{pet.id}  {printable(pet.name)}  category {pet.category_id}  {pet.status}")
