"""How many animals a list returns, and which pages it requests for them."""

import httpx2
import pytest

from fakes import REX, Client, Kind, Service, error, page, response
from petstore_client import Gone, RateLimited, UnexpectedResponse


class Shop(Service):
    """Sends pages of a list of animals with the ids 1 to `count`."""

    def __init__(self, count: int, *, ignores_limit: bool = False) -> None:
        super().__init__()
        self._count = count
        self._ignores_limit = ignores_limit

    def respond(self, request: httpx2.Request) -> httpx2.Response:
        query = request.url.params
        limit = self._count if self._ignores_limit else int(query["limit"])
        first = int(query.get("cursor", "1"))
        last = min(first + limit - 1, self._count)
        return page(last - first + 1, str(last + 1) if last < self._count else "", first)


def limits_of(service: Service) -> list[int]:
    return [int(request.url.params["limit"]) for request in service.requests]


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
    kind: Kind, count: int, max_items: int | None, page_size: int, limits: list[int]
) -> None:
    shop = Shop(count)
    expected = count if max_items is None else min(count, max_items)
    with Client(kind, shop) as client:
        found = [pet.id for pet in client.list_pets(max_items=max_items, page_size=page_size)]
    assert found == list(range(1, expected + 1))
    assert limits_of(shop) == limits


def test_max_items_ends_the_pages_too_and_the_last_page_tells_where_to_resume(kind: Kind) -> None:
    with Client(kind, Shop(10)) as client:
        pages = list(client.pages(max_items=5, page_size=3))
        assert [[pet.id for pet in page] for page in pages] == [[1, 2, 3], [4, 5]]
        assert pages[-1].next_cursor == "6"
        assert [pet.id for pet in client.list_pets(max_items=3, cursor="6")] == [6, 7, 8]
        assert list(client.pages(max_items=0, page_size=3)) == []


def test_pages_can_be_iterated_over_again_with_the_same_max_items(kind: Kind) -> None:
    with Client(kind, Shop(10)) as client:
        pets = client.inner.list_pets(max_items=5, page_size=3)
        for _ in range(2):
            assert [len(page) for page in client.iterate(pets.pages())] == [3, 2]
        assert len(list(client.iterate(pets))) == 5


def test_a_page_with_more_animals_than_requested_is_cut(kind: Kind) -> None:
    with Client(kind, Shop(10, ignores_limit=True)) as client:
        assert [pet.id for pet in client.list_pets(max_items=4)] == [1, 2, 3, 4]


def test_after_an_error_the_same_page_is_requested_again(kind: Kind) -> None:
    service = Service(error(410, "gone"), page(2, "x"), error(410, "gone"), page(1, first_id=3))
    with Client(kind, service) as client:
        pets = client.list_pets(max_items=5)
        for expected in ([1, 2], [3]):
            with pytest.raises(Gone):
                next(pets)
            assert [next(pets).id for _ in expected] == expected
        assert list(pets) == []
    assert [request.url.query for request in service.requests] == [b"limit=5"] * 2 + [b"limit=3&cursor=x"] * 2


def test_empty_pages_are_skipped(kind: Kind) -> None:
    service = Service(page(2, "a"), page(0, "b"), page(1, first_id=3))
    with Client(kind, service) as client:
        assert [pet.id for pet in client.list_pets()] == [1, 2, 3]


@pytest.mark.parametrize("cursors", [["a"], ["a", "b"], ["a", "b", "c"], [*"abcdefghij"]])
@pytest.mark.parametrize("before", [0, 1, 5])
def test_a_list_whose_cursors_repeat_is_an_unexpected_response(kind: Kind, cursors: list[str], before: int) -> None:
    """With empty pages, too: the call to `next` would never return."""
    first = [page(0, f"first-{number}") for number in range(before)]
    service = Service(*first, *(page(0, cursor) for cursor in cursors * 20))
    with Client(kind, service) as client, pytest.raises(UnexpectedResponse, match="does not advance"):
        next(client.list_pets())
    assert len(service.requests) <= before + 4 * len(cursors) + 4


def test_a_page_that_links_to_itself_is_an_unexpected_response_at_once(kind: Kind) -> None:
    service = Service(page(1, "b", 1), page(1, "c", 2), page(1, "c", 3))
    with Client(kind, service) as client:
        pets = client.list_pets(cursor="a")
        assert [next(pets).id, next(pets).id] == [1, 2]
        with pytest.raises(UnexpectedResponse, match="does not advance") as raised:
            next(pets)
    assert raised.value.status == 200
    service = Service(page(1, "a"))
    with Client(kind, service) as client, pytest.raises(UnexpectedResponse, match="does not advance"):
        next(client.list_pets(cursor="a"))


def test_an_iterator_continues_after_a_pause_that_it_could_not_wait_for(kind: Kind) -> None:
    service = Service(page(1, "x"), error(429, "rate_limit_exceeded", retry_after=3600), page(1, first_id=2))
    with Client(kind, service) as client:
        pets = client.list_pets()
        next(pets)
        with pytest.raises(RateLimited):
            next(pets)
        service.advance(3610)
        assert [pet.id for pet in pets] == [2]
    assert [request.url.query for request in service.requests[1:]] == [b"limit=100&cursor=x"] * 2


def test_iterators_and_pages_have_a_repr(kind: Kind) -> None:
    prefix = "Async" if kind == "async" else ""
    with Client(kind, Service(page(2, "x"), page(1))) as client:
        pets = client.inner.list_pets("sold", page_size=2)
        assert repr(pets) == f"<{prefix}PetIterator /pets?limit=2&status=sold>"
        pages = pets.pages()
        assert repr(pages) == f"<{prefix}PageIterator /pets?limit=2&status=sold, next: the first page>"
        fetched = client.iterate(pages)
        assert repr(next(fetched)) == "<Page len=2 next_cursor='x'>"
        assert repr(pages) == f"<{prefix}PageIterator /pets?limit=2&status=sold, next: cursor 'x'>"
        assert repr(next(fetched)) == "<Page len=1 next_cursor=None>"
        assert repr(pages) == f"<{prefix}PageIterator /pets?limit=2&status=sold, at the end>"


@pytest.mark.parametrize(("max_items", "page_size", "limit"), [(5, 100, 5), (100, 5, 5), (None, 5, 5)])
def test_a_raw_page_has_at_most_max_items_animals(
    kind: Kind, max_items: int | None, page_size: int, limit: int
) -> None:
    service = Service(response(200, [REX]))
    with Client(kind, service) as client:
        raw = client.finish(client.inner.with_raw_response.list_pets(max_items=max_items, page_size=page_size))
        assert len(raw.parse()) == 1
    assert limits_of(service) == [limit]


def test_a_negative_max_items_is_a_value_error_before_a_request(kind: Kind) -> None:
    with Client(kind, Service()) as client, pytest.raises(ValueError, match="at least 0"):
        client.inner.list_pets(max_items=-1)


@pytest.mark.parametrize("bad", [0, -1])
def test_a_raw_page_needs_at_least_one_animal(kind: Kind, bad: int) -> None:
    with Client(kind, Service()) as client, pytest.raises(ValueError, match="at least 1"):
        client.finish(client.inner.with_raw_response.list_pets(max_items=bad))
