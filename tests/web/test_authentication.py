"""API keys as clients see them: which are accepted, which are refused, and that refusals reveal nothing."""

import time
from collections.abc import Awaitable, Callable

import httpx
import pytest

from harness.servers import Key, Server
from harness.stores import BY
from petstore.audit import Actor
from petstore.keys import KeyChanges, checksum, mint, new_key
from petstore.plans import Limits
from petstore.store.keys import Keys
from tests.web.answers import PET, ask, message_of, remaining

CHALLENGE = 'Bearer realm="petstore"'
INVALID_TOKEN = 'Bearer realm="petstore", error="invalid_token"'

# Headers that are sent instead of `Authorization: Bearer <key>`.
BAD_CREDENTIALS: dict[str, Callable[[str], list[tuple[bytes, bytes]]]] = {
    "basic": lambda secret: [(b"Authorization", b"Basic dXNlcjpwYXNz")],
    "basic with the key": lambda secret: [(b"Authorization", b"Basic " + secret.encode())],
    "the key without a scheme": lambda secret: [(b"Authorization", secret.encode())],
    "scheme without a key": lambda secret: [(b"Authorization", b"Bearer")],
    "scheme and key without a space": lambda secret: [(b"Authorization", b"Bearer" + secret.encode())],
    "non-ascii": lambda secret: [(b"Authorization", "Bearer pets_live_é".encode())],
    "non-ascii after the key": lambda secret: [(b"Authorization", f"Bearer {secret}é".encode())],
    "10 KB": lambda secret: [(b"Authorization", b"Bearer " + b"x" * 10_240)],
    "10 KB that begin with the key": lambda secret: [(b"Authorization", b"Bearer " + secret.encode() + b"x" * 10_240)],
    "wrong checksum": lambda secret: [(b"Authorization", b"Bearer " + _with_wrong_checksum(secret).encode())],
    "unknown": lambda secret: [(b"Authorization", b"Bearer " + mint("live").encode())],
    "other case": lambda secret: [(b"Authorization", b"Bearer " + secret.swapcase().encode())],
    "wrong prefix, right checksum": lambda secret: [
        (b"Authorization", b"Bearer " + _with_prefix("pets_prod_").encode())
    ],
    "two keys in one header": lambda secret: [(b"Authorization", f"Bearer {secret}, Bearer {secret}".encode())],
    "the key twice": lambda secret: [(b"Authorization", b"Bearer " + secret.encode())] * 2,
    "the key and basic": lambda secret: [
        (b"Authorization", b"Bearer " + secret.encode()),
        (b"Authorization", b"Basic dXNlcjpwYXNz"),
    ],
    "the key and an empty one": lambda secret: [
        (b"Authorization", b"Bearer " + secret.encode()),
        (b"Authorization", b""),
    ],
    "the key and a non-ascii one": lambda secret: [
        (b"Authorization", b"Bearer " + secret.encode()),
        (b"Authorization", "Bearer é".encode()),
    ],
}


def _with_wrong_checksum(secret: str) -> str:
    return secret[:-1] + ("0" if secret[-1] != "0" else "1")


def _with_prefix(prefix: str) -> str:
    body = prefix + "a" * 30
    return body + checksum(body)


@pytest.fixture
def reference(server: Server, client: httpx.Client) -> bytes:
    """The body of the response to a request without credentials."""
    response = client.get(server.url("/pets"))
    message_of(response, "unauthorized")
    return response.content


@pytest.mark.parametrize("name", BAD_CREDENTIALS)
def test_a_bad_credential_is_401_with_invalid_token(server: Server, key: Key, client: httpx.Client, name: str) -> None:
    response = client.get(server.url("/pets"), headers=BAD_CREDENTIALS[name](key.secret))
    message_of(response, "unauthorized")
    assert response.headers.get_list("www-authenticate") == [INVALID_TOKEN]


def _hint(server: Server, client: httpx.Client, **headers: str) -> str:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return message_of(client.get(server.url("/pets"), headers=given), "unauthorized")


def test_a_401_teaches_from_the_form_of_what_was_sent(server: Server, key: Key, client: httpx.Client) -> None:
    assert "Send an API key as Authorization: Bearer" in _hint(server, client)
    assert "not as X-API-Key" in _hint(server, client, X_API_Key=key.secret)
    staging = f"Bearer {mint('staging')}"
    assert "belongs to the staging environment" in _hint(server, client, Authorization=staging)
    mistyped = f"Bearer {_with_wrong_checksum(key.secret)}"
    assert "checksum does not match" in _hint(server, client, Authorization=mistyped)
    assert _hint(server, client, Authorization=f"Bearer {mint('live')}") == "The API key is not valid."


