"""The bill of a month, over HTTP without a browser, on each pair of backends."""

import csv
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from harness.commands import Commands
from harness.consoles import Console, ConsoleClient, cells, next_rows, text_of
from harness.servers import Server
from petstore.console.usage import PAGE_SIZE
from petstore.operators import Role
from petstore.usage import KeyMeasure, OperationUsage

MONTH = "2024-02"
FIRST, LAST = (int(datetime(2024, month, 1, tzinfo=UTC).timestamp()) for month in (2, 3))


@pytest.fixture(params=["operator", "viewer"])
def client(request: pytest.FixtureRequest, console: Console, new_name: Callable[[], str]) -> ConsoleClient:
    role: Role = request.param
    return console.sign_in(new_name(), role)


@pytest.fixture
def billed(server: Server) -> Iterator[tuple[str, str]]:
    """A key with requests before, in and after the month, and a key whose requests in the month were all refused."""
    petstore = Commands(server)
    made = [petstore.json("keys", "create", "--plan", "pro", "--name", name)["id"] for name in ("=1+1", "Refused")]

    def used(key_id: str, at: int, measure: KeyMeasure, requests: int, operation: str = "listPets") -> OperationUsage:
        return OperationUsage(key_id, at, measure, requests, operation)

    rows = [
        used(made[0], FIRST - 1, "admitted", 7_000),
        used(made[0], FIRST, "admitted", 1_200),
        used(made[0], LAST - 1, "admitted", 34, "createPet"),
        used(made[0], LAST - 1, "client_error", 30, "createPet"),
        used(made[0], LAST, "admitted", 7_000),
        used(made[1], FIRST, "refused", 9),
        used(made[1], FIRST, "banned", 9),
    ]
    server.act(lambda backends: backends.stores["live"].usage.add(rows, {}))
    yield made[0], made[1]


def rows_of(client: ConsoleClient, path: str) -> dict[str, tuple[str, ...]]:
    """Returns the cells of each row by key id, including the rows that scrolling loads."""
    labels = ("Name", "Plan", "Admitted", "listPets", "createPet", "getPet", "other")
    found: dict[str, tuple[str, ...]] = {}
    page = client.get(path)
    while page is not None:
        columns = [cells(page, label) for label in labels]
        found |= dict(zip(cells(page, "Id"), zip(*columns, strict=True), strict=True))
        page = next_rows(client, page)  # type: ignore[assignment]  # None after the last page
    return found


def test_a_bill_has_the_admitted_requests_of_the_month(client: ConsoleClient, billed: tuple[str, str]) -> None:
    page = client.get(f"/live/bills?month={MONTH}")
    rows = rows_of(client, f"/live/bills?month={MONTH}")
    admitted = sum(int(row[2].replace(",", "")) for row in rows.values())
    assert f"{admitted:,} admitted, {len(rows)} keys" in text_of(page) and f'value="{MONTH}"' in page.text
    assert "The month is not over" not in text_of(page)
    assert rows[billed[0]] == ("=1+1", "pro", "1,234", "1,200", "34", "0", "0")
    assert rows[billed[1]] == ("Refused", "pro", "0", "0", "0", "0", "0")
    assert rows_of(client, "/staging/bills").keys().isdisjoint(billed)


def test_the_export_is_what_the_command_prints(server: Server, client: ConsoleClient, billed: tuple[str, str]) -> None:
    response = client.get(f"/live/bills/export?month={MONTH}")
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    assert f'filename="bill-{MONTH}-live.csv"' in response.headers["content-disposition"]
    assert response.text == Commands(server).text("usage", "--month", MONTH, "--csv", "--env", "live")
    (row,) = (row for row in csv.DictReader(response.text.splitlines()) if row["key"] == billed[0])
    assert (row["name"], row["admitted"]) == ("'=1+1", "1234")


@pytest.mark.parametrize("month", ["", "2024-13", "2024-2", "0000-01", "2024-02%00", "２０２４-02", "x" * 500])
def test_another_text_than_a_month_shows_the_current_month(operator: ConsoleClient, month: str) -> None:
    now = time.strftime("%Y-%m", time.gmtime())
    page = operator.get(f"/live/bills?month={month}")
    assert page.status_code == 200
    assert f'value="{now}"' in page.text or f'value="{time.strftime("%Y-%m", time.gmtime())}"' in page.text
    assert "The month is not over" in text_of(page)


@pytest.mark.thorough
def test_a_long_bill_is_shown_page_by_page(server: Server, operator: ConsoleClient) -> None:
    ids = {server.key(environment="staging").id for _ in range(PAGE_SIZE + 1)}
    page = operator.get("/staging/bills")
    assert len(cells(page, "Id")) == PAGE_SIZE
    assert rows_of(operator, "/staging/bills").keys() >= ids
