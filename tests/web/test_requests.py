"""The functions that parse parts of a request, and the counting of requests."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from harness.in_process import NOW, Transport, request
from petstore.errors import InvalidBody, InvalidParameter, Unavailable, UnsupportedMediaType
from petstore.keys import ApiKey, new_key
from petstore.server.bodies import BodyStream
from petstore.server.messages import RequestMessage
from petstore.usage import AnonymousMeasure, KeyMeasure, OperationUsage, RecentError, TotalUsage
from petstore.web.client_address import HOPS_MAX, client_address, networks
from petstore.web.counters import BANNED_429, ERROR_KEYS_MAX, ERRORS_MAX, ROWS_MAX, RequestCounters
from petstore.web.replies import seconds
from petstore.web.requests import (
    ESCAPES_MAX,
    FIELD_PARSED_MAX,
    ListQuery,
    check_media_type,
    etag_matches,
    parse_list_query,
    read_body,
    read_cursor,
    write_cursor,
)
from petstore.web.static_files import quality


def test_a_query_means_the_same_in_plain_and_in_percent_encoded_form() -> None:
    dice = random.Random(7)
    parts = ["limit=7", "limit=07", "limit=100", "limit=101", "limit=", "status=sold", "status=Sold", "cursor=x",
             f"cursor={write_cursor(9)}", "other", "", "limit", "="]  # fmt: skip

    def meaning(query: str) -> object:
        try:
            return parse_list_query(query)
        except InvalidParameter as error:
            return error.message

    for _ in range(5_000):
        chosen = dice.choices(parts, k=dice.randint(0, 4))
        encoded = "&".join("=".join("".join(f"%{ord(c):02x}" for c in w) for w in p.split("=", 1)) for p in chosen)
        assert meaning("&".join(chosen)) == meaning(encoded), chosen


@pytest.mark.parametrize("after", [0, 1, 255, 2**32, 2**63 - 1])
def test_a_cursor_means_what_it_was_made_of_and_no_other_text_does(after: int) -> None:
    cursor = write_cursor(after)
    assert read_cursor(cursor) == after
    for place in range(len(cursor)):
        changed = cursor[:place] + ("A" if cursor[place] != "A" else "B") + cursor[place + 1 :]
        assert read_cursor(changed) is None


@pytest.mark.parametrize(
    ("trusted", "forwarded", "client"),
    [
        ([], "198.51.100.1", "192.0.2.9"),
        (["203.0.113.0/24"], "198.51.100.1", "192.0.2.9"),
        (["192.0.2.0/24"], "198.51.100.1", "198.51.100.1"),
        (["192.0.2.7/24"], "198.51.100.1", "198.51.100.1"),  # any address in a network can name it
        (["192.0.2.0/24"], "198.51.100.7, 198.51.100.1, 192.0.2.1", "198.51.100.1"),
        (["192.0.2.0/24"], "192.0.2.2, 192.0.2.1", "192.0.2.2"),
        (["192.0.2.0/24"], "198.51.100.1, nonsense", "192.0.2.9"),  # not an address, so the peer counts as the client
        (["192.0.2.0/24"], "198.51.100.1, unknown, 192.0.2.1", "192.0.2.1"),
        (["192.0.2.0/24"], '"198.51.100.1"', "192.0.2.9"),
        (["192.0.2.0/24"], "198.51.100.1, ::ffff:192.0.2.1", "198.51.100.1"),  # an IPv4 address in IPv6 notation
        (["192.0.2.0/24", "::ffff:203.0.113.0/120"], "198.51.100.1, ::ffff:203.0.113.7", "198.51.100.1"),
    ],
)
def test_the_address_of_the_client(trusted: list[str], forwarded: str, client: str) -> None:
    assert client_address("192.0.2.9", forwarded, networks(trusted)) == client
    assert client_address("192.0.2.9", "", networks(trusted)) == "192.0.2.9"
    assert client_address("", "192.0.2.7", ()) == "192.0.2.7"  # a proxy that connects over a Unix socket


def test_times_are_rounded_up_to_whole_seconds() -> None:
    assert [seconds(ms) for ms in (0, 1, 999, 1_000, 1_001)] == [0, 1, 1, 1, 2]


class Source(Transport):
    """A connection that delivers a body."""

    def update_reading(self) -> None: ...


def arriving(length: int, **fields: Any) -> tuple[RequestMessage, BodyStream]:
    """Returns a request whose body has not arrived yet, and the stream for the body."""
    made = request(**fields)
    stream = BodyStream(Source(), length, continues=False)
    made.stream = stream
    return made, stream


def test_a_body_that_breaks_off_is_invalid() -> None:
    async def work() -> None:
        coming, stream = arriving(10)
        reading = asyncio.ensure_future(read_body(coming))
        await asyncio.sleep(0)
        stream.feed(b"half")
        stream.break_off()
        with pytest.raises(InvalidBody, match="incomplete"):
            await reading

    asyncio.run(work())


def test_a_cancelled_read_of_a_body_stays_cancelled() -> None:
    async def work() -> None:
        reading = asyncio.ensure_future(read_body(arriving(10)[0]))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(work())


class RecordedUsage:
    """A usage store that records what it is given, or fails while `down` is set."""

    def __init__(self) -> None:
        self.transactions: list[list[OperationUsage]] = []
        self.anonymous: list[TotalUsage] = []
        self.last_used: dict[str, float] = {}
        self.errors: list[RecentError] = []
        self.down = False

    async def add(self, rows: list[OperationUsage], last_used: dict[str, float], anonymous: list[TotalUsage]) -> None:
        if self.down:
            raise Unavailable("a test")
        self.transactions.append(rows)
        self.anonymous += anonymous
        self.last_used |= last_used

    async def add_errors(self, errors: list[RecentError]) -> None:
        if self.down and errors:
            raise Unavailable("a test")
        self.errors = errors


def some_key(number: int) -> ApiKey:
    return new_key("live", "free", now=NOW, name=str(number))


@pytest.mark.parametrize(
    ("status", "measure"),
    [(200, "anonymous_ok"), (204, "anonymous_ok"), (399, "anonymous_ok"), (400, "anonymous_client_error"),
     (401, "unauthorized"), (404, "anonymous_client_error"), (429, "anonymous_refused"),
     (499, "anonymous_client_error"), (500, "anonymous_server_error"), (503, "anonymous_server_error")],
)  # fmt: skip
def test_requests_without_a_valid_key_have_separate_measures(status: int, measure: AnonymousMeasure) -> None:
    store = RecordedUsage()
    counters = RequestCounters("live", store)  # type: ignore[arg-type]  # has all methods that are called
    for _ in range(3):
        counters.count(None, "listPets", status, 0.001)
    counters.publish(NOW)
    store.down = True
    with pytest.raises(Unavailable):
        asyncio.run(counters.flush(NOW))
    store.down = False
    for _ in range(2):
        asyncio.run(counters.flush(NOW + 5))
    assert store.anonymous == [TotalUsage(int(NOW + 5), measure, 3)]
    assert (store.transactions, store.last_used, counters.keys_seen) == ([[]], {}, [])


@pytest.mark.parametrize(
    ("status", "measure"),
    [(200, None), (304, None), (401, "client_error"), (404, "client_error"), (503, "server_error"), (429, "refused"),
     (BANNED_429, "banned")],
)  # fmt: skip
def test_a_worker_counts_errors_and_refusals_of_a_key_and_no_admissions(
    status: int, measure: KeyMeasure | None
) -> None:
    store, key = RecordedUsage(), some_key(1)
    counters = RequestCounters("live", store)  # type: ignore[arg-type]  # has all methods that are called
    for _ in range(3):
        counters.count(key, "listPets", status, 0.001)
    counters.publish(NOW)
    assert counters.keys_seen == [key.id]
    asyncio.run(counters.flush(NOW + 5))
    rows = [OperationUsage(key.id, int(NOW + 5), measure, 3, "listPets")] if measure else []
    assert (store.transactions, store.anonymous) == ([rows], [])
    assert (store.last_used, counters.keys_seen) == ({key.id: NOW}, [])


def test_the_last_errors_of_some_keys_are_written_and_kept_through_an_outage() -> None:
    store = RecordedUsage()
    counters = RequestCounters("live", store)  # type: ignore[arg-type]  # has all methods that are called
    for number in range(ERRORS_MAX + 5):
        for key in range(ERROR_KEYS_MAX + 5):
            request_id = f"{key} {number}"
            counters.note_error(f"key_{key}", NOW + number, request_id, "other", 404, "not_found", "/v1/\x00")
    store.down = True
    with pytest.raises(Unavailable):
        asyncio.run(counters.flush_errors())
    store.down = False
    asyncio.run(counters.flush_errors())
    assert len(store.errors) == ERRORS_MAX * ERROR_KEYS_MAX
    assert {error.at for error in store.errors} == {NOW + number for number in range(5, ERRORS_MAX + 5)}
    assert {(error.code, error.path) for error in store.errors} == {("not_found", "/v1/%00")}
    store.errors = []
    asyncio.run(counters.flush_errors())
    assert store.errors == []


def test_a_flood_of_refusals_is_noted_a_few_times_and_hides_no_ban_and_no_other_error() -> None:
    store, key = RecordedUsage(), some_key(1)
    counters = RequestCounters("live", store)  # type: ignore[arg-type]  # has all methods that are called
    limited, banned = (429, "rate_limit_exceeded"), (BANNED_429, "key_banned")
    responses = [(400, "invalid_body")] * ERRORS_MAX + [limited] * 1_000 + [banned] * 1_000 + [(404, "not_found")]
    for number, (status, code) in enumerate(responses):
        counters.count(key, "listPets", status, 0.001)
        shown = 429 if status == BANNED_429 else status
        counters.note_error(key.id, NOW + number, str(number), "listPets", shown, code, "/v1/pets")
    counters.publish(NOW)
    asyncio.run(counters.flush(NOW))
    asyncio.run(counters.flush_errors())
    codes = ["invalid_body"] * (ERRORS_MAX - 3) + ["rate_limit_exceeded", "key_banned", "not_found"]
    assert [error.code for error in store.errors] == codes
    (rows,) = store.transactions
    assert {row.measure: row.requests for row in rows}.items() >= {"refused": 1_000, "banned": 1_000}.items()


def test_usage_is_written_some_rows_at_a_time_and_kept_through_an_outage() -> None:
    store, keys = RecordedUsage(), [some_key(number) for number in range(2 * ROWS_MAX + 1)]
    counters = RequestCounters("live", store)  # type: ignore[arg-type]  # has all methods that are called

    def count() -> None:
        for key in keys:
            counters.count(key, "getPet", 429, 0.001)
        counters.publish(NOW)

    count()
    store.down = True
    with pytest.raises(Unavailable):
        asyncio.run(counters.flush(NOW))
    count()
    store.down = False
    asyncio.run(counters.flush(NOW))
    assert [len(rows) for rows in store.transactions] == [ROWS_MAX, ROWS_MAX, 1]
    assert Counter({row.key_id: row.requests for rows in store.transactions for row in rows}) == {k.id: 2 for k in keys}
    asyncio.run(counters.flush(NOW))
    assert len(store.transactions) == 3  # nothing remains to be written


def test_a_field_is_parsed_up_to_a_length() -> None:
    much = "," * FIELD_PARSED_MAX
    assert quality("text/html", "text/html") == 1.0 and quality("text/html" + much, "text/html") == 0.0
    assert etag_matches('"a",' + "," * 100, '"a"') and not etag_matches('"a"' + much, '"a"')
    check_media_type({"content-type": "application/json;" + "x" * 400})
    with pytest.raises(UnsupportedMediaType):
        check_media_type({"content-type": "application/json;" + "x" * FIELD_PARSED_MAX})
    trusted = networks(["10.0.0.0/8"])
    assert client_address("10.0.0.1", "10.0.0.2," * 4_000 + "192.0.2.7,10.0.0.3", trusted) == "192.0.2.7"
    assert client_address("10.0.0.1", "192.0.2.7," + "10.0.0.2," * HOPS_MAX + "10.0.0.3", trusted) == "10.0.0.2"


def test_a_query_with_very_many_escapes_is_read_but_its_names_are_not_decoded() -> None:
    many = "%61&" * (ESCAPES_MAX + 1)
    assert parse_list_query(many + "limit=7") == ListQuery(7, None, 0)
    assert parse_list_query(many + "%6cimit=7") == ListQuery(20, None, 0)
    with pytest.raises(InvalidParameter):
        parse_list_query("cursor=" + "%41" * 2_700)
