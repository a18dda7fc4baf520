"""The pipeline in this process, on a real store and gate: what it returns, counts, logs and caches."""

import asyncio
import hashlib
import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from harness.in_process import NOW, Clock, Running, Wrapped, pairs, request, use_app, with_fault
from harness.stores import StorePlace
from petstore.audit import Actor
from petstore.errors import Unavailable
from petstore.gate import Gate
from petstore.keys import mint, new_key
from petstore.observability import metrics
from petstore.pets import IdempotencyKey, NewPet
from petstore.plans import Limits
from petstore.settings import leads_to_staging
from petstore.store import Store
from petstore.web.admission import CACHED_KEYS_MAX, LOOKUPS_PER_SECOND, Admission, digest_of_secret
from petstore.web.routes import suggestion
from tests.web.calls import error_of


async def unavailable(*_: object, **__: object) -> None:
    raise Unavailable("a test")


@pytest.mark.parametrize("first_seen", ["in a list", "by its id", "in a replay"])
def test_the_first_to_show_a_new_animal_raises_the_version_once(tmp_path: Path, first_seen: str) -> None:
    body = b'{"name":"Rex","categoryId":1}'

    async def work(running: Running) -> None:
        async def version() -> int:
            keys = await running.gate.keys_version("live")
            passed = await running.gate.admit("live", "key_of_a_witness", Limits(10**6, 10**6), keys, NOW, "other")
            assert passed is not None
            return passed[1][0]

        (key,) = await running.store.keys.page()
        idempotency_key = IdempotencyKey(key.id, "again", hashlib.sha256(body).digest())
        async with StorePlace(tmp_path).open() as other:  # a process that commits but dies before it announces
            animal = (await other.pets.add(NewPet("Rex", 1), NOW, idempotency_key)).pet.id

        async def ask() -> int:
            if first_seen == "in a replay":
                return (await running.ask(method="POST", body=body, idempotency_key="again")).status
            return (await running.ask(f"/v1/pets/{animal}" if first_seen == "by its id" else "/v1/pets")).status

        versions = [await version()]
        for _ in range(3):
            assert await ask() == (201 if first_seen == "in a replay" else 200)
            versions.append(await version())
        first, *rest = versions
        assert rest[0] > first and set(rest) == {rest[0]}

    use_app(tmp_path, work)


