"""Imports and exports animals in background jobs. Lists and undoes past imports."""

import contextlib
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, PlainTextResponse, Response

from petstore.console.background import Job
from petstore.console.forms import read_form
from petstore.console.requests import ConsoleRequest
from petstore.errors import OperatorError
from petstore.formats.pet_files import BATCH, EXPORTED, PetFile, format_of, write_pets
from petstore.imports import Import, import_in_words
from petstore.pets import Page, PetQuery, is_status
from petstore.wording import could_be_id, parse_time

UPLOAD_MAX = 1024 * 1024 * 1024
PAGE_SIZE = 50
KEPT_MAX = 50  # maximum number of kept animals listed on an import's page
MEDIA_TYPES = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8"}


async def start_import(request: ConsoleRequest) -> Response:
    form = await read_form(request.http, max_bytes=UPLOAD_MAX, max_files=1, seconds=None)
    upload = form.file("file")
    if upload is None or not upload.filename:
        return _refuse(request, "Choose a .jsonl, .csv or .json file first.", "/animals")
    # Remove control characters from the name, because the audit log stores it and PostgreSQL rejects some of them.
    name, source = "".join(filter(str.isprintable, upload.filename)), upload.file
    imports = request.store.imports

    async def work(job: Job) -> str:
        with source:
            file = PetFile(name, source)
            job.begin(f"Checking {name}", upload.size or 0)
            checked = await file.check(job.advance)
            begun = await imports.begin(name, checked.sha256, checked.animals, request.by)
            while begun.state == "done":  # ask again if another operator has imported the file in the meantime
                job.link = f"/animals/imports/{begun.id}"
                await job.confirm(f"{name} has already been imported: {import_in_words(begun)}. Import it again?")
                begun = await imports.begin(name, checked.sha256, checked.animals, request.by, begun.id)
            job.begin(f"Adding {checked.animals:,} animals", checked.animals)
            batches = partial(file.batches, checked)
            done = await imports.add_pets(begun, batches, request.state.clock, job.advance)
        request.pets_changed()
        job.link = f"/animals/imports/{done.id}"
        result = f"{done.added:,} {'animal was' if done.added == 1 else 'animals were'} added to {request.environment}."
        return f"{result} {checked.warning}".rstrip()

    try:
        format_of(name)
    except OperatorError as error:
        return _refuse(request, str(error), "/animals")
    return start_job(request, Job(request.environment, f"Importing {name}", 1), work, "/animals")


async def start_export(request: ConsoleRequest) -> Response:
    """Starts a job that exports all animals, or only the animals that match a search."""
    form = await request.form()
    chosen = next((each for each in EXPORTED if each == form.text("form")), EXPORTED[0])
    query = query_of(form.text) if form.text("filter") == "shown" else PetQuery()

    async def page_after(after: int) -> Page:
        if query == PetQuery(status=query.status):  # filtering only by status does not require a search
            return await request.store.pets.page(after=after, limit=BATCH, status=query.status)
        while True:  # each call searches only a limited number of animals, so it might not find any
            found = await request.store.pets.search(query, after=after, limit=BATCH)
            if found.pets or not found.more:
                return Page(found.pets, found.more)
            after = found.searched_to

    async def work(job: Job) -> str:
        job.total = sum((await request.store.pets.count()).values())
        with request.state.jobs.new_file(job).open("w", encoding="utf-8", newline="") as target:
            origins = request.store.pets.origins if form.text("added_by_too") else None
            count = await write_pets(page_after, chosen, target, job.advance, origins)
        return f"{count:,} {'animal was' if count == 1 else 'animals were'} exported."

    name = f"animals-{request.environment}.{chosen}"
    return start_job(request, Job(request.environment, f"Exporting {name}", 1, name), work, "/animals")


def query_of(text_of: Callable[[str], str]) -> PetQuery:
    """Parses the search query from a form or a URL. Ignores invalid times."""
    chosen = text_of("status")
    return PetQuery(
        text=text_of("q").strip(),
        status=chosen if is_status(chosen) else None,
        added_by=text_of("added_by").strip(),
        since=_time(text_of("since")),
        until=_time(text_of("until")),
    )


