"""The options of both clients: the key, the address, the timeouts, an HTTP client or a transport of the caller's."""

import asyncio
from typing import Any

import httpx
import pytest

from fakes import KEY, REX, Client, Kind, Service, response
from petstore_client import LIVE, STAGING, AsyncPetstore, Petstore


@pytest.mark.parametrize("bad", ["pets_live_\nX-Evil: 1", "pets_live_é", "pets live"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(kind: Kind, bad: str) -> None:
    with pytest.raises(ValueError) as raised:
        make(kind, api_key=bad)
    assert bad not in str(raised.value)


def make(kind: Kind, **options: Any) -> Petstore | AsyncPetstore:
    return AsyncPetstore(**options) if kind == "asyncio" else Petstore(**options)


def test_without_a_key_there_is_no_client(kind: Kind) -> None:
    with pytest.raises(ValueError, match="PETSTORE_API_KEY"):
        make(kind)


def test_key_and_address_come_from_variables_unless_they_are_given(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PETSTORE_API_KEY", " pets_live_ofTheVariable\n")
    assert make(kind).base_url == LIVE
    monkeypatch.setenv("PETSTORE_BASE_URL", STAGING + "/")
    assert make(kind).base_url == STAGING
    assert repr(make(kind)) == f"<{'AsyncPetstore' if kind == 'asyncio' else 'Petstore'} {STAGING}>"
    service = Service(response(201, REX), response(201, REX))
    for options in ({"api_key": None, "base_url": LIVE}, {"api_key": KEY, "base_url": LIVE}):
        with Client(kind, service, **options) as client:
            client.create_pet("Rex", 7)
    assert [request.headers["Authorization"] for request in service.requests] == [
        "Bearer pets_live_ofTheVariable",
        f"Bearer {KEY}",
    ]
    assert {request.url.path for request in service.requests} == {"/v1/pets"}


@pytest.mark.parametrize(
    "bad", [{"base_url": "ftp://x"}, {"retries": -1}, {"max_wait": -1}, {"timeout": 0}, {"connect_timeout": 0},
            {"max_wait": float("nan")}],
)  # fmt: skip
def test_an_argument_out_of_range_is_refused(kind: Kind, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        make(kind, api_key=KEY, **bad)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("http://h:abc/v1", "Invalid port"),
        ("http://h:99999/v1", "65535"),
        ("http://a..b/v1", "no address"),
        ("http://" + "a" * 64 + "/v1", "no address"),
        ("http://h/\udcff", "no address"),
        ("http:///v1", "must have a host"),
        ("http://h/v1\n", "non-printable"),
        ("http://h/v1?x=1", "no query"),
        ("http://h/v1#x", "no fragment"),
        ("h/v1", "must start with http"),
    ],
)
def test_a_base_url_that_no_request_can_be_sent_to_is_refused(kind: Kind, bad: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make(kind, api_key=KEY, base_url=bad)


@pytest.mark.parametrize("bad", ["http://ada:secret@h/v1", "http://ada@h/v1", "http://:secret@h/v1"])
def test_a_user_in_the_base_url_is_refused_without_showing_it(kind: Kind, bad: str) -> None:
    """It would be sent in place of the key."""
    with pytest.raises(ValueError, match="takes an API key") as raised:
        make(kind, api_key=KEY, base_url=bad)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("good", ["http://[::1]:8080/v1", "https://pets.example", "https://bücher.example/v1"])
def test_a_base_url_may_be_any_address(kind: Kind, good: str) -> None:
    assert make(kind, api_key=KEY, base_url=good).base_url == good


def test_a_custom_httpx_client_is_used_with_its_own_headers_and_left_open() -> None:
    service = Service(response(201, REX), response(200, REX))
    own = httpx.Client(transport=service.transport, headers={"X-Team": "pets"}, auth=("user", "password"))
    with Petstore(KEY, http_client=own) as client:
        client.create_pet("Rex", 7)
    own.get(LIVE)
    request, afterwards = service.requests
    assert request.headers["X-Team"] == "pets"
    assert request.headers["Authorization"] == f"Bearer {KEY}", "and not the client's own auth"
    assert KEY not in str(afterwards.headers.raw), "the key is not left behind in it"
    own.close()


async def _with_own_async_client(service: Service) -> bool:
    async with httpx.AsyncClient(transport=service.transport, headers={"X-Team": "pets"}) as own:
        async with AsyncPetstore(KEY, http_client=own) as client:
            await client.create_pet("Rex", 7)
        return own.is_closed


def test_a_custom_async_httpx_client_is_used_and_left_open() -> None:
    service = Service(response(201, REX))
    assert asyncio.run(_with_own_async_client(service)) is False
    assert service.requests[0].headers["X-Team"] == "pets"


def test_a_client_and_a_transport_are_one_too_many(kind: Kind) -> None:
    own: Any = httpx.AsyncClient() if kind == "asyncio" else httpx.Client()
    with pytest.raises(ValueError, match="http_client or transport"):
        make(kind, api_key=KEY, http_client=own, transport=Service().transport)


def test_timeouts_are_5_seconds_to_connect_and_30_in_all(kind: Kind) -> None:
    service = Service(response(201, REX))
    with Client(kind, service) as client:
        client.create_pet("Rex", 7)
    timeouts = service.requests[0].extensions["timeout"]
    assert set(timeouts) == {"connect", "read", "write", "pool"}
    assert len(timeouts) == 4
    assert timeouts["connect"] == 5
    assert all(25 < timeouts.get(phase) <= 30 for phase in ("read", "write", "pool"))
