"""The parts that the pipeline is made of, one by one: what each makes of its input, to the letter."""

import asyncio
import random
from collections import Counter

import pytest

from petstore.errors import BodyTooLarge, InvalidParameter, RequestTimeout, Unavailable, UnsupportedMediaType
from petstore.keys import ApiKey, new_key
from petstore.rate_limits import ADMITTED, Decision
from petstore.server.messages import Fields, Head, HttpRequest
from petstore.usage import ResponseClass, Usage
from petstore.web import counters as traffic
from petstore.web.counters import BANNED_429, Traffic
from petstore.web.replies import common_headers, seconds
from petstore.web.requests import (
    BODY_MAX,
    BodyReader,
    ListQuery,
    Memo,
    bearer,
    check_media_type,
    client_address,
    etag_matches,
    networks,
    parse_list_query,
    parse_pet_id,
    read_cursor,
    write_cursor,
)

NOW = 1_800_000_000.0


class Line:
    """The other end of a connection: only its address matters here."""

    peer = "192.0.2.9"

    def write(self, data: bytes) -> None: ...

    def resume(self) -> None: ...


def request(path: str = "/v1/pets", query: str = "", **fields: str) -> HttpRequest:
    given: Fields = {name.replace("_", "-"): [value] for name, value in fields.items()}
    head = Head("GET", path, query, given, keep_alive=True, expects_continue=False, length=0, memo=Memo())
    made = HttpRequest(Line(), head)
    made.complete = True
    return made


@pytest.mark.parametrize(
    ("credentials", "secret"),
    [
        ([], None),
        (["Bearer pets_live_x"], "pets_live_x"),
        (["bearer pets_live_x"], "pets_live_x"),
        (["Bearer   pets_live_x "], "pets_live_x"),
        (["Bearer other"], "other"),
        (["Bearer"], None),
        (["Bearer "], None),
        (["Digest pets_live_x"], None),
        (["Bearer pets_live_x", "Bearer pets_live_x"], None),
    ],
)
def test_the_secret_of_a_credential(credentials: list[str], secret: str | None) -> None:
    assert bearer(credentials) == secret


@pytest.mark.parametrize(
    ("query", "meaning"),
    [
        ("", ListQuery(20, None, 0)),
        ("limit=1", ListQuery(1, None, 0)),
        ("limit=100&status=sold", ListQuery(100, "sold", 0)),
        ("status=%73old", ListQuery(20, "sold", 0)),
        (f"cursor={write_cursor(7)}&other=1&other=2&limit", None),
        (f"cursor={write_cursor(7)}&other=1&other=2", ListQuery(20, None, 7)),
        *[
            (f"limit={bad}", None)
            for bad in ("0", "101", "1000", "-1", "+5", "1_0", "", "1.0", "%EF%BC%95", "5&limit=5")
        ],
        ("limit=&other=%41", None),
        *[(f"status={bad}", None) for bad in ("", "Sold", "lost", "sold&status=sold")],
        *[(f"cursor={bad}", None) for bad in ("", "x", write_cursor(7)[:-1], f"{write_cursor(7)}A")],
    ],
)
def test_what_a_list_is_asked_for(query: str, meaning: ListQuery | None) -> None:
    if meaning is not None:
        assert parse_list_query(query) == meaning
    else:
        with pytest.raises(InvalidParameter, match=query.partition("=")[0] if "&limit" not in query else "limit"):
            parse_list_query(query)


def test_a_query_means_the_same_whether_or_not_it_is_read_the_short_way() -> None:
    dice = random.Random(7)
    parts = ["limit=7", "limit=07", "limit=100", "limit=101", "limit=", "status=sold", "status=Sold", "cursor=x",
             f"cursor={write_cursor(9)}", "other", "", "&", "limit", "="]  # fmt: skip

    def meaning(query: str) -> object:
        try:
            return parse_list_query(query)
        except InvalidParameter as error:
            return error.message

    for _ in range(5_000):
        query = dice.choice(["&", "&", "&", ""]).join(dice.choices(parts, k=dice.randint(0, 4)))
        assert meaning(query) == meaning(query + "&other=%41"), query


