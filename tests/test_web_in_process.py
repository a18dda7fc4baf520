"""The pipeline in this process, on a real store and gate: what it remembers, for how long, and what it counts."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from petstore.audit import AuditEntry
from petstore.errors import Unavailable
from petstore.keys import digest_of, mint, new_key
from petstore.observability import metrics
from petstore.pets import IdempotencyKey, NewPet
from petstore.plans import Limits
from petstore.server.messages import HttpRequest
from petstore.service import Backends
from petstore.settings import Settings
from petstore.store import Store
from petstore.web import admission
from petstore.web import app as pipeline
from petstore.web.app import App
from petstore.web.replies import pairs
from tests.places import StorePlace
from tests.test_web_parts import NOW, request


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def use_app(
    data: Path,
    work: Callable[[App, Store, str], Awaitable[None]],
    clock: Callable[[], float] = lambda: NOW,
    **settings: Any,
) -> None:
    """An app in this process, on a store and a gate of its own, with a key that may do anything."""

    async def inside() -> None:
        chosen = Settings(data=data, **settings)
        async with Backends(chosen) as backends:
            store, secret = backends.stores["live"], mint("live")
            key = new_key("live", "enterprise", now=NOW, limits=Limits(10**6, 10**6))
            await store.add_key(key, digest_of(secret), AuditEntry(NOW, "a test", "create key", key.id))
            await work(App(chosen, backends.stores, backends.gate, clock), store, secret)

    asyncio.run(inside())


@pytest.mark.parametrize("first_seen", ["in a list", "by its id", "in a replay"])
def test_who_shows_a_new_animal_first_tells_everyone_and_only_once(tmp_path: Path, first_seen: str) -> None:
    body = b'{"name":"Rex","categoryId":1}'

    async def work(app: App, store: Store, secret: str) -> None:
        async def version() -> int:
            keys = await app._gate.keys_version("live")
            passed = await app._gate.admit("live", "key_of_a_witness", Limits(10**6, 10**6), keys, NOW)
            assert passed is not None
            return passed[1]

        other = StorePlace(tmp_path).open()  # a process that dies between the commit and its announcement
        (key,) = await store.keys()
        idempotency_key = IdempotencyKey(key.id, "again", hashlib.sha256(body).digest())
        animal = (await other.add(NewPet("Rex", 1), NOW, idempotency_key)).pet.id
        await other.close()

        def asked() -> HttpRequest:
            path = f"/v1/pets/{animal}" if first_seen == "by its id" else "/v1/pets"
            made = request(path, authorization=f"Bearer {secret}", idempotency_key="again")
            if first_seen == "in a replay":
                made.method, made.chunks = "POST", [body]
            return made

        versions = [await version()]
        for _ in range(3):
            assert (await app.answer(asked())).status == (201 if first_seen == "in a replay" else 200)
            versions.append(await version())
        first, *rest = versions
        assert rest[0] > first and set(rest) == {rest[0]}

    use_app(tmp_path, work)


def test_what_is_outside_the_base_addresses_is_counted_as_nobodys(tmp_path: Path) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        before = dict(metrics.REQUESTS.cells)
        for path in ("/healthz", "/healthz", "/nothing"):
            await app.answer(request(path))
        app.settle(0.0)
        grown = {cell: value - before.get(cell, 0) for cell, value in metrics.REQUESTS.cells.items()}
        assert grown["none", "site", "200", "none"] == 2 and grown["none", "site", "404", "none"] == 1

    use_app(tmp_path, work)


def test_a_line_of_the_access_log_says_who_asked_for_what_and_how_long_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[tuple[int, str, dict[str, Any]]] = []
    monkeypatch.setattr(pipeline, "event", lambda level, name, **fields: lines.append((level, name, fields)))
    ticks = iter([NOW, NOW + 0.00123456, NOW, NOW, NOW + 2.5, NOW])

    async def work(app: App, store: Store, secret: str) -> None:
        (key,) = await store.keys()
        known, unknown = request("/v1/pets", authorization=f"Bearer {secret}"), request("/v1/pets/7")
        replies = [await app.answer(known), await app.answer(unknown)]
        ids = [dict(pairs(reply.headers))["x-request-id"] for reply in replies]
        assert lines == [
            (logging.INFO, "request", {"id": ids[0], "method": "GET", "path": "/v1/pets", "status": 200,
                                       "key": key.id, "address": "192.0.2.9", "ms": 1.23}),
            (logging.INFO, "request", {"id": ids[1], "method": "GET", "path": "/v1/pets/7", "status": 401,
                                       "key": None, "address": "192.0.2.9", "ms": 2500.0}),
        ]  # fmt: skip
        assert "ratelimit-policy" not in dict(pairs(replies[0].headers))  # nobody asked for it

    use_app(tmp_path, work, lambda: next(ticks), access_log=True)


def test_the_fields_of_the_draft_are_for_the_base_addresses(tmp_path: Path) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        for path, told in (("/v1/pets", True), ("/healthz", False)):
            headers = dict(pairs((await app.answer(request(path))).headers))
            assert ("ratelimit-policy" in headers, "ratelimit" in headers) == (told, told)

    use_app(tmp_path, work, ietf_headers=True)


@pytest.mark.parametrize(("before", "status"), [(0.001, 404), (0.0, 410)])
def test_the_deprecated_operation_is_gone_at_its_hour(tmp_path: Path, before: float, status: int) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        assert (await app.answer(request("/v1/pets/7", authorization=f"Bearer {secret}"))).status == status

    use_app(tmp_path, work, lambda: datetime(2030, 12, 5, tzinfo=UTC).timestamp() - before)


def test_an_outage_is_complained_of_with_the_id_of_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def out(*_: object, **__: object) -> None:
        raise Unavailable("a test")

    async def work(app: App, store: Store, secret: str) -> None:
        complaints: list[tuple[str, str]] = []
        told: list[float] = []
        sparing = app._throttled
        monkeypatch.setattr(sparing, "event", lambda _, cause, request: complaints.append((cause, request)))
        monkeypatch.setattr(sparing, "flush", told.append)
        monkeypatch.setattr(store, "page", out)
        reply = await app.answer(request("/v1/pets", authorization=f"Bearer {secret}"))
        assert reply.status == 503
        assert complaints == [("a test", dict(pairs(reply.headers))["x-request-id"])]
        app.settle(5.0)
        assert told == [5.0]

    use_app(tmp_path, work)


def test_in_an_outage_the_headers_speak_of_the_environment_that_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def out(*_: object) -> None:
        raise Unavailable("a test")

    async def work(app: App, store: Store, secret: str) -> None:
        staging = app.places[1]
        assert staging.environment == "staging"
        monkeypatch.setattr(staging.admission._store, "find_key", out)
        assert (await app.answer(request("/v1/pets"))).status == 401  # one less at the live address
        reply = await app.answer(request("/staging/v1/pets", authorization=f"Bearer {mint('staging')}"))
        assert (reply.status, dict(pairs(reply.headers))["x-ratelimit-remaining"]) == (503, "600")

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


def test_one_look_serves_all_who_ask_whether_the_service_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(app: App, store: Store, secret: str) -> None:
        looks = 0

        async def slow() -> None:
            nonlocal looks
            looks += 1
            await asyncio.sleep(0.01)
            if looks == 2:
                raise Unavailable("a test")

        monkeypatch.setattr(store, "ping", slow)

        async def ask_at_once() -> list[int]:
            return [reply.status for reply in await asyncio.gather(*(app.answer(request("/readyz")) for _ in range(9)))]

        assert (await ask_at_once(), looks) == ([200] * 9, 1)
        assert (await ask_at_once(), looks) == ([503] * 9, 2)
        assert (await ask_at_once(), looks) == ([200] * 9, 3)

    use_app(tmp_path, work)


def test_keys_are_remembered_up_to_a_number_and_the_oldest_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "REMEMBERED_KEYS", 3)

    async def work(app: App, store: Store, secret: str) -> None:
        secrets = [mint("live") for _ in range(5)]
        for each in secrets:
            key = new_key("live", "free", now=NOW)
            await store.add_key(key, digest_of(each), AuditEntry(NOW, "a test", "create key", key.id))
        for each in secrets:
            assert (await app.answer(request(authorization=f"Bearer {each}"))).status == 200
        assert list(app.places[0].admission._remembered) == [digest_of(each) for each in secrets[-3:]]

    use_app(tmp_path, work)


@pytest.mark.parametrize(("took", "bound"), [(0.02, "0.025"), (0.003, "0.005"), (-5.0, "5e-05")])
def test_a_request_took_what_the_clock_says_and_never_less_than_no_time(
    tmp_path: Path, took: float, bound: str
) -> None:
    ticks = iter([NOW, NOW + took, NOW, NOW])

    async def work() -> None:
        async with Backends(Settings(data=tmp_path)) as backends:
            app = App(Settings(data=tmp_path), backends.stores, backends.gate, lambda: next(ticks))
            assert (await app.answer(request("/v1/pets/1"))).status == 401
            app.settle(0.0)
            app.settle(0.0)  # nothing since

    cell = metrics.REQUEST_SECONDS.cell("getPet")
    before = list(cell)
    asyncio.run(work())
    grown = [now - then for now, then in zip(metrics.REQUEST_SECONDS.cell("getPet"), before, strict=True)]
    place = next(n for n, text in enumerate(metrics.REQUEST_SECONDS.bounds) if text == float(bound))
    assert {n: growth for n, growth in enumerate(grown[:-1]) if growth} == {place: 1}
    assert grown[-1] == pytest.approx(max(took, 0.0), abs=0.00001)