@pytest.mark.parametrize(
    "name", ["X-API-Key", "Api-Key", "Proxy-Authorization", "X-Authorization", "Cookie", "Authorization2"]
)
@pytest.mark.parametrize("form", ["Bearer {}", "{}"])
def test_a_key_in_another_header_is_401(
    server: Server, key: Key, client: httpx.Client, reference: bytes, name: str, form: str
) -> None:
    response = client.get(server.url("/pets"), headers={name: form.format(key.secret)})
    assert response.status_code == 401
    assert name == "X-API-Key" or response.content == reference


@pytest.mark.parametrize("name", ["access_token", "api_key", "key", "Authorization", "token"])
def test_a_key_in_the_query_is_401(server: Server, key: Key, client: httpx.Client, reference: bytes, name: str) -> None:
    response = client.get(server.url("/pets"), params={name: key.secret})
    assert (response.status_code, response.content) == (401, reference)


def test_an_empty_authorization_is_401_with_the_same_body(
    server: Server, client: httpx.Client, reference: bytes
) -> None:
    response = client.get(server.url("/pets"), headers={"Authorization": ""})
    assert (response.status_code, response.content) == (401, reference)
    assert response.headers["www-authenticate"].startswith(CHALLENGE)


def test_revoked_and_expired_keys_get_the_same_body_as_unknown_ones(server: Server, client: httpx.Client) -> None:
    revoked = server.key()
    act(server, revoked, Keys.revoke)
    bodies = set()
    for secret in (revoked.secret, server.key(expires=time.time() - 1).secret, mint("live")):
        response = client.get(server.url("/pets"), headers={"Authorization": f"Bearer {secret}"})
        message_of(response, "unauthorized")
        assert response.headers.get_list("www-authenticate") == [INVALID_TOKEN]
        bodies.add(response.content)
    assert len(bodies) == 1


def test_refusals_differ_in_no_header_but_their_number_and_counter(server: Server, client: httpx.Client) -> None:
    """A 401 must not reveal whether a guessed key has ever existed."""
    revoked = server.key()
    act(server, revoked, Keys.revoke)
    seen = set()
    for secret in (revoked.secret, server.key(expires=time.time() - 1).secret, mint("live")):
        response = client.get(server.url("/pets"), headers={"Authorization": f"Bearer {secret}"})
        varying = {"date", "x-request-id", "x-ratelimit-remaining", "x-ratelimit-reset"}
        seen.add(tuple(sorted((n, v) for n, v in response.headers.multi_items() if n not in varying)))
    assert len(seen) == 1


def test_a_401_does_not_touch_the_counters_of_the_key(server: Server, client: httpx.Client) -> None:
    key = server.key(limits=Limits(10, 1_000))
    assert remaining(client.get(server.url("/pets"), headers=key.headers)) == 9
    for name in (
        "the key twice",
        "the key and basic",
        "wrong checksum",
        "two keys in one header",
        "basic with the key",
    ):
        assert client.get(server.url("/pets"), headers=BAD_CREDENTIALS[name](key.secret)).status_code == 401, name
    assert client.get(server.url("/pets", "staging"), headers=key.headers).status_code == 401
    assert client.get(server.url("/pets"), params={"access_token": key.secret}).status_code == 401
    new = rotated(server, key, old_until=time.time())
    assert client.get(server.url("/pets"), headers=key.headers).status_code == 401
    assert remaining(client.get(server.url("/pets"), headers=new.headers)) == 8


def test_a_401_carries_the_limit_of_the_address(start: Callable[..., Server], client: httpx.Client) -> None:
    own = start("--address-per-minute", "7")
    response = client.get(own.url("/pets"))
    assert (response.status_code, response.headers["x-ratelimit-limit"], remaining(response)) == (401, "7", 6)


# Scopes


def test_a_request_without_the_scope_counts(server: Server, client: httpx.Client) -> None:
    key = server.key(scopes=["read"], limits=Limits(10, 1_000))
    assert remaining(client.post(server.url("/pets"), json=PET, headers=key.headers)) == 9


# The lifetime of a key


@pytest.mark.on("sqlite-lmdb")
def test_a_key_works_until_it_expires_and_not_after(fresh: Server, client: httpx.Client) -> None:
    key = fresh.key(expires=time.time() + 3_600)
    fresh.move_clock(3_500)
    assert client.get(fresh.url("/pets"), headers=key.headers).status_code == 200
    fresh.move_clock(3_600)
    assert client.get(fresh.url("/pets"), headers=key.headers).status_code == 401