@pytest.mark.parametrize("after", [0, 1, 255, 2**32, 2**63 - 1])
def test_a_cursor_means_what_it_was_made_of_and_no_other_text_does(after: int) -> None:
    cursor = write_cursor(after)
    assert read_cursor(cursor) == after
    for place in range(len(cursor)):
        changed = cursor[:place] + ("A" if cursor[place] != "A" else "B") + cursor[place + 1 :]
        with pytest.raises(InvalidParameter, match="cursor"):
            read_cursor(changed)


@pytest.mark.parametrize(
    ("text", "pet_id"),
    [("0", 0), ("7", 7), (str(2**63 - 1), 2**63 - 1), (str(2**63), None), ("9" * 19, None), ("07", None), ("", None),
     ("-1", None), ("+1", None), ("1.0", None), ("٧", None), ("1" * 20, None)],
)  # fmt: skip
def test_an_id_is_canonical_or_none(text: str, pet_id: int | None) -> None:
    assert parse_pet_id(text) == pet_id


@pytest.mark.parametrize(
    ("conditions", "matches"),
    [(['"a"'], True), (['W/"a"'], True), (['"b", "a"'], True), (['"b"', '"a"'], True), ([" * "], True),
     (['"b"'], False), (["a"], False), (['"a'], False), ([""], False), ([], False)],
)  # fmt: skip
def test_an_entity_tag_is_found_among_conditions(conditions: list[str], *, matches: bool) -> None:
    assert etag_matches(conditions, '"a"') is matches


@pytest.mark.parametrize(
    ("trusted", "forwarded", "client"),
    [
        ([], "198.51.100.1", "192.0.2.9"),
        (["203.0.113.0/24"], "198.51.100.1", "192.0.2.9"),
        (["192.0.2.0/24"], "198.51.100.1", "198.51.100.1"),
        (["192.0.2.7/24"], "198.51.100.1", "198.51.100.1"),  # an address within it names a network too
        (["192.0.2.0/24"], "198.51.100.7, 198.51.100.1, 192.0.2.1", "198.51.100.1"),
        (["192.0.2.0/24"], "192.0.2.2, 192.0.2.1", "192.0.2.2"),
        (["192.0.2.0/24"], "198.51.100.1, nonsense", "nonsense"),
        (["192.0.2.0/24"], "198.51.100.1, ::ffff:192.0.2.1", "198.51.100.1"),  # the same address, as IPv6 has it
        (["192.0.2.0/24", "::ffff:203.0.113.0/120"], "198.51.100.1, ::ffff:203.0.113.7", "198.51.100.1"),
    ],
)
def test_who_is_asking(trusted: list[str], forwarded: str, client: str) -> None:
    assert client_address(request(x_forwarded_for=forwarded), networks(trusted)) == client
    assert client_address(request(), networks(trusted)) == "192.0.2.9"


def test_a_body_has_one_media_type() -> None:
    twice = request(content_type="application/json")
    check_media_type(twice)
    twice.head.fields["content-type"].append("application/json")
    with pytest.raises(UnsupportedMediaType):
        check_media_type(twice)


def test_times_are_rounded_up_to_whole_seconds() -> None:
    assert [seconds(ms) for ms in (0, 1, 999, 1_000, 1_001)] == [0, 1, 1, 1, 2]
    decision = Decision(ADMITTED, "minute", 60, 59, 1_800_000_000_001, 1)
    assert common_headers(decision, "some-id") == (
        "x-ratelimit-limit: 60\r\nx-ratelimit-remaining: 59\r\n"
        "x-ratelimit-reset: 1800000001\r\nx-request-id: some-id\r\n"
    )


def arriving(**fields: str) -> HttpRequest:
    """A request whose body is still to come."""
    made = request(**fields)
    made.complete = False
    return made


