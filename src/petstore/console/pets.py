"""The pages for finding, adding, changing, removing and restoring animals, and for viewing one with its history."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from petstore.audit import FoundEntries
from petstore.console.background import Job, Result
from petstore.console.edits import base_of, changes_in, edit_context, with_colleague
from petstore.console.forms import Form
from petstore.console.pet_files import query_of, start_job
from petstore.console.requests import ConsoleRequest, Subject, describe
from petstore.console.sessions import FlashMessage
from petstore.edits import Conflict
from petstore.errors import InvalidBody, OperatorError, Unavailable
from petstore.formats.pet_texts import IMPORTED, pet_of_texts, texts_of_pet
from petstore.pets import (
    PET_UNITS,
    SELECTED_MAX,
    Found,
    NewPet,
    Pet,
    PetChanges,
    PetQuery,
    PetStatus,
    is_status,
    parse_whole_number,
)
from petstore.removals import REMOVAL_PREFIX, Removed
from petstore.wording import could_be_id

PAGE_SIZE = 50
MISSING_MAX = 10  # ids in a message


class Matches(NamedTuple):
    """The number of animals that match a search. If `exact` is false, `number` is a lower bound."""

    number: int
    exact: bool


async def rows(request: ConsoleRequest) -> Response:
    """Returns the next rows of the table."""
    return request.loaded_part("pets/rows.html", "/animals", **await _search(request))


async def add(request: ConsoleRequest) -> Response:
    form = await request.form()
    try:
        pet = await request.store.pets.add_by_hand(pet_of(form), request.by)
    except (InvalidBody, Unavailable) as error:
        return await page(request, form, error)
    request.pets_changed()
    request.flash(f"Animal {pet.id} was added.", link=f"/{request.environment}/animals/{pet.id}")
    return request.redirect("/animals")


async def change_selected(request: ConsoleRequest) -> Response:
    """Sets the status of the selected animals, or removes them.

    Responds with the changed rows if htmx sent the request, and with a redirect otherwise.
    """
    form = await request.form()
    selected = _selected(form)
    try:
        if not selected:
            raise OperatorError("Select animals first.")
        if form.text("action") == "remove":
            removed = await request.store.removals.remove(selected, request.by)
            message = removal_message(request, removed)
            return await _respond(request, message, selected, existing=removed.pets, removed=True)
        return await _set_status(request, selected, form.text("to"))
    except OperatorError as error:
        return await _respond(request, FlashMessage(str(error), ok=False))


async def _set_status(request: ConsoleRequest, selected: Sequence[int], status: str) -> Response:
    """Sets the animals' status. Raises OperatorError if the status is invalid or there are too many animals."""
    if not is_status(status):
        raise OperatorError("Choose a status.")
    changed = await request.store.pets.set_status(selected, status, request.by)
    request.pets_changed()
    subject = f"Animal {changed[0].id} is" if len(changed) == 1 else f"{len(changed):,} animals are"
    return await _respond(request, FlashMessage(f"{subject} now {status}."), selected, existing=changed)


def removal_message(request: ConsoleRequest, removed: Removed) -> FlashMessage:
    """Returns the message for a removal, with a button that restores the animals."""
    request.pets_changed()
    removal_id, pets = removed
    if removal_id is None:
        return FlashMessage("These animals no longer exist.", ok=False)
    text = f"Animal {pets[0].id} was removed." if len(pets) == 1 else f"{len(pets):,} animals were removed."
    return FlashMessage(text, removal=removal_id)


async def restore(request: ConsoleRequest) -> Response:
    """Restores the animals whose ids were submitted, or undoes the removal whose id was submitted."""
    form = await request.form()
    pet_ids = _selected(form)
    removal_id = form.text("removal")
    try:
        if removal_id.startswith(REMOVAL_PREFIX) and could_be_id(removal_id):
            return await _restore_removal(request, removal_id)
        if not pet_ids:
            raise HTTPException(400)
        restored = await request.store.removals.restore(pet_ids, request.by)
    except OperatorError as error:
        request.flash(str(error), ok=False)
        return request.redirect("/animals")
    request.pets_changed()
    request.flash(_restored_text(len(restored)) if len(restored) > 1 else f"Animal {restored[0].id} was restored.")
    return request.redirect("/animals" if len(restored) > 1 else f"/animals/{restored[0].id}")


