"""Live and staging have the same paths and share nothing else."""

from collections.abc import Callable

import httpx
import pytest

from harness.servers import Key, Server
from petstore.keys import ENVIRONMENTS, Environment
from petstore.plans import Limits
from tests.web.answers import PET, created, message_of, remaining

BASE: dict[Environment, str] = {"live": "/v1", "staging": "/staging/v1"}
OTHER: dict[Environment, Environment] = {"live": "staging", "staging": "live"}


@pytest.fixture(params=ENVIRONMENTS)
def environment(request: pytest.FixtureRequest) -> Environment:
    chosen: Environment = request.param
    return chosen


@pytest.fixture
def own(server: Server, environment: Environment) -> Key:
    return server.key(environment=environment)


@pytest.mark.parametrize("line", ["GET /pets", "POST /pets", "GET /pets/1", "GET /nothing", "DELETE /pets"])
def test_a_key_of_the_other_environment_is_401(
    server: Server, client: httpx.Client, environment: Environment, own: Key, line: str
) -> None:
    method, path = line.split()
    response = client.request(method, server.url(path, OTHER[environment]), headers=own.headers)
    assert f"belongs to the {environment} environment" in message_of(response, "unauthorized")


def test_both_have_the_same_paths(server: Server, client: httpx.Client, environment: Environment, own: Key) -> None:
    base = BASE[environment]
    response = client.post(server.url("/pets", environment), json=PET, headers=own.headers)
    pet = response.json()
    assert (response.status_code, response.headers["location"]) == (201, f"{base}/pets/{pet['id']}")
    found = client.get(server.origin + response.headers["location"], headers=own.headers)
    assert (found.status_code, found.json()) == (200, pet)
    assert f'<{base}/pets>; rel="successor-version"' in found.headers["link"]
    created(server, client, own)
    listed = client.get(server.url("/pets?limit=1", environment), headers=own.headers)
    assert listed.links["next"]["url"].startswith(f"{base}/pets?limit=1&cursor=")
    following = client.get(server.origin + listed.links["next"]["url"], headers=own.headers)
    assert following.status_code == 200
    assert following.json()[0]["id"] > listed.json()[0]["id"]


def test_animals_are_separate(fresh: Server, client: httpx.Client) -> None:
    keys = {environment: fresh.key(environment=environment) for environment in ENVIRONMENTS}

    def names(environment: Environment) -> list[str]:
        response = client.get(fresh.url("/pets", environment), headers=keys[environment].headers)
        return [pet["name"] for pet in response.json()]

    created(fresh, client, keys["live"], name="Live 1")
    assert (names("live"), names("staging")) == (["Live 1"], [])
    assert client.get(fresh.url("/pets/1", "staging"), headers=keys["staging"].headers).status_code == 404
    created(fresh, client, keys["staging"], name="Staging 1")
    assert (names("live"), names("staging")) == (["Live 1"], ["Staging 1"])


def test_counters_of_keys_are_separate(server: Server, client: httpx.Client) -> None:
    keys = {environment: server.key(limits=Limits(5, 100), environment=environment) for environment in ENVIRONMENTS}
    for _ in range(5):
        client.get(server.url("/pets"), headers=keys["live"].headers)
    assert client.get(server.url("/pets"), headers=keys["live"].headers).status_code == 429
    staged = client.get(server.url("/pets", "staging"), headers=keys["staging"].headers)
    assert (staged.status_code, remaining(staged)) == (200, 4)


@pytest.mark.on("sqlite-lmdb")
def test_counters_of_addresses_are_separate(start: Callable[..., Server], client: httpx.Client) -> None:
    own = start("--address-per-minute", "2")
    assert [client.get(own.url("/pets")).status_code for _ in range(3)] == [401, 401, 429]
    assert [client.get(own.url("/pets", "staging")).status_code for _ in range(3)] == [401, 401, 429]


def test_tags_change_only_with_their_own_environment(fresh: Server, client: httpx.Client) -> None:
    live, staging = fresh.key(), fresh.key(environment="staging")
    before = client.get(fresh.url("/pets", "staging"), headers=staging.headers).headers["etag"]
    created(fresh, client, live)
    known = {**staging.headers, "If-None-Match": before}
    assert client.get(fresh.url("/pets", "staging"), headers=known).status_code == 304
    created(fresh, client, staging)
    assert client.get(fresh.url("/pets", "staging"), headers=known).status_code == 200
