"""The options of both clients: key, base URL, timeouts, the caller's HTTP client or transport, `with_options`."""

import asyncio
import socket
import time
from typing import Any

import httpx  # the predecessor of httpx2, whose objects the client refuses
import httpx2
import pytest

from fakes import KEY, REX, Client, Kind, Service, created, error, page, response
from harness.servers import Key, Server
from petstore_client import AsyncPetstore, InvalidRequest, Petstore, RateLimited, ServerError, TimedOut

LIVE = "http://127.0.0.1:8080/v1"  # the default
STAGING = "http://127.0.0.1:8080/staging/v1"


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
    service = Service(created(), created())
    for options in ({"api_key": None, "base_url": LIVE}, {"api_key": KEY, "base_url": LIVE}):
        with Client(kind, service, **options) as client:
            client.create_pet("Rex", 7)
    assert [request.headers["Authorization"] for request in service.requests] == [
        "Bearer pets_live_ofTheVariable",
        f"Bearer {KEY}",
    ]
    assert {request.url.path for request in service.requests} == {"/v1/pets"}


@pytest.mark.parametrize(
    "bad", [{"base_url": "ftp://x"}, {"max_connections": 0}, {"total_timeout": 0}, {"timeout": 0},
            {"total_timeout": float("nan")}, {"timeout": httpx2.Timeout(5, read=0)}],
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
        ("http://h/v1?x=1", "a query or a fragment"),
        ("http://h/v1#x", "a query or a fragment"),
        ("h/v1", "must start with http"),
    ],
)
def test_a_base_url_that_is_not_valid_is_a_value_error(kind: Kind, bad: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make(kind, api_key=KEY, base_url=bad)


@pytest.mark.parametrize("bad", ["http://ada:secret@h/v1", "http://ada@h/v1", "http://:secret@h/v1"])
def test_a_user_in_the_base_url_is_a_value_error_that_does_not_show_it(kind: Kind, bad: str) -> None:
    """httpx2 would send the user name and password instead of the key."""
    with pytest.raises(ValueError, match="use an API key") as raised:
        make(kind, api_key=KEY, base_url=bad)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("good", ["http://[::1]:8080/v1", "https://pets.example", "https://bücher.example/v1"])
def test_a_base_url_may_have_any_host(kind: Kind, good: str) -> None:
    assert make(kind, api_key=KEY, base_url=good).base_url == good


@pytest.mark.parametrize("good", ["http://localhost/v1", "http://127.0.0.2:9/v1", "http://pets.localhost/v1"])
def test_a_base_url_of_this_machine_may_be_unencrypted(kind: Kind, good: str) -> None:
    assert make(kind, api_key=KEY, base_url=good).base_url == good


@pytest.mark.parametrize("bad", ["http://pets.example/v1", "http://10.0.0.1/v1", "http://localhost.example/v1"])
def test_an_unencrypted_base_url_of_another_machine_must_be_allowed(kind: Kind, bad: str) -> None:
    with pytest.raises(ValueError, match="allow_http=True"):
        make(kind, api_key=KEY, base_url=bad)
    assert make(kind, api_key=KEY, base_url=bad, allow_http=True).base_url == bad


def test_a_custom_httpx_client_is_used_with_its_own_headers_and_left_open() -> None:
    service = Service(created(), response(200, REX))
    own = httpx2.Client(transport=service, headers={"X-Team": "pets"}, auth=("user", "password"))
    with Petstore(KEY, http_client=own) as client:
        client.create_pet("Rex", 7)
    own.get(LIVE)
    request, afterwards = service.requests
    assert request.headers["X-Team"] == "pets"
    assert request.headers["Authorization"] == f"Bearer {KEY}", "the httpx2 client's auth must not be sent"
    assert KEY not in str(afterwards.headers.raw), "the key must not stay in the httpx2 client"
    own.close()


async def _with_own_async_client(service: Service) -> bool:
    async with httpx2.AsyncClient(transport=service, headers={"X-Team": "pets"}) as own:
        async with AsyncPetstore(KEY, http_client=own) as client:
            await client.create_pet("Rex", 7)
        return own.is_closed


def test_a_custom_async_httpx_client_is_used_and_left_open() -> None:
    service = Service(created())
    assert asyncio.run(_with_own_async_client(service)) is False
    assert service.requests[0].headers["X-Team"] == "pets"


def test_http_client_and_transport_together_are_a_value_error(kind: Kind) -> None:
    own: Any = httpx2.AsyncClient() if kind == "async" else httpx2.Client()
    with pytest.raises(ValueError, match="http_client cannot be combined with transport"):
        make(kind, api_key=KEY, http_client=own, transport=Service())


@pytest.mark.parametrize("option", ["http_client", "transport", "timeout"])
def test_an_object_of_httpx_is_a_type_error_that_names_httpx2(kind: Kind, option: str) -> None:
    """httpx2 would fail on it with an empty AssertionError."""
    old: dict[str, Any] = {
        "http_client": httpx.AsyncClient() if kind == "async" else httpx.Client(),
        "transport": httpx.MockTransport(lambda request: httpx.Response(200)),
        "timeout": httpx.Timeout(5),
    }
    with pytest.raises(TypeError, match=rf"^{option} must be an httpx2\.\w+, not httpx\.\w+$"):
        make(kind, api_key=KEY, **{option: old[option]})


def test_the_default_timeouts_are_5_seconds_to_connect_and_30_in_all(kind: Kind) -> None:
    service = Service(created())
    with Client(kind, service) as client:
        client.create_pet("Rex", 7)
    timeouts = service.requests[0].extensions["timeout"]
    assert set(timeouts) == {"connect", "read", "write", "pool"}
    assert len(timeouts) == 4
    assert timeouts["connect"] == 5
    assert all(25 < timeouts.get(phase) <= 30 for phase in ("read", "write", "pool"))


def test_with_options_sets_the_timeouts_of_its_calls_only(kind: Kind) -> None:
    late = error(503, "unavailable", retry_after=3)
    service = Service(late, late, created(), late, created())
    with Client(kind, service) as client:
        with pytest.raises(ServerError):
            client.finish(client.inner.with_options(total_timeout=1, timeout=0.5).create_pet("Rex", 7))
        assert service.requests[0].extensions["timeout"]["read"] <= 0.5
        service.advance(4)
        client.create_pet("Rex", 7)
        assert service.requests[2].extensions["timeout"]["read"] > 25, "the client must keep its own options"
        client.finish(client.inner.with_options(timeout=2).with_options(strict=True).create_pet("Rex", 7))
        assert service.requests[4].extensions["timeout"]["read"] <= 2, "an option that is not given is kept"


def test_with_options_shares_connections_callbacks_and_the_pause(kind: Kind) -> None:
    service = Service(error(429, "rate_limit_exceeded", retry_after=1000), created())
    with Client(kind, service) as client:
        changed = client.inner.with_options(total_timeout=None)
        assert type(changed) is type(client.inner)
        assert changed.base_url == client.inner.base_url
        with pytest.raises(RateLimited):
            client.create_pet("Rex", 7)
        client.finish(changed.create_pet("Rex", 7))
        assert service.waits == [1004]
        assert [attempt.status for attempt in client.attempts] == [429, 201]
        assert [wait.reason for wait in client.waits] == ["rate_limit"]


@pytest.mark.parametrize("bad", [{"total_timeout": -0.5}, {"timeout": 0}, {"timeout": httpx2.Timeout(0)}])
def test_with_options_out_of_range_is_a_value_error(kind: Kind, bad: dict[str, Any]) -> None:
    with Client(kind, Service()) as client, pytest.raises(ValueError, match="must be"):
        client.inner.with_options(**bad)


def test_default_headers_are_sent_with_every_request_and_with_options_adds_its_own(kind: Kind) -> None:
    service = Service(*[created()] * 2, page(1))
    with Client(kind, service, default_headers={"X-Team": "pets", "user-agent": "tour/1.0"}) as client:
        client.create_pet("Rex", 7)
        changed = client.inner.with_options(headers={"Prefer": "delay=1", "x-team": "vets"})
        client.finish(changed.with_options(total_timeout=9).create_pet("Rex", 7))
        next(client.list_pets())
    sent = [[request.headers.get(name) for name in ("X-Team", "Prefer")] for request in service.requests]
    assert sent == [["pets", None], ["vets", "delay=1"], ["pets", None]]
    assert {request.headers["User-Agent"] for request in service.requests} == {"tour/1.0"}
    assert {request.headers["Authorization"] for request in service.requests} == {f"Bearer {KEY}"}


@pytest.mark.parametrize("bad", [{"Authorization": "Bearer x"}, {"X-Team": "a\nb"}])
def test_a_header_that_cannot_be_sent_is_a_value_error(kind: Kind, bad: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="header"):
        make(kind, api_key=KEY, default_headers=bad)
    with Client(kind, Service()) as client, pytest.raises(ValueError, match="header"):
        client.inner.with_options(headers=bad)


def timeouts_sent(kind: Kind, timeout: Any) -> list[dict[str, float]]:
    """Returns the timeouts of two requests, one with `timeout` from the client and one from `with_options`."""
    service = Service(created(), created())
    with Client(kind, service, timeout=timeout, total_timeout=None) as client:
        client.create_pet("Rex", 7)
    with Client(kind, service, total_timeout=None) as client:
        client.finish(client.inner.with_options(timeout=timeout).create_pet("Rex", 7))
    return [dict(request.extensions["timeout"]) for request in service.requests]


def test_an_httpx2_timeout_is_for_each_phase(kind: Kind) -> None:
    first, second = timeouts_sent(kind, httpx2.Timeout(connect=1, read=2, write=3, pool=None))
    assert first == second == {"connect": 1, "read": 2, "write": 3, "pool": 1e6}


def test_timeout_none_is_no_timeout_but_for_connecting(kind: Kind) -> None:
    assert timeouts_sent(kind, None) == [{"connect": 5, "read": 1e6, "write": 1e6, "pool": 1e6}] * 2


@pytest.mark.parametrize("timeout", [30, None, httpx2.Timeout(30)])
def test_no_attempt_may_take_longer_than_the_rest_of_total_timeout(kind: Kind, timeout: Any) -> None:
    service = Service(error(503, "unavailable", retry_after=6), created())
    with Client(kind, service, timeout=timeout, total_timeout=10) as client:
        client.create_pet("Rex", 7)
    first, second = (dict(request.extensions["timeout"]) for request in service.requests)
    assert all(9 < seconds <= 10 for phase, seconds in first.items() if phase != "connect")
    assert all(2.5 < seconds <= 4 for seconds in second.values()), "10 s less the wait of 6.3 s"


def test_total_timeout_ends_a_call_to_a_server_that_does_not_respond(kind: Kind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        with Client(kind, base_url=address, timeout=None, total_timeout=0.3) as client:
            began = time.monotonic()
            with pytest.raises(TimedOut):
                client.create_pet("Rex", 7)
            assert 0.25 < time.monotonic() - began < 30
        assert len(client.attempts) == 1, "no time is left for a retry"


def test_total_timeout_is_for_each_page_of_a_list(kind: Kind) -> None:
    late = error(503, "unavailable", retry_after=6)
    service = Service(late, page(1, "x"), late, page(1, "y"), late, late)
    with Client(kind, service, total_timeout=10) as client:
        pets = client.list_pets()
        assert [next(pets).id, next(pets).id] == [1, 1]
        assert service.seconds > 12
        with pytest.raises(ServerError):
            next(pets)
    assert len(service.requests) == 6, "the last page had one retry: a second wait would exceed total_timeout"


def test_strict_asks_for_strict_handling(kind: Kind) -> None:
    service = Service(*[created()] * 5)
    with Client(kind, service, strict=True, default_headers={"Prefer": "delay=1"}) as client:
        client.create_pet("Rex", 7)
        client.finish(client.inner.with_options(timeout=9).create_pet("Rex", 7))
        client.finish(client.inner.with_options(strict=False).create_pet("Rex", 7))
    with Client(kind, service) as client:
        client.create_pet("Rex", 7)
        client.finish(client.inner.with_options(strict=True).create_pet("Rex", 7))
    assert [request.headers.get("Prefer") for request in service.requests] == [
        "handling=strict, delay=1",
        "handling=strict, delay=1",
        "delay=1",
        None,
        "handling=strict",
    ]


def test_requests_with_each_kind_of_timeout_reach_the_service(kind: Kind, server: Server, key: Key) -> None:
    with Client(kind, api_key=key.secret, base_url=server.url("")) as client:
        for timeout in (None, httpx2.Timeout(None), httpx2.Timeout(9, read=None), 9, float("inf")):
            with pytest.raises(InvalidRequest):
                client.finish(client.inner.with_options(timeout=timeout).create_pet("", 1))


def test_an_httpx_timeout_ends_the_wait_for_a_server_that_does_not_respond(kind: Kind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        with Client(kind, base_url=address, timeout=httpx2.Timeout(None, read=0.3), total_timeout=0.5) as client:
            began = time.monotonic()
            with pytest.raises(TimedOut):
                client.create_pet("Rex", 7)
            assert 0.25 < time.monotonic() - began < 30