@pytest.mark.parametrize("sized", [True, False], ids=["sized", "chunked"])
@pytest.mark.parametrize("size", [0, 1, BODY_MAX, BODY_MAX + 1])
def test_a_body_that_comes_in_pieces_may_have_64_kib(size: int, *, sized: bool) -> None:
    async def work() -> bytes:
        bodies = BodyReader()
        coming = arriving(content_length=str(size)) if sized else arriving()
        reading = asyncio.ensure_future(bodies.read(coming))
        await asyncio.sleep(0)
        for piece in (b"x" * (size // 2), b"x" * (size - size // 2)):
            coming.chunks = [*coming.chunks, piece]
            coming.wake()
            await asyncio.sleep(0)
        coming.complete = True
        coming.wake()
        return await reading

    if size > BODY_MAX:
        with pytest.raises(BodyTooLarge):
            asyncio.run(work())
    else:
        assert asyncio.run(work()) == b"x" * size


def test_a_body_that_does_not_come_is_given_up_in_the_sweep_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)

    async def work() -> None:
        nonlocal now
        bodies = BodyReader()
        reading = asyncio.ensure_future(bodies.read(arriving()))
        await asyncio.sleep(0)
        now = 108.0  # not over yet
        bodies.sweep()
        await asyncio.sleep(0)
        assert not reading.done()
        now = 108.001
        bodies.sweep()
        with pytest.raises(RequestTimeout, match="8 seconds"):
            await reading
        assert not bodies._due and not bodies._overdue

    asyncio.run(work())


def test_who_is_cancelled_for_another_reason_is_not_told_of_a_timeout() -> None:
    async def work() -> None:
        reading = asyncio.ensure_future(BodyReader().read(arriving()))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(work())


class Book:
    """A usage_store that writes down what it is given, or fails."""

    def __init__(self) -> None:
        self.portions: list[list[Usage]] = []
        self.last_used: dict[str, float] = {}
        self.down = False

    async def add_usage(self, rows: list[Usage], last_used: dict[str, float]) -> None:
        if self.down:
            raise Unavailable("a test")
        self.portions.append(rows)
        self.last_used |= last_used


def some_key(number: int) -> ApiKey:
    return new_key("live", "free", now=NOW, name=str(number))


@pytest.mark.parametrize(
    ("status", "answer"),
    [(200, "ok"), (304, "ok"), (399, "ok"), (400, "client_error"), (401, "unauthorized"), (404, "client_error"),
     (429, "refused"), (BANNED_429, "banned"), (499, "client_error"), (500, "server_error"), (503, "server_error")],
)  # fmt: skip
def test_what_a_status_counts_as(status: int, answer: ResponseClass) -> None:
    book, key = Book(), some_key(1)
    counted = Traffic("live", book)  # type: ignore[arg-type]  # of a usage_store only this is used
    counted.tally(key, "listPets").statuses[status] += 3
    counted.settle(NOW)
    asyncio.run(counted.flush(NOW + 5))
    assert book.portions == [[Usage(key.id, int(NOW + 5), answer, 3)]]
    assert book.last_used == {key.id: NOW}


def test_usage_is_written_some_keys_at_a_time_and_kept_through_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "AT_ONCE", 2)
    book, keys = Book(), [some_key(number) for number in range(5)]
    counted = Traffic("live", book)  # type: ignore[arg-type]  # of a usage_store only this is used

    def count() -> None:
        for key in keys:
            counted.tally(key, "getPet").statuses[200] += 1
        counted.settle(NOW)

    count()
    book.down = True
    with pytest.raises(Unavailable):
        asyncio.run(counted.flush(NOW))
    count()
    book.down = False
    asyncio.run(counted.flush(NOW))
    assert [len(rows) for rows in book.portions] == [2, 2, 1]
    assert Counter({row.key_id: row.requests for rows in book.portions for row in rows}) == {k.id: 2 for k in keys}
    asyncio.run(counted.flush(NOW))
    assert len(book.portions) == 3  # nothing is left


def test_a_tally_that_nobody_used_since_is_dropped_and_looked_for_again() -> None:
    counted, key = Traffic("none"), some_key(1)
    first = counted.tally(key, "getPet")
    assert counted.tally(key, "getPet") is first and first.key is key
    first.statuses[200] += 1
    counted.settle(NOW)
    assert counted.tally(key, "getPet") is first  # it was in use
    counted.settle(NOW)
    assert first.key is not key
    assert counted.tally(key, "getPet") is not first
