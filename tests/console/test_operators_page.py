"""Operators and their roles, over HTTP without a browser, on each pair of backends."""

import re
from collections.abc import Callable

import httpx
import pytest

from harness.commands import Commands
from harness.consoles import Console, ConsoleClient, cells, text_of
from petstore.keys import has_form


def test_an_operator_signs_in_and_is_named_in_the_audit_log(console: Console, new_name: Callable[[], str]) -> None:
    name, petstore = new_name(), Commands(console.server)
    client = console.client()
    token = console.add_operator(name)
    assert has_form(token, "pets_op_")
    assert "Signed in as " + name in text_of(client.submit("/sign-in", token=token, next="/live/keys"))
    client.submit("/live/animals", name="Rex", categoryId="1")
    newest = petstore.entries()[:2]
    assert [(entry.actor, entry.action) for entry in newest] == [(name, "add animal"), (name, "sign in")]


def test_a_revoked_operator_is_signed_out_with_the_next_request(console: Console, new_name: Callable[[], str]) -> None:
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


def test_an_added_operator_signs_in_with_the_token_that_is_shown_once(
    console: Console, operator: ConsoleClient
) -> None:
    page = operator.submit("/live/operators", name="Grace of the page", role="viewer")
    (token,) = re.findall(r'<code id="token-1">(\w+)</code>', page.text)
    assert token not in operator.get("/live/operators").text
    grace = console.client()
    assert "(viewer)" in text_of(grace.submit("/sign-in", token=token))
    taken = operator.post("/live/operators", name="Grace of the page", role="viewer")
    assert taken.status_code == 422 and 'value="Grace of the page"' in taken.text


@pytest.mark.parametrize("name", ["console", "anonymous", "root (command line)"])
def test_a_reserved_name_is_refused_by_the_page_and_the_command(
    console: Console, operator: ConsoleClient, name: str
) -> None:
    """Otherwise, this operator's entries in the audit log would look like somebody else's."""
    refused = operator.post("/live/operators", name=name, role="viewer")
    assert refused.status_code == 422 and f'the name "{name}" is reserved' in text_of(refused)
    assert f'the name "{name}" is reserved' in Commands(console.server).fails_in_one_line("operators", "add", name)


def test_an_operator_with_a_number_as_name_is_no_animal(operator: ConsoleClient) -> None:
    operator.submit("/live/operators", name="987654321", role="viewer")
    assert operator.get("/live/animals/987654321").status_code == 404
    assert "/animals/987654321" not in operator.get("/live/audit?q=987654321").text
    assert "no active operator" in text_of(operator.submit("/live/operators/role", name="a\x00b", role="viewer"))


def test_a_changed_role_takes_effect_with_the_next_request(console: Console, operator: ConsoleClient) -> None:
    viewer = console.sign_in("Vera", "viewer")
    assert viewer.post("/live/animals", name="Rex", categoryId="1").status_code == 403
    assert "Vera is now an operator." in text_of(operator.submit("/live/operators/role", name="Vera", role="operator"))
    assert viewer.post("/live/animals", name="Rex", categoryId="1").status_code == 303
    operator.submit("/staging/operators/role", name="Vera", role="viewer")
    assert viewer.post("/live/animals", name="Rex", categoryId="1").status_code == 403
    entry = next(entry for entry in Commands(console.server).entries() if entry.action == "set role")
    assert (entry.subject, entry.detail) == ("Vera", "operator → viewer")


def test_an_operator_cannot_revoke_or_change_the_own_account(console: Console) -> None:
    ada = console.sign_in("Ada herself")
    assert "You cannot" in text_of(ada.submit("/live/operators/revoke", name="Ada herself"))
    assert "You cannot" in text_of(ada.submit("/live/operators/role", name="Ada herself", role="viewer"))
    assert ada.get("/live/keys").status_code == 200


def test_a_revoked_operator_is_listed_last(console: Console, operator: ConsoleClient) -> None:
    console.add_operator("Aaron")
    page = operator.submit("/live/operators/revoke", name="Aaron")
    assert "Aaron was signed out" in text_of(page)
    assert cells(page, "Name").index("Aaron") > cells(page, "Name").index(operator_name(page))


def operator_name(page: httpx.Response) -> str:
    found = re.search(r"Signed in as <b>([^<]+)</b>", page.text)
    assert found is not None
    return found[1]
