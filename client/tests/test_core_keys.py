"""What happens to an API key that is refused, renewed or about to expire."""

import asyncio
from collections.abc import Callable, Iterator

import httpx2
import pytest

from fakes import Client, Kind, Outcome, Service, created, error, limits
from petstore_client import Pet, RateLimited, Unauthorized
from petstore_client._keys import Secret
from staged import Stage, staged

DAY = 86_400
START = 1_800_000_000
REFUSED = error(401, "unauthorized", {"X-Request-Id": "r-1"})


def accepting(*secrets: str) -> Callable[[httpx2.Request], httpx2.Response]:
    """Returns a response that depends on the secret of the request."""
    valid = {f"Bearer {secret}" for secret in secrets}
    return lambda request: created() if request.headers["Authorization"] in valid else error(401, "unauthorized")


def secrets_of(service: Service) -> list[str]:
    return [request.headers["Authorization"].removeprefix("Bearer ") for request in service.requests]


class Vault:
    """Returns one secret after the other, and counts the calls."""

    def __init__(self, *secrets: str | Exception) -> None:
        self._secrets: Iterator[str | Exception] = iter(secrets)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        secret = next(self._secrets)
        if isinstance(secret, Exception):
            raise secret
        return secret

    async def load(self) -> str:
        await asyncio.sleep(0)
        return self()


@staged(max_connections=3)
async def test_after_a_401_all_waiting_calls_fail_with_the_same_error_and_nothing_is_sent(stage: Stage) -> None:
    first, *tasks = await stage.start("first", *map(str, range(9)))
    await stage.service.respond_to(0, created())
    for number in (1, 2, 3):
        stage.service.held[number].set_result(REFUSED)
    await stage.service.settle()
    for task in tasks:
        with pytest.raises(Unauthorized) as raised:
            await task
        assert raised.value.request_id == "r-1"
    assert (await first).name == "Rex"
    assert stage.sent == 4, "none of the calls in the queue was sent"
    await stage.advance(59.9)
    with pytest.raises(Unauthorized):
        await stage.client.create_pet("later", 7)
    assert stage.sent == 4


@staged()
async def test_a_minute_after_a_401_one_call_probes_because_the_key_may_work_again(stage: Stage) -> None:
    (task,) = await stage.start("a")
    await stage.service.respond_to(0, REFUSED)
    with pytest.raises(Unauthorized):
        await task
    await stage.advance(60)
    tasks = await stage.start(*"bcd")
    assert stage.sent == 2
    await stage.service.respond_to(1, REFUSED)
    for each in tasks:
        with pytest.raises(Unauthorized):
            await each
    await stage.advance(60)
    tasks = await stage.start(*"efg")
    assert stage.sent == 3
    await stage.service.respond_to(2, created())
    assert stage.sent == 5


def test_the_headers_of_a_401_say_nothing_about_the_key(kind: Kind) -> None:
    with Client(kind, Service(error(401, "unauthorized", limits(599, 600, window="address")))) as client:
        with pytest.raises(Unauthorized):
            client.create_pet("Rex", 7)
        assert client.rate_limit is None


def test_a_function_that_returns_the_key_is_called_on_first_use(kind: Kind) -> None:
    service, vault = Service(*[accepting("one")] * 2), Vault("one")
    with Client(kind, service, api_key=vault) as client:
        assert vault.calls == 0
        client.create_pet("Rex", 7)
        client.create_pet("Ada", 7)
    assert vault.calls == 1


def test_a_refused_call_is_repeated_with_a_new_key(kind: Kind) -> None:
    service, vault = Service(*[accepting("one")] * 1, *[accepting("two")] * 3), Vault(" one\n", "two")
    with Client(kind, service, api_key=vault) as client:
        client.create_pet("Rex", 7)
        client.create_pet("Ada", 7)
    assert secrets_of(service) == ["one", "one", "two"]
    assert len({request.headers["Idempotency-Key"] for request in service.requests[1:]}) == 1
    assert service.seconds == 0


def test_the_function_can_be_async_in_the_async_client() -> None:
    async def calls(vault: Vault, service: Service) -> list[Pet]:
        async with service.async_client(api_key=vault.load) as client:
            return await asyncio.gather(*(client.create_pet("Rex", 7) for _ in range(30)))

    service, vault = Service(*[accepting("one")] * 3, *[accepting("two")] * 100), Vault("one", "two")
    assert len(asyncio.run(calls(vault, service))) == 30
    assert vault.calls == 2


@staged(api_key=Vault("one", "two", "three"))
async def test_calls_that_were_in_flight_with_the_old_key_are_repeated_with_the_new_one(stage: Stage) -> None:
    tasks = await stage.start(*"abcde")
    await stage.service.respond_to(0, accepting("one"))
    for number in (1, 2, 3):
        await stage.service.respond_to(number, accepting("two"))
    assert stage.sent == 6, "one request probes with the new key"
    await stage.service.respond_to(5, accepting("two"))
    await stage.service.respond_to(4, accepting("two"))
    for number in range(6, 9):
        await stage.service.respond_to(number, accepting("two"))
    assert [(await task).name for task in tasks] == ["Rex"] * 5
    assert secrets_of(stage.service) == ["one"] * 4 + ["two", "one", "two", "two", "two"]


