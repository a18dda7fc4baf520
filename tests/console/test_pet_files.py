"""Import and export of animals, over HTTP without a browser, on each pair of backends."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.commands import Commands
from harness.consoles import Console, ConsoleClient, cells, next_rows, running_console, text_of
from harness.served import wait_for
from harness.servers import Server
from harness.stores import names
from petstore.audit import Actor


def finished_job(operator: ConsoleClient, started: httpx.Response) -> httpx.Response:
    """Waits until a job has ended. Returns its page."""
    assert started.status_code == 303, text_of(started)
    address = started.headers["location"]
    assert wait_for(lambda: "refresh" not in operator.get(address).headers)
    return operator.get(address)


def upload(operator: ConsoleClient, name: str, content: bytes, **headers: str) -> httpx.Response:
    headers = {"Origin": operator.console.origin, **headers}
    return operator.http.post("/live/animals/import", files={"file": (name, content)}, headers=headers)


def test_a_file_is_imported_and_exported(operator: ConsoleClient, server: Server) -> None:
    lines = [json.dumps({"name": f"Import {i} 🐕", "categoryId": i}) for i in range(5_000)]
    page = finished_job(operator, upload(operator, "animals.jsonl", "\n".join(lines).encode()))
    assert "5,000 animals were added to live." in text_of(page)
    entry = next(entry for entry in Commands(server).entries() if entry.action == "import")
    assert entry.subject == "animals.jsonl" and entry.detail.startswith("file with 5,000 animals")
    (import_id,) = re.findall(r'href="/live/animals/imports/(imp_\w+)"', page.text)
    assert entry.detail.endswith(import_id)

    page = finished_job(operator, operator.post("/live/animals/export", form="csv"))
    (address,) = re.findall(r'href="(/live/jobs/[^"]+/file)"', page.text)
    file = operator.get(address)
    assert 'filename="animals-live.csv"' in file.headers["content-disposition"]
    assert file.text.startswith("id,name,")
    assert file.text.count(" 🐕,") >= 5_000
    assert operator.get(address.replace("live", "staging")).status_code == 404


def test_an_import_is_undone_from_its_page(operator: ConsoleClient, server: Server) -> None:
    mark = f"Undone {time.time_ns()}"
    page = finished_job(operator, upload(operator, f"{mark}.csv", f"name,categoryId\n{mark},1\n{mark},2".encode()))
    (path,) = re.findall(r'href="(/live/animals/imports/imp_\w+)"', page.text)
    changed = cells(operator.get(f"/live/animals?q={mark}"), "Id")[0]
    operator.submit("/live/animals/selected", id=changed, to="sold")
    assert cells(operator.get("/live/animals/imports"), "File")[0] == f"{mark}.csv"
    shown = operator.get(path)
    assert "Removes 1 animal from live" in text_of(shown) and "1 animal changed after the import" in text_of(shown)
    page = finished_job(operator, operator.post(f"{path}/undo"))
    assert "1 animal was removed from live. 1 was kept because it was changed after the import." in text_of(page)
    assert cells(operator.get(f"/live/animals?q={mark}"), "Id") == [changed]
    again = operator.get(path)
    assert "This import was undone." in text_of(again) and f'action="{path}/undo"' not in again.text
    assert "has already been undone" in text_of(finished_job(operator, operator.post(f"{path}/undo")))
    assert operator.get(path.replace("live", "staging")).status_code == 404
    assert operator.get("/live/animals/imports/%00").status_code == 404


def import_ids(page: httpx.Response) -> list[str]:
    return re.findall(r'href="/live/animals/imports/(imp_\w+)"', page.text)


def answer(operator: ConsoleClient, page: httpx.Response, given: str) -> httpx.Response:
    """Answers the question on a job's page, as a browser without scripts does. Returns the page after the job."""
    (address,) = re.findall(r'<form method="post" action="(/live/jobs/[^"]+)"', page.text)
    assert f'name="answer" value="{given}"' in page.text and "refresh" not in page.headers
    return finished_job(operator, operator.post(address, answer=given))


