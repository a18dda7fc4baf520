"""The pages of animals, over HTTP without a browser, on each pair of backends, with a running service."""

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from harness.commands import Commands
from harness.consoles import Console, ConsoleClient, cells, next_rows, text_of
from harness.served import wait_for
from harness.servers import Server
from petstore.keys import Environment
from petstore.store.database import Bounds

UNUSUAL_NAMES = [
    "<script>alert(1)</script>",
    "'; drop table pets; --",
    "🐈" * 255,
    "\u202eright to left",
    "a&amp;b",
    "{{ 7*7 }}",
]


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
        ({}, "name is required; categoryId is required"),
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


def all_ids(client: ConsoleClient, path: str) -> list[int]:
    """Returns the ids on all pages of a table."""
    page: httpx.Response | None = client.get(path)
    ids: list[int] = []
    while page is not None:
        ids += map(int, cells(page, "Id"))
        page = next_rows(client, page)
    return ids


def test_animals_are_listed_newest_first_and_filtered_by_status(server: Server, operator: ConsoleClient) -> None:
    server.fill(130, "staging")
    everything = Commands(server).json("pets", "list", "--env", "staging", "--limit", "1000")
    assert all_ids(operator, "/staging/animals") == [pet["id"] for pet in reversed(everything)]
    sold = [pet["id"] for pet in reversed(everything) if pet["status"] == "sold"]
    assert all_ids(operator, "/staging/animals?status=sold") == sold


def test_a_search_without_hits_ends_with_a_message_also_after_many_steps(
    server: Server, operator: ConsoleClient
) -> None:
    server.fill(2 * Bounds().search_step + 10, "staging")
    page = operator.get("/staging/animals?q=no such name")
    assert "match" not in total_of(page)
    assert cells(page, "Id") == [] and "Searched down to id" in text_of(page)
    while (rows := next_rows(operator, page)) is not None:
        page = rows
    assert "No matching animals" in text_of(page) and total_of(page) == "0 animals match"
    page = operator.get("/staging/animals?q=Pet 12")
    at_least = re.match(r"at least ([\d,]+) animals match", total_of(page))
    while (rows := next_rows(operator, page)) is not None:
        page = rows
    assert "No matching animals" not in text_of(page)
    words = ["pets", "list", "--env", "staging", "--search", "Pet 12", "--limit", "10000"]
    matching = len(Commands(server).json(*words))
    assert at_least is not None and 50 < int(at_least[1].replace(",", "")) <= matching
    assert total_of(page) == f"{matching:,} animals match"


def total_of(page: httpx.Response) -> str:
    found = re.search(r'<span id="total"[^>]*>(.*?)</span>', page.text, re.DOTALL)
    assert found is not None
    return " ".join(found[1].split())


def test_a_search_says_how_many_animals_match(own_console: Console) -> None:
    operator = own_console.sign_in("ada")
    own_console.server.fill(130)
    assert wait_for(lambda: total_of(operator.get("/live/animals")) == "130 animals in live")
    for query, total in {
        "q=Pet 1": "42 animals match",  # Pet 1, Pet 10 to 19 and Pet 100 to 130
        "q=pet": "130 animals match",
        "q=130": "1 animal matches",
        "q=nobody": "0 animals match",
        "status=sold": "43 animals match",
        "q=pet&status=sold": "43 animals match",
        "added_by=nobody": "0 animals match",
    }.items():
        assert total_of(operator.get(f"/live/animals?{query}")) == total, query
        part = operator.get(f"/live/animals/rows?{query}", **{"HX-Request": "true"})
        assert total_of(part) == total and 'hx-swap-oob="true"' in part.text, query


def test_a_status_change_of_many_animals_records_each(server: Server, operator: ConsoleClient) -> None:
    numbers = [operator.add_pet(f"Pup {i}") for i in range(3)]
    page = operator.submit("/live/animals/selected", id=[*map(str, numbers), "9" * 18, "x"], to="sold")
    assert f"3 animals are now sold. Animal {'9' * 18} no longer exists." in text_of(page)
    key = server.key()
    for number in numbers:
        assert httpx.get(server.url(f"/pets/{number}"), headers=key.headers, verify=False).json()["status"] == "sold"
    entries = [entry for entry in Commands(server).entries() if entry.action == "set status"]
    changed = sorted((entry.subject, entry.detail) for entry in entries if int(entry.subject) in numbers)
    assert changed == [(str(number), "available → sold") for number in sorted(numbers, key=str)]


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
    assert text in text_of(operator.submit("/live/animals/selected", **fields))


def test_more_than_a_thousand_animals_at_once_are_refused(operator: ConsoleClient) -> None:
    page = operator.submit("/live/animals/selected", id=[str(number) for number in range(1, 1_500)], to="sold")
    assert "choose at most 1,000 animals at a time" in text_of(page)


