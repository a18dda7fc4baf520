"""What `FakeService` offers beyond the real service: a clock, faults and the requests that it received."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fakes import Client, Kind
from petstore_client import (
    ConnectionFailed,
    KeyBanned,
    Pet,
    PetstoreError,
    RateLimited,
    ServerError,
    TimedOut,
    Unauthorized,
)
from petstore_client.testing import STATUSES, FakeService

API = (Path(__file__).parents[2] / "docs/api.md").read_text()


def test_a_minute_limit_pauses_a_client_on_the_clock_of_the_service(kind: Kind) -> None:
    service = FakeService(per_minute=60)
    began = service.now
    with Client(kind, service) as client:
        for number in range(130):
            client.create_pet(f"Pet {number}", 1)
    assert 120 <= service.now - began <= 140
    assert [wait.reason for wait in client.waits] == ["minute_limit"] * 2
    assert len(service.pets) == 130


def test_gathered_calls_and_threads_share_the_service() -> None:
    service = FakeService(per_minute=60)

    async def gather() -> list[Pet]:
        async with service.async_client() as client:
            return await asyncio.gather(*(client.create_pet(f"Pet {number}", 1) for number in range(100)))

    assert len(asyncio.run(gather())) == 100
    with ThreadPoolExecutor(8) as pool, service.client() as client:
        assert len(list(pool.map(lambda number: client.create_pet(f"Pet {number}", 1), range(100)))) == 100
    assert [pet.id for pet in service.pets] == list(range(1, 201))


def test_a_test_can_advance_the_clock(kind: Kind) -> None:
    service = FakeService(per_day=1)
    with Client(kind, service) as client:
        client.create_pet("Rex", 1)
        with pytest.raises(RateLimited, match="limit: day"):
            client.create_pet("Ada", 1)
        service.advance(86_408)
        client.create_pet("Ada", 1)


def test_a_service_that_fails_after_adding_the_animal_adds_it_once(kind: Kind) -> None:
    service = FakeService()
    service.fail(times=3, is_performed=True)
    with Client(kind, service) as client:
        rex = client.create_pet("Rex", 1)
    assert service.pets == [rex]
    assert len(service.requests) == 4


def test_a_service_that_stays_down_or_hangs_ends_the_budget(kind: Kind) -> None:
    service = FakeService()
    with Client(kind, service, total_timeout=100) as client:
        client.create_pet("Rex", 1)
        for fault, expected in ((service.fail, ConnectionFailed), (service.hang, TimedOut)):
            began = service.now
            fault(times=1000)
            with pytest.raises(expected):
                client.create_pet("Ada", 1)
            assert 60 < service.now - began < 101
            service.forgive()
            service.advance(10)
    assert len(service.pets) == 1


@pytest.mark.parametrize(("code", "expected"), [("key_banned", KeyBanned), ("unavailable", ServerError)])
def test_a_refusal_has_its_retry_after(kind: Kind, code: str, expected: type[PetstoreError]) -> None:
    service = FakeService()
    service.refuse(code, retry_after=30)
    with Client(kind, service, total_timeout=10) as client, pytest.raises(expected) as raised:
        client.create_pet("Rex", 1)
    assert getattr(raised.value, "retry_after", None) == 30


def test_a_rotated_key_is_refused(kind: Kind) -> None:
    service = FakeService()
    with Client(kind, service, api_key=lambda: service.api_key) as client, Client(kind, service) as old:
        client.create_pet("Rex", 1)
        service.api_key = "pets_live_new"
        client.create_pet("Ada", 1)
        with pytest.raises(Unauthorized):
            old.create_pet("Bo", 1)


def test_an_idempotency_key_is_forgotten_after_a_day(kind: Kind) -> None:
    service = FakeService()
    with Client(kind, service) as client:
        for hours in (0, 23, 2):
            service.advance(hours * 3600)
            client.create_pet("Rex", 1, idempotency_key="row-1")
    assert len(service.pets) == 2


def test_the_requests_can_be_inspected() -> None:
    service = FakeService()
    with service.client(default_headers={"X-Team": "pets"}) as client:
        client.create_pet("Rex", 1)
    assert service.requests[0].headers["X-Team"] == "pets"


def test_every_documented_code_can_be_refused() -> None:
    documented = dict(re.findall(r"^\| `([a-z_]+)` \| (\d{3})\b", API, re.MULTILINE))
    assert {code: str(status) for code, status in STATUSES.items()} == documented