async def _restore_removal(request: ConsoleRequest, removal_id: str) -> Response:
    """Undoes a removal by restoring its animals. Uses a background job if there are more than SELECTED_MAX.

    Raises OperatorError if the animals cannot be restored.
    """

    async def work(job: Job) -> str:
        restored = await request.store.removals.restore_all(removal_id, request.by, job.advance)
        request.pets_changed()
        return _restored_text(restored)

    removal = (await request.store.removals.find([removal_id])).get(removal_id)
    job = Job(request.environment, f"Restoring {removal_id}", removal.pets if removal else 0)
    if job.total > SELECTED_MAX:
        return start_job(request, job, work, "/animals")
    request.flash(await work(job))
    return request.redirect("/animals")


def _restored_text(count: int) -> str:
    return f"{count:,} {'animal was' if count == 1 else 'animals were'} restored."


async def restorable(request: ConsoleRequest, found: FoundEntries) -> dict[int, str]:
    """Returns a form field ("id" or "removal") for each entry whose animals can be restored, keyed by entry number."""
    # If an animal was removed more than once, only the latest removal can be undone.
    newest = {entry.subject: number for number, entry in reversed(found.entries) if entry.action == "remove animal"}
    of_pet = {subject: pet_id for subject in newest if (pet_id := parse_whole_number(subject)) is not None}
    pet_ids = await request.store.removals.of_pets([*of_pet.values()])
    removals = await request.store.removals.find([subject for subject in newest if subject not in of_pet])
    return {
        **{newest[str(pet_id)]: "id" for pet_id in pet_ids},
        **{newest[removal.id]: "removal" for removal in removals.values() if removal.pets},
    }


async def _respond(
    request: ConsoleRequest,
    message: FlashMessage,
    selected: Sequence[int] = (),
    *,
    existing: Sequence[Pet] = (),
    removed: bool = False,
) -> Response:
    """Responds to a request that changed the selected animals.

    If only some of the selected animals are in `existing`, the message says that the others no longer exist.
    """
    missing = sorted({*selected} - {pet.id for pet in existing})
    if missing and existing:
        names = ", ".join(map(str, missing[:MISSING_MAX])) + (" …" if len(missing) > MISSING_MAX else "")
        verb = f"Animal {names} no longer exists." if len(missing) == 1 else f"Animals {names} no longer exist."
        message = msgspec.structs.replace(message, text=f"{message.text} {verb}")
    if request.is_htmx:
        # If the page shows search results, do not update the total, because the number of matches is not known here.
        searches = "?" in request.http.headers.get("hx-current-url", "")
        counts = None if searches else await request.state.pet_counts[request.environment].latest()
        changed = [] if removed else existing
        gone = [*missing, *(pet.id for pet in existing if removed)]
        return request.part(
            "pets/changed.html", message=message, changed=changed, gone=gone, counts=counts, matches=None
        )
    request.session.messages.append(message)
    return request.redirect("/animals" + request.query)


async def page(request: ConsoleRequest, form: Form | None = None, error: Exception | None = None) -> Response:
    status, message = describe(error)
    return request.page("pets/list.html", status, **await _search(request), form=form or Form(), error=message)


async def _search(request: ConsoleRequest) -> dict[str, Any]:
    """Returns the template context for a search, with the newest animals first.

    `hits` also counts the matches on previous pages, because this page can be empty even when those are not.
    """
    query, before = query_of(request.parameter), request.number("before")
    found = await request.store.pets.newest(query, before=before or None, limit=PAGE_SIZE)
    hits = request.number("hits") + len(found.pets)
    pet_id = parse_whole_number(query.text)  # a number can be an animal's id or part of a name
    if not before and pet_id is not None and query == PetQuery(query.text, query.status):
        pet = await request.store.pets.get(pet_id)
        if pet is not None and pet not in found.pets and query.status in (None, pet.status):
            found = found._replace(pets=[pet, *found.pets])
            hits += query.text not in pet.name  # if the name matches, the animal is counted on a later page
    wanted = {"q": query.text, "status": query.status or "", "added_by": query.added_by}
    times = {"since": query.since, "until": query.until}
    wanted |= {name: request.parameter(name).strip() for name in times}
    invalid = [name for name, time in times.items() if wanted[name] and time is None]
    counts = await request.state.pet_counts[request.environment].latest()
    return {
        **wanted, "wanted": wanted, "invalid": invalid, "first": not before, "found": found, "hits": hits,
        "counts": counts, "matches": await _matches(request, query, before, found, hits, counts),
    }  # fmt: skip


