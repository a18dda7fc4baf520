"""Two operators edit the same key or animal at the same time, in separate sessions and without scripts."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import httpx
import msgspec
import pytest

from harness.commands import Commands
from harness.consoles import Console, ConsoleClient, text_of
from harness.servers import Server
from petstore.edits import unit_in_words
from petstore.keys import KEY_UNITS, ApiKey
from petstore.wording import when


class Fields(HTMLParser):
    """The values that a browser would send for the fields of the form with this action."""

    def __init__(self, action: str) -> None:
        super().__init__()
        self.values: dict[str, list[str]] = {}
        self._action = action
        self._inside = False
        self._select: tuple[str, bool] | None = None  # name, and whether the next text is the selected option

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "form":
            self._inside = found.get("action") == self._action
        if not self._inside:
            return
        if tag == "input" and (found.get("type") not in ("radio", "checkbox") or "checked" in found):
            self.values.setdefault(found["name"] or "", []).append(found.get("value") or "")
        if tag == "select":
            self._select = (found["name"] or "", False)
        if tag == "option" and self._select:
            self._select = (self._select[0], "selected" in found)

    def handle_data(self, data: str) -> None:
        if self._select and self._select[1]:
            self.values[self._select[0]] = [data]
            self._select = (self._select[0], False)

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._inside = False


def fields_of(page: httpx.Response) -> dict[str, Any]:
    """Returns the fields of the edit form on the page of a key or an animal."""
    fields = Fields(page.url.path)
    fields.feed(page.text)
    assert fields.values["base"], "the form does not contain its starting values"
    return fields.values


def saved_values(page: httpx.Response) -> dict[str, str]:
    """Returns the saved values that the form shows, each by the title of its field."""
    found = {}
    for before, after in pairwise(page.text.split('<span class="conflict">')):
        title = re.findall(r"<(?:label|legend)>([\w ]+)", before)[-1].strip()
        found[title] = text_of(httpx.Response(200, text=after.partition("</span>")[0])).removeprefix("Saved value: ")
    return found


@pytest.fixture
def colleague(console: Console, new_name: Callable[[], str]) -> ConsoleClient:
    """Another operator, with a separate session."""
    return console.sign_in(new_name())


def open_key(operator: ConsoleClient, **fields: Any) -> str:
    key_id, _ = operator.create_key(**{"name": "Ada", "contact": "ada@example.com", **fields})
    return f"/live/keys/{key_id}"


def key_at(server: Server, path: str) -> dict[str, Any]:
    found: dict[str, Any] = Commands(server).json("keys", "show", path.rpartition("/")[2])
    return found


def pet_at(server: Server, path: str) -> dict[str, Any]:
    found: dict[str, Any] = Commands(server).json("pets", "show", path.rpartition("/")[2])
    return found


# Different units


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"plan": "pro"}, {"name": "Ada's shop"}),
        ({"name": "Ada's shop"}, {"plan": "pro"}),
        ({"scope": "read"}, {"contact": "bob@example.com"}),
        ({"contact": ""}, {"scope": "read"}),
        ({"expires": "90d"}, {"name": ""}),
        ({"name": "Ada's shop"}, {"expires": "90d"}),
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_stale_form_of_a_key_keeps_what_a_colleague_has_changed(
    server: Server, operator: ConsoleClient, colleague: ConsoleClient, theirs: dict[str, str], ours: dict[str, str]
) -> None:
    path = open_key(operator)
    ours_before = fields_of(operator.get(path))
    theirs_before = fields_of(colleague.get(path))
    colleague.submit(path, **{**theirs_before, **theirs})
    before = key_at(server, path)
    page = operator.submit(path, **{**ours_before, **ours})
    assert "The key was changed." in text_of(page)
    after = key_at(server, path)
    names = {"scope": {"scopes"}, "plan": {"plan", "per_minute", "per_day"}}
    changed = {name for name in before if before[name] != after[name]} - {"history", "events", "last_errors"}
    assert changed == names.get(next(iter(ours)), {next(iter(ours))})
    detail = Commands(server).entries()[0].detail
    assert len(detail.split("; ")) == len(changed), "the audit entry names more than this operator changed"


def test_a_stale_form_of_an_animal_keeps_what_a_colleague_has_changed(
    server: Server, operator: ConsoleClient, colleague: ConsoleClient
) -> None:
    path = f"/live/animals/{operator.add_pet('Rex')}"
    ours, theirs = fields_of(operator.get(path)), fields_of(colleague.get(path))
    colleague.submit(path, **{**theirs, "status": "sold"})
    operator.submit(path, **{**ours, "name": "Max"})
    colleague.submit(path, **{**theirs, "categoryId": "8"})
    pet = pet_at(server, path)
    assert (pet["name"], pet["categoryId"], pet["status"]) == ("Max", 8, "sold")
    details = [entry.detail for entry in Commands(server).entries()[:3]]
    assert details == ["category id 7 → 8", "name Rex → Max", "status available → sold"]


def test_a_bulk_edit_leaves_what_a_form_has_changed(
    server: Server, operator: ConsoleClient, colleague: ConsoleClient
) -> None:
    pet_id = operator.add_pet("Rex")
    path = f"/live/animals/{pet_id}"
    ours = fields_of(operator.get(path))
    colleague.submit("/live/animals/selected", id=str(pet_id), to="sold")
    operator.submit(path, **{**ours, "name": "Max"})
    pet = pet_at(server, path)
    assert (pet["name"], pet["status"]) == ("Max", "sold")


def test_a_form_that_is_saved_as_it_is_changes_nothing(
    server: Server, operator: ConsoleClient, colleague: ConsoleClient
) -> None:
    """Nor does it change a name with surrounding spaces, which the form would remove."""
    made = Commands(server).json("keys", "create", "--plan", "free", "--name", " Ada ", "--contact", " x ")
    path = f"/live/keys/{made['id']}"
    ours = fields_of(operator.get(path))
    colleague.submit(path, **{**fields_of(colleague.get(path)), "plan": "business", "scope": "write"})
    before, entries = key_at(server, path), len(Commands(server).entries())
    operator.submit(path, **ours)
    assert key_at(server, path) == before and before["name"] == " Ada "
    assert len(Commands(server).entries()) == entries


# The same unit


def test_saved_values_of_a_key_are_shown_and_saving_again_replaces_them(
    server: Server, operator: ConsoleClient, colleague: ConsoleClient
) -> None:
    path = open_key(operator)
    ours, theirs = fields_of(operator.get(path)), fields_of(colleague.get(path))
    colleague.submit(path, **{**theirs, "name": "Grace", "plan": "business", "scope": "read"})
    limits = {"plan": "enterprise", "per_minute": "7", "per_day": "70"}
    refused = operator.post(path, **{**ours, "name": "Bob", "contact": "bob@example.com", **limits})
    assert refused.status_code == 409
    said = f"Changed by {Commands(server).entries()[0].actor} since you opened this form: name, plan."
    assert f"{said} Nothing has been saved. Save again to overwrite these values." in text_of(refused)
    assert saved_values(refused) == {"Name": "Grace", "Plan": "business, per minute 1,000, per day 100,000"}
    assert '<details class="panel" id="change" open>' in refused.text
    key = key_at(server, path)
    assert (key["name"], key["plan"], key["contact"]) == ("Grace", "business", "ada@example.com")

    again = fields_of(refused)
    assert (again["name"], again["plan"], again["scope"]) == (["Bob"], ["enterprise"], ["read"])
    operator.submit(path, **again)
    key = key_at(server, path)
    assert (key["name"], key["plan"], key["per_minute"], key["contact"]) == ("Bob", "enterprise", 7, "bob@example.com")
    assert key["scopes"] == ["read"], "the colleague's scopes were lost"
    detail = Commands(server).entries()[0].detail
    assert "name Grace → Bob" in detail and "plan business → enterprise" in detail and "scopes" not in detail


def test_a_saved_value_can_be_kept_and_the_other_changes_are_saved(
    server: Server, operator: ConsoleClient, colleague: ConsoleClient
) -> None:
    path = open_key(operator)
    ours = fields_of(operator.get(path))
    colleague.submit(path, **{**fields_of(colleague.get(path)), "name": "Grace", "expires": "90d"})
    refused = operator.post(path, **{**ours, "name": "Bob", "expires": "30d", "contact": ""})
    expires = key_at(server, path)["expires"]
    assert saved_values(refused) == {"Name": "Grace", "Expires after": when(expires)}
    assert fields_of(refused)["expires"] == ["30d"]
    page = operator.submit(path, **{**fields_of(refused), "name": "Grace", "expires": ""})
    assert "The key was changed." in text_of(page)
    key = key_at(server, path)
    assert (key["name"], key["expires"], key["contact"]) == ("Grace", expires, "")
    assert Commands(server).entries()[0].detail == 'contact ada@example.com → ""'


def test_saved_values_of_an_animal_are_shown_and_saving_again_replaces_them(
    server: Server, operator: ConsoleClient, colleague: ConsoleClient
) -> None:
    path = f"/live/animals/{operator.add_pet('Rex')}"
    ours = fields_of(operator.get(path))
    colleague.submit(path, **{**fields_of(colleague.get(path)), "name": "<Grace>", "status": "sold"})
    refused = operator.post(path, **{**ours, "name": "Bob", "categoryId": "8"})
    assert refused.status_code == 409 and saved_values(refused) == {"Name": "<Grace>"}
    pet = pet_at(server, path)
    assert (pet["name"], pet["categoryId"]) == ("<Grace>", 7)
    operator.submit(path, **fields_of(refused))
    pet = pet_at(server, path)
    assert (pet["name"], pet["categoryId"], pet["status"]) == ("Bob", 8, "sold")
    assert Commands(server).entries()[0].detail == "name <Grace> → Bob; category id 7 → 8"


def test_the_form_of_a_key_shows_the_saved_value_of_every_unit(
    server: Server, operator: ConsoleClient, colleague: ConsoleClient
) -> None:
    path = open_key(operator)
    ours = fields_of(operator.get(path))
    theirs = {"name": "Grace", "contact": "g@example.com", "plan": "business", "scope": "read", "expires": "90d"}
    colleague.submit(path, **{**fields_of(colleague.get(path)), **theirs})
    other = {"name": "Bob", "contact": "b@example.com", "plan": "pro", "scope": "write", "expires": "30d"}
    shown = saved_values(operator.post(path, **{**ours, **other})).values()
    key = msgspec.convert(key_at(server, path), ApiKey)
    units = [unit for unit in KEY_UNITS if unit != ("suspended",)]  # which the form does not change
    assert sorted(shown) == sorted(unit_in_words(key, unit) for unit in units), "keys/fields.html lacks a saved_value"


@pytest.mark.parametrize("kind", ["key", "animal"])
def test_a_third_change_is_shown_again(
    server: Server, operator: ConsoleClient, colleague: ConsoleClient, kind: str
) -> None:
    path = open_key(operator) if kind == "key" else f"/live/animals/{operator.add_pet('Rex')}"
    fields = {**fields_of(operator.get(path)), "name": "Bob"}
    for name in ("Grace", "Eve"):
        colleague.submit(path, **{**fields_of(colleague.get(path)), "name": name})
        asked = operator.post(path, **fields)
        assert asked.status_code == 409 and saved_values(asked) == {"Name": name}
        fields = fields_of(asked)
    operator.submit(path, **fields)
    assert Commands(server).entries()[0].detail == "name Eve → Bob"


def test_a_refused_form_still_knows_what_it_started_from(
    server: Server, operator: ConsoleClient, colleague: ConsoleClient
) -> None:
    path, pet = open_key(operator), f"/live/animals/{operator.add_pet('Rex')}"
    ours, ours_of_pet = fields_of(operator.get(path)), fields_of(operator.get(pet))
    colleague.submit(path, **{**fields_of(colleague.get(path)), "plan": "pro"})
    colleague.submit(pet, **{**fields_of(colleague.get(pet)), "status": "sold"})
    refused = operator.post(path, **{**ours, "name": "Bob", "expires": "soon"})
    refused_pet = operator.post(pet, **{**ours_of_pet, "name": " "})
    assert refused.status_code == refused_pet.status_code == 422
    operator.submit(path, **{**fields_of(refused), "expires": ""})
    operator.submit(pet, **{**fields_of(refused_pet), "name": "Max"})
    key, after = key_at(server, path), pet_at(server, pet)
    assert (key["name"], key["plan"], after["name"], after["status"]) == ("Bob", "pro", "Max", "sold")


def test_a_form_of_an_animal_that_a_colleague_has_removed_shows_the_removal(
    operator: ConsoleClient, colleague: ConsoleClient
) -> None:
    path = f"/live/animals/{operator.add_pet('Rex')}"
    ours = fields_of(operator.get(path))
    colleague.submit(f"{path}/remove")
    gone = operator.post(path, **{**ours, "name": "Max"})
    assert gone.status_code == 404 and "was removed" in text_of(gone) and "Restore" in text_of(gone)


def test_a_form_of_a_key_that_a_colleague_has_revoked_is_refused(
    operator: ConsoleClient, colleague: ConsoleClient
) -> None:
    path = open_key(operator)
    ours = fields_of(operator.get(path))
    colleague.submit(f"{path}/revoke")
    refused = operator.post(path, **{**ours, "name": "Bob"})
    assert refused.status_code == 422 and "is revoked: create a new key instead" in text_of(refused)


@pytest.mark.parametrize("base", ["x", "{}", '{"x":' + "[" * 20_000, '{"name":"\\ud800"}', "null"])
def test_starting_values_that_no_page_has_sent_are_400(operator: ConsoleClient, base: str) -> None:
    path, pet = open_key(operator), f"/live/animals/{operator.add_pet('Rex')}"
    assert operator.post(path, **{**fields_of(operator.get(path)), "base": base}).status_code == 400
    assert operator.post(pet, **{**fields_of(operator.get(pet)), "base": base}).status_code == 400
