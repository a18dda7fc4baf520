"""`petstore pets`: lists, shows, adds, changes, removes and restores animals. Import and export are in pet_files.py."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
import msgspec

from petstore.backends import Backends
from petstore.cli.data import act, actor, on_data, refuse_secret
from petstore.cli.options import (
    Group,
    Time,
    WholeNumber,
    confirm,
    data_options,
    env_option,
    limit_option,
    yes_option,
)
from petstore.cli.output import Output, Table, progress, reaching
from petstore.cli.pet_files import export, import_, imports, undo_import
from petstore.cli.suggestions import BACKEND_OPTIONS, as_typed
from petstore.errors import OperatorError
from petstore.formats.pet_files import origin_members
from petstore.formats.pet_texts import COLUMNS, texts_of_pet
from petstore.keys import Environment
from petstore.pets import (
    INT64_MAX,
    STATUSES,
    Matching,
    NewPet,
    Pet,
    PetChanges,
    PetQuery,
    PetStatus,
    added_in_words,
    checked_pet,
)
from petstore.removals import REMOVAL_PREFIX, Removal, Removed
from petstore.wording import could_be_id, counted, printable, when

F = TypeVar("F", bound=Callable[..., Any])

NAMED_MAX = 10  # the maximum number of ids in a message


@click.group(cls=Group)
def pets() -> None:
    """List, show, add, change, remove, restore, import and export animals."""


pets.add_command(import_)
pets.add_command(imports)
pets.add_command(undo_import)
pets.add_command(export)


def added_options(command: F) -> F:
    """Adds --added-by, --since and --until, which select animals by who added them and when."""
    for option in (
        click.option("--until", type=Time(), metavar="TIME", help="Select animals added before this time (UTC)."),
        click.option("--since", type=Time(), metavar="TIME",
                     help="Select animals added at or after this time (UTC), for example 2026-11-18T14:00:00Z."),
        click.option("--added-by", default="", metavar="KEY|IMPORT|OPERATOR",
                     help="Select animals added by this key, import or operator."),
    ):  # fmt: skip
        command = option(command)
    return command


@pets.command(name="list")
@env_option
@click.option("--search", "text", default="", metavar="TEXT", help="Show only animals whose name contains TEXT.")
@click.option("--status", type=click.Choice(STATUSES), help="Show only animals with this status.")
@added_options
@limit_option(20)
@click.option(
    "--after", type=WholeNumber(0), default=0, metavar="ID", help="Show only animals with an id greater than ID."
)
@on_data("read")
async def list_(backends: Backends, environment: Environment, limit: int, after: int, **wanted: Any) -> Output:
    """List animals, ordered by id.

    \b
    Examples:
      petstore pets list --search rex --status available
      petstore pets list --added-by key_7Gh2kP0sLq9Z --since 2026-11-18
    """
    store, query = backends.stores[environment], PetQuery(**wanted)
    if query.added_by:
        refuse_secret(query.added_by)
        await store.pets.check_adder(query.added_by)
    found: list[Pet] = []
    start, more = after, True
    if query == PetQuery(status=query.status):  # no search needed
        found, more = await store.pets.page(after=after, limit=limit, status=query.status)
        start = found[-1].id if found else after
    while more and len(found) < limit:
        some, start, more = await store.pets.search(query, after=start, limit=limit - len(found))
        found += some
    rows = [list(texts_of_pet(pet).values()) for pet in found]
    chosen = _env(environment)
    empty = as_typed(
        f"No animals. Add one with `petstore pets add --name NAME --category-id N{chosen}`, or import a file with"
        f" `petstore pets import FILE{chosen}`."
    )
    table = Table(COLUMNS, rows, empty if query == PetQuery() and not after else "No matching animals.")
    total = []
    if found and query != PetQuery():
        matching, beyond = await store.pets.count_below(query, INT64_MAX)
        # Do not print the total if there are more animals than one query can search.
        total = [] if beyond else [f"\n{counted(matching, 'animal')} {'matches' if matching == 1 else 'match'}."]
    return Output(found, table, *total, more=f"--after {start}" if more else "")


@pets.command()
@click.argument("pet_id", metavar="ID", type=WholeNumber())
@env_option
@on_data("read")
async def show(backends: Backends, pet_id: int, environment: Environment) -> Output:
    """Show an animal, who added it, and when. ID is the animal's id, as shown by petstore pets list."""
    (pet,) = await _existing(backends, environment, [pet_id])
    origin = (await backends.stores[environment].pets.origins([pet_id])).get(pet_id)
    by = f"{origin.adder.kind} {origin.adder.name}" if origin and origin.adder else "unknown"
    at = when(origin.at) if origin else "unknown"
    data = {**msgspec.to_builtins(pet), **origin_members(origin)}
    return Output(data, _line(pet), f"Added by {by}, {at}.")