def _time(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        return parse_time(text)
    return None


def start_job(request: ConsoleRequest, job: Job, work: Callable[[Job], Awaitable[str]], path: str) -> Response:
    """Starts the job and redirects to its page. If too many jobs are running, redirects to `path` with a message."""
    try:
        request.state.jobs.start(job, work)
    except OperatorError as error:
        return _refuse(request, str(error), path)
    response = request.redirect(f"/jobs/{job.id}")
    if request.is_htmx:
        response.status_code = 201  # scripts cannot read a redirect's Location header, but console.js needs it
    return response


def _refuse(request: ConsoleRequest, text: str, path: str) -> Response:
    if request.is_htmx:
        return PlainTextResponse(text, 422)  # the page is not reloaded, so the file stays selected
    request.flash(text, ok=False)
    return request.redirect(path)


async def show_job(request: ConsoleRequest) -> Response:
    job = _find_job(request)
    if request.is_htmx:
        return request.part("jobs/progress.html", job=job)
    response = request.page("jobs/show.html", job=job)
    if job.state == "running":
        response.headers["refresh"] = "2"  # for browsers without JavaScript; in other browsers, htmx refreshes sooner
    return response


async def answer_job(request: ConsoleRequest) -> Response:
    """Passes the operator's answer to the job that asked the question."""
    job = _find_job(request)
    try:
        request.state.jobs.answer(job, (await request.form()).text("answer") == "yes")
    except OperatorError as error:
        request.flash(str(error), ok=False)
    return request.redirect(f"/jobs/{job.id}")


async def download(request: ConsoleRequest) -> Response:
    """Downloads a finished export."""
    job = _find_job(request)
    if job.state != "finished" or job.file is None:
        raise HTTPException(404)
    return FileResponse(job.file, filename=job.file_name, media_type=MEDIA_TYPES[format_of(job.file_name)])


def _find_job(request: ConsoleRequest) -> Job:
    """Returns the job whose id is in the path. Raises HTTPException if there is none."""
    job = request.state.jobs.find(request.http.path_params["job_id"], request.environment)
    if job is None:
        raise HTTPException(404)
    return job


# Imports


async def imports(request: ConsoleRequest) -> dict[str, Any]:
    found = await request.store.imports.page(request.now, before=_before(request), limit=PAGE_SIZE + 1)
    return {"imports": found[:PAGE_SIZE], "more": len(found) > PAGE_SIZE, "first": not request.parameter("at")}


def _before(request: ConsoleRequest) -> tuple[float, str] | None:
    """Returns the time and id of the last import on the previous page, or None on the first page."""
    try:
        at = float(request.parameter("at"))
    except ValueError:
        return None
    return (at, request.parameter("id")) if math.isfinite(at) and could_be_id(request.parameter("id")) else None


async def show_import(request: ConsoleRequest) -> Response:
    found = await _import(request)
    counts = await request.store.imports.undone(found.id)
    kept = await request.store.imports.kept_ids(found.id, KEPT_MAX) if counts.kept else []
    return request.page("imports/show.html", found=found, counts=counts, kept=kept)


async def undo_import(request: ConsoleRequest) -> Response:
    found = await _import(request)

    async def work(job: Job) -> str:
        counts = await request.store.imports.undo(found.id, request.by, job.advance)
        request.pets_changed()
        were_kept = "was kept because it was" if counts.kept == 1 else "were kept because they were"
        kept = f" {counts.kept:,} {were_kept} changed after the import." if counts.kept else ""
        removed = f"{counts.removed:,} {'animal was' if counts.removed == 1 else 'animals were'} removed"
        return f"{removed} from {request.environment}.{kept}"

    path = f"/animals/imports/{found.id}"
    job = Job(request.environment, f"Undoing the import of {found.name}", found.added, link=path)
    return start_job(request, job, work, path)


async def _import(request: ConsoleRequest) -> Import:
    """Returns the import whose id is in the path. Raises HTTPException if there is none."""
    import_id = request.http.path_params["import_id"]
    found = await request.store.imports.get(import_id, request.now) if could_be_id(import_id) else None
    if found is None:
        raise HTTPException(404)
    return found
