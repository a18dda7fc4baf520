"""The parts that the pipeline is made of, one by one: what each makes of its input, to the letter."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from petstore import metrics
from petstore.errors import BodyTooLarge, InvalidParameter, RequestTimeout, Unavailable
from petstore.keys import ApiKey, digest_of, mint, new_key
from petstore.ledger import Answer, Deed, Usage
from petstore.pets import NewPet, Page, PetStatus
from petstore.plans import Limits
from petstore.service import Backends
from petstore.settings import Settings
from petstore.store import Store
from petstore.web import admission, traffic
from petstore.web import pets as pet_operations
from petstore.web.app import App
from petstore.web.replies import common_headers, pairs, seconds
from petstore.web.requests import (
    BODY_MAX,
    BodyReader,
    ListQuery,
    Memo,
    bearer,
    client_address,
    etag_matches,
    networks,
    parse_list_query,
    parse_pet_id,
    read_cursor,
    write_cursor,
)
from petstore.web.traffic import BANNED_429, Traffic
from petstore.web.wire import Fields, Head, HttpRequest
from petstore.windows import ADMITTED, Decision

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
        ("limit=100&status=sold", ListQuery(100, PetStatus.sold, 0)),
        ("status=%73old", ListQuery(20, PetStatus.sold, 0)),
        (f"cursor={write_cursor(7)}&other=1&other=2&limit", None),
        (f"cursor={write_cursor(7)}&other=1&other=2", ListQuery(20, None, 7)),
        *[
            (f"limit={bad}", None)
            for bad in ("0", "101", "1000", "-1", "+5", "1_0", "", "1.0", "%EF%BC%95", "5&limit=5")
        ],
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
        (["192.0.2.0/24"], "198.51.100.7, 198.51.100.1, 192.0.2.1", "198.51.100.1"),
        (["192.0.2.0/24"], "192.0.2.2, 192.0.2.1", "192.0.2.2"),
        (["192.0.2.0/24"], "198.51.100.1, nonsense", "nonsense"),
    ],
)
def test_who_is_asking(trusted: list[str], forwarded: str, client: str) -> None:
    assert client_address(request(x_forwarded_for=forwarded), networks(trusted)) == client
    assert client_address(request(), networks(trusted)) == "192.0.2.9"


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
    """A ledger that writes down what it is given, or fails."""

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
def test_what_a_status_counts_as(status: int, answer: Answer) -> None:
    book, key = Book(), some_key(1)
    counted = Traffic("live", book)  # type: ignore[arg-type]  # of a ledger only this is used
    counted.tally(key, "listPets").statuses[status] += 3
    counted.settle(NOW)
    asyncio.run(counted.flush(NOW + 5))
    assert book.portions == [[Usage(key.id, int(NOW + 5), answer, 3)]]
    assert book.last_used == {key.id: NOW}


def test_usage_is_written_some_keys_at_a_time_and_kept_through_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "AT_ONCE", 2)
    book, keys = Book(), [some_key(number) for number in range(5)]
    counted = Traffic("live", book)  # type: ignore[arg-type]  # of a ledger only this is used

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


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def use_app(
    data: Path, work: Callable[[App, Store, str], Awaitable[None]], clock: Callable[[], float] = lambda: NOW
) -> None:
    """An app in this process, on a store and a gate of its own, with a key that may do anything."""

    async def inside() -> None:
        settings = Settings(data=data)
        async with Backends(settings) as backends:
            store, secret = backends.stores["live"], mint("live")
            key = new_key("live", "enterprise", now=NOW, limits=Limits(10**6, 10**6))
            await store.add_key(key, digest_of(secret), Deed(NOW, "a test", "create key", key.id))
            await work(App(settings, backends.stores, backends.gate, clock), store, secret)

    asyncio.run(inside())


def test_pages_and_animals_are_read_once_until_something_changes(tmp_path: Path) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        pets = app.places[0].pets
        first = (await store.add(NewPet("Rex", 1), NOW)).pet.id

        async def misses() -> int:
            for path, query in [("/v1/pets", "limit=1"), ("/v1/pets", "limit=2"), (f"/v1/pets/{first}", "")] * 3:
                assert (await app.answer(request(path, query, authorization=f"Bearer {secret}"))).status == 200
            return pets.take_misses()

        await misses()  # who is shown a new animal first tells all others of it, which makes everything stale
        assert await misses() == 0
        await store.add(NewPet("Mia", 1), NOW)
        await misses()
        assert await misses() == 0
        await store.set_status([first], PetStatus.sold, Deed(NOW, "a test", "set status", str(first)))
        assert (await misses(), await misses()) == (3, 0)

    use_app(tmp_path, work)


def test_pages_from_memory_are_counted_apart_from_those_that_were_read(tmp_path: Path) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        before = dict(metrics.PAGE_CACHE.cells)
        for path in ["/v1/pets"] * 5 + ["/v1/pets/7"] * 10:  # there is no such animal
            await app.answer(request(path, authorization=f"Bearer {secret}"))
        app.settle(0.0)
        app.settle(0.0)  # nothing since
        grown = {cell: value - before.get(cell, 0) for cell, value in metrics.PAGE_CACHE.cells.items()}
        assert grown["live", "hit"] == 4 and grown["live", "miss"] == 1

    use_app(tmp_path, work)


def test_in_an_outage_of_the_gate_the_headers_speak_of_the_next_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def out(*_: object) -> None:
        raise Unavailable("a test")

    async def work(app: App, store: Store, secret: str) -> None:
        monkeypatch.setattr(app._gate, "peek_address", out)
        headers = dict(pairs((await app.answer(request("/healthz"))).headers))
        told = [headers[f"x-ratelimit-{name}"] for name in ("limit", "remaining", "reset")]
        assert told == ["600", "0", str(int(NOW) + 1)]

    use_app(tmp_path, work)


def test_what_is_remembered_stays_within_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pet_operations, "REMEMBERED_BYTES", 10_000)

    async def work(app: App, store: Store, secret: str) -> None:
        pets = app.places[0].pets
        await store.add(NewPet("Rex", 1), NOW)
        held = []
        for limit in range(1, 41):
            reply = await app.answer(request(query=f"limit={limit}", authorization=f"Bearer {secret}"))
            assert reply.status == 200
            held.append(sum(len(page.body) + 1024 for page in pets._remembered.values()))
        assert 8_000 < max(held) <= 10_000
        assert held[-1] < max(held)  # it was emptied, and filled again

    use_app(tmp_path, work)


def test_what_just_fits_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        pets = app.places[0].pets
        size = len(b"[]") + 1024
        monkeypatch.setattr(pet_operations, "REMEMBERED_BYTES", 3 * size)
        held = []
        for limit in range(1, 8):
            await app.answer(request(query=f"limit={limit}", authorization=f"Bearer {secret}"))
            held.append(len(pets._remembered))
        assert held == [1, 2, 3, 1, 2, 3, 1]

    use_app(tmp_path, work)


def test_what_changed_behind_the_gates_back_is_seen_after_a_second(tmp_path: Path) -> None:
    """As when a process died between its commit and telling the gate of it."""
    clock = Clock()

    async def work(app: App, store: Store, secret: str) -> None:
        async def ask(path: str) -> tuple[int, bytes]:
            reply = await app.answer(request(path, authorization=f"Bearer {secret}"))
            return reply.status, reply.body

        def behind(statement: str) -> None:
            with contextlib.closing(apsw.Connection(str(tmp_path / "live.db"))) as other:
                other.execute(statement)

        pet_id = (await store.add(NewPet("Rex", 1), NOW)).pet.id
        await ask("/v1/pets")  # the first to show a new animal tells all others of it
        clock.now += 5
        listed, got = await ask("/v1/pets"), await ask(f"/v1/pets/{pet_id}")
        behind("UPDATE pets SET status = 'sold'")
        clock.now = NOW + 5.999
        assert (await ask("/v1/pets"), await ask(f"/v1/pets/{pet_id}")) == (listed, got)
        clock.now = NOW + 6
        assert b"sold" in (await ask("/v1/pets"))[1] and b"sold" in (await ask(f"/v1/pets/{pet_id}"))[1]
        behind("UPDATE pets SET status = 'pending'")
        clock.now = NOW + 7
        assert b"pending" in (await ask(f"/v1/pets/{pet_id}"))[1]
        behind("UPDATE keys SET revoked = 1")
        clock.now = NOW + 7.999  # the key was looked up at NOW + 7
        assert (await ask("/v1/pets"))[0] == 200
        clock.now = NOW + 8
        assert (await ask("/v1/pets"))[0] == 401

    use_app(tmp_path, work, clock)


def test_a_read_that_takes_its_time_is_shared_and_one_that_failed_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        monkeypatch.setattr(type(store), "immediate", False)
        real, reads = store.page, 0

        async def slow(**wanted: Any) -> Page:
            nonlocal reads
            reads += 1
            await asyncio.sleep(0.01)
            if reads == 1:
                raise Unavailable("a test")
            return await real(**wanted)

        monkeypatch.setattr(store, "page", slow)

        async def ask_at_once() -> list[int]:
            asked = (app.answer(request(authorization=f"Bearer {secret}")) for _ in range(5))
            return [reply.status for reply in await asyncio.gather(*asked)]

        assert (await ask_at_once(), reads) == ([503] * 5, 1)
        assert (await ask_at_once(), reads) == ([200] * 5, 2)
        assert (await ask_at_once(), reads) == ([200] * 5, 2)
        assert app.places[0].pets._being_read == {}

    use_app(tmp_path, work)


def test_keys_are_remembered_up_to_a_number_and_the_oldest_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "REMEMBERED_KEYS", 3)

    async def work(app: App, store: Store, secret: str) -> None:
        secrets = [mint("live") for _ in range(5)]
        for each in secrets:
            key = new_key("live", "free", now=NOW)
            await store.add_key(key, digest_of(each), Deed(NOW, "a test", "create key", key.id))
        for each in secrets:
            assert (await app.answer(request(authorization=f"Bearer {each}"))).status == 200
        assert list(app.places[0].admission._remembered) == [digest_of(each) for each in secrets[-3:]]

    use_app(tmp_path, work)


@pytest.mark.parametrize(("took", "bound"), [(0.02, "0.025"), (0.003, "0.005"), (-5.0, "5e-05")])
def test_a_request_took_what_the_clock_says_and_never_less_than_no_time(
    tmp_path: Path, took: float, bound: str
) -> None:
    ticks = iter([NOW, NOW + took, NOW])

    async def work() -> None:
        async with Backends(Settings(data=tmp_path)) as backends:
            app = App(Settings(data=tmp_path), backends.stores, backends.gate, lambda: next(ticks))
            assert (await app.answer(request("/v1/pets/1"))).status == 401
            app.settle(0.0)

    cell = metrics.REQUEST_SECONDS.cell("getPet")
    before = list(cell)
    asyncio.run(work())
    grown = [now - then for now, then in zip(metrics.REQUEST_SECONDS.cell("getPet"), before, strict=True)]
    place = next(n for n, text in enumerate(metrics.REQUEST_SECONDS.bounds) if text == float(bound))
    assert [n for n, growth in enumerate(grown[:-1]) if growth] == [place]
    assert grown[-1] == pytest.approx(max(took, 0.0), abs=0.00001)