def test_what_is_outside_the_base_addresses_is_counted_for_no_key(tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        before = dict(metrics.REQUESTS.cells)
        for path in ("/healthz", "/healthz", "/nothing"):
            await running.app.answer(request(path))
        running.app.publish(0.0)
        grown = {cell: value - before.get(cell, 0) for cell, value in metrics.REQUESTS.cells.items()}
        assert grown["none", "site", "200", "none"] == 2 and grown["none", "site", "404", "none"] == 1

    use_app(tmp_path, work)


def test_a_line_of_the_access_log_names_key_status_and_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(running: Running) -> None:
        (key,) = await running.store.keys.page()
        with caplog.at_level(logging.INFO, "petstore"):
            known = await running.ask(started=perf_counter() - 0.5)
            unknown = await running.app.answer(request(f"/v1/pets/{running.secret}", method=running.secret))
        lines = [record.__dict__["fields"] for record in caplog.records if record.message == "request"]
        took = [line.pop("ms") for line in lines]
        assert [line.pop("pet") for line in lines] == [None, None]
        ids = [dict(pairs(reply.headers))["x-request-id"] for reply in (known, unknown)]
        assert lines == [
            {"id": ids[0], "method": "GET", "path": "/v1/pets", "operation": "listPets", "status": 200, "key": key.id,
             "address": "192.0.2.9"},
            {"id": ids[1], "method": "pets_live_…", "path": "/v1/pets/pets_live_…", "operation": "other",
             "status": 401, "key": None, "address": "192.0.2.9"},
        ]  # fmt: skip
        assert 500 < took[0] < 5_000  # from the first byte, not from the start of the pipeline
        assert "ratelimit-policy" not in dict(pairs(known.headers))

    use_app(tmp_path, work, access_log=True)


def test_the_headers_of_the_draft_are_only_under_the_base_addresses(tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        for path, sent in (("/v1/pets", True), ("/healthz", False)):
            headers = dict(pairs((await running.app.answer(request(path))).headers))
            assert ("ratelimit-policy" in headers, "ratelimit" in headers) == (sent, sent)

    use_app(tmp_path, work, ietf_headers=True)


@pytest.mark.parametrize(("before", "status"), [(0.001, 404), (0.0, 410)])
def test_the_deprecated_operation_is_gone_at_the_sunset(tmp_path: Path, before: float, status: int) -> None:
    async def work(running: Running) -> None:
        assert (await running.ask("/v1/pets/7")).status == status

    use_app(tmp_path, work, lambda: datetime(2030, 12, 5, tzinfo=UTC).timestamp() - before)


@pytest.mark.parametrize(("before", "located"), [(0.001, True), (0.0, False)])
def test_a_201_sends_a_location_until_the_sunset(tmp_path: Path, before: float, *, located: bool) -> None:
    async def work(running: Running) -> None:
        reply = await running.ask(method="POST", body=b'{"name":"Rex","categoryId":1}')
        assert (reply.status, "location" in dict(pairs(reply.headers))) == (201, located)

    use_app(tmp_path, work, lambda: datetime(2030, 12, 5, tzinfo=UTC).timestamp() - before)


def test_an_outage_is_logged_with_the_id_of_the_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(store: Store) -> Any:
        return with_fault(store, "pets", page=unavailable)

    async def work(running: Running) -> None:
        with caplog.at_level(logging.ERROR, "petstore"):
            reply = await running.ask()
        assert reply.status == 503
        (fields,) = [record.__dict__["fields"] for record in caplog.records if record.message == "unavailable"]
        assert fields == {"cause": "a test", "request": dict(pairs(reply.headers))["x-request-id"]}

    use_app(tmp_path, work, wrap_store=fail)


def test_in_an_outage_the_headers_name_the_address_in_its_environment(tmp_path: Path) -> None:
    def fail(store: Store) -> Any:
        return with_fault(store, "keys", find=unavailable)

    async def work(running: Running) -> None:
        assert (await running.app.answer(request("/staging/v1/pets"))).status == 401  # uses one request of staging
        reply = await running.app.answer(request("/v1/pets", authorization=f"Bearer {mint('live')}"))
        assert (reply.status, dict(pairs(reply.headers))["x-ratelimit-remaining"]) == (503, "600")

    use_app(tmp_path, work, wrap_store=fail)


def test_in_an_outage_of_the_gate_the_headers_name_the_next_second(tmp_path: Path) -> None:
    def fail(gate: Gate) -> Any:
        return Wrapped(gate, peek_address=unavailable)

    async def work(running: Running) -> None:
        headers = dict(pairs((await running.app.answer(request("/healthz"))).headers))
        sent = [headers[f"x-ratelimit-{name}"] for name in ("limit", "remaining", "reset")]
        assert sent == ["600", "0", str(int(NOW) + 1)]

    use_app(tmp_path, work, wrap_gate=fail)


def test_one_ping_serves_all_readiness_probes_that_wait(tmp_path: Path) -> None:
    pings = 0

    async def slow() -> None:
        nonlocal pings
        pings += 1
        await asyncio.sleep(0.01)
        if pings == 2:
            raise Unavailable("a test")

    async def work(running: Running) -> None:
        async def probe() -> list[int]:
            replies = await asyncio.gather(*(running.app.answer(request("/readyz")) for _ in range(9)))
            return [reply.status for reply in replies]

        assert (await probe(), pings) == ([200] * 9, 1)
        assert (await probe(), pings) == ([503] * 9, 2)
        assert (await probe(), pings) == ([200] * 9, 3)

    use_app(tmp_path, work, wrap_store=lambda store: with_fault(store, "database", ping=slow))


class Counted:
    """Counts the key lookups that reach the store."""

    def __init__(self) -> None:
        self.lookups = 0

    def wrap(self, store: Store) -> Any:
        async def find(digest: bytes) -> Any:
            self.lookups += 1
            return await store.keys.find(digest)

        return with_fault(store, "keys", find=find)


def unknown() -> dict[str, Any]:
    return {"authorization": f"Bearer {mint('live')}"}


def test_an_address_over_its_limit_reaches_the_store_ten_times_a_second(tmp_path: Path) -> None:
    clock, counted = Clock(), Counted()

    async def work(running: Running) -> None:
        assert (await running.ask()).status == 200
        statuses = [(await running.app.answer(request(**unknown()))).status for _ in range(700)]
        assert statuses == [401] * 600 + [429] * 100
        for _ in range(3):
            clock.now += 1
            before = counted.lookups
            assert {(await running.app.answer(request(**unknown()))).status for _ in range(200)} == {429}
            assert counted.lookups - before == LOOKUPS_PER_SECOND
            assert (await running.ask()).status == 200  # a key that was valid before is not affected

    use_app(tmp_path, work, clock, wrap_store=counted.wrap)


def test_the_addresses_of_a_network_have_one_budget_of_look_ups(tmp_path: Path) -> None:
    counted = Counted()

    async def work(running: Running) -> None:
        async def ask(number: int) -> int:
            asked = request(**unknown())
            asked.peer = f"2001:db8::{number:x}"
            return (await running.app.answer(asked)).status

        assert [await ask(number) for number in range(700)] == [401] * 600 + [429] * 100
        assert counted.lookups == 600 + LOOKUPS_PER_SECOND

    use_app(tmp_path, work, wrap_store=counted.wrap)


def test_nothing_is_kept_of_a_credential_that_cannot_be_a_key(tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        await running.ask()
        before = digest_of_secret.cache_info().misses
        for number in range(100):
            reply = await running.app.answer(request(authorization=f"Bearer pets_live_{number}" + "x" * 30_000))
            assert reply.status == 401 and b"mistyped" in reply.body
        assert digest_of_secret.cache_info().misses == before

    use_app(tmp_path, work)


def test_a_new_valid_key_gets_through_from_an_address_over_its_limit(tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        for _ in range(601):
            await running.app.answer(request(**unknown()))
        assert (await running.ask()).status == 200

    use_app(tmp_path, work)


def test_a_change_of_another_key_costs_a_key_that_was_seen_valid_nothing(tmp_path: Path) -> None:
    clock, counted = Clock(), Counted()

    async def work(running: Running) -> None:
        assert (await running.ask()).status == 200
        for _ in range(601):
            await running.app.answer(request(**unknown()))
        for _ in range(20):
            other = new_key("live", "free", now=NOW)
            await running.store.keys.create(other, mint("live"), Actor("a test", NOW))
            clock.now += 61  # every cached key must be looked up again
            await asyncio.gather(*(running.app.answer(request(**unknown())) for _ in range(50)))
            assert (await running.ask()).status == 200

    use_app(tmp_path, work, clock, wrap_store=counted.wrap)


def test_known_keys_are_bounded_and_the_oldest_goes_first(tmp_path: Path) -> None:
    counted = Counted()

    async def work(running: Running) -> None:
        secrets = [mint("live") for _ in range(5)]
        for each in secrets:
            key = new_key("live", "free", now=NOW)
            await running.store.keys.create(key, each, Actor("a test", NOW))
        wrapped = counted.wrap(running.store)
        admission = Admission(
            "live", wrapped.keys, wrapped.freshness, running.gate, lambda _: "192.0.2.9", cached_keys_max=3
        )

        async def lookups(each: str) -> int:
            before = counted.lookups
            key, *_ = await admission.admit(request(authorization=f"Bearer {each}"), NOW)
            assert key is not None
            return counted.lookups - before

        assert [await lookups(each) for each in secrets] == [1] * 5
        assert [await lookups(each) for each in (*secrets[-3:], secrets[0])] == [0, 0, 0, 1]

    assert CACHED_KEYS_MAX >= 10_000
    use_app(tmp_path, work)


@pytest.mark.parametrize(
    ("path", "meant"),
    [("/v1/pets/", "/v1/pets"), ("/V1/pets", "/v1/pets"), ("/pets", "/v1/pets"), ("/v1/Pets", "/v1/pets"),
     ("/v1/pet", "/v1/pets"), ("/staging/v1/pets/", "/staging/v1/pets"), ("/STAGING/v1/pets", "/staging/v1/pets"),
     ("/pets/7", "/v1/pets/7"), ("/V1/pets/7/", "/v1/pets/7"), ("/v1//pets", "/v1/pets"), ("//v1/pet/7", "/v1/pets/7"),
     ("/nothing", ""), ("/v2/pets", ""), ("/v1/orders", ""), ("/v1/pets/rex/", ""), ("/", "")],
)  # fmt: skip
def test_a_404_suggests_the_address_that_is_one_slip_away(path: str, meant: str) -> None:
    assert suggestion(path) == (f" Did you mean {meant}?" if meant else "")


def test_staging_answers_at_v1_under_the_host_of_its_url(tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        secret = mint("staging")
        key = new_key("staging", "free", now=NOW)
        await running.staging.keys.create(key, secret, Actor("a test", NOW))
        await running.staging.pets.add(NewPet("Rex", 1), NOW)
        await running.staging.pets.add(NewPet("Mia", 1), NOW)

        async def ask(path: str, host: str, secret: str) -> tuple[int, str]:
            reply = await running.app.answer(request(path, "limit=1", host=host, authorization=f"Bearer {secret}"))
            return reply.status, dict(pairs(reply.headers)).get("link", "")

        for host in (
            "staging.example.com:443",
            "staging.example.com:8080",
            "staging.example.com.",
            "STAGING.example.com:",
        ):
            assert (await ask("/v1/pets", host, secret))[0] == 200, host
        status, link = await ask("/v1/pets", "Staging.Example.com", secret)
        assert status == 200 and link.startswith("<https://staging.example.com/v1/pets?limit=1&cursor=")
        assert (await ask("/staging/v1/pets", "anything", secret))[0] == 200
        assert (await ask("/v1/pets", "api.example.com", secret))[0] == 401
        assert (await ask("/v1/pets", "api.example.com", running.secret))[0] == 200
        assert (await ask("/v1/pets", "staging.example.com", running.secret))[0] == 401

    use_app(tmp_path, work, public_url="https://api.example.com", staging_url="https://staging.example.com")


@pytest.mark.parametrize("took", [0.02, 0.003])
def test_a_request_takes_from_its_first_byte_to_its_reply(tmp_path: Path, took: float) -> None:
    async def work(running: Running) -> None:
        await running.app.answer(request("/v1/pets/1", started=perf_counter() - took))
        running.app.publish(0.0)
        _, total = metrics.REQUEST_SECONDS.cells["getPet",][:-1], metrics.REQUEST_SECONDS.cells["getPet",][-1]
        assert took <= total < took + 1

    metrics.REQUEST_SECONDS.cells.clear()
    use_app(tmp_path, work)


@pytest.mark.parametrize(("status", "code"), [(400, "malformed_request"), (414, "malformed_request"),
                                              (431, "malformed_request"), (408, "request_timeout")])  # fmt: skip
def test_a_rejected_message_gets_the_whole_error(tmp_path: Path, status: int, code: str) -> None:
    async def work(running: Running) -> None:
        reply = await running.app.reject(status, "192.0.2.9")
        assert (reply.status, error_of(reply)["code"]) == (status, code)
        assert json.loads(reply.body)["status"] == status
        headers = dict(pairs(reply.headers))
        assert headers["x-ratelimit-remaining"] == "600" and len(headers["x-request-id"]) == 32

    use_app(tmp_path, work)


@pytest.mark.parametrize(
    ("host", "staging_url", "public_url", "leads"),
    [("localhost:8081", "http://localhost:8081", "http://localhost:8080", True),
     ("localhost:8080", "http://localhost:8081", "http://localhost:8080", False),
     ("localhost:8080", "http://localhost:8081", None, False),
     ("localhost", "http://localhost", "http://localhost:8080", True),
     ("localhost:80", "http://localhost", "http://localhost:8080", True),
     ("localhost:8080", "http://localhost", "http://localhost:8080", False),
     ("[::1]:8081", "http://[::1]:8081", None, True), ("[::1]:8080", "http://[::1]:8081", None, False),
     ("localhost:99999", "http://localhost:8081", None, False), ("", "http://localhost", None, False),
     ("[:::::]", "http://localhost", None, False), ("[1.2]:80", "http://[::1]", None, False)],
)  # fmt: skip
def test_the_port_of_a_host_counts_where_the_name_does_not_decide(
    host: str, staging_url: str, public_url: str | None, *, leads: bool
) -> None:
    assert leads_to_staging(host, staging_url, public_url) is leads


def test_the_access_log_has_the_id_of_a_rejected_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(running: Running) -> None:
        reply = await running.app.reject(400, "192.0.2.9")
        (record,) = [each for each in caplog.records if each.message == "request"]
        fields = record.__dict__["fields"]
        assert (fields["id"], fields["status"]) == (dict(pairs(reply.headers))["x-request-id"], 400)

    with caplog.at_level(logging.INFO, "petstore"):
        use_app(tmp_path, work, access_log=True)
