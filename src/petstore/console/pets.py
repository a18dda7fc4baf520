"""Animals: find, add, change the status of one or many."""

import re
from typing import Any

from starlette.responses import Response

from petstore.console.forms import Form
from petstore.console.requests import ConsoleRequest
from petstore.errors import InvalidBody, OperatorError, Unavailable
from petstore.pets import INT64_MAX, Found, is_status, new_pet

PAGE_SIZE = 50
_WHOLE_NUMBER = re.compile("-?[0-9]{1,19}").fullmatch


async def show_list(request: ConsoleRequest) -> Response:
    return await _list_page(request)


async def rows(request: ConsoleRequest) -> Response:
    """The next animals of the table."""
    return request.table_rows("pets/rows.html", "/animals", **await _search(request))


async def add(request: ConsoleRequest) -> Response:
    form = await request.form()
    category = form.text("categoryId").strip()
    members = {
        "name": form.text("name"),
        "categoryId": int(category) if _WHOLE_NUMBER(category) else category,
        "status": form.text("status", "available"),
    }
    try:
        pet = await request.admin.add_pet(new_pet(members))
    except InvalidBody as error:
        return await _list_page(request, form, error.message, 422)
    except Unavailable:
        message = "The store did not respond. Check whether the animal was added, then try again."
        return await _list_page(request, form, message, 503)
    request.state.pet_counts[request.environment].invalidate()
    request.flash(f"Animal {pet.id} was added.", link=f"/{request.environment}/animals?q={pet.id}")
    return request.redirect("/animals")


async def set_status(request: ConsoleRequest) -> Response:
    """Change all selected animals. htmx gets the changed rows, a browser without scripts the page."""
    form = await request.form()
    status, selected = form.text("to"), [int(text) for text in form.texts("id") if _is_id(text)]
    try:
        if not is_status(status):
            raise OperatorError("Choose a status.")
        if not selected:
            raise OperatorError("Select animals first.")
        changed = await request.admin.set_status(selected, status)
    except OperatorError as error:
        text, ok, changed = str(error), False, []
    else:
        text, ok = f"{len(changed):,} {'animal is' if len(changed) == 1 else 'animals are'} now {status}.", True
        request.state.pet_counts[request.environment].invalidate()
    if request.is_htmx:
        return request.part("pets/changed.html", pets=changed, text=text, ok=ok)
    request.flash(text, ok=ok)
    return request.redirect("/animals" + request.query)


async def _list_page(request: ConsoleRequest, form: Form | None = None, error: str = "", status: int = 200) -> Response:
    counts = await request.state.pet_counts[request.environment].latest()
    return request.page(
        "pets/list.html", status, **await _search(request), form=form or Form(), error=error, counts=counts
    )  # fmt: skip


async def _search(request: ConsoleRequest) -> dict[str, Any]:
    text, status, after = request.parameter("q").strip(), request.status, request.number("after")
    if text:
        found = await request.store.search(text, after=after, limit=PAGE_SIZE, status=status)
        if after == 0 and _is_id(text):  # a number may be an id, or a part of a name
            pet = await request.store.pet(int(text))
            if pet is not None and text not in pet.name and status in (None, pet.status):
                found = found._replace(pets=[pet, *found.pets])
    else:
        pets, more = await request.store.page(after=after, limit=PAGE_SIZE, status=status)
        found = Found(pets, pets[-1].id if pets else after, more)
    return {"q": text, "status": status or "", "first": after == 0, "found": found}


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= INT64_MAX
