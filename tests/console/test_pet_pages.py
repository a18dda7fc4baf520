"""Animals and the audit log, over HTTP without a browser, on each pair of backends, with a running service."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from petstore.keys import has_form
from tests.commands import Commands
from tests.consoles import Console, ConsoleClient, cells, running_console, text_of
from tests.served import wait_for
from tests.servers import Server

UNUSUAL_NAMES = [
    "<script>alert(1)</script>",
    "'; drop table pets; --",
    "🐈" * 255,
    "\u202eright to left",
    "a&amp;b",
    "{{ 7*7 }}",
]


def test_an_operator_signs_in_and_is_named_in_the_audit_log(console: Console, new_name: Callable[[], str]) -> None:
    name, petstore = new_name(), Commands(console.server)
    client = console.client()
    token = console.add_operator(name)
    assert has_form(token, "pets_op_")
    assert "Signed in as " + name in text_of(client.submit("/sign-in", token=token, next="/live/keys"))
    client.submit("/live/animals", name="Rex", categoryId="1")
    newest = petstore.entries()[:2]
    assert [(entry.actor, entry.action) for entry in newest] == [(name, "add animal"), (name, "sign in")]


def test_a_revoked_operator_is_signed_out_from_the_next_request_on(
    console: Console, new_name: Callable[[], str]
) -> None:
    name, petstore = new_name(), Commands(console.server)
    token = console.add_operator(name)
    client = console.client()
    client.submit("/sign-in", token=token)
    assert client.get("/live/keys").status_code == 200
    petstore.text("operators", "revoke", name)
    assert client.get("/live/keys").status_code == 401
    assert client.post("/sign-in", token=token).status_code == 401


def test_a_session_ends_when_its_name_is_given_to_another_operator(
    console: Console, new_name: Callable[[], str]
) -> None:
    name, petstore = new_name(), Commands(console.server)
    client = console.client()
    client.submit("/sign-in", token=console.add_operator(name))
    petstore.text("operators", "revoke", name)
    console.add_operator(name)
    assert client.get("/live/keys").status_code == 401


def test_an_added_animal_is_served_and_in_the_audit_log(server: Server, operator: ConsoleClient) -> None:
    number = operator.add_pet("Rex of the console", status="pending")
    pet = httpx.get(server.url(f"/pets/{number}"), headers=server.key().headers, verify=False).json()
    assert pet == {"id": number, "name": "Rex of the console", "categoryId": 7, "status": "pending"}
    entry = next(entry for entry in Commands(server).entries() if entry.action == "add animal")
    assert entry.subject == str(number)
    assert entry.actor.startswith("operator ")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"name": " ", "categoryId": "1"}, "name must not be empty"),
        ({"name": "x" * 256, "categoryId": "1"}, "at most 255"),
        ({"name": "Rex", "categoryId": "one"}, "categoryId must be a whole number"),
        ({"name": "Rex", "categoryId": str(2**63)}, "categoryId must be a whole number"),
        ({"name": "Rex\x07", "categoryId": "1"}, "control characters"),
        ({"name": "Rex", "categoryId": "1", "status": "lost"}, "status must be one of"),
        ({}, "name must not be empty"),
    ],
)
def test_an_invalid_animal_is_refused_and_the_form_keeps_its_values(
    operator: ConsoleClient, fields: dict[str, str], error: str
) -> None:
    refused = operator.post("/live/animals", **fields)
    assert refused.status_code == 422
    assert error in text_of(refused)
    for name in ("name", "categoryId"):
        (kept,) = re.findall(rf'name="{name}"[^>]* value="([^"]*)"', refused.text)
        assert kept == fields.get(name, "")
    assert '<details class="panel" id="add" open>' in refused.text


@pytest.mark.parametrize("name", UNUSUAL_NAMES, ids=lambda name: name[:12])
def test_unusual_names_are_escaped_and_found(operator: ConsoleClient, name: str) -> None:
    number = operator.add_pet(name)
    page = operator.http.get("/live/animals", params={"q": name})
    assert name in cells(page, "Name")
    assert str(number) in cells(page, "Id")
    key_id, _ = operator.create_key(name=name)
    assert " ".join(name.split()) in text_of(operator.get(f"/live/keys/{key_id}"))
    assert name in cells(operator.http.get("/live/keys", params={"q": name}), "Name")
    for response in (page, operator.get(f"/live/keys/{key_id}"), operator.get(f"/live/keys/{key_id}/revoke")):
        assert "<script>alert" not in response.text
        assert "49" not in cells(response, "Name")


def test_animals_are_found_by_a_part_of_the_name_in_any_case(operator: ConsoleClient) -> None:
    number = operator.add_pet("Ärmel the GREAT of Žižkov")
    for text in ("ärmel", "ÄRMEL", "great of ž", "Žižkov", str(number)):
        assert str(number) in cells(operator.http.get("/live/animals/rows", params={"q": text}), "Id"), text
    for text in ("ermel", "100%", "\x00", "_"):
        assert str(number) not in cells(operator.http.get("/live/animals/rows", params={"q": text}), "Id"), text


def test_pages_of_animals_follow_each_other_and_are_filtered_by_status(server: Server, operator: ConsoleClient) -> None:
    server.fill(130, "staging")
    seen: list[str] = []
    page = operator.get("/staging/animals?status=sold")
    while True:
        assert set(cells(page, "Status")) <= {"sold"}
        seen += cells(page, "Id")
        following = re.search(r'hx-get="([^"]+)" hx-trigger="revealed"', page.text)
        if following is None:
            break
        page = operator.get(following[1].replace("&amp;", "&"))
    everything = Commands(server).json("pets", "list", "--env", "staging", "--status", "sold", "--limit", "1000")
    assert seen == [str(pet["id"]) for pet in everything]
    assert len(seen) == len(set(seen)) >= 43


def test_a_status_change_of_many_animals_records_each(server: Server, operator: ConsoleClient) -> None:
    numbers = [operator.add_pet(f"Pup {i}") for i in range(3)]
    page = operator.submit("/live/animals/status", id=[*map(str, numbers), "9" * 18, "x"], to="sold")
    assert "3 animals are now sold." in text_of(page)
    key = server.key()
    for number in numbers:
        assert httpx.get(server.url(f"/pets/{number}"), headers=key.headers, verify=False).json()["status"] == "sold"
    entries = [entry for entry in Commands(server).entries() if entry.action == "set status"]
    changed = sorted((entry.subject, entry.detail) for entry in entries if int(entry.subject) in numbers)
    assert changed == [(str(number), "sold") for number in sorted(numbers, key=str)]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"to": "sold"}, "Select animals first"),
        ({"id": "1"}, "Choose a status"),
        ({"id": "1", "to": "gone"}, "Choose a status"),
    ],
)
def test_a_change_without_animals_or_status_names_what_is_missing(
    operator: ConsoleClient, fields: dict[str, str], text: str
) -> None:
    assert text in text_of(operator.submit("/live/animals/status", **fields))


def test_more_than_a_thousand_animals_at_once_are_refused(operator: ConsoleClient) -> None:
    page = operator.submit("/live/animals/status", id=[str(number) for number in range(1, 1_500)], to="sold")
    assert "at most 1,000 animals at once" in text_of(page)


def finished_job(operator: ConsoleClient, started: httpx.Response) -> httpx.Response:
    """The page of a job after its end."""
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
    assert (entry.subject, entry.detail) == ("animals.jsonl", "5000 animals")

    page = finished_job(operator, operator.post("/live/animals/export", form="csv"))
    (address,) = re.findall(r'href="(/live/jobs/[^"]+/file)"', page.text)
    file = operator.get(address)
    assert 'filename="animals-live.csv"' in file.headers["content-disposition"]
    assert file.text.startswith("id,name,categoryId,status\n")
    assert file.text.count(" 🐕,") >= 5_000
    assert operator.get(address.replace("live", "staging")).status_code == 404


def test_a_file_with_invalid_rows_is_not_imported_and_the_rows_are_listed(operator: ConsoleClient) -> None:
    bad = ["name,categoryId", "Only good,1", *(f"Only {i},x" for i in range(30))]
    page = finished_job(operator, upload(operator, "animals.csv", "\n".join(bad).encode()))
    assert "30 bad rows, so nothing was imported" in text_of(page)
    assert "line 3: categoryId must be a whole number" in text_of(page)
    assert "and 10 more" in text_of(page)
    assert cells(operator.get("/live/animals?q=Only good"), "Name") == []


def test_control_characters_are_removed_from_a_file_name(operator: ConsoleClient, server: Server) -> None:
    """The audit log keeps the name, and PostgreSQL rejects some of these characters."""
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a\x00\x1b.csv"\r\n\r\n'
    body += b"name,categoryId\nNul,1\n\r\n--b--\r\n"
    headers = {"Origin": operator.console.origin, "Content-Type": "multipart/form-data; boundary=b"}
    page = finished_job(operator, operator.http.post("/live/animals/import", content=body, headers=headers))
    assert "1 animal was added to live." in text_of(page)
    entry = next(entry for entry in Commands(server).entries() if entry.action == "import")
    assert entry.subject == "a.csv"


def test_a_file_of_another_type_is_refused_at_once(operator: ConsoleClient) -> None:
    assert "must end in .jsonl or .csv" in text_of(
        operator.get(upload(operator, "animals.xlsx", b"x").headers["location"])
    )
    by_script = upload(operator, "animals.xlsx", b"x", **{"HX-Request": "true"})
    assert (by_script.status_code, by_script.text) == (422, "animals.xlsx: the name must end in .jsonl or .csv")
    nothing = operator.submit("/live/animals/import")
    assert "Choose a file first" in text_of(nothing)


def test_the_audit_log_can_be_filtered(operator: ConsoleClient, console: Console) -> None:
    grace = console.sign_in("Grace Hopper")
    key_id, _ = grace.create_key(name="G")
    grace.submit(f"/live/keys/{key_id}/revoke")
    page = operator.get("/live/audit?who=grace hop")
    assert cells(page, "Who") == ["Grace Hopper"] * 3 and cells(page, "What") == ["revoke key", "create key", "sign in"]
    assert cells(operator.get("/live/audit?who=grace&what=create key"), "Subject") == [key_id]
    assert cells(operator.get(f"/live/audit/rows?q={key_id}"), "What") == ["revoke key", "create key"]
    assert "No matching entries" in text_of(operator.get("/live/audit?who=nobody-of-that-name"))
    assert cells(operator.get("/live/audit?what=nonsense&who=grace"), "What") != []


def test_pages_of_the_audit_log_follow_each_other(server: Server, operator: ConsoleClient) -> None:
    numbers = [operator.add_pet("one of many", "staging") for _ in range(60)]
    operator.submit("/staging/animals/status", id=[str(number) for number in numbers], to="sold")
    page = operator.get("/staging/audit?what=set status")
    more = re.search(r'hx-get="([^"]+)" hx-trigger="revealed"', page.text)
    assert more is not None
    rest = operator.get(more[1].replace("&amp;", "&"))
    assert sorted(map(int, cells(page, "Subject") + cells(rest, "Subject"))) == numbers


def test_empty_pages_name_the_next_step(tmp_path: Path) -> None:
    with running_console(Server(tmp_path / "data")) as own:
        client = own.client()
        client.get(own.link)
        assert "Add one above, import a file" in text_of(client.get("/live/animals"))
        assert "Create the first" in text_of(client.get("/live/keys"))
        assert "No key of live is banned" in text_of(client.get("/live/bans"))
        assert "There are no entries in staging yet" in text_of(client.get("/staging/audit"))
        overview = text_of(client.get("/staging/overview"))
        assert "Create a key" in overview and "Add or import some" in overview
        assert "No matching animals" in text_of(client.get("/live/animals?q=nobody"))


@pytest.mark.parametrize("number", ["0", "-1", "1e3", "９", "9" * 30, "x", "%00", "%ff", "%ED%A0%80", "'"])
def test_an_invalid_parameter_is_never_a_server_error(operator: ConsoleClient, number: str) -> None:
    for path in (
        "animals/rows?after=",
        "audit/rows?before=",
        "keys/rows?before=",
        "animals?q=",
        "overview?span=",
        "keys/",
    ):
        assert operator.get(f"/live/{path}{number}").status_code in (200, 404)
    assert operator.post(f"/live/bans/{number}/lift").status_code == 404
    assert operator.post(f"/live/keys/{number}/revoke").status_code == 404


def test_a_store_that_hangs_is_a_503_and_the_form_keeps_its_values(server: Server, operator: ConsoleClient) -> None:
    with server.writes_held_up():
        refused = operator.post("/live/animals", name="Patient Rex", categoryId="1")
        assert refused.status_code == 503
        assert "did not respond" in text_of(refused)
        assert 'value="Patient Rex"' in refused.text
    operator.add_pet("Patient Rex")