def test_rotation_without_overlap_ends_the_old_secret_at_once(server: Server, key: Key, client: httpx.Client) -> None:
    assert client.get(server.url("/pets"), headers=key.headers).status_code == 200
    new = rotated(server, key, old_until=time.time())
    assert client.get(server.url("/pets"), headers=key.headers).status_code == 401
    assert client.get(server.url("/pets"), headers=new.headers).status_code == 200


def test_rotation_with_overlap_keeps_the_old_secret_for_that_long(fresh: Server, client: httpx.Client) -> None:
    key = fresh.key()
    new = rotated(fresh, key, old_until=time.time() + 600)
    for secret in (key, new):
        assert client.get(fresh.url("/pets"), headers=secret.headers).status_code == 200
    fresh.move_clock(500)
    assert client.get(fresh.url("/pets"), headers=key.headers).status_code == 200
    fresh.move_clock(600)
    assert client.get(fresh.url("/pets"), headers=key.headers).status_code == 401
    assert client.get(fresh.url("/pets"), headers=new.headers).status_code == 200


def test_suspension_during_the_overlap_stops_both_secrets_until_the_key_is_resumed(
    fresh: Server, client: httpx.Client
) -> None:
    key = fresh.key()
    new = rotated(fresh, key, old_until=time.time() + 600)

    def statuses() -> list[int]:
        return [client.get(fresh.url("/pets"), headers=secret.headers).status_code for secret in (key, new)]

    assert statuses() == [200, 200]
    act(fresh, key, Keys.suspend)
    assert statuses() == [401, 401]
    fresh.move_clock(500)
    assert statuses() == [401, 401]
    act(fresh, key, Keys.resume)
    assert statuses() == [200, 200]
    fresh.move_clock(600)
    assert statuses() == [401, 200]
    act(fresh, key, Keys.suspend)
    act(fresh, key, Keys.resume)
    assert statuses() == [401, 200]


def test_both_secrets_of_a_rotated_key_share_its_counters(server: Server, client: httpx.Client) -> None:
    key = server.key(limits=Limits(10, 1_000))
    assert remaining(client.get(server.url("/pets"), headers=key.headers)) == 9
    new = rotated(server, key, old_until=time.time() + 600)
    assert remaining(client.get(server.url("/pets"), headers=new.headers)) == 8
    assert remaining(client.get(server.url("/pets"), headers=key.headers)) == 7


def test_revocation_holds_from_the_next_request_on(server: Server, client: httpx.Client) -> None:
    for _ in range(5):
        key = server.key()
        assert client.get(server.url("/pets"), headers=key.headers).status_code == 200
        act(server, key, Keys.revoke)
        assert client.get(server.url("/pets"), headers=key.headers).status_code == 401


def test_revocation_ends_both_secrets_of_a_rotated_key(server: Server, key: Key, client: httpx.Client) -> None:
    new = rotated(server, key, old_until=time.time() + 600)
    act(server, key, Keys.revoke)
    for secret in (key, new):
        assert client.get(server.url("/pets"), headers=secret.headers).status_code == 401


def test_a_new_key_works_at_once(server: Server, client: httpx.Client) -> None:
    secret = mint("live")
    unknown = {"Authorization": f"Bearer {secret}"}
    assert client.get(server.url("/pets"), headers=unknown).status_code == 401
    record = new_key("live", "free", now=time.time())
    server.act(lambda backends: backends.stores["live"].keys.create(record, secret, BY))
    assert client.get(server.url("/pets"), headers=unknown).status_code == 200


def test_white_space_around_the_credential_is_not_part_of_it(server: Server, key: Key) -> None:
    answer = ask(server, "GET /v1/pets", f"Authorization: \t Bearer {key.secret} \t ")
    assert answer.status == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEARER"])
def test_the_scheme_is_not_case_sensitive(server: Server, key: Key, scheme: str) -> None:
    assert ask(server, "GET /v1/pets", f"Authorization: {scheme} {key.secret}").status == 200


def rotated(server: Server, key: Key, old_until: float) -> Key:
    secret, by = mint(key.record.environment), Actor("a test", time.time())
    keys = key.record.environment
    server.act(lambda backends: backends.stores[keys].keys.rotate(key.id, secret, 1, max(0, old_until - by.at), by))
    return Key(key.record, secret)


def update(server: Server, key: Key, changes: KeyChanges) -> None:
    server.act(lambda backends: backends.stores[key.record.environment].keys.update(key.id, changes, BY))


def act(server: Server, key: Key, each: Callable[[Keys, str, Actor], Awaitable[object]]) -> None:
    server.act(lambda backends: each(backends.stores[key.record.environment].keys, key.id, BY))
