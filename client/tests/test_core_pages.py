"""How many animals a list returns, and which pages it requests for them."""

from typing import Any
from urllib.parse import parse_qs

import pytest

from fakes import REX, Clock, Run, error, operations, response
from petstore_client import Page
from petstore_client._messages import Request, Response


class Shop:
    """A fake service that sends pages of a list of animals with the ids 1 to `count`."""

    def __init__(self, count: int, *, ignores_limit: bool = False) -> None:
        self._count = count
        self._ignores_limit = ignores_limit
        self.limits: list[int] = []

    def page(self, request: Request) -> Response:
        query = parse_qs(request.path.partition("?")[2])
        self.limits.append(int(query["limit"][0]))
        limit = self._count if self._ignores_limit else self.limits[-1]
        first = int(query.get("cursor", ["1"])[0])
        last = min(first + limit - 1, self._count)
        link = {"link": f'</v1/pets?cursor={last + 1}>; rel="next"'} if last < self._count else {}
        if "if-none-match" in request.headers:
            return response(304, b"", **link)
        return response(200, [REX | {"id": number} for number in range(first, last + 1)], **link)


def steps(iterator: Any, shop: Shop) -> list[Any]:
    """Returns all items of an async iterator."""
    items = []
    while True:
        step = iterator.__anext__()
        try:
            request = step.send(None)
            while True:
                request = step.send(shop.page(request))
        except StopIteration as done:
            items.append(done.value)
        except StopAsyncIteration:
            return items


def listed(
    shop: Shop, max_items: int | None, page_size: int = 100, cursor: str | None = None, known: Page | str | None = None
) -> list[int]:
    pets = operations(Clock()).iterate(None, max_items, page_size, cursor, known)
    return [pet.id for pet in steps(pets, shop)]


@pytest.mark.parametrize(
    ("count", "max_items", "page_size", "limits"),
    [
        (250, None, 100, [100, 100, 100]),
        (200, None, 100, [100, 100]),
        (250, 5, 100, [5]),
        (250, 5, 2, [2, 2, 1]),
        (250, 4, 2, [2, 2]),
        (250, 100, 100, [100]),
        (250, 101, 100, [100, 1]),
        (250, 250, 100, [100, 100, 50]),
        (250, 251, 100, [100, 100, 51]),
        (250, 10**30, 100, [100, 100, 100]),
        (3, 5, 100, [5]),
        (0, 5, 100, [5]),
        (250, 0, 100, []),
    ],
)
def test_max_items_ends_the_list_without_a_page_that_is_not_needed(
    count: int, max_items: int | None, page_size: int, limits: list[int]
) -> None:
    shop = Shop(count)
    expected = count if max_items is None else min(count, max_items)
    assert listed(shop, max_items, page_size) == list(range(1, expected + 1))
    assert shop.limits == limits


def test_max_items_ends_the_pages_too_and_the_last_page_tells_where_to_resume() -> None:
    shop = Shop(10)
    pages = steps(operations(Clock()).iterate(None, 5, 3, None, None).pages(), shop)
    assert [[pet.id for pet in page] for page in pages] == [[1, 2, 3], [4, 5]]
    assert pages[-1].next_cursor == "6"
    assert listed(shop, 3, cursor="6") == [6, 7, 8]
    assert steps(operations(Clock()).iterate(None, 0, 3, None, None).pages(), shop) == []


def test_pages_can_be_iterated_over_again_with_the_same_max_items() -> None:
    pets = operations(Clock()).iterate(None, 5, 3, None, None)
    for _ in range(2):
        assert [len(page) for page in steps(pets.pages(), Shop(10))] == [3, 2]
    assert len(steps(pets, Shop(10))) == 5


def test_a_page_with_more_animals_than_requested_is_cut() -> None:
    assert listed(Shop(10, ignores_limit=True), 4) == [1, 2, 3, 4]


def test_an_unchanged_page_counts_with_its_animals() -> None:
    shop = Shop(10)
    (page,) = steps(operations(Clock()).iterate(None, 3, 3, None, None).pages(), shop)
    known = Page(page.pets, page.next_cursor, '"v1"')
    assert listed(shop, 5, 3, known=known) == [1, 2, 3, 4, 5]
    assert shop.limits == [3, 3, 2]


def test_an_unchanged_page_that_is_not_sent_counts_as_full() -> None:
    shop = Shop(10)
    assert listed(shop, 3, 3, known='"v1"') == []
    assert listed(shop, 5, 3, known='"v1"') == [4, 5]
    assert shop.limits == [3, 3, 2]


def test_after_an_error_the_same_number_of_animals_is_requested_again() -> None:
    clock = Clock()
    pages = operations(clock).iterate(None, 5, 100, None, None).pages()
    broken = Run(pages.__anext__(), [error(410, "gone")], clock)
    again = Run(pages.__anext__(), [response(200, [REX])], clock)
    assert [request.path for _, request in broken.sent + again.sent] == ["/pets?limit=5"] * 2


@pytest.mark.parametrize(("max_items", "page_size", "limit"), [(5, 100, 5), (100, 5, 5), (None, 5, 5)])
def test_a_raw_page_has_at_most_max_items_animals(max_items: int | None, page_size: int, limit: int) -> None:
    clock = Clock()
    run = Run(operations(clock).list_pets(max_items=max_items, page_size=page_size), [response(200, [])], clock)
    assert run.sent[0][1].path == f"/pets?limit={limit}"


def test_a_negative_max_items_is_a_value_error_before_a_request() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        operations(Clock()).iterate(None, -1, 100, None, None)


@pytest.mark.parametrize("bad", [0, -1])
def test_a_raw_page_needs_at_least_one_animal(bad: int) -> None:
    clock = Clock()
    with pytest.raises(ValueError, match="at least 1"):
        Run(operations(clock).list_pets(max_items=bad), [], clock)