def test_the_same_content_is_imported_again_only_after_a_confirmation(operator: ConsoleClient) -> None:
    mark = f"Repeated {time.time_ns()}"
    content = f"name,categoryId\n{mark},1\n".encode()

    def found() -> int:
        return len(cells(operator.get(f"/live/animals?q={mark}"), "Id"))

    (first,) = import_ids(finished_job(operator, upload(operator, "first.csv", content)))
    page = finished_job(operator, upload(operator, "renamed.csv", content))
    assert f"renamed.csv has already been imported: {first}, 1 animal, " in text_of(page)
    assert (import_ids(page), found()) == ([first], 1)
    cancelled = answer(operator, page, "no")
    assert "Cancelled. Nothing was changed." in text_of(cancelled) and found() == 1
    page = finished_job(operator, upload(operator, "renamed.csv", content))
    assert found() == 1
    done = answer(operator, page, "yes")
    assert "1 animal was added to live." in text_of(done) and found() == 2
    (second,) = import_ids(done)
    assert second != first
    (address,) = re.findall(r'action="(/live/jobs/[^"]+)"', page.text)
    again = finished_job(operator, operator.post(address, answer="yes"))
    assert "1 animal was added to live." in text_of(again) and found() == 2, "a question can be answered only once"


def test_two_operators_who_confirm_the_same_repetition_add_the_file_once(
    operator: ConsoleClient, new_name: Callable[[], str]
) -> None:
    mark = f"Twice {time.time_ns()}"
    content = f"name,categoryId\n{mark},1\n".encode()
    finished_job(operator, upload(operator, "a.csv", content))
    grace = operator.console.sign_in(new_name())
    pages = [finished_job(each, upload(each, "a.csv", content)) for each in (operator, grace)]
    (second,) = import_ids(answer(operator, pages[0], "yes"))
    asked = answer(grace, pages[1], "yes")
    assert f"a.csv has already been imported: {second}, 1 animal, " in text_of(asked)
    answer(grace, asked, "no")
    assert len(cells(operator.get(f"/live/animals?q={mark}"), "Id")) == 2


def test_viewers_cannot_answer(operator: ConsoleClient, new_name: Callable[[], str]) -> None:
    content = f"name,categoryId\nViewed {time.time_ns()},1\n".encode()
    finished_job(operator, upload(operator, "a.csv", content))
    page = finished_job(operator, upload(operator, "a.csv", content))
    (address,) = re.findall(r'<form method="post" action="(/live/jobs/[^"]+)"', page.text)
    viewer = operator.console.sign_in(new_name(), role="viewer")
    shown = viewer.get(address)
    assert "has already been imported" in text_of(shown) and f'action="{address}"' not in shown.text
    assert viewer.post(address, answer="yes").status_code == 403
    answer(operator, page, "no")


