"""Animals, the audit log and what all pages share, over HTTP alone and on each pair of backends; the service obeys."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from petstore.keys import has_form
from tests.commands import Commands
from tests.consoles import Console, Visitor, cells, shown
from tests.served import wait_for
from tests.servers import Server

ODD = ["<script>alert(1)</script>", "'; drop table pets; --", "🐈" * 255, "\u202eright to left", "a&amp;b", "{{ 7*7 }}"]


def test_an_operator_signs_in_and_is_named_in_the_audit_log(console: Console, new_name: Callable[[], str]) -> None:
    name, petstore = new_name(), Commands(console.server)
    visitor = console.visitor()
    token = console.operator(name)
    assert has_form(token, "pets_op_")
    assert "Signed in as " + name in shown(visitor.do("/sign-in", token=token, next="/live/keys"))
    visitor.do("/live/animals", name="Rex", categoryId="1")
    newest = petstore.entries()[:2]
    assert [(entry.actor, entry.action) for entry in newest] == [(name, "add animal"), (name, "sign in")]


def test_a_revoked_operator_is_signed_out_from_the_next_request_on(
    console: Console, new_name: Callable[[], str]
) -> None:
    name, petstore = new_name(), Commands(console.server)
    token = console.operator(name)
    visitor = console.visitor()
    visitor.do("/sign-in", token=token)
    assert visitor.get("/live/keys").status_code == 200
    petstore.text("operators", "revoke", name)
    assert visitor.get("/live/keys").status_code == 401
    assert visitor.post("/sign-in", token=token).status_code == 401


def test_a_session_does_not_outlive_its_operator_under_a_name_given_anew(
    console: Console, new_name: Callable[[], str]
) -> None:
    name, petstore = new_name(), Commands(console.server)
    visitor = console.visitor()
    visitor.do("/sign-in", token=console.operator(name))
    petstore.text("operators", "revoke", name)
    console.operator(name)
    assert visitor.get("/live/keys").status_code == 401


def test_an_added_animal_is_served_by_the_api_and_in_the_log(server: Server, ada: Visitor) -> None:
    number = ada.add_animal("Rex of the console", status="pending")
    pet = httpx.get(server.url(f"/pets/{number}"), headers=server.key().headers, verify=False).json()
    assert pet == {"id": number, "name": "Rex of the console", "categoryId": 7, "status": "pending"}
    entry = next(entry for entry in Commands(server).entries() if entry.action == "add animal")
    assert entry.subject == str(number)
    assert entry.actor.startswith("operator ")


@pytest.mark.parametrize(
    ("fields", "fault"),
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
def test_a_bad_animal_is_refused_and_what_was_typed_stays(ada: Visitor, fields: dict[str, str], fault: str) -> None:
    refused = ada.post("/live/animals", **fields)
    assert refused.status_code == 422
    assert fault in shown(refused)
    for name in ("name", "categoryId"):
        (kept,) = re.findall(rf'name="{name}"[^>]* value="([^"]*)"', refused.text)
        assert kept == fields.get(name, "")
    assert '<details class="panel" id="add" open>' in refused.text


@pytest.mark.parametrize("name", ODD, ids=lambda name: name[:12])
def test_odd_names_are_shown_as_they_are_and_found(ada: Visitor, name: str) -> None:
    number = ada.add_animal(name)
    page = ada.client.get("/live/animals", params={"q": name})
    assert name in cells(page, "Name")
    assert str(number) in cells(page, "Id")
    key_id, _ = ada.create_key(name=name)
    assert " ".join(name.split()) in shown(ada.get(f"/live/keys/{key_id}"))
    assert name in cells(ada.client.get("/live/keys", params={"q": name}), "Name")
    for response in (page, ada.get(f"/live/keys/{key_id}"), ada.get(f"/live/keys/{key_id}/revoke")):
        assert "<script>alert" not in response.text
        assert "49" not in cells(response, "Name")


def test_animals_are_found_by_a_part_of_the_name_whatever_the_case(ada: Visitor) -> None:
    number = ada.add_animal("Ärmel the GREAT of Žižkov")
    for text in ("ärmel", "ÄRMEL", "great of ž", "Žižkov", str(number)):
        assert str(number) in cells(ada.client.get("/live/animals/rows", params={"q": text}), "Id"), text
    for text in ("ermel", "100%", "\x00", "_"):
        assert str(number) not in cells(ada.client.get("/live/animals/rows", params={"q": text}), "Id"), text


def test_the_table_goes_on_by_keyset_and_filters_by_status(server: Server, ada: Visitor) -> None:
    server.fill(130, "staging")
    seen: list[str] = []
    page = ada.get("/staging/animals?status=sold")
    while True:
        assert set(cells(page, "Status")) <= {"sold"}
        seen += cells(page, "Id")
        following = re.search(r'hx-get="([^"]+)" hx-trigger="revealed"', page.text)
        if following is None:
            break
        page = ada.get(following[1].replace("&amp;", "&"))
    everything = Commands(server).json("pets", "list", "--env", "staging", "--status", "sold", "--limit", "1000")
    assert seen == [str(pet["id"]) for pet in everything]
    assert len(seen) == len(set(seen)) >= 43


def test_many_animals_change_at_once_and_each_is_in_the_log(server: Server, ada: Visitor) -> None:
    numbers = [ada.add_animal(f"Pup {i}") for i in range(3)]
    page = ada.do("/live/animals/status", id=[*map(str, numbers), "9" * 18, "x"], to="sold")
    assert "3 animals are now sold." in shown(page)
    key = server.key()
    for number in numbers:
        assert httpx.get(server.url(f"/pets/{number}"), headers=key.headers, verify=False).json()["status"] == "sold"
    deeds = Commands(server).entries()
    changed = sorted((d.subject, d.detail) for d in deeds if d.action == "set status" and int(d.subject) in numbers)
    assert changed == [(str(number), "sold") for number in sorted(numbers, key=str)]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"to": "sold"}, "Tick the animals first"),
        ({"id": "1"}, "Choose a status"),
        ({"id": "1", "to": "gone"}, "Choose a status"),
    ],
)
def test_a_change_without_animals_or_status_says_what_is_missing(
    ada: Visitor, fields: dict[str, str], text: str
) -> None:
    assert text in shown(ada.do("/live/animals/status", **fields))


def test_more_than_a_thousand_at_once_are_refused(ada: Visitor) -> None:
    page = ada.do("/live/animals/status", id=[str(number) for number in range(1, 1_500)], to="sold")
    assert "at most 1,000 animals at once" in shown(page)


def job_of(ada: Visitor, started: httpx.Response) -> httpx.Response:
    """The page of a job when it has ended."""
    assert started.status_code == 303, shown(started)
    address = started.headers["location"]
    assert wait_for(lambda: "refresh" not in ada.get(address).headers)
    return ada.get(address)


def upload(ada: Visitor, name: str, content: bytes, **headers: str) -> httpx.Response:
    headers = {"Origin": ada.console.origin, **headers}
    return ada.client.post("/live/animals/import", files={"file": (name, content)}, headers=headers)


def test_a_file_is_imported_and_exported_with_its_progress(ada: Visitor, server: Server) -> None:
    lines = [json.dumps({"name": f"Import {i} 🐕", "categoryId": i}) for i in range(5_000)]
    page = job_of(ada, upload(ada, "animals.jsonl", "\n".join(lines).encode()))
    assert "5,000 animals were added to live." in shown(page)
    entry = next(entry for entry in Commands(server).entries() if entry.action == "import")
    assert (entry.subject, entry.detail) == ("animals.jsonl", "5000 animals")

    page = job_of(ada, ada.post("/live/animals/export", form="csv"))
    (address,) = re.findall(r'href="(/live/jobs/[^"]+/file)"', page.text)
    file = ada.get(address)
    assert 'filename="animals-live.csv"' in file.headers["content-disposition"]
    assert file.text.startswith("id,name,categoryId,status\n")
    assert file.text.count(" 🐕,") >= 5_000
    assert ada.get(address.replace("live", "staging")).status_code == 404


def test_a_bad_file_is_refused_whole_with_its_bad_rows(ada: Visitor) -> None:
    bad = ["name,categoryId", "Only good,1", *(f"Only {i},x" for i in range(30))]
    page = job_of(ada, upload(ada, "animals.csv", "\n".join(bad).encode()))
    assert "30 bad rows, so nothing was imported" in shown(page)
    assert "line 3: categoryId must be a whole number" in shown(page)
    assert "and 10 more" in shown(page)
    assert cells(ada.get("/live/animals?q=Only good"), "Name") == []


def test_a_file_s_name_is_kept_without_control_characters(ada: Visitor, server: Server) -> None:
    """Not every store takes them, and it is the audit log that has the name."""
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a\x00\x1b.csv"\r\n\r\n'
    body += b"name,categoryId\nNul,1\n\r\n--b--\r\n"
    headers = {"Origin": ada.console.origin, "Content-Type": "multipart/form-data; boundary=b"}
    page = job_of(ada, ada.client.post("/live/animals/import", content=body, headers=headers))
    assert "1 animals were added to live." in shown(page)
    entry = next(entry for entry in Commands(server).entries() if entry.action == "import")
    assert entry.subject == "a.csv"


def test_what_is_not_a_file_of_animals_is_refused_at_once(ada: Visitor) -> None:
    assert "must end in .jsonl or .csv" in shown(ada.get(upload(ada, "animals.xlsx", b"x").headers["location"]))
    by_script = upload(ada, "animals.xlsx", b"x", **{"HX-Request": "true"})
    assert (by_script.status_code, by_script.text) == (422, "animals.xlsx: the name must end in .jsonl or .csv")
    nothing = ada.do("/live/animals/import")
    assert "Choose a file first" in shown(nothing)


def test_the_audit_log_says_who_did_what_and_can_be_filtered(ada: Visitor, console: Console) -> None:
    grace = console.signed_in("Grace Hopper")
    key_id, _ = grace.create_key(name="G")
    grace.do(f"/live/keys/{key_id}/revoke")
    page = ada.get("/live/audit?who=grace hop")
    assert cells(page, "Who") == ["Grace Hopper"] * 3 and cells(page, "What") == ["revoke key", "create key", "sign in"]
    assert cells(ada.get("/live/audit?who=grace&what=create key"), "Subject") == [key_id]
    assert cells(ada.get(f"/live/audit/rows?q={key_id}"), "What") == ["revoke key", "create key"]
    assert "No matching entries" in shown(ada.get("/live/audit?who=nobody-of-that-name"))
    assert cells(ada.get("/live/audit?what=nonsense&who=grace"), "What") != []


def test_the_audit_log_goes_on_by_keyset(server: Server, ada: Visitor) -> None:
    numbers = [ada.add_animal("one of many", "staging") for _ in range(60)]
    ada.do("/staging/animals/status", id=[str(number) for number in numbers], to="sold")
    page = ada.get("/staging/audit?what=set status")
    more = re.search(r'hx-get="([^"]+)" hx-trigger="revealed"', page.text)
    assert more is not None
    rest = ada.get(more[1].replace("&amp;", "&"))
    assert sorted(map(int, cells(page, "Subject") + cells(rest, "Subject"))) == numbers


def test_empty_pages_say_what_to_do_next(tmp_path: Path) -> None:
    from tests.consoles import running_console

    with running_console(Server(tmp_path / "data")) as own:
        visitor = own.visitor()
        visitor.get(own.link)
        assert "Add one above, import a file" in shown(visitor.get("/live/animals"))
        assert "Create the first" in shown(visitor.get("/live/keys"))
        assert "No key of live is banned" in shown(visitor.get("/live/bans"))
        assert "Nothing was done in staging yet" in shown(visitor.get("/staging/audit"))
        overview = shown(visitor.get("/staging/overview"))
        assert "Create a key" in overview and "Add or import some" in overview
        assert "No animal fits" in shown(visitor.get("/live/animals?q=nobody"))


@pytest.mark.parametrize("number", ["0", "-1", "1e3", "９", "9" * 30, "x", "%00", "%ff", "%ED%A0%80", "'"])
def test_a_mangled_address_is_never_a_server_error(ada: Visitor, number: str) -> None:
    for path in (
        "animals/rows?after=",
        "audit/rows?before=",
        "keys/rows?before=",
        "animals?q=",
        "overview?span=",
        "keys/",
    ):
        assert ada.get(f"/live/{path}{number}").status_code in (200, 404)
    assert ada.post(f"/live/bans/{number}/lift").status_code == 404
    assert ada.post(f"/live/keys/{number}/revoke").status_code == 404


def test_a_store_that_hangs_is_told_and_what_was_typed_stays(server: Server, ada: Visitor) -> None:
    with server.writes_held_up():
        refused = ada.post("/live/animals", name="Patient Rex", categoryId="1")
        assert refused.status_code == 503
        assert "did not answer" in shown(refused)
        assert 'value="Patient Rex"' in refused.text
    ada.add_animal("Patient Rex")
