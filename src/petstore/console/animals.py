"""Animals: find, add, change the status of one or many."""

import re

from starlette.requests import Request
from starlette.responses import Response

from petstore.console.requests import ConsoleRequest, Form
from petstore.errors import InvalidBody, OperatorError, Unavailable
from petstore.pets import INT64_MAX, Found, is_status, new_pet

PAGE = 50
WHOLE = re.compile("-?[0-9]{1,19}").fullmatch


async def animals(request: Request) -> Response:
    return await _page(ConsoleRequest(request))


async def rows(request: Request) -> Response:
    """The next animals of the table."""
    visit = ConsoleRequest(request)
    found = await _filtered(visit)
    response = visit.part("animals_rows.html", **found)
    if not found["after"]:  # a new search: the address should say so, for a reload or a friend
        response.headers["hx-replace-url"] = f"/{visit.environment}/animals?{request.url.query}"
    return response


async def add(request: Request) -> Response:
    visit = ConsoleRequest(request)
    form = await visit.form()
    category = form.text("categoryId").strip()
    members = {
        "name": form.text("name"),
        "categoryId": int(category) if WHOLE(category) else category,
        "status": form.text("status", "available"),
    }
    try:
        pet = await visit.admin.add_pet(new_pet(members))
    except InvalidBody as error:
        return await _page(visit, form, error.message, 422)
    except Unavailable:
        return await _page(visit, form, "The store did not answer. Look whether the animal is there, then retry.", 503)
    visit.shared.animals[visit.environment].outdated()
    visit.tell(f"Animal {pet.id} was added.", address=f"/{visit.environment}/animals?q={pet.id}")
    return visit.go("/animals")


async def set_status(request: Request) -> Response:
    """Of all that are ticked. htmx gets the changed rows, a plain browser the page."""
    visit = ConsoleRequest(request)
    form = await visit.form()
    wanted, ticked = form.text("to"), [int(text) for text in form.texts("id") if _is_id(text)]
    try:
        if not is_status(wanted):
            raise OperatorError("Choose a status.")
        if not ticked:
            raise OperatorError("Tick the animals first.")
        changed = await visit.admin.set_status(ticked, wanted)
    except OperatorError as error:
        text, good, changed = str(error), False, []
    else:
        text, good = f"{len(changed):,} {'animal is' if len(changed) == 1 else 'animals are'} now {wanted}.", True
        visit.shared.animals[visit.environment].outdated()
    if visit.is_partial:
        return visit.part("animals_changed.html", pets=changed, text=text, good=good)
    visit.tell(text, good=good)
    query = request.url.query
    return visit.go("/animals" + (f"?{query}" if query else ""))


async def _page(visit: ConsoleRequest, form: Form | None = None, fault: str = "", status: int = 200) -> Response:
    count = await visit.shared.animals[visit.environment].latest()
    return visit.page(
        "animals.html", status, **await _filtered(visit), form=form or Form(), fault=fault, count=count
    )  # fmt: skip


async def _filtered(visit: ConsoleRequest) -> dict[str, object]:
    text, status, after = visit.asked("q").strip(), visit.status, visit.number_asked("after", 0)
    if text:
        found = await visit.store.search(text, after=after, limit=PAGE, status=status)
        if after == 0 and _is_id(text):
            # Whoever types a number may mean the animal's own.
            pet = await visit.store.pet(int(text))
            if pet is not None and text not in pet.name and status in (None, pet.status):
                found = found._replace(pets=[pet, *found.pets])
    else:
        pets, more = await visit.store.page(after=after, limit=PAGE, status=status)
        found = Found(pets, pets[-1].id if pets else after, more)
    return {"q": text, "status": status or "", "after": after, "found": found}


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= INT64_MAX
