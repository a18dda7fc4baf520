"""The options of both clients: key, base URL, timeouts, the caller's HTTP client or transport, `with_options`."""

import asyncio
from typing import Any

import httpx
import pytest

from fakes import KEY, REX, Client, Clock, Kind, Service, http_error, http_response
from petstore_client import LIVE, STAGING, AsyncPetstore, Petstore, RateLimited, ServerError
from tests.servers import Key, Server


def make(kind: Kind, **options: Any) -> Petstore | AsyncPetstore:
    return AsyncPetstore(**options) if kind == "async" else Petstore(**options)


@pytest.mark.parametrize("bad", ["pets_live_\nX-Evil: 1", "pets_live_é", "pets live"])
def test_a_key_that_no_header_can_carry_is_a_value_error_that_does_not_show_it(kind: Kind, bad: str) -> None:
    with pytest.raises(ValueError) as raised:
        make(kind, api_key=bad)
    assert bad not in str(raised.value)


def test_a_missing_key_is_a_value_error(kind: Kind) -> None:
    with pytest.raises(ValueError, match="PETSTORE_API_KEY"):
        make(kind)


def test_key_and_base_url_come_from_the_environment_variables_unless_given(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PETSTORE_API_KEY", " pets_live_ofTheVariable\n")
    assert make(kind).base_url == LIVE
    monkeypatch.setenv("PETSTORE_BASE_URL", STAGING + "/")
    assert make(kind).base_url == STAGING
    assert repr(make(kind)) == f"<{'AsyncPetstore' if kind == 'async' else 'Petstore'} {STAGING}>"
    service = Service(http_response(201, REX), http_response(201, REX))
    for options in ({"api_key": None, "base_url": LIVE}, {"api_key": KEY, "base_url": LIVE}):
        with Client(kind, service, **options) as client:
            client.create_pet("Rex", 7)
    assert [request.headers["Authorization"] for request in service.requests] == [
        "Bearer pets_live_ofTheVariable",
        f"Bearer {KEY}",
    ]
    assert {request.url.path for request in service.requests} == {"/v1/pets"}


@pytest.mark.parametrize(
    "bad", [{"base_url": "ftp://x"}, {"max_retries": -1}, {"max_wait": -1}, {"timeout": 0}, {"connect_timeout": 0},
            {"max_wait": float("nan")}],
)  # fmt: skip
def test_an_argument_out_of_range_is_a_value_error(kind: Kind, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        make(kind, api_key=KEY, **bad)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("http://h:abc/v1", "Invalid port"),
        ("http://h:99999/v1", "65535"),
        ("http://a..b/v1", "not a valid URL"),
        ("http://" + "a" * 64 + "/v1", "not a valid URL"),
        ("http://h/\udcff", "not a valid URL"),
        ("http:///v1", "must have a host"),
        ("http://h/v1\n", "non-printable"),
        ("http://h/v1?x=1", "no query"),
        ("http://h/v1#x", "no fragment"),
        ("h/v1", "must start with http"),
    ],
)
def test_a_base_url_that_is_not_valid_is_a_value_error(kind: Kind, bad: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make(kind, api_key=KEY, base_url=bad)


@pytest.mark.parametrize("bad", ["http://ada:secret@h/v1", "http://ada@h/v1", "http://:secret@h/v1"])
def test_a_user_in_the_base_url_is_a_value_error_that_does_not_show_it(kind: Kind, bad: str) -> None:
    """httpx would send the user in place of the key."""
    with pytest.raises(ValueError, match="takes an API key") as raised:
        make(kind, api_key=KEY, base_url=bad)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("good", ["http://[::1]:8080/v1", "https://pets.example", "https://bücher.example/v1"])
def test_a_base_url_may_have_any_host(kind: Kind, good: str) -> None:
    assert make(kind, api_key=KEY, base_url=good).base_url == good


def test_a_custom_httpx_client_is_used_with_its_own_headers_and_left_open() -> None:
    service = Service(http_response(201, REX), http_response(200, REX))
    own = httpx.Client(transport=service.transport, headers={"X-Team": "pets"}, auth=("user", "password"))
    with Petstore(KEY, http_client=own) as client:
        client.create_pet("Rex", 7)
    own.get(LIVE)
    request, afterwards = service.requests
    assert request.headers["X-Team"] == "pets"
    assert request.headers["Authorization"] == f"Bearer {KEY}", "and not the auth of the httpx client"
    assert KEY not in str(afterwards.headers.raw), "the key does not stay in the httpx client"
    own.close()


async def _with_own_async_client(service: Service) -> bool:
    async with httpx.AsyncClient(transport=service.transport, headers={"X-Team": "pets"}) as own:
        async with AsyncPetstore(KEY, http_client=own) as client:
            await client.create_pet("Rex", 7)
        return own.is_closed


def test_a_custom_async_httpx_client_is_used_and_left_open() -> None:
    service = Service(http_response(201, REX))
    assert asyncio.run(_with_own_async_client(service)) is False
    assert service.requests[0].headers["X-Team"] == "pets"


def test_http_client_and_transport_together_are_a_value_error(kind: Kind) -> None:
    own: Any = httpx.AsyncClient() if kind == "async" else httpx.Client()
    with pytest.raises(ValueError, match="http_client or transport"):
        make(kind, api_key=KEY, http_client=own, transport=Service().transport)


def test_the_default_timeouts_are_5_seconds_to_connect_and_30_in_all(kind: Kind) -> None:
    service = Service(http_response(201, REX))
    with Client(kind, service) as client:
        client.create_pet("Rex", 7)
    timeouts = service.requests[0].extensions["timeout"]
    assert set(timeouts) == {"connect", "read", "write", "pool"}
    assert len(timeouts) == 4
    assert timeouts["connect"] == 5
    assert all(25 < timeouts.get(phase) <= 30 for phase in ("read", "write", "pool"))


def test_a_timeout_may_be_infinite(server: Server, key: Key) -> None:
    with Petstore(key.secret, base_url=server.url(""), timeout=float("inf"), connect_timeout=float("inf")) as store:
        assert store.create_pet("Rex", 1).name == "Rex"


def test_with_options_sets_max_retries_timeout_and_max_wait_for_one_call(kind: Kind) -> None:
    failure = http_error(500, "internal_error")
    late = http_error(503, "unavailable", {"Retry-After": "3"})
    service = Service(failure, late, failure, failure, failure)
    with Client(kind, service) as client:
        once = client.inner.with_options(max_retries=0, timeout=2)
        with pytest.raises(ServerError):
            client.finish(once.create_pet("Rex", 7))
        assert len(service.requests) == 1
        assert service.requests[0].extensions["timeout"]["read"] <= 2
        with pytest.raises(ServerError, match="unavailable"):
            client.finish(client.inner.with_options(max_wait=1).create_pet("Rex", 7))
        assert len(service.requests) == 2
        with pytest.raises(ServerError):
            client.create_pet("Rex", 7)
        assert len(service.requests) == 5, "the client itself has its own options still"
        assert service.requests[4].extensions["timeout"]["read"] > 25


def test_with_options_keeps_the_options_that_are_not_given(kind: Kind) -> None:
    service = Service(http_error(500, "internal_error"))
    with Client(kind, service, max_retries=0) as client, pytest.raises(ServerError):
        client.finish(client.inner.with_options(timeout=9).create_pet("Rex", 7))


def test_with_options_shares_connections_callbacks_and_the_pause(kind: Kind) -> None:
    refusal = http_error(429, "rate_limit_exceeded", {"Retry-After": "1000"})
    service = Service(refusal, http_response(201, REX))
    with Client(kind, service) as client:
        changed = client.inner.with_options(max_wait=2000)
        assert type(changed) is type(client.inner)
        assert changed.base_url == client.inner.base_url
        with pytest.raises(RateLimited):
            client.create_pet("Rex", 7)
        client.finish(changed.create_pet("Rex", 7))
        assert sum(client.clock.slept) > 1000
        assert [attempt.status for attempt in client.attempts] == [429, 201]
        assert [wait.reason for wait in client.waits] == ["rate_limit"]


@pytest.mark.parametrize("bad", [{"max_retries": -1}, {"max_wait": -0.5}, {"timeout": 0}])
def test_with_options_out_of_range_is_a_value_error(kind: Kind, bad: dict[str, Any]) -> None:
    with Client(kind, Service()) as client, pytest.raises(ValueError, match="must be"):
        client.inner.with_options(**bad)


def test_two_clients_of_one_process_do_not_return_together(kind: Kind) -> None:
    returned = []
    for _ in range(2):
        clock = Clock()
        service = Service(http_error(429, "rate_limit_exceeded", {"Retry-After": "41"}), http_response(201, REX))
        with Client(kind, service, clock) as client:
            client.create_pet("Rex", 7)
        returned.append(clock.now)
    assert abs(returned[0] - returned[1]) > 0.149
