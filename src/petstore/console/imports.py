"""Imports: the list, and the page of one import with the button that undoes it."""

import math
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from petstore.console.jobs import Job
from petstore.console.pet_files import start_job
from petstore.console.requests import ConsoleRequest
from petstore.pets import Import

PAGE_SIZE = 50
KEPT_MAX = 50  # animals that a page lists


async def content(request: ConsoleRequest) -> dict[str, Any]:
    found = await request.store.imports.page(request.now, before=_before(request), limit=PAGE_SIZE + 1)
    return {"imports": found[:PAGE_SIZE], "more": len(found) > PAGE_SIZE, "first": not request.parameter("at")}


def _before(request: ConsoleRequest) -> tuple[float, str] | None:
    """The last import of the page before: its time and its id."""
    try:
        at = float(request.parameter("at"))
    except ValueError:
        return None
    return (at, request.parameter("id")) if math.isfinite(at) and _is_id(request.parameter("id")) else None


async def page(request: ConsoleRequest) -> Response:
    found = await _import(request)
    counts = await request.store.imports.undone(found.id)
    kept = await request.store.imports.kept_ids(found.id, KEPT_MAX) if counts.kept else []
    return request.page("imports/show.html", found=found, counts=counts, kept=kept)


async def undo(request: ConsoleRequest) -> Response:
    found = await _import(request)

    async def work(job: Job) -> str:
        counts = await request.admin.undo_import(found.id, job.advance)
        request.pets_changed()
        stayed = f" {counts.kept:,} stayed: changed since the import." if counts.kept else ""
        removed = f"{counts.removed:,} {'animal was' if counts.removed == 1 else 'animals were'} removed"
        return f"{removed} from {request.environment}.{stayed}"

    path = f"/animals/imports/{found.id}"
    job = Job(request.environment, f"Undoing the import of {found.name}", found.added, link=path)
    return start_job(request, job, work, path)


async def _import(request: ConsoleRequest) -> Import:
    """Raises HTTPException."""
    import_id = request.http.path_params["import_id"]
    found = await request.store.imports.get(import_id, request.now) if _is_id(import_id) else None
    if found is None:
        raise HTTPException(404)
    return found


def _is_id(text: str) -> bool:
    """PostgreSQL rejects a text with other characters."""
    return text.isascii() and text.isprintable()