@pets.command()
@env_option
@click.option("--name", required=True, help="The animal's name.")
@click.option("--category-id", type=WholeNumber(), required=True, metavar="N", help="The id of the animal's category.")
@click.option(
    "--status", type=click.Choice(STATUSES), default="available", show_default=True, help="The animal's status."
)
@data_options
def add(environment: Environment, as_json: bool, **options: Any) -> None:
    """Add one animal.

    \b
    Example:
      petstore pets add --name Rex --category-id 1
    """
    where = {name: options.pop(name) for name in BACKEND_OPTIONS}
    new = checked_pet(NewPet(**options))

    async def work(backends: Backends) -> Pet:
        return await backends.stores[environment].pets.add_by_hand(new, actor(backends.clock()))

    pet = act(where, work, access="create")
    Output(pet, _line(pet)).print(as_json)


@pets.command()
@click.argument("pet_id", metavar="ID", type=WholeNumber())
@env_option
@click.option("--name", help="The new name.")
@click.option("--category-id", type=WholeNumber(), metavar="N", help="The id of the new category.")
@click.option("--status", type=click.Choice(STATUSES), help="The new status.")
@on_data("write")
async def update(backends: Backends, pet_id: int, environment: Environment, **values: Any) -> Output:
    """Change an animal's name, category or status. ID is the animal's id, as shown by petstore pets list.

    \b
    Example:
      petstore pets update 17 --name Max --status pending
    """
    changes = {name: value for name, value in values.items() if value is not None}
    if not changes:
        *others, last = (f"--{name.replace('_', '-')}" for name in values)
        raise OperatorError(f"nothing to change; use {', '.join(others)} or {last}")
    await _existing(backends, environment, [pet_id])
    pet = await backends.stores[environment].pets.update(pet_id, PetChanges(**changes), actor(backends.clock()))
    return Output(pet, _line(pet))


@pets.command(name="set-status")
@click.argument("pet_ids", metavar="ID…", type=WholeNumber(), nargs=-1, required=True)
@click.argument("status", metavar="STATUS", type=click.Choice(STATUSES))
@env_option
@on_data("write")
async def set_status(
    backends: Backends, pet_ids: tuple[int, ...], status: PetStatus, environment: Environment
) -> Output:
    """Change the status of one or more animals. ID… are their ids, as shown by petstore pets list.

    STATUS is available, pending or sold. With --json, the output is an object for one ID, and a list for several.

    \b
    Example:
      petstore pets set-status 17 18 21 sold
    """
    await _existing(backends, environment, pet_ids)
    changed = await backends.stores[environment].pets.set_status(pet_ids, status, actor(backends.clock()))
    return Output(changed if len(pet_ids) > 1 else changed[0], *map(_line, changed))


@pets.command(short_help="Remove animals by id, or by who added them.")
@click.argument("pet_ids", metavar="[ID…]", type=WholeNumber(), nargs=-1)
@env_option
@added_options
@click.option("--also-edited", is_flag=True, help="With --added-by, also remove animals that an operator has changed.")
@yes_option
@data_options
def remove(
    pet_ids: tuple[int, ...], environment: Environment, added_by: str, since: float | None, until: float | None,
    also_edited: bool, yes: bool, as_json: bool, **where: Any,
) -> None:  # fmt: skip
    """Remove animals, either by id or by who added them. To restore them, use petstore pets restore.

    ID… are the animals' ids, as shown by petstore pets list. With --added-by, the command counts the animals before it
    asks for confirmation, and does not remove animals that are added later. It also keeps animals that an operator has
    changed, unless --also-edited is given.

    \b
    Examples:
      petstore pets remove 17 18 --yes
      petstore pets remove --added-by key_7Gh2kP0sLq9Z --since 2026-11-18T14:00:00Z
    """
    if added_by and pet_ids:
        raise OperatorError("--added-by cannot be combined with ids")
    if added_by:
        refuse_secret(added_by)
        query = PetQuery(added_by=added_by, since=since, until=until)
        _remove_added(where, environment, query, also_edited, yes).print(as_json)
        return
    if since is not None or until is not None or also_edited:
        raise OperatorError("--since, --until and --also-edited require --added-by")
    if not pet_ids:
        raise OperatorError("nothing to remove; specify ids or use --added-by")
    found = act(where, lambda backends: _existing(backends, environment, pet_ids))
    confirm(f"Remove {counted(len(found), 'animal')} from {environment}?", yes, *map(_line, found[:NAMED_MAX]))

    async def work(backends: Backends) -> Removed:
        return await backends.stores[environment].removals.remove(pet_ids, actor(backends.clock()))

    removed = act(where, work, access="write")
    data = {"removed": [pet.id for pet in removed.pets], "removal": removed.removal_id}
    Output(data, _removed_text(len(removed.pets), environment, removed.removal_id)).print(as_json)


