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
    InsufficientScope,
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


def test_a_public_url_in_the_links_does_not_change_the_base_url(
    kind: Kind, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = tmp_path_factory.mktemp("public") / "data"
    with serving(data, "own", "--public-url", "https://pets.example") as server:
        server.fill(5)
        with Client(kind, api_key=server.key().secret, base_url=server.url("")) as client:
            assert [pet.id for pet in client.list_pets(page_size=2)] == [1, 2, 3, 4, 5]


def test_strict_handling_refuses_nothing_that_the_client_sends(connect: Connect) -> None:
    client = connect(strict=True)
    rex = client.create_pet("Rex", 7, status="sold")
    assert client.get_pet(rex.id) == rex
    page = next(client.pages("sold", max_items=1))
    assert next(client.pages("sold", page_size=1, cursor=page.next_cursor)) is not None


def test_a_key_of_the_other_environment_and_a_missing_scope_have_their_errors(connect: Connect, server: Server) -> None:
    with pytest.raises(Unauthorized):
        connect(api_key=server.key(environment="staging").secret).get_pet(1)
    with pytest.raises(InsufficientScope):
        connect(api_key=server.key(scopes=["read"]).secret).create_pet("Rex", 7)


def test_a_closed_port_is_a_failed_connection_after_10_seconds(connect: Connect) -> None:
    address = f"http://127.0.0.1:{free_port()}/v1"
    client = connect(base_url=address)
    began = time.monotonic()
    with pytest.raises(ConnectionFailed, match=address):
        client.create_pet("Rex", 7)
    assert time.monotonic() - began < 30
    assert len(client.attempts) >= 4


def test_a_server_that_does_not_respond_is_timed_out(kind: Kind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        with Client(kind, base_url=address, timeout=0.3, total_timeout=0.4) as client:
            began = time.monotonic()
            with pytest.raises(TimedOut):
                client.create_pet("Rex", 7)
            assert 0.25 < time.monotonic() - began < 30


def test_a_raw_response_has_the_headers_of_the_service(connect: Connect) -> None:
    client = connect()
    created = client.finish(client.inner.with_raw_response.create_pet("Rex", 7))
    assert created.status == 201
    assert created.headers["Location"].endswith(f"/pets/{created.parse().id}")
    assert created.request_id
    assert "X-RateLimit-Remaining" in created.headers
    etag = client.finish(client.inner.with_raw_response.list_pets(page_size=1)).headers["ETag"]
    conditional = client.inner.with_options(headers={"If-None-Match": etag}).with_raw_response
    unchanged = client.finish(conditional.list_pets(page_size=1))
    assert (unchanged.status, unchanged.content) == (304, b"")


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
