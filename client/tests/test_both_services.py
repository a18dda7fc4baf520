"""One suite for the real service and for `FakeService`, so that the fake behaves as the service does."""

from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from fakes import Client, Kind
from harness.servers import Server
from petstore.plans import Limits
from petstore_client import (
    IdempotencyMismatch,
    InvalidRequest,
    NotFound,
    PetNotFound,
    PetStatus,
    PetstoreError,
    RateLimit,
    RateLimited,
    Unauthorized,
)
from petstore_client.testing import FakeService

pytestmark = pytest.mark.filterwarnings("ignore:get_pet:DeprecationWarning")

SERVICE_NAMES_WINDOWS = False  # whether the real service sends X-RateLimit-Window


class Backend(Protocol):
    names_windows: bool

    def connect(self, per_minute: int = 1_000_000, per_day: int = 1_000_000, **options: Any) -> Client:
        """Returns a client with a new key that has these limits."""


class RealBackend:
    names_windows = SERVICE_NAMES_WINDOWS

    def __init__(self, kind: Kind, server: Server) -> None:
        self._kind = kind
        self._server = server

    def connect(self, per_minute: int = 1_000_000, per_day: int = 1_000_000, **options: Any) -> Client:
        key = self._server.key(limits=Limits(per_minute, per_day))
        return Client(self._kind, **({"api_key": key.secret, "base_url": self._server.url("")} | options))


class FakeBackend:
    names_windows = True

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def connect(self, per_minute: int = 1_000_000, per_day: int = 1_000_000, **options: Any) -> Client:
        return Client(self._kind, FakeService(per_minute=per_minute, per_day=per_day), **options)


@pytest.fixture(params=["real", "fake"])
def backend(request: pytest.FixtureRequest, kind: Kind) -> Backend:
    return RealBackend(kind, request.getfixturevalue("server")) if request.param == "real" else FakeBackend(kind)


@pytest.fixture
def client(backend: Backend) -> Iterator[Client]:
    with backend.connect() as connected:
        yield connected


def test_a_created_animal_can_be_fetched_and_listed(client: Client) -> None:
    rex = client.create_pet("Rex", 7, status=PetStatus.PENDING)
    assert (rex.name, rex.category_id, rex.status) == ("Rex", 7, "pending")
    assert client.create_pet("Ada", -(2**63)).status is PetStatus.AVAILABLE
    assert client.get_pet(rex.id) == rex
    assert rex in list(client.list_pets("pending"))
    assert rex not in list(client.list_pets(PetStatus.SOLD))


def test_all_pages_are_followed_in_the_order_of_ids(client: Client) -> None:
    created = [client.create_pet(f"Pet {number}", number) for number in range(7)]
    listed = list(client.list_pets(page_size=3))
    assert [pet.id for pet in listed] == sorted({pet.id for pet in listed})
    assert listed[-7:] == created
    assert [len(page) for page in client.pages(page_size=3)][:2] == [3, 3]


def test_a_list_is_resumed_at_a_cursor(client: Client) -> None:
    for number in range(5):
        client.create_pet(f"Pet {number}", number, status="sold")
    every = [pet.id for pet in client.list_pets("sold")]
    first = next(client.pages("sold", page_size=2))
    assert first.next_cursor is not None
    rest = [pet.id for pet in client.list_pets("sold", cursor=first.next_cursor)]
    assert [pet.id for pet in first] + rest == every


def test_the_same_idempotency_key_adds_one_animal_and_no_other(client: Client) -> None:
    first = client.create_pet("Rex", 7, idempotency_key="once")
    assert client.create_pet("Rex", 7, idempotency_key="once") == first
    raw = client.finish(client.inner.with_raw_response.create_pet("Rex", 7, idempotency_key="once"))
    assert (raw.status, raw.headers["Idempotent-Replayed"], raw.parse()) == (201, "true", first)
    with pytest.raises(IdempotencyMismatch):
        client.create_pet("Ada", 7, idempotency_key="once")