def _remove_added(
    where: Mapping[str, Any], environment: Environment, query: PetQuery, also_edited: bool, yes: bool
) -> Output:
    """Removes the matching animals after asking for confirmation. Raises OperatorError if no animals match."""

    async def count(backends: Backends) -> Matching:
        pets = backends.stores[environment].pets
        await pets.check_adder(query.added_by)
        return await pets.matching(query)

    found = act(where, count)
    kept = 0 if also_edited else found.edited
    wanted = found._replace(total=found.total - kept)
    edited = f"{counted(kept, 'animal')} that an operator has changed"
    if not wanted.total:
        raise OperatorError(
            f"there are no animals {added_in_words(query)}" + (f", apart from {edited}" if kept else "")
        )
    stay = f" {edited} will not be removed. To remove them as well, use --also-edited." if kept else ""
    confirm(f"Remove {counted(wanted.total, 'animal')} {added_in_words(query)} from {environment}?{stay}", yes)
    chosen = query._replace(unedited=not also_edited)

    async def work(backends: Backends) -> Removal:
        with progress("Removing", wanted.total) as bar:
            removals = backends.stores[environment].removals
            return await removals.remove_matching(chosen, wanted, actor(backends.clock()), reaching(bar))

    try:
        removal = act(where, work, access="write")
    except KeyboardInterrupt:
        click.echo("\nInterrupted. Run the same command again to remove the remaining animals.", err=True)
        raise
    data = {"removed": removal.pets, "kept": kept, "removal": removal.id, "environment": environment}
    return Output(data, _removed_text(removal.pets, environment, removal.id))


@pets.command(short_help="Restore removed animals.")
@click.argument("targets", metavar="ID… | REMOVAL", nargs=-1, required=True)
@env_option
@on_data("write")
async def restore(backends: Backends, targets: tuple[str, ...], environment: Environment) -> Output:
    """Restore removed animals unchanged, with the same ids.

    ID… | REMOVAL is either a list of animal ids or one removal id, as printed by petstore pets remove. To find these
    ids, use petstore audit --what "remove animal". If any animal in a list of ids cannot be restored, no animals
    are restored. Animals removed by undo-import cannot be restored. To get them back, import the file again.

    \b
    Examples:
      petstore pets restore 17 18
      petstore pets restore rem_5Tq8cN1xWb3K
    """
    if targets[0].startswith(REMOVAL_PREFIX):
        (removal_id,) = _only_one(targets)
        count = await backends.stores[environment].removals.restore_all(removal_id, actor(backends.clock()))
        text = f"{counted(count, 'animal')} restored to {environment}."
        return Output({"restored": count, "removal": removal_id}, text)
    pet_ids = [WholeNumber().convert(target, None, click.get_current_context()) for target in targets]
    restored = await backends.stores[environment].removals.restore(pet_ids, actor(backends.clock()))
    return Output({"restored": [pet.id for pet in restored]}, *map(_line, restored))


def _only_one(removal_ids: Sequence[str]) -> Sequence[str]:
    """Returns the argument. Raises OperatorError if it contains several ids, or an id that PostgreSQL would reject."""
    if len(removal_ids) > 1:
        raise OperatorError("only one removal can be restored at a time")
    if not could_be_id(removal_ids[0]):
        raise OperatorError(f"removal {printable(removal_ids[0])} was not found")
    return removal_ids


async def _existing(backends: Backends, environment: Environment, pet_ids: Sequence[int]) -> list[Pet]:
    """Returns the animals with these ids, without duplicates. Raises OperatorError if any of them does not exist."""
    found = {pet_id: await backends.stores[environment].pets.get(pet_id) for pet_id in pet_ids}
    missing = [pet_id for pet_id, pet in found.items() if pet is None]
    if missing:
        named = ", ".join(map(str, missing[:NAMED_MAX])) + (" …" if len(missing) > NAMED_MAX else "")
        subject = "no animal has the id" if len(missing) == 1 else "there are no animals with the ids"
        hint = f"list the ids with `petstore pets list{_env(environment)}`"
        removed = await backends.stores[environment].removals.of_pets(missing)
        if removed:
            ids = " ".join(map(str, sorted(removed)[:NAMED_MAX]))
            hint = f"to restore removed animals, run `petstore pets restore {ids}{_env(environment)}`"
        raise OperatorError(f"{subject} {named} in {environment}; {hint}")
    return [pet for pet in found.values() if pet is not None]


def _removed_text(count: int, environment: Environment, removal_id: str | None) -> str:
    text = f"{counted(count, 'animal')} removed from {environment}"
    if removal_id is None:
        return f"{text}."
    return as_typed(
        f"{text} (removal {removal_id}). To undo this, run `petstore pets restore {removal_id}{_env(environment)}`."
    )


def _env(environment: Environment) -> str:
    return "" if environment == "live" else f" --env {environment}"


def _line(pet: Pet) -> str:
    return f"{pet.id}  {printable(pet.name)}  category {pet.category_id}  {pet.status}"
