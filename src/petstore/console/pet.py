"""One animal: its values, its history in the audit log, edit, remove and restore."""

from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from petstore.console.forms import Form
from petstore.console.pets import is_id, pet_of, removal_message, restorable
from petstore.console.requests import ConsoleRequest, Subject, describe
from petstore.errors import InvalidBody, OperatorError, Unavailable
from petstore.pets import PetChanges


async def history(request: ConsoleRequest) -> Response:
    """The next entries of the history."""
    subject = _subject(_pet_id(request))
    return request.part("audit/history.html", subject=subject, found=await subject.history(request), first=False)


async def edit(request: ConsoleRequest) -> Response:
    form, pet_id = await request.form(), _pet_id(request)
    try:
        new = pet_of(form)
        changes = PetChanges(name=new.name, category_id=new.category_id, status=new.status)
        await request.admin.update_pet(pet_id, changes)
    except OperatorError:
        raise HTTPException(404) from None
    except (InvalidBody, Unavailable) as error:
        return await page(request, form, error)
    request.pets_changed()
    request.flash(f"Animal {pet_id} was changed.")
    return request.redirect(f"/animals/{pet_id}")


async def remove(request: ConsoleRequest) -> Response:
    try:
        removed = await request.admin.remove_pets([_pet_id(request)])
    except OperatorError:  # no animal has this id
        raise HTTPException(404) from None
    request.session.messages.append(removal_message(request, removed))
    return request.redirect("/animals")


async def page(request: ConsoleRequest, form: Form | None = None, error: Exception | None = None) -> Response:
    (status, message), pet_id = describe(error), _pet_id(request)
    pet = await request.store.pets.get(pet_id)
    subject = _subject(pet_id)
    found = await subject.history(request)
    if pet is None and not found.entries:
        raise HTTPException(404)
    removed = {} if pet else await restorable(request, (entry for _, entry in found.entries))
    context: dict[str, Any] = {
        "pet": pet, "pet_id": pet_id, "subject": subject, "found": found, "first": True, "error": message,
        "removed": removed,
    }  # fmt: skip
    if form is None and pet is not None:
        form = Form([("name", pet.name), ("categoryId", str(pet.category_id)), ("status", pet.status)])
    return request.page("pets/show.html", 404 if pet is None else status, **context, form=form or Form())


def _subject(pet_id: int) -> Subject:
    return Subject("animal", str(pet_id), f"/animals/{pet_id}")


def _pet_id(request: ConsoleRequest) -> int:
    """Raises HTTPException."""
    text = request.http.path_params["pet_id"]
    if not is_id(text):
        raise HTTPException(404)
    return int(text)
