"""Import and export of animals: started here, watched by a page that asks how far they are."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response

from petstore.console.jobs import Job
from petstore.console.room import Room
from petstore.errors import OperatorError
from petstore.pet_files import FORMS, batches, form_of, write_pets

UPLOAD_MAX = 1024 * 1024 * 1024
KINDS = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8"}


async def start_import(request: Request) -> Response:
    room = Room(request)
    length = request.headers.get("content-length", "")
    if not length.isdigit() or int(length) > UPLOAD_MAX:
        raise HTTPException(413)
    upload = (await room.form()).file("file")
    try:
        if upload is None or not upload.filename:
            raise OperatorError("Choose a file first: .jsonl or .csv.")
        # The audit log keeps the name, and not every store takes a control character.
        name, source = "".join(filter(str.isprintable, upload.filename)), upload.file
        form_of(name)

        async def work(job: Job) -> str:
            with source:
                count = await room.desk.import_pets(name, batches(name, source, job.advance))
            room.house.animals[room.environment].outdated()
            return f"{count:,} animals were added to {room.environment}."

        job = room.house.jobs.start(Job(room.environment, f"Importing {name}", upload.size or 0), work)
    except OperatorError as error:
        if room.is_partial:
            return PlainTextResponse(str(error), 422)  # the page stays, and the chosen file with it
        room.tell(str(error), good=False)
        return room.go("/animals")
    started = room.go(f"/jobs/{job.id}")
    if room.is_partial:
        started.status_code = 201  # the script goes there itself
    return started


async def start_export(request: Request) -> Response:
    room = Room(request)
    form = (await room.form()).text("form")
    chosen = next((each for each in FORMS if each == form), FORMS[0])

    async def work(job: Job) -> str:
        job.total = max(1, sum((await room.store.count()).values()))
        with room.house.jobs.new_file(job).open("w", encoding="utf-8", newline="") as target:
            count = await write_pets(room.store, chosen, target, job.advance)
        return f"{count:,} animals are ready."

    name = f"animals-{room.environment}.{chosen}"
    try:
        job = room.house.jobs.start(Job(room.environment, f"Exporting {name}", 1, name), work)
    except OperatorError as error:
        room.tell(str(error), good=False)
        return room.go("/animals")
    return room.go(f"/jobs/{job.id}")


async def job(request: Request) -> Response:
    room = Room(request)
    found = _found(room)
    if room.is_partial:
        return room.part("job_progress.html", job=found)
    response = room.page("job.html", job=found)
    if found.state == "running":
        response.headers["refresh"] = "2"  # for a browser without scripts; htmx asks sooner
    return response


async def file(request: Request) -> Response:
    """What an export has made."""
    room = Room(request)
    found = _found(room)
    if found.state != "finished" or found.file is None:
        raise HTTPException(404)
    return FileResponse(found.file, filename=found.name, media_type=KINDS[form_of(found.name)])


def _found(room: Room) -> Job:
    found = room.house.jobs.find(room.request.path_params["job_id"], room.environment)
    if found is None:
        raise HTTPException(404)
    return found
