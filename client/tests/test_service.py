"""Both clients with the real service: operations, errors and both environments."""

import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from fakes import Client, Kind
from harness.backends import free_port
from harness.servers import Key, Server, serving
from petstore_client import (
    ConnectionFailed,
    Gone,
    IdempotencyMismatch,
    InsufficientScope,
    InvalidRequest,
    NotFound,
    PetNotFound,
    PetStatus,
    TimedOut,
    Unauthorized,
)

pytestmark = pytest.mark.filterwarnings("ignore:get_pet:DeprecationWarning")

Connect = Callable[..., Client]
SUNSET = datetime(2030, 12, 5, tzinfo=UTC).timestamp()


@pytest.fixture
def connect(kind: Kind, server: Server, key: Key) -> Iterator[Connect]:
    """Creates clients of the shared server. Unless a test gives a key, theirs has limits that no test reaches."""
    made: list[Client] = []

    def connect(**options: Any) -> Client:
        made.append(Client(kind, **({"api_key": key.secret, "base_url": server.url("")} | options)))
        return made[-1]

    yield connect
    for client in made:
        client.__exit__()


def test_a_created_animal_can_be_fetched_and_listed(connect: Connect) -> None:
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
    ids = [pet.id for pet in client.list_pets(page_size=20)]
    assert ids == sorted(set(ids))
    assert len(ids) >= 45
    assert [len(page) for page in client.pages(page_size=20)][:2] == [20, 20]


def test_a_public_url_in_the_links_does_not_change_the_base_url(
    kind: Kind, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = tmp_path_factory.mktemp("public") / "data"
    with serving(data, "own", "--public-url", "https://pets.example") as server:
        server.fill(5)
        with Client(kind, api_key=server.key().secret, base_url=server.url("")) as client:
            assert [pet.id for pet in client.list_pets(page_size=2)] == [1, 2, 3, 4, 5]


def test_the_same_idempotency_key_adds_one_animal_and_no_other(connect: Connect) -> None:
    client = connect()
    first = client.create_pet("Rex", 7, idempotency_key=f"once-{client.kind}")
    assert client.create_pet("Rex", 7, idempotency_key=f"once-{client.kind}") == first
    with pytest.raises(IdempotencyMismatch):
        client.create_pet("Ada", 7, idempotency_key=f"once-{client.kind}")


def test_invalid_values_are_an_invalid_request_that_names_them(connect: Connect) -> None:
    with pytest.raises(InvalidRequest, match="name") as body:
        connect().create_pet(" ", 7)
    assert (body.value.code, body.value.status) == ("invalid_body", 400)
    with pytest.raises(InvalidRequest, match="limit") as parameter:
        next(connect().list_pets(page_size=101))
    assert parameter.value.code == "invalid_parameter"
    assert parameter.value.request_id


def test_strict_handling_refuses_nothing_that_the_client_sends(connect: Connect) -> None:
    client = connect(strict=True)
    rex = client.create_pet("Rex", 7, status="sold")
    assert client.get_pet(rex.id) == rex
    page = next(client.pages("sold", max_items=1))
    assert next(client.pages("sold", page_size=1, cursor=page.next_cursor, if_none_match=page.etag)) is not None


def test_unknown_animals_keys_paths_and_missing_scopes_have_their_errors(connect: Connect, server: Server) -> None:
    with pytest.raises(PetNotFound):
        connect().get_pet(2**62)
    with pytest.raises(Unauthorized):
        connect(api_key=server.key(environment="staging").secret).get_pet(1)
    with pytest.raises(InsufficientScope):
        connect(api_key=server.key(scopes=["read"]).secret).create_pet("Rex", 7)
    with pytest.raises(NotFound) as elsewhere:
        connect(base_url=server.url("/nowhere")).get_pet(1)
    assert elsewhere.value.code == "not_found"


def test_a_closed_port_is_a_failed_connection(connect: Connect) -> None:
    address = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(ConnectionFailed, match=address):
        connect(base_url=address).create_pet("Rex", 7)


def test_a_server_that_does_not_respond_is_timed_out(kind: Kind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        with Client(kind, base_url=address, timeout=0.3, max_retries=0) as client:
            began = time.monotonic()
            with pytest.raises(TimedOut):
                client.create_pet("Rex", 7)
            assert 0.25 < time.monotonic() - began < 30


def test_a_closed_client_raises_runtime_error(kind: Kind, server: Server, key: Key) -> None:
    with Client(kind, api_key=key.secret, base_url=server.url("")) as client:
        client.create_pet("Rex", 7)
        client.close()
        with pytest.raises(RuntimeError, match="closed"):
            client.create_pet("Rex", 7)


def test_a_list_is_resumed_at_a_cursor(connect: Connect, server: Server) -> None:
    server.fill(5, status="sold")
    client = connect()
    every = [pet.id for pet in client.list_pets("sold")]
    first = next(client.pages("sold", page_size=2))
    assert first.next_cursor is not None
    rest = [pet.id for pet in client.list_pets("sold", page_size=100, cursor=first.next_cursor)]
    assert [pet.id for pet in first] + rest == every
    with pytest.raises(InvalidRequest, match="cursor"):
        next(client.list_pets(cursor="mangled"))


def test_a_page_is_not_modified_until_an_animal_is_added(connect: Connect) -> None:
    client = connect()
    client.create_pet("Rex", 7, status="pending")
    pages = list(client.pages("pending"))
    last = pages[-1]
    cursor = pages[-2].next_cursor if len(pages) > 1 else None
    again = next(client.pages("pending", cursor=cursor, if_none_match=last))
    assert (again.pets, again.not_modified) == (last.pets, True)
    ada = client.create_pet("Ada", 7, status="pending")
    changed = list(client.pages("pending", cursor=cursor, if_none_match=again))
    assert not changed[0].not_modified
    assert ada in changed[-1]


def test_raw_responses_have_the_headers_of_the_service(connect: Connect) -> None:
    client = connect()
    created = client.finish(client.inner.with_raw_response.create_pet("Rex", 7))
    assert created.status == 201
    assert created.headers["Location"].endswith(f"/pets/{created.parse().id}")
    assert created.request_id
    page = client.finish(client.inner.with_raw_response.list_pets(page_size=1))
    unchanged = client.finish(client.inner.with_raw_response.list_pets(page_size=1, if_none_match=page.etag))
    assert (unchanged.status, unchanged.content, unchanged.etag) == (304, b"", page.etag)
    assert "X-RateLimit-Remaining" in unchanged.headers


def test_after_the_sunset_get_pet_is_gone_and_create_still_works(
    kind: Kind, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with serving(tmp_path_factory.mktemp("sunset") / "data") as server:
        secret = server.key().secret
        server.move_clock(SUNSET - time.time())
        with Client(kind, api_key=secret, base_url=server.url("")) as client:
            rex = client.create_pet("Rex", 7)
            assert rex in list(client.list_pets())
            with pytest.raises(Gone):
                client.get_pet(rex.id)