def test_a_key_that_is_still_refused_is_not_loaded_again_for_a_minute(kind: Kind) -> None:
    vault = Vault("one", "two", "two", "three")
    service = Service(*[accepting("one")] * 1, *[accepting("three")] * 10)
    with Client(kind, service, api_key=vault) as client:
        client.create_pet("Rex", 7)
        for _ in range(3):
            with pytest.raises(Unauthorized):
                client.create_pet("Ada", 7)
        assert (vault.calls, secrets_of(service)) == (2, ["one", "one", "two"])
        service.advance(60)
        with pytest.raises(Unauthorized):
            client.create_pet("Ada", 7)
        assert (vault.calls, secrets_of(service)[3:]) == (3, ["two"])
        service.advance(60)
        client.create_pet("Ada", 7)
        assert (vault.calls, secrets_of(service)[4:]) == (4, ["three"])


def test_a_function_that_returns_the_refused_key_again_does_not_cause_a_second_request(kind: Kind) -> None:
    service, vault = Service(*[accepting("two")] * 2), Vault("one", "one", "one")
    with Client(kind, service, api_key=vault) as client:
        with pytest.raises(Unauthorized):
            client.create_pet("Rex", 7)
        assert (vault.calls, len(service.requests)) == (2, 1)
        service.advance(60)
        service.outcomes = [created()]
        client.create_pet("Rex", 7)  # the suspended key works again
        assert vault.calls == 3


def test_an_exception_of_the_function_is_raised_on_first_use_and_the_next_call_tries_again(kind: Kind) -> None:
    service, vault = Service(created()), Vault(OSError("the vault is closed"), "one")
    with Client(kind, service, api_key=vault) as client:
        with pytest.raises(OSError, match="the vault is closed"):
            client.create_pet("Rex", 7)
        client.create_pet("Rex", 7)
    assert secrets_of(service) == ["one"]


def test_an_exception_of_the_function_after_a_401_is_the_cause_of_the_error(kind: Kind) -> None:
    service, vault = Service(REFUSED, created()), Vault("one", OSError("the vault is closed"), "two")
    with Client(kind, service, api_key=vault) as client:
        with pytest.raises(Unauthorized) as raised:
            client.create_pet("Rex", 7)
        assert isinstance(raised.value.__cause__, OSError)
        with pytest.raises(Unauthorized):
            client.create_pet("Rex", 7)
        assert vault.calls == 2
        service.advance(60)
        client.create_pet("Rex", 7)
    assert secrets_of(service) == ["one", "two"]


@pytest.mark.parametrize(("bad", "raised"), [("", ValueError), ("a\nsecret", ValueError), (b"secret", TypeError)])
def test_a_function_that_returns_no_key_is_an_error_that_does_not_show_it(
    kind: Kind, bad: str, raised: type[Exception]
) -> None:
    with Client(kind, Service(), api_key=Vault(bad)) as client, pytest.raises(raised, match="API key") as found:
        client.create_pet("Rex", 7)
    assert "secret" not in str(found.value)


def test_a_cancelled_call_that_was_loading_the_key_leaves_it_to_the_next_one() -> None:
    async def calls(service: Service) -> Pet:
        started = asyncio.Event()

        async def load() -> str:
            if not started.is_set():
                started.set()
                await asyncio.sleep(3600)
            return "one"

        async with service.async_client(api_key=load) as client:
            task = asyncio.create_task(client.create_pet("Rex", 7))
            await started.wait()
            task.cancel()
            return await client.create_pet("Rex", 7)

    assert asyncio.run(calls(Service(created()))).name == "Rex"


def test_another_key_has_its_own_limits_and_state(kind: Kind) -> None:
    service = Service(REFUSED, created(limits(5)), error(429, "rate_limit_exceeded", retry_after=3600), created())
    with Client(kind, service, total_timeout=10) as client:
        with pytest.raises(Unauthorized):
            client.create_pet("Rex", 7)
        other = client.inner.with_options(api_key="pets_live_other")
        client.finish(other.create_pet("Rex", 7))
        assert (client.rate_limit, other.rate_limit is None) == (None, False)
        with pytest.raises(RateLimited):
            client.finish(other.create_pet("Rex", 7))
        service.advance(60)
        client.create_pet("Rex", 7)
    assert secrets_of(service)[1:3] == ["pets_live_other"] * 2


def test_another_key_can_come_from_a_function(kind: Kind) -> None:
    service = Service(created())
    with Client(kind, service) as client:
        client.finish(client.inner.with_options(api_key=Vault("two")).create_pet("Rex", 7))
    assert secrets_of(service) == ["two"]


def expiring(seconds: float) -> Outcome:
    return created({"X-API-Key-Expires": str(int(START + seconds))})


def test_a_key_that_expires_soon_is_one_warning_a_day_in_the_log(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    """A Python warning would be an exception with `-W error`, and the created animal would be lost."""
    service = Service(*[expiring(14 * DAY), expiring(14 * DAY - 1)] * 2, *[expiring(14 * DAY)] * 4)
    with Client(kind, service) as client:
        for _ in range(4):
            client.create_pet("Rex", 7)
        assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
            ("WARNING", "the API key expires in 14.0 days, on 2027-01-29 07:59 UTC")
        ]
        service.advance(DAY - 1)
        client.create_pet("Rex", 7)
        assert len(caplog.records) == 1
        service.advance(1)
        client.create_pet("Rex", 7)
        assert "in 13.0 days" in caplog.records[-1].getMessage()
        other = client.inner.with_options(api_key="pets_live_other")
        client.finish(other.create_pet("Rex", 7))
        assert len(caplog.records) == 3, "once for each key"


def test_a_secret_has_a_repr_that_does_not_show_it() -> None:
    assert repr(Secret("pets_live_one")) == "[secure]"


@pytest.mark.parametrize("text", ["", "soon", "-5", "1e9", "9" * 400])
def test_an_expiry_that_is_not_a_time_is_ignored(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with Client("sync", Service(created({"X-API-Key-Expires": text}))) as client:
        client.create_pet("Rex", 7)
    assert caplog.records == []
