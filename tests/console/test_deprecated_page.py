"""Deprecated calls, over HTTP without a browser, on each pair of backends."""

import csv
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.consoles import Console, ConsoleClient, cells, running_console, text_of
from harness.deprecations import program
from harness.served import wait_for
from harness.servers import Key, Server
from petstore.operations import deprecated_operations
from petstore.usage import DAY, OperationUsage


@pytest.fixture
def callers(server: Server) -> Iterator[tuple[Key, Key, Key]]:
    """A key that calls getPet often, one that called it some days ago, and one that does not."""
    often, seldom, never = (server.key(environment="staging") for _ in range(3))
    now = int(time.time())
    rows = [
        OperationUsage(often.id, now, "admitted", 500, "getPet"),
        OperationUsage(often.id, now - 2 * DAY, "admitted", 20, "getPet"),
        OperationUsage(often.id, now, "admitted", 7, "listPets"),
        OperationUsage(seldom.id, now - 5 * DAY, "admitted", 3, "getPet"),
        OperationUsage(seldom.id, now - 90 * DAY, "admitted", 1_000, "getPet"),
        OperationUsage(never.id, now, "admitted", 9_000, "listPets"),
    ]
    server.act(lambda backends: backends.stores["staging"].usage.add(rows, {}))
    yield often, seldom, never


def test_keys_that_call_a_deprecated_operation_are_listed_with_counts_and_last_day(
    operator: ConsoleClient, callers: tuple[Key, Key, Key]
) -> None:
    often, seldom, never = callers
    assert wait_for(lambda: often.id in cells(operator.get("/staging/deprecated"), "Id"))
    page = operator.get("/staging/deprecated")
    assert (
        "getPet ( GET /pets/{petId} ) will be removed on 5 December 2030. Clients should use GET /pets with a status"
        in text_of(page)
    )
    assert set(cells(page, "Operation")) == {"getPet"}
    rows = dict(zip(cells(page, "Id"), zip(cells(page, "Calls"), cells(page, "Last call"), strict=True), strict=True))
    today = time.strftime("%Y-%m-%d", time.gmtime())
    assert rows[often.id] == ("520", today)
    assert rows[seldom.id] == ("3", time.strftime("%Y-%m-%d", time.gmtime(time.time() - 5 * DAY)))
    assert never.id not in rows
    assert cells(page, "Id").index(often.id) < cells(page, "Id").index(seldom.id)


def test_the_export_has_the_same_keys_and_no_formula(operator: ConsoleClient, callers: tuple[Key, Key, Key]) -> None:
    often, seldom, never = callers
    operator.submit(f"/staging/keys/{often.id}", name="=1+1", plan="free", scope="read")
    response = operator.get("/staging/deprecated/export")
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    assert 'filename="deprecated-staging.csv"' in response.headers["content-disposition"]
    rows = {row["key_id"]: row for row in csv.DictReader(response.text.splitlines())}
    assert (rows[often.id]["name"], rows[often.id]["requests"], rows[often.id]["plan"]) == ("'=1+1", "520", "free")
    assert rows[seldom.id]["requests"] == "3" and never.id not in rows
    assert {row["operation"] for row in rows.values()} == {"getPet"}


def test_without_calls_the_page_says_so(operator: ConsoleClient) -> None:
    page = operator.get("/live/deprecated")
    assert "No key called a deprecated operation" in text_of(page) or cells(page, "Id")


def test_with_no_deprecated_operation_the_page_says_so(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    server.program = program()
    with running_console(server) as console:
        operator = console.sign_in("ada")
        page = operator.get("/live/deprecated")
        assert "No operation is deprecated." in text_of(page)
        assert "<table" not in page.text and "/deprecated/export" not in page.text
        assert operator.get("/live/deprecated/export").text == "key_id,name,plan,requests,last_call,operation\n"
        assert cells(operator.get("/live/deprecated/rows"), "Id") == []


def test_with_two_deprecated_operations_the_callers_of_each_are_listed(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    server.program = program("getPet", "listPets")
    key, now = server.key(), int(time.time())
    rows = [
        OperationUsage(key.id, now, "admitted", 7, "getPet"),
        OperationUsage(key.id, now, "admitted", 9, "listPets"),
    ]
    server.act(lambda backends: backends.stores["live"].usage.add(rows, {}))
    with running_console(server) as console:
        operator = console.sign_in("ada")
        assert wait_for(lambda: cells(operator.get("/live/deprecated"), "Id"))
        page = operator.get("/live/deprecated")
        listed = zip(cells(page, "Id"), cells(page, "Operation"), cells(page, "Calls"), strict=True)
        assert set(listed) == {(key.id, "getPet", "7"), (key.id, "listPets", "9")}
        assert "getPet ( GET /pets/{petId} ) will be removed on 1 June 2035" in text_of(page)
        assert "listPets ( GET /pets ) will be removed on 2 June 2035" in text_of(page)
        exported = csv.DictReader(operator.get("/live/deprecated/export").text.splitlines())
        assert {(row["operation"], row["requests"]) for row in exported} == {("getPet", "7"), ("listPets", "9")}


def test_after_the_sunset_the_page_says_that_the_operation_ended(own_console: Console) -> None:
    (operation,) = deprecated_operations()
    own_console.server.move_clock(operation.end - time.time() + 1)
    assert "getPet ( GET /pets/{petId} ) was removed on" in text_of(own_console.sign_in("ada").get("/live/deprecated"))