def test_a_store_that_hangs_is_a_503_and_the_form_keeps_its_values(server: Server, operator: ConsoleClient) -> None:
    with server.writes_held_up():
        refused = operator.post("/live/animals", name="Patient Rex", categoryId="1")
        assert refused.status_code == 503
        assert "did not respond" in text_of(refused)
        assert 'value="Patient Rex"' in refused.text
    operator.add_pet("Patient Rex")


def pet_status(server: Server, number: int, environment: Environment = "live") -> int:
    key = server.key(environment=environment)
    return httpx.get(server.url(f"/pets/{number}", environment), headers=key.headers, verify=False).status_code


def test_the_page_of_an_animal_shows_its_values_and_its_history(operator: ConsoleClient) -> None:
    number = operator.add_pet("Rex with a page")
    operator.add_pet("Another animal")
    operator.submit("/live/animals/selected", id=str(number), to="sold")
    page = operator.get(f"/live/animals/{number}")
    assert "Rex with a page" in text_of(page) and "sold" in text_of(page)
    assert cells(page, "What") == ["set status", "add animal"]
    assert operator.get("/staging/animals/999999").status_code == 404


def test_an_edited_animal_is_served_and_the_history_has_before_and_after(
    server: Server, operator: ConsoleClient
) -> None:
    number = operator.add_pet("Abusive name")
    page = operator.submit(f"/live/animals/{number}", name="Decent name", categoryId="9", status="pending")
    assert f"Animal {number} was changed." in text_of(page)
    pet = httpx.get(server.url(f"/pets/{number}"), headers=server.key().headers, verify=False).json()
    assert pet == {"id": number, "name": "Decent name", "categoryId": 9, "status": "pending"}
    detail = cells(page, "Detail")[0]
    assert "name Abusive name → Decent name" in detail and "7 → 9" in detail and "available → pending" in detail


@pytest.mark.parametrize("fields", [{"name": " "}, {"categoryId": "x"}, {"status": "lost"}])
def test_an_invalid_edit_is_refused_and_the_form_keeps_its_values(
    operator: ConsoleClient, fields: dict[str, str]
) -> None:
    number = operator.add_pet("Stays")
    values = {"name": "Typed", "categoryId": "5", "status": "sold", **fields}
    refused = operator.post(f"/live/animals/{number}", **values)
    assert refused.status_code == 422
    for name in ("name", "categoryId"):
        assert f'name="{name}"' in refused.text and f'value="{values[name]}"' in refused.text
    assert "Stays" in text_of(operator.get(f"/live/animals/{number}"))


def test_a_removed_animal_is_404_and_restored_from_its_page(
    server: Server, operator: ConsoleClient, console: Console, new_name: Callable[[], str]
) -> None:
    number = operator.add_pet("Removed by mistake", status="pending")
    page = operator.submit(f"/live/animals/{number}/remove")
    assert f"Animal {number} was removed." in text_of(page) and len(removals(page)) == 1
    assert pet_status(server, number) == 404
    other = console.sign_in(new_name())  # any operator can restore the animal
    removed = other.get(f"/live/animals/{number}")
    assert removed.status_code == 404 and cells(removed, "What") == ["remove animal", "add animal"]
    assert "Removed by mistake , category 7, pending." in text_of(removed) and restorable(removed) == [number]
    assert f"Animal {number} was restored." in text_of(other.submit("/live/animals/restore", id=str(number)))
    assert pet_status(server, number) == 200
    assert "Removed by mistake" in text_of(operator.get(f"/live/animals/{number}"))
    again = operator.submit("/live/animals/restore", id=str(number))
    assert f"animal {number} has not been removed from live" in text_of(again)
    actions = [entry.action for entry in Commands(server).entries() if entry.subject == str(number)]
    assert actions == ["restore animal", "remove animal", "add animal"]


def restorable(page: httpx.Response) -> list[int]:
    """Returns the animals that a page offers to restore."""
    forms = re.findall(r'action="[^"]*/animals/restore">(.*?)</form>', page.text, re.DOTALL)
    return [int(number) for form in forms for number in re.findall(r'name="id" value="(\d+)"', form)]


def removals(page: httpx.Response) -> list[str]:
    """Returns the removals that a page offers to restore."""
    return re.findall(
        r'action="[^"]*/animals/restore"><input type="hidden" name="removal" value="(rem_\w+)"', page.text
    )


def test_a_selection_is_removed_at_once_and_restored_at_once(server: Server, operator: ConsoleClient) -> None:
    numbers = [operator.add_pet(f"Herd {i}") for i in range(3)]
    kept = operator.add_pet("Herd kept")
    page = operator.submit("/live/animals/selected", id=[*map(str, numbers), "9" * 18], action="remove")
    assert f"3 animals were removed. Animal {'9' * 18} no longer exists." in text_of(page)
    assert cells(operator.get("/live/animals?q=Herd"), "Id") == [str(kept)]
    (removal,) = removals(page)
    removed = operator.get(f"/live/animals/{numbers[1]}")
    assert "with 2 others" in text_of(removed) and removals(removed) == [removal]
    assert restorable(removed) == [numbers[1]]
    audit = operator.get(f"/live/audit?q={removal}")
    assert (cells(audit, "What"), removals(audit)) == (["remove animal"], [removal])
    page = operator.submit("/live/animals/restore", removal=removal)
    assert "3 animals were restored." in text_of(page)
    assert removals(operator.get(f"/live/audit?q={removal}")) == []
    again = operator.submit("/live/animals/restore", removal=removal)
    assert f"all animals removed by {removal} have already been restored" in text_of(again)
    assert cells(operator.get("/live/animals?q=Herd"), "Id") == [str(n) for n in (kept, *reversed(numbers))]


