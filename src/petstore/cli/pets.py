"""`petstore pets`: lists, shows, adds, changes and removes animals. Imports and exports are in pet_files.py."""

from typing import Any

import click

from petstore.admin.pet_files import COLUMNS
from petstore.backends import Backends
from petstore.cli.admin import admin, data_to_create, existing_data, run
from petstore.cli.options import (
    Group,
    Int64,
    backend_options,
    confirm,
    env_option,
    json_option,
    settings_from,
    yes_option,
)
from petstore.cli.output import counted, print_json, print_more, print_table, printable, program
from petstore.cli.pet_files import export, import_, undo_import
from petstore.errors import InvalidBody, OperatorError
from petstore.pets import STATUSES, Pet, PetChanges, PetStatus, new_pet

NAMED_MAX = 10  # ids in a message


@click.group(cls=Group)
def pets() -> None:
    """List, show, add, change and remove animals; import and export files."""


pets.add_command(import_)
pets.add_command(undo_import)
pets.add_command(export)


@pets.command(name="list")
@backend_options
@env_option
@click.option("--search", "text", default="", metavar="TEXT", help="Only animals whose name contains this.")
@click.option("--status", type=click.Choice(STATUSES), help="Only animals with this status.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, metavar="N", help="How many at most."
)
@click.option("--after", type=Int64(0), default=0, metavar="ID", help="Only animals with a higher id.")
@json_option
def list_(
    environment: Any, text: str, status: PetStatus | None, limit: int, after: int, as_json: bool, **where: Any
) -> None:
    """List animals in the order of their ids.

    \b
    Example:
      petstore pets list --search rex --status available
    """

    async def work() -> tuple[list[Pet], bool]:
        async with existing_data(settings_from(where)) as backends:
            store = backends.stores[environment]
            if not text:
                return await store.page(after=after, limit=limit, status=status)
            found: list[Pet] = []
            start, more = after, True
            while more and len(found) < limit:
                some, start, more = await store.search(text, after=start, limit=limit - len(found), status=status)
                found += some
            return found, more

    found, more = run(work())
    if as_json:
        print_json(found)
    else:
        rows = [[str(p.id), p.name, str(p.category_id), p.status] for p in found]
        empty = f"No animals: {program()} pets add, or {program()} pets import FILE"
        print_table(COLUMNS, rows, "No matching animals." if text or status or after else empty)
    if more:
        print_more(f"--after {found[-1].id}")


@pets.command()
@click.argument("pet_id", metavar="ID", type=Int64())
@backend_options
@env_option
@json_option
def show(pet_id: int, environment: Any, as_json: bool, **where: Any) -> None:
    """Show one animal. ID is the animal's id, as pets list shows it."""

    async def work() -> Pet:
        async with existing_data(settings_from(where)) as backends:
            (pet,) = await _existing(backends, environment, [pet_id])
            return pet

    _print_pets([run(work())], as_json)


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
        async with data_to_create(settings_from(where)) as backends:
            return await admin(backends, environment).add_pet(new)

    _print_pets([run(work())], as_json)


@pets.command()
@click.argument("pet_id", metavar="ID", type=Int64())
@backend_options
@env_option
@click.option("--name", help="The new name.")
@click.option("--category-id", type=Int64(), metavar="N", help="The number of the new category.")
@click.option("--status", type=click.Choice(STATUSES), help="The new status.")
@json_option
def update(
    pet_id: int, environment: Any, name: str | None, category_id: int | None, status: Any, as_json: bool, **where: Any
) -> None:
    """Change an animal's name, category or status. ID is the animal's id, as pets list shows it.

    \b
    Example:
      petstore pets update 17 --name Max --status pending
    """
    if name is None and category_id is None and status is None:
        raise OperatorError("nothing to change: give --name, --category-id or --status")
    changes = PetChanges(name=name, category_id=category_id, status=status)

    async def work() -> Pet:
        async with existing_data(settings_from(where)) as backends:
            return await admin(backends, environment).update_pet(pet_id, changes)

    _print_pets([run(work())], as_json)


@pets.command(name="set-status")
@click.argument("pet_ids", metavar="ID…", type=Int64(), nargs=-1, required=True)
@click.argument("status", type=click.Choice(STATUSES))
@backend_options
@env_option
@json_option
def set_status(pet_ids: tuple[int, ...], status: PetStatus, environment: Any, as_json: bool, **where: Any) -> None:
    """Change the status of animals. ID… are their ids, as pets list shows them.

    With --json, one id prints one animal, several ids print a list.

    \b
    Example:
      petstore pets set-status 17 18 21 sold
    """

    async def work() -> list[Pet]:
        async with existing_data(settings_from(where)) as backends:
            await _existing(backends, environment, pet_ids)
            return await admin(backends, environment).set_status(pet_ids, status)

    _print_pets(run(work()), as_json, several=len(pet_ids) > 1)


@pets.command()
@click.argument("pet_ids", metavar="ID…", type=Int64(), nargs=-1, required=True)
@backend_options
@env_option
@yes_option
@json_option
def remove(pet_ids: tuple[int, ...], environment: Any, yes: bool, as_json: bool, **where: Any) -> None:
    """Remove animals for good. ID… are their ids, as pets list shows them. The ids are never used again.

    \b
    Example:
      petstore pets remove 17 18 --yes
    """

    async def look() -> list[Pet]:
        async with existing_data(settings_from(where)) as backends:
            return await _existing(backends, environment, pet_ids)

    async def work() -> list[Pet]:
        async with existing_data(settings_from(where)) as backends:
            return await admin(backends, environment).remove_pets(pet_ids)

    found = run(look())
    if not yes:
        for pet in found[:NAMED_MAX]:
            click.echo(_line(pet), err=True)
        confirm(f"Remove {counted(len(found), 'animal')} from {environment}?", yes)
    removed = run(work())
    if as_json:
        print_json({"removed": [pet.id for pet in removed]})
    else:
        click.echo(f"{counted(len(removed), 'animal')} removed from {environment}.")


async def _existing(backends: Backends, environment: Any, pet_ids: tuple[int, ...] | list[int]) -> list[Pet]:
    """The animals, each once. Raises OperatorError when one of them does not exist: then nothing is changed."""
    found = {pet_id: await backends.stores[environment].pet(pet_id) for pet_id in pet_ids}
    missing = [str(pet_id) for pet_id, pet in found.items() if pet is None]
    if missing:
        named = ", ".join(missing[:NAMED_MAX]) + (" …" if len(missing) > NAMED_MAX else "")
        subject = "no animal has the id" if len(missing) == 1 else "no animals have the ids"
        raise OperatorError(f"{subject} {named} in {environment}")
    return [pet for pet in found.values() if pet is not None]


def _print_pets(found: list[Pet], as_json: bool, *, several: bool = False) -> None:
    if as_json:
        print_json(found if several else found[0])
        return
    for pet in found:
        click.echo(_line(pet))


def _line(pet: Pet) -> str:
    return f"{pet.id}  {printable(pet.name)}  category {pet.category_id}  {pet.status}"
