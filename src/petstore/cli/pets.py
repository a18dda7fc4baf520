"""`petstore pets`: lists, shows, adds, changes, removes and restores animals. pet_files.py has imports and exports."""

from collections.abc import Sequence
from typing import Any

import click

from petstore.admin.actions import checked_pet
from petstore.admin.pet_files import COLUMNS, texts_of_pet
from petstore.backends import Backends
from petstore.cli.data import act, admin, on_data
from petstore.cli.options import (
    BACKEND_OPTIONS,
    Group,
    Int64,
    confirm,
    data_options,
    env_option,
    limit_option,
    yes_option,
)
from petstore.cli.output import Output, Table, program
from petstore.cli.pet_files import export, import_, imports, undo_import
from petstore.errors import OperatorError
from petstore.keys import Environment
from petstore.pets import STATUSES, NewPet, Pet, PetChanges, PetStatus
from petstore.wording import counted, printable

NAMED_MAX = 10  # ids in a message


@click.group(cls=Group)
def pets() -> None:
    """List, show, add, change, remove and restore animals; import and export files."""


pets.add_command(import_)
pets.add_command(imports)
pets.add_command(undo_import)
pets.add_command(export)


@pets.command(name="list")
@env_option
@click.option("--search", "text", default="", metavar="TEXT", help="Only animals whose name contains this.")
@click.option("--status", type=click.Choice(STATUSES), help="Only animals with this status.")
@limit_option(20)
@click.option("--after", type=Int64(0), default=0, metavar="ID", help="Only animals with a higher id.")
@on_data("read")
async def list_(
    backends: Backends, environment: Environment, text: str, status: PetStatus | None, limit: int, after: int
) -> Output:
    """List animals in the order of their ids.

    \b
    Example:
      petstore pets list --search rex --status available
    """
    store = backends.stores[environment]
    found: list[Pet] = []
    start, more = after, True
    if not text:
        found, more = await store.pets.page(after=after, limit=limit, status=status)
    while text and more and len(found) < limit:
        some, start, more = await store.pets.search(text, after=start, limit=limit - len(found), status=status)
        found += some
    rows = [list(texts_of_pet(pet).values()) for pet in found]
    empty = f"No animals: {program()} pets add, or {program()} pets import FILE"
    table = Table(COLUMNS, rows, "No matching animals." if text or status or after else empty)
    return Output(found, table, more=f"--after {found[-1].id}" if more else "")


@pets.command()
@click.argument("pet_id", metavar="ID", type=Int64())
@env_option
@on_data("read")
async def show(backends: Backends, pet_id: int, environment: Environment) -> Output:
    """Show one animal. ID is the animal's id, as pets list shows it."""
    (pet,) = await _existing(backends, environment, [pet_id])
    return Output(pet, _line(pet))


@pets.command()
@env_option
@click.option("--name", required=True, help="The animal's name.")
@click.option("--category-id", type=Int64(), required=True, metavar="N", help="The number of its category.")
@click.option("--status", type=click.Choice(STATUSES), default="available", show_default=True, help="Its status.")
@data_options
def add(environment: Environment, as_json: bool, **options: Any) -> None:
    """Add one animal.

    \b
    Example:
      petstore pets add --name Rex --category-id 1
    """
    where = {name: options.pop(name) for name in BACKEND_OPTIONS}
    new = checked_pet(NewPet(**options))
    pet = act(where, lambda backends: admin(backends, environment).add_pet(new), access="create")
    Output(pet, _line(pet)).print(as_json)


@pets.command()
@click.argument("pet_id", metavar="ID", type=Int64())
@env_option
@click.option("--name", help="The new name.")
@click.option("--category-id", type=Int64(), metavar="N", help="The number of the new category.")
@click.option("--status", type=click.Choice(STATUSES), help="The new status.")
@on_data("write")
async def update(backends: Backends, pet_id: int, environment: Environment, **values: Any) -> Output:
    """Change the values of an animal. ID is the animal's id, as pets list shows it.

    \b
    Example:
      petstore pets update 17 --name Max --status pending
    """
    if all(value is None for value in values.values()):
        *others, last = (f"--{name.replace('_', '-')}" for name in values)
        raise OperatorError(f"nothing to change: give {', '.join(others)} or {last}")
    await _existing(backends, environment, [pet_id])
    pet = await admin(backends, environment).update_pet(pet_id, PetChanges(**values))
    return Output(pet, _line(pet))


@pets.command(name="set-status")
@click.argument("pet_ids", metavar="ID…", type=Int64(), nargs=-1, required=True)
@click.argument("status", metavar="STATUS", type=click.Choice(STATUSES))
@env_option
@on_data("write")
async def set_status(
    backends: Backends, pet_ids: tuple[int, ...], status: PetStatus, environment: Environment
) -> Output:
    """Change the status of animals. ID… are their ids, as pets list shows them.

    STATUS is available, pending or sold. With --json, one id prints one animal, several ids print a list.

    \b
    Example:
      petstore pets set-status 17 18 21 sold
    """
    await _existing(backends, environment, pet_ids)
    changed = await admin(backends, environment).set_status(pet_ids, status)
    return Output(changed if len(pet_ids) > 1 else changed[0], *map(_line, changed))


@pets.command()
@click.argument("pet_ids", metavar="ID…", type=Int64(), nargs=-1, required=True)
@env_option
@yes_option
@data_options
def remove(pet_ids: tuple[int, ...], environment: Environment, yes: bool, as_json: bool, **where: Any) -> None:
    """Remove animals. ID… are their ids, as pets list shows them. pets restore brings them back.

    \b
    Example:
      petstore pets remove 17 18 --yes
    """
    found = act(where, lambda backends: _existing(backends, environment, pet_ids))
    confirm(f"Remove {counted(len(found), 'animal')} from {environment}?", yes, *map(_line, found[:NAMED_MAX]))
    removed = act(where, lambda backends: admin(backends, environment).remove_pets(pet_ids), access="write")
    data = {"removed": [pet.id for pet in removed]}
    Output(data, f"{counted(len(removed), 'animal')} removed from {environment}.").print(as_json)


@pets.command(short_help="Bring removed animals back.")
@click.argument("pet_ids", metavar="ID…", type=Int64(), nargs=-1, required=True)
@env_option
@on_data("write")
async def restore(backends: Backends, pet_ids: tuple[int, ...], environment: Environment) -> Output:
    """Bring removed animals back. Each has its id and its values at the removal; all come back, or none.

    ID… are their ids, as audit --what "remove animal" shows them. What undo-import has removed comes back by importing
    the file again.

    \b
    Example:
      petstore pets restore 17 18
    """
    restored = await admin(backends, environment).restore_pets(pet_ids)
    return Output({"restored": [pet.id for pet in restored]}, *map(_line, restored))


async def _existing(backends: Backends, environment: Environment, pet_ids: Sequence[int]) -> list[Pet]:
    """The animals, each once. Raises OperatorError when one of them does not exist: then nothing is changed."""
    found = {pet_id: await backends.stores[environment].pets.get(pet_id) for pet_id in pet_ids}
    missing = [str(pet_id) for pet_id, pet in found.items() if pet is None]
    if missing:
        named = ", ".join(missing[:NAMED_MAX]) + (" …" if len(missing) > NAMED_MAX else "")
        subject = "no animal has the id" if len(missing) == 1 else "no animals have the ids"
        raise OperatorError(f"{subject} {named} in {environment}; {program()} pets list shows them")
    return [pet for pet in found.values() if pet is not None]


def _line(pet: Pet) -> str:
    return f"{pet.id}  {printable(pet.name)}  category {pet.category_id}  {pet.status}"
