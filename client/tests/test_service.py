"""Both clients against the real service: the three operations, every error they can meet, both environments."""

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fakes import Client, Kind
from petstore.plans import Limits
from petstore_client import (
    ConnectionFailed,
    IdempotencyMismatch,
    InsufficientScope,
    InvalidRequest,
    NotFound,
    PetNotFound,
    PetStatus,
    PetstoreError,
    RateLimited,
    TimedOut,
    Unauthorized,
)
from tests.backends import free_port
from tests.servers import Key, Server, serving

pytestmark = pytest.mark.filterwarnings("ignore:get_pet:DeprecationWarning")

Connect = Callable[..., Client]


@pytest.fixture
def connect(kind: Kind, server: Server, key: Key) -> Iterator[Connect]:
    """Makes clients of the shared server, with a key that no test exhausts unless another is given."""
    made: list[Client] = []

    def connect(**options: Any) -> Client:
        made.append(Client(kind, **({"api_key": key.secret, "base_url": server.url("")} | options)))
        return made[-1]

    yield connect
    for client in made:
        client.__exit__()


def test_an_added_animal_is_got_and_listed(connect: Connect) -> None:
    client = connect()
    rex = client.create_pet("Rex", 7, status=PetStatus.PENDING)
    assert (rex.name, rex.category_id, rex.status) == ("Rex", 7, "pending")
    assert client.get_pet(rex.id) == rex
    assert rex in list(client.list_pets("pending"))
    assert rex not in list(client.list_pets(PetStatus.SOLD))
    assert client.rate_limit is not None
    assert client.rate_limit.limit == 1_000_000


def test_all_pages_are_followed_in_the_order_of_ids(connect: Connect, server: Server) -> None:
    server.fill(45)
    client = connect()
    ids = [pet.id for pet in client.list_pets(limit=20)]
    assert ids == sorted(set(ids))
    assert len(ids) >= 45
    assert [len(page) for page in client.pages(limit=20)][:2] == [20, 20]


def test_a_public_url_in_the_links_does_not_lead_the_client_astray(
    kind: Kind, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = tmp_path_factory.mktemp("public") / "data"
    with serving(data, "own", "--public-url", "https://pets.example") as server:
        server.fill(5)
        with Client(kind, api_key=server.key().secret, base_url=server.url("")) as client:
            assert [pet.id for pet in client.list_pets(limit=2)] == [1, 2, 3, 4, 5]


def test_the_same_idempotency_key_adds_one_animal_and_another_animal_under_it_is_refused(connect: Connect) -> None:
    client = connect()
    first = client.create_pet("Rex", 7, idempotency_key=f"once-{client.kind}")
    assert client.create_pet("Rex", 7, idempotency_key=f"once-{client.kind}") == first
    with pytest.raises(IdempotencyMismatch):
        client.create_pet("Ada", 7, idempotency_key=f"once-{client.kind}")


def test_what_the_service_does_not_take_is_an_invalid_request_that_names_it(connect: Connect) -> None:
    with pytest.raises(InvalidRequest, match="name") as body:
        connect().create_pet(" ", 7)
    assert (body.value.code, body.value.status) == ("invalid_body", 400)
    with pytest.raises(InvalidRequest, match="limit") as parameter:
        next(connect().list_pets(limit=101))
    assert parameter.value.code == "invalid_parameter"
    assert parameter.value.request_id


def test_unknown_animals_keys_addresses_and_missing_scopes_have_their_errors(connect: Connect, server: Server) -> None:
    with pytest.raises(PetNotFound):
        connect().get_pet(2**62)
    with pytest.raises(Unauthorized):
        connect(api_key=server.key(environment="staging").secret).get_pet(1)
    with pytest.raises(InsufficientScope):
        connect(api_key=server.key(scopes=["read"]).secret).create_pet("Rex", 7)
    with pytest.raises(NotFound) as elsewhere:
        connect(base_url=server.url("/nowhere")).get_pet(1)
    assert elsewhere.value.code == "not_found"


def test_staging_is_another_world(connect: Connect, server: Server) -> None:
    key = server.key(environment="staging")
    client = connect(api_key=key.secret, base_url=server.url("", "staging"))
    rex = client.create_pet("Rex of staging", 7)
    assert client.get_pet(rex.id) == rex


def test_a_limit_that_outlasts_max_wait_is_raised_with_all_its_figures(connect: Connect, server: Server) -> None:
    client = connect(api_key=server.key("enterprise", Limits(2, 1000)).secret, max_wait=5.0)
    client.create_pet("Rex", 7)
    client.create_pet("Rex", 7)
    with pytest.raises(RateLimited) as raised:
        client.create_pet("Rex", 7)
    error = raised.value
    assert error.retry_after is not None
    assert 5 < error.retry_after <= 60
    assert (error.limit, error.remaining) == (2, 0)
    assert error.reset is not None
    assert abs(error.reset - time.time()) <= 61


@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_get_pet_warns(connect: Connect) -> None:
    client = connect()
    rex = client.create_pet("Rex", 7)
    with pytest.warns(DeprecationWarning, match="5 December 2030"):
        client.get_pet(rex.id)


def test_nobody_at_the_address_is_a_failed_connection(connect: Connect) -> None:
    address = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(ConnectionFailed, match=address):
        connect(base_url=address).create_pet("Rex", 7)


def test_a_server_that_accepts_and_stays_silent_is_timed_out_within_the_total(kind: Kind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        with Client(kind, base_url=address, timeout=0.3, retries=0) as client:
            began = time.monotonic()
            with pytest.raises(TimedOut):
                client.create_pet("Rex", 7)
            assert 0.25 < time.monotonic() - began < 5


def test_a_closed_client_says_so(kind: Kind, server: Server, key: Key) -> None:
    client = Client(kind, api_key=key.secret, base_url=server.url(""))
    client.create_pet("Rex", 7)
    if kind == "threads":
        client.__exit__()
        with pytest.raises(RuntimeError, match="closed"):
            client.create_pet("Rex", 7)
    else:
        client._done(client.inner.aclose())  # type: ignore[union-attr]  # the async one
        with pytest.raises(RuntimeError, match="closed"):
            client.create_pet("Rex", 7)
        client.__exit__()


def test_every_error_of_the_service_is_a_petstore_error(connect: Connect, server: Server) -> None:
    client = connect()
    for call in (lambda: client.get_pet(-1), lambda: client.create_pet("", 1), lambda: list(client.list_pets("lost"))):
        with pytest.raises(PetstoreError) as raised:
            call()
        assert raised.value.code
        assert raised.value.message
        assert raised.value.request_id
