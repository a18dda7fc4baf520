"""Requests without a valid key are limited per client address. Valid keys at that address are not affected."""

from collections.abc import Callable

import pytest

from harness.servers import Server
from harness.wire import Response, asking
from petstore.keys import mint

Start = Callable[..., Server]


def without_key(server: Server, times: int = 1, path: str = "/v1/pets", **headers: str) -> list[Response]:
    return asking(server.port, times, {name.replace("_", "-"): value for name, value in headers.items()}, path)


def test_address_is_limited_without_a_valid_key(start: Start) -> None:
    own = start("--address-per-minute", "5")
    responses = without_key(own, 3) + without_key(own, 4, Authorization=f"Bearer {mint('live')}")
    assert [response.status for response in responses] == [401] * 5 + [429] * 2
    assert [response.remaining for response in responses] == [4, 3, 2, 1, 0, 0, 0]
    assert {response.headers["x-ratelimit-limit"] for response in responses} == {"5"}
    assert len({response.headers["x-ratelimit-reset"] for response in responses}) == 1
    assert {response.code for response in responses[5:]} == {"rate_limit_exceeded"}
    assert 1 <= int(responses[-1].headers["retry-after"]) <= 60


@pytest.mark.on("sqlite-lmdb")
def test_valid_key_is_untouched_by_its_addresss_limit(start: Start) -> None:
    own = start("--address-per-minute", "5")
    key = own.key("free")
    assert without_key(own, 6)[-1].status == 429
    (response,) = asking(own.port, 1, key.headers)
    assert (response.status, response.headers["x-ratelimit-limit"], response.remaining) == (200, "60", 59)


def test_a_key_seen_valid_by_one_worker_is_served_by_all_during_a_flood(start: Start) -> None:
    own = start("--address-per-minute", "5", workers=2)
    key = own.key()
    assert asking(own.port, 1, key.headers)[0].status == 200
    for _ in range(20):  # each on a new connection, so that both workers get some
        flood = [without_key(own, 1, Authorization=f"Bearer {mint('live')}")[0].status for _ in range(15)]
        assert set(flood[-3:]) == {429}
        assert asking(own.port, 1, key.headers)[0].status == 200


@pytest.mark.on("sqlite-lmdb")
def test_address_is_free_again_after_a_minute(start: Start) -> None:
    own = start("--address-per-minute", "2")
    assert without_key(own, 3)[-1].status == 429
    own.move_clock(61)
    assert [response.status for response in without_key(own, 3)] == [401, 401, 429]


def test_environments_count_an_address_apart(start: Start) -> None:
    own = start("--address-per-minute", "2")
    assert without_key(own, 3)[-1].status == 429
    assert [response.status for response in without_key(own, 3, "/staging/v1/pets")] == [401, 401, 429]


@pytest.mark.on("sqlite-lmdb")
def test_default_is_600_a_minute(fresh: Server) -> None:
    responses = without_key(fresh, 601)
    assert [response.status for response in responses] == [401] * 600 + [429]


def test_documents_count_against_the_address_and_probes_do_not(start: Start) -> None:
    own = start("--address-per-minute", "5")
    expected = {"/v1/pets": 4, "/healthz": 4, "/livez": 4, "/readyz": 4, "/openapi.json": 3, "/nothing": 2, "/docs": 1}
    for path, remaining in expected.items():
        (response,) = without_key(own, 1, path)
        assert (response.headers["x-ratelimit-limit"], response.remaining) == ("5", remaining), path
    assert [without_key(own, 1, "/docs")[0].status for _ in range(2)] == [200, 429]
    assert without_key(own, 1, "/healthz")[0].status == 200


@pytest.mark.parametrize("hop", ["198.51.100.1:5678", "[2001:db8::1]:1", "[2001:db8::1]"])
def test_a_forwarded_address_may_have_a_port(start: Start, hop: str) -> None:
    own = start("--address-per-minute", "2", "--trusted-proxy", "127.0.0.1")
    assert without_key(own, 3, X_Forwarded_For=hop)[-1].status == 429
    assert without_key(own, X_Forwarded_For=hop.replace("1:5", "2:6"))[0].status == (429 if "[" in hop else 401)


def test_forwarded_for_is_not_used_by_default(start: Start) -> None:
    own = start("--address-per-minute", "2")
    statuses = [without_key(own, X_Forwarded_For=f"198.51.100.{i}")[0].status for i in range(3)]
    assert statuses == [401, 401, 429]


@pytest.mark.on("sqlite-lmdb")
def test_forwarded_for_is_not_used_from_a_proxy_that_is_not_named(start: Start) -> None:
    own = start("--address-per-minute", "2", "--trusted-proxy", "192.0.2.0/24")
    statuses = [without_key(own, X_Forwarded_For=f"198.51.100.{i}")[0].status for i in range(3)]
    assert statuses == [401, 401, 429]


def test_forwarded_for_is_used_from_a_trusted_proxy(start: Start) -> None:
    own = start("--address-per-minute", "2", "--trusted-proxy", "127.0.0.1")
    assert without_key(own, 3, X_Forwarded_For="198.51.100.1")[-1].status == 429
    assert without_key(own, X_Forwarded_For="198.51.100.2")[0].status == 401


@pytest.mark.on("sqlite-lmdb")
def test_nearest_address_that_is_not_a_trusted_proxy_is_the_client(start: Start) -> None:
    """Entries that the client forges, to the left of the proxy's entry, have no effect."""
    own = start("--address-per-minute", "2", "--trusted-proxy", "127.0.0.1", "--trusted-proxy", "10.0.0.0/8")
    hops = [f"203.0.113.{i}, 198.51.100.1, 10.1.2.3" for i in range(3)]
    assert [without_key(own, X_Forwarded_For=hop)[0].status for hop in hops] == [401, 401, 429]
