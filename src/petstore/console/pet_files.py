"""Import and export of animals as background jobs, and the pages that show their progress."""

from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, PlainTextResponse, Response

from petstore.admin.pet_files import BATCH, EXPORTED, PetFile, format_of, write_pets
from petstore.console.forms import read_form
from petstore.console.jobs import Job
from petstore.console.requests import ConsoleRequest
from petstore.errors import OperatorError
from petstore.pets import Page, is_status

UPLOAD_MAX = 1024 * 1024 * 1024
MEDIA_TYPES = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8"}


async def start_import(request: ConsoleRequest) -> Response:
    form = await read_form(request.http, max_bytes=UPLOAD_MAX, max_files=1, seconds=None)
    upload = form.file("file")
    if upload is None or not upload.filename:
        return _refuse(request, "Choose a file first: .jsonl, .csv or .json.", "/animals")
    # The audit log keeps the name, and PostgreSQL rejects some control characters.
    name, source = "".join(filter(str.isprintable, upload.filename)), upload.file

    async def work(job: Job) -> str:
        with source:
            file = PetFile(name, source)
            job.begin(f"Checking {name}", upload.size or 0)
            checked = await file.check(job.advance)
            job.begin(f"Adding {checked.animals:,} animals", checked.animals)
            done = await request.admin.import_pets(name, file, checked, adding=job.advance)
        request.pets_changed()
        job.link = f"/animals/imports/{done.id}"
        return f"{done.added:,} {'animal was' if done.added == 1 else 'animals were'} added to {request.environment}."

    try:
        format_of(name)
    except OperatorError as error:
        return _refuse(request, str(error), "/animals")
    return start_job(request, Job(request.environment, f"Importing {name}", 1), work, "/animals")


async def start_export(request: ConsoleRequest) -> Response:
    """Export all animals, or those of a search."""
    form = await request.form()
    chosen = next((each for each in EXPORTED if each == form.text("form")), EXPORTED[0])
    text, status = form.text("q").strip(), form.text("status")
    if form.text("filter") != "shown":
        text, status = "", ""
    wanted = status if is_status(status) else None

    async def page_after(after: int) -> Page:
        if not text:
            return await request.store.pets.page(after=after, limit=BATCH, status=wanted)
        while True:  # one step of a search may find nothing
            found = await request.store.pets.search(text, after=after, limit=BATCH, status=wanted)
            if found.pets or not found.more:
                return Page(found.pets, found.more)
            after = found.searched_to

    async def work(job: Job) -> str:
        job.total = sum((await request.store.pets.count()).values())
        with request.state.jobs.new_file(job).open("w", encoding="utf-8", newline="") as target:
            count = await write_pets(page_after, chosen, target, job.advance)
        return f"{count:,} {'animal is' if count == 1 else 'animals are'} ready."

    name = f"animals-{request.environment}.{chosen}"
    return start_job(request, Job(request.environment, f"Exporting {name}", 1, name), work, "/animals")


def start_job(request: ConsoleRequest, job: Job, work: Callable[[Job], Awaitable[str]], path: str) -> Response:
    """The page of the job; the page at `path` when too many jobs are running."""
    try:
        request.state.jobs.start(job, work)
    except OperatorError as error:
        return _refuse(request, str(error), path)
    response = request.redirect(f"/jobs/{job.id}")
    if request.is_htmx:
        response.status_code = 201  # a script cannot see a redirect, so console.js follows `location` itself
    return response


def _refuse(request: ConsoleRequest, text: str, path: str) -> Response:
    if request.is_htmx:
        return PlainTextResponse(text, 422)  # the page keeps the chosen file
    request.flash(text, ok=False)
    return request.redirect(path)


async def show_job(request: ConsoleRequest) -> Response:
    job = _find_job(request)
    if request.is_htmx:
        return request.part("jobs/progress.html", job=job)
    response = request.page("jobs/show.html", job=job)
    if job.state == "running":
        response.headers["refresh"] = "2"  # for a browser without scripts; htmx asks sooner
    return response


async def download(request: ConsoleRequest) -> Response:
    """The file of a finished export."""
    job = _find_job(request)
    if job.state != "finished" or job.file is None:
        raise HTTPException(404)
    return FileResponse(job.file, filename=job.file_name, media_type=MEDIA_TYPES[format_of(job.file_name)])


def _find_job(request: ConsoleRequest) -> Job:
    """Raises HTTPException."""
    job = request.state.jobs.find(request.http.path_params["job_id"], request.environment)
    if job is None:
        raise HTTPException(404)
    return job
