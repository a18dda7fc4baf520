"""Deprecated calls, over HTTP without a browser, on each pair of backends."""

import csv
import time
from collections.abc import Iterator

import pytest

from harness.consoles import ConsoleClient, cells, text_of
from harness.served import wait_for
from harness.servers import Key, Server
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


def test_keys_that_call_get_pet_are_listed_with_counts_and_last_day(
    operator: ConsoleClient, callers: tuple[Key, Key, Key]
) -> None:
    often, seldom, never = callers
    assert wait_for(lambda: often.id in cells(operator.get("/staging/deprecated"), "Id"))
    page = operator.get("/staging/deprecated")
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
    assert 'filename="getPet-staging.csv"' in response.headers["content-disposition"]
    rows = {row["key_id"]: row for row in csv.DictReader(response.text.splitlines())}
    assert (rows[often.id]["name"], rows[often.id]["requests"], rows[often.id]["plan"]) == ("'=1+1", "520", "free")
    assert rows[seldom.id]["requests"] == "3" and never.id not in rows


def test_without_calls_the_page_says_so(operator: ConsoleClient) -> None:
    page = operator.get("/live/deprecated")
    assert "No key called getPet" in text_of(page) or cells(page, "Id")