def test_pages_of_imports_follow_each_other(operator: ConsoleClient, server: Server) -> None:
    async def fill(backends: Any) -> None:
        for i in range(53):
            by = Actor("ada", 1_000.0 + i // 2)
            await backends.stores["staging"].imports.begin(f"{i}.csv", f"{i:064}", 1, by)

    server.act(fill)
    page = operator.get("/staging/animals/imports")
    rest = next_rows(operator, page)
    assert rest is not None and next_rows(operator, rest) is None
    shown = cells(page, "File") + cells(rest, "File")
    files = [int(name.removesuffix(".csv")) for name in shown if name.endswith(".csv")]  # without those of other tests
    assert sorted(files) == list(range(53)) and [i // 2 for i in files] == sorted((i // 2 for i in files), reverse=True)
    assert operator.get("/staging/animals/imports?at=x&id=%00").status_code == 200


def test_a_file_with_invalid_rows_is_not_imported_and_the_rows_are_listed(operator: ConsoleClient) -> None:
    bad = ["name,categoryId", "Only good,1", *(f"Only {i},x" for i in range(30))]
    page = finished_job(operator, upload(operator, "animals.csv", "\n".join(bad).encode()))
    assert "30 bad rows, so nothing was imported" in text_of(page)
    assert "line 3: categoryId must be a whole number" in text_of(page)
    assert "line 32: categoryId must be a whole number" in text_of(page)
    assert cells(operator.get("/live/animals?q=Only good"), "Name") == []


def test_unknown_columns_are_named_with_the_result(operator: ConsoleClient) -> None:
    content = f"name,categoryId,colour\nBrown {time.time_ns()},1,brown\n".encode()
    page = finished_job(operator, upload(operator, "animals.csv", content))
    assert '1 animal was added to live. Warning: unknown column "colour" is ignored.' in text_of(page)


def test_a_file_without_animals_is_not_an_import(operator: ConsoleClient, server: Server) -> None:
    before = len(Commands(server).entries())
    page = finished_job(operator, upload(operator, "empty.ndjson", b"\n"))
    assert "no animals in empty.ndjson" in text_of(page)
    assert len(Commands(server).entries()) == before


def test_control_characters_are_removed_from_a_file_name(operator: ConsoleClient, server: Server) -> None:
    """The file name is stored in the audit log, and PostgreSQL rejects some control characters."""
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a\x00\x1b.csv"\r\n\r\n'
    body += b"name,categoryId\nNul,1\n\r\n--b--\r\n"
    headers = {"Origin": operator.console.origin, "Content-Type": "multipart/form-data; boundary=b"}
    page = finished_job(operator, operator.http.post("/live/animals/import", content=body, headers=headers))
    assert "1 animal was added to live." in text_of(page)
    entry = next(entry for entry in Commands(server).entries() if entry.action == "import")
    assert entry.subject == "a.csv"


def test_a_file_of_another_type_is_refused_at_once(operator: ConsoleClient) -> None:
    assert "must end in .jsonl, .ndjson, .csv or .json" in text_of(
        operator.get(upload(operator, "animals.xlsx", b"x").headers["location"])
    )
    by_script = upload(operator, "animals.xlsx", b"x", **{"HX-Request": "true"})
    assert (by_script.status_code, by_script.text) == (
        422,
        "animals.xlsx: the name must end in .jsonl, .ndjson, .csv or .json",
    )
    nothing = operator.submit("/live/animals/import")
    assert "Choose a .jsonl, .csv or .json file first" in text_of(nothing)


def exported(operator: ConsoleClient, **fields: Any) -> str:
    page = finished_job(operator, operator.post("/live/animals/export", **fields))
    (address,) = re.findall(r'href="(/live/jobs/[^"]+/file)"', page.text)
    return operator.get(address).text


def test_an_export_can_be_limited_to_the_animals_of_the_search(operator: ConsoleClient) -> None:
    for name, status in (("Quagga 1", "sold"), ("Quagga 2", "available"), ("Zebra", "sold")):
        operator.add_pet(name, status=status)
    fields = {"form": "csv", "filter": "shown", "q": "quagga", "status": "sold"}
    assert re.findall(r",([^,]+),7,", exported(operator, **fields)) == ["Quagga 1"]
    assert set(re.findall(r",([^,]+),7,", exported(operator, form="csv", filter="shown", status="sold"))) >= {
        "Quagga 1",
        "Zebra",
    }
    everything = exported(operator, form="csv", filter="all", q="quagga", status="sold")
    assert "Quagga 2" in everything and "Zebra" in everything


# A console that stops in the middle of an import

MANY = 60_000


def stopped_in_the_middle(console: Console, content: bytes, *, kill: bool) -> dict[str, Any]:
    """Starts an import, and stops or kills the console after some animals were added. Returns the import."""
    petstore = Commands(console.server)
    operator = console.sign_in("ada")
    started = upload(operator, "animals.csv", content)
    assert started.status_code == 303
    assert wait_for(lambda: [each for each in petstore.json("pets", "imports") if each["added"]])
    if kill:
        console.process.kill()
        console.process.wait(timeout=10)
        operator.http.close()
    else:
        assert console.stop() == 0
    found: dict[str, Any]
    (found,) = petstore.json("pets", "imports")
    assert 0 < found["added"] < found["total"] == MANY
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("host", ["own", "cluster"])
def test_import_is_resumed_after_its_console_stopped(tmp_path: Path, host: Any, kill: bool) -> None:
    server = Server(tmp_path / "data", host)
    server.create()
    content = ("name,categoryId\n" + "".join(f"Pet {number},1\n" for number in range(MANY))).encode()
    first = Console(server)
    first.wait_until_ready()
    found = stopped_in_the_middle(first, content, kill=kill)
    assert found["state"] == "running"
    with running_console(server) as second:
        operator = second.sign_in("grace")
        page = finished_job(operator, upload(operator, "renamed.csv", content))
        assert f"{MANY:,} animals were added to live." in text_of(page)
    (after,) = Commands(server).json("pets", "imports")
    assert (after["id"], after["state"], after["added"]) == (found["id"], "done", MANY)
    everything = server.act(lambda backends: names(backends.stores["live"]))
    assert everything == [f"Pet {number}" for number in range(MANY)]


@pytest.mark.parametrize("content", ["name;categoryId\n{};1\n", "name\tcategoryId\n{}\t1\n"], ids=["semicolon", "tab"])
def test_a_csv_file_may_have_other_delimiters(operator: ConsoleClient, content: str) -> None:
    name = f"Delimited {time.time_ns()}"
    page = finished_job(operator, upload(operator, "animals.csv", content.format(name).encode()))
    assert "1 animal was added to live." in text_of(page)
    assert cells(operator.get(f"/live/animals?q={name}"), "Name") == [name]