async def _matches(
    request: ConsoleRequest, query: PetQuery, before: int, found: Found, hits: int,
    counts: Result[dict[PetStatus, int]] | None,
) -> Matches | None:  # fmt: skip
    """Returns the number of matches, or None if it is unknown or there are no search criteria."""
    if query == PetQuery(status=query.status):
        return Matches(counts.value[query.status], exact=True) if query.status and counts else None
    if not found.more:
        return Matches(hits, exact=True)
    if before:
        return None
    below, beyond = await request.store.pets.count_below(query, found.searched_to)
    return Matches(hits + below, exact=not beyond) if hits + below or not beyond else None


def pet_of(form: Form) -> NewPet:
    """Returns the animal described in a form. Raises InvalidBody if a value is missing or invalid."""
    return pet_of_texts({name: form.text(name) for name in IMPORTED})


def _selected(form: Form) -> list[int]:
    return [pet_id for text in form.texts("id") if (pet_id := parse_whole_number(text)) is not None]


# One animal


async def history(request: ConsoleRequest) -> Response:
    """Returns the next rows of the animal's history table."""
    subject = _subject(_pet_id(request))
    return request.part("audit/history.html", subject=subject, found=await subject.history(request), first=False)


async def edit(request: ConsoleRequest) -> Response:
    form, pet_id = await request.form(), _pet_id(request)
    base = base_of(form, Pet)
    try:
        changes = changes_in(form, base, PET_UNITS, _form_of, _changes_of)
        await request.store.pets.update(pet_id, changes, request.by, base)
    except (Conflict, InvalidBody, Unavailable) as error:
        return await show(request, form, error)
    except OperatorError:  # no animal has this id
        return await show(request, error=OperatorError("Your change was not saved."))
    request.pets_changed()
    request.flash(f"Animal {pet_id} was changed.")
    return request.redirect(f"/animals/{pet_id}")


async def remove(request: ConsoleRequest) -> Response:
    try:
        removed = await request.store.removals.remove([_pet_id(request)], request.by)
    except OperatorError:  # no animal has this id
        raise HTTPException(404) from None
    request.session.messages.append(removal_message(request, removed))
    return request.redirect("/animals")


async def show(request: ConsoleRequest, form: Form | None = None, error: Exception | None = None) -> Response:
    (status, message), pet_id = describe(error), _pet_id(request)
    pet = await request.store.pets.get(pet_id)
    subject = _subject(pet_id)
    found = await subject.history(request)
    message = with_colleague(message, error, found)
    removed = None if pet else (await request.store.removals.of_pets([pet_id])).get(pet_id)
    if pet is None and removed is None and not found.entries:
        raise HTTPException(404)
    origin = (await request.store.pets.origins([pet_id])).get(pet_id)
    adder = origin.adder if origin else None
    adder_key = await request.store.keys.get(adder.name) if adder and adder.kind == "key" else None
    context: dict[str, Any] = {
        "pet": pet, "pet_id": pet_id, "subject": subject, "found": found, "first": True, "error": message,
        "removed": removed, "origin": origin, "adder_key": adder_key,
    }  # fmt: skip
    context |= edit_context(pet, form, error)
    if isinstance(error, Conflict):
        form = _form_of(cast(Pet, error.wanted))
    elif form is None:
        form = _form_of(pet) if pet else Form()
    return request.page("pets/show.html", 404 if pet is None else status, **context, form=form)


def _form_of(pet: Pet) -> Form:
    return Form(list(texts_of_pet(pet).items()))


def _changes_of(form: Form) -> PetChanges:
    """Returns the form's values as PetChanges. Raises InvalidBody if a value is missing or invalid."""
    return PetChanges(**msgspec.structs.asdict(pet_of(form)))


def _subject(pet_id: int) -> Subject:
    return Subject("animal", str(pet_id), f"/animals/{pet_id}")


def _pet_id(request: ConsoleRequest) -> int:
    """Returns the animal's id from the path. Raises HTTPException if it is not a valid id."""
    pet_id = parse_whole_number(request.http.path_params["pet_id"])
    if pet_id is None:
        raise HTTPException(404)
    return pet_id