def test_the_audit_log_restores_what_is_removed_now(operator: ConsoleClient, console: Console) -> None:
    gone, back = operator.add_pet("Gone"), operator.add_pet("Back")
    for number in (gone, back):
        operator.submit(f"/live/animals/{number}/remove")
        operator.submit("/live/animals/restore", id=str(number))
    operator.submit(f"/live/animals/{gone}/remove")
    entries = f"/live/audit?what=remove animal&q={gone}"
    assert restorable(operator.get(entries)).count(gone) == 1  # once, although it was removed twice
    assert back not in restorable(operator.get(f"/live/audit?what=remove animal&q={back}"))
    assert restorable(console.sign_in("an audit viewer", "viewer").get(entries)) == []
    operator.submit("/live/animals/restore", id=str(gone))
    assert gone not in restorable(operator.get(entries))


def test_the_page_says_who_added_an_animal_and_finds_its_other_animals(
    server: Server, operator: ConsoleClient, console: Console, new_name: Callable[[], str]
) -> None:
    client = console.sign_in(new_name())
    by_hand = client.add_pet("Found by its adder")
    key = server.key()
    pet = {"name": "Added by a key", "categoryId": 1}
    by_key = httpx.post(server.url("/pets"), headers=key.headers, json=pet, verify=False).json()["id"]
    assert f"/live/keys/{key.id}" in operator.get(f"/live/animals/{by_key}").text
    page = operator.get(f"/live/animals/{by_hand}")
    (link,) = re.findall(r'href="(/live/animals\?added_by=[^"]*)"', page.text)
    assert cells(operator.get(link), "Id") == [str(by_hand)]
    assert cells(operator.get(f"{link}&since=2001-01-01&until=2001-01-02"), "Id") == []
    invalid = operator.get("/live/animals?since=noon").text
    assert re.search(r'name="since" value="noon"[^>]* aria-invalid="true"', invalid)


def test_an_animal_of_the_other_environment_is_not_restored(operator: ConsoleClient) -> None:
    number = operator.add_pet("Live only")
    operator.submit(f"/live/animals/{number}/remove")
    refused = text_of(operator.submit("/staging/animals/restore", id=str(number)))
    assert (
        f"removed animal {number} was not found in staging" in refused
        or f"animal {number} has not been removed from staging" in refused
    )
    assert operator.post("/live/animals/restore").status_code == 400


def test_an_animal_that_a_colleague_removed_disappears_from_the_list(operator: ConsoleClient) -> None:
    seven, eight = operator.add_pet("Seven"), operator.add_pet("Eight")
    operator.submit(f"/live/animals/{seven}/remove")
    total = total_of(operator.get("/live/animals"))
    headers = {"Origin": operator.console.origin, "HX-Request": "true", "HX-Current-URL": "http://x/live/animals"}

    def change(**fields: Any) -> httpx.Response:
        return operator.http.post("/live/animals/selected", data=fields, headers=headers)

    changed = change(id=[str(seven), str(eight)], to="sold")
    assert f"Animal {eight} is now sold. Animal {seven} no longer exists." in text_of(changed)
    assert f'id="animal-{seven}" hx-swap-oob="delete"' in changed.text and total_of(changed) == total
    removed = change(id=[str(seven), str(eight)], action="remove")
    assert f"Animal {eight} was removed. Animal {seven} no longer exists." in text_of(removed)
    assert f'id="animal-{eight}" hx-swap-oob="delete"' in removed.text
    assert total_of(removed) == total_of(operator.get("/live/animals")) != total
    headers["HX-Current-URL"] += "?q=x"
    assert 'id="total"' not in change(id=str(seven), to="sold").text
    edited = operator.post(f"/live/animals/{seven}", name="Mine", categoryId="1", status="sold")
    assert f"Your change was not saved. Animal {seven} was removed." in text_of(edited)


def test_an_animal_that_does_not_exist_cannot_be_edited_or_removed(operator: ConsoleClient) -> None:
    assert operator.post("/live/animals/999999/remove").status_code == 404
    assert operator.post("/live/animals/999999", name="x", categoryId="1", status="sold").status_code == 404
    page = operator.submit("/live/animals/selected", id=["999998", "999999"], action="remove")
    assert "These animals no longer exist" in text_of(page)