@pytest.mark.parametrize(
    "invalid", [{"name": ""}, {"name": " \u3000"}, {"name": "x" * 256}, {"name": "a\tb"}, {"name": "a\x7fb"},
                {"category_id": 2**63}, {"status": "lost"}, {"status": "Sold"}],
)  # fmt: skip
def test_an_invalid_animal_is_an_invalid_body(client: Client, invalid: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as raised:
        client.create_pet(**({"name": "Rex", "category_id": 7} | invalid))
    assert (raised.value.code, raised.value.status) == ("invalid_body", 400)
    assert raised.value.request_id


@pytest.mark.parametrize("valid", ["x" * 255, "Łucja 🐶", " a ", "\u00a0x"])
def test_a_name_of_up_to_255_characters_is_valid(client: Client, valid: str) -> None:
    assert client.create_pet(valid, 7).name == valid


@pytest.mark.parametrize("invalid", [{"page_size": 101}, {"page_size": 0}, {"status": "lost"}, {"cursor": "mangled"}])
def test_an_invalid_parameter_is_named(client: Client, invalid: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as raised:
        next(client.list_pets(**invalid))
    assert (raised.value.code, raised.value.status) == ("invalid_parameter", 400)


def test_an_unknown_animal_and_an_unknown_path_are_not_found(backend: Backend, client: Client) -> None:
    with pytest.raises(PetNotFound):
        client.get_pet(2**62)
    with backend.connect(base_url=client.inner.base_url + "/nowhere") as lost, pytest.raises(NotFound) as raised:
        next(lost.list_pets())
    assert raised.value.code == "not_found"


def test_an_unknown_key_is_unauthorized_and_its_headers_do_not_describe_a_key(backend: Backend) -> None:
    with backend.connect(api_key="pets_live_unknown") as client:
        with pytest.raises(Unauthorized) as raised:
            client.create_pet("Rex", 7)
        assert raised.value.headers["X-RateLimit-Limit"] == "600"
        assert client.rate_limit is None


def test_the_rate_limit_counts_down(backend: Backend) -> None:
    with backend.connect(per_minute=60) as client:
        seen: list[RateLimit] = []
        for _ in range(3):
            client.create_pet("Rex", 7)
            assert client.rate_limit is not None
            seen.append(client.rate_limit)
    assert [(limit.limit, limit.remaining) for limit in seen] == [(60, 59), (60, 58), (60, 57)]
    assert len({limit.reset for limit in seen}) == 1
    assert seen[0].window == ("minute" if backend.names_windows else None)


@pytest.mark.parametrize(
    ("limits", "window", "longest"),
    [((3, 100), "minute", 60), ((100, 3), "day", 86_400), ((3, 3), "day", 86_400)],
)
def test_an_exhausted_limit_refuses_with_its_name_and_the_time_to_wait(
    backend: Backend, limits: tuple[int, int], window: str, longest: int
) -> None:
    with backend.connect(*limits, total_timeout=1) as client:
        for _ in range(3):
            client.create_pet("Rex", 7)
        with pytest.raises(RateLimited) as raised:
            client.create_pet("Rex", 7)
    error = raised.value
    assert (error.code, error.status, error.limit, error.remaining) == ("rate_limit_exceeded", 429, 3, 0)
    assert error.retry_after is not None
    assert longest - 30 < error.retry_after <= longest
    assert error.window == (window if backend.names_windows else None)


def test_every_request_with_a_valid_key_counts(backend: Backend) -> None:
    with backend.connect(per_minute=60) as client:
        with pytest.raises(PetstoreError):
            client.get_pet(2**62)
        with pytest.raises(PetstoreError):
            client.create_pet("", 7)
        with pytest.raises(PetstoreError):
            next(client.list_pets("lost"))
        assert client.rate_limit is not None
        assert client.rate_limit.remaining == 57
