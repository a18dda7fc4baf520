"""Import and export of animals: started here, watched by a page that asks how far they are."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response

from petstore.admin.pet_files import FORMS, batches, form_of, write_pets
from petstore.console.jobs import Job
from petstore.console.requests import ConsoleRequest
from petstore.errors import OperatorError

UPLOAD_MAX = 1024 * 1024 * 1024
KINDS = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8"}


async def start_import(request: Request) -> Response:
    visit = ConsoleRequest(request)
    length = request.headers.get("content-length", "")
    if not length.isdigit() or int(length) > UPLOAD_MAX:
        raise HTTPException(413)
    upload = (await visit.form()).file("file")
    try:
        if upload is None or not upload.filename:
            raise OperatorError("Choose a file first: .jsonl or .csv.")
        # The audit log keeps the name, and not every store takes a control character.
        name, source = "".join(filter(str.isprintable, upload.filename)), upload.file
        form_of(name)

        async def work(job: Job) -> str:
            with source:
                count = await visit.admin.import_pets(name, batches(name, source, job.advance))
            visit.shared.animals[visit.environment].outdated()
            return f"{count:,} animals were added to {visit.environment}."

        job = visit.shared.jobs.start(Job(visit.environment, f"Importing {name}", upload.size or 0), work)
    except OperatorError as error:
        if visit.is_partial:
            return PlainTextResponse(str(error), 422)  # the page stays, and the chosen file with it
        visit.tell(str(error), good=False)
        return visit.go("/animals")
    started = visit.go(f"/jobs/{job.id}")
    if visit.is_partial:
        started.status_code = 201  # the script goes there itself
    return started


async def start_export(request: Request) -> Response:
    visit = ConsoleRequest(request)
    form = (await visit.form()).text("form")
    chosen = next((each for each in FORMS if each == form), FORMS[0])

    async def work(job: Job) -> str:
        job.total = max(1, sum((await visit.store.count()).values()))
        with visit.shared.jobs.new_file(job).open("w", encoding="utf-8", newline="") as target:
            count = await write_pets(visit.store, chosen, target, job.advance)
        return f"{count:,} animals are ready."

    name = f"animals-{visit.environment}.{chosen}"
    try:
        job = visit.shared.jobs.start(Job(visit.environment, f"Exporting {name}", 1, name), work)
    except OperatorError as error:
        visit.tell(str(error), good=False)
        return visit.go("/animals")
    return visit.go(f"/jobs/{job.id}")


async def job(request: Request) -> Response:
    visit = ConsoleRequest(request)
    found = _found(visit)
    if visit.is_partial:
        return visit.part("job_progress.html", job=found)
    response = visit.page("job.html", job=found)
    if found.state == "running":
        response.headers["refresh"] = "2"  # for a browser without scripts; htmx asks sooner
    return response


async def file(request: Request) -> Response:
    """What an export has made."""
    visit = ConsoleRequest(request)
    found = _found(visit)
    if found.state != "finished" or found.file is None:
        raise HTTPException(404)
    return FileResponse(found.file, filename=found.name, media_type=KINDS[form_of(found.name)])


def _found(visit: ConsoleRequest) -> Job:
    found = visit.shared.jobs.find(visit.request.path_params["job_id"], visit.environment)
    if found is None:
        raise HTTPException(404)
    return found
