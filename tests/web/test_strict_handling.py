"""`Prefer: handling=strict` refuses unknown parameters and members, on live and on staging."""

import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from harness.in_process import NOW, Running, pairs, request, use_app
from harness.stores import BY
from petstore.keys import mint, new_key
from petstore.operations import OPERATIONS, Operation
from petstore.pets import NewPet
from petstore.plans import Limits
from petstore.web.preferences import PREFER_MAX, Preferences, parse_preferences
from petstore.web.replies import Reply
from petstore.web.requests import LENGTH_SHOWN
from tests.interface import sample

STRICT = "handling=strict"
REX = {"name": "Rex", "categoryId": 1}

Ask = Callable[..., Awaitable[Reply]]


def use_environment(data: Path, environment: Any, work: Callable[[Running, Ask], Awaitable[None]]) -> None:
    """Calls `work` with an app and a function that sends requests with a key of this environment."""

    async def inside(running: Running) -> None:
        secret = mint(environment)
        key = new_key(environment, "enterprise", now=NOW, limits=Limits(10**6, 10**6))
        store = running.store if environment == "live" else running.staging
        await store.keys.create(key, secret, BY)
        for name in ("Rex", "Ada"):
            await store.pets.add(NewPet(name, 1), NOW)
        base = "/v1" if environment == "live" else "/staging/v1"

        async def ask(query: str = "", path: str = "/pets", **more: Any) -> Reply:
            return await running.app.answer(request(base + path, query, authorization=f"Bearer {secret}", **more))

        await work(running, ask)

    use_app(data, inside)


def headers_of(reply: Reply) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in pairs(reply.headers):
        found.setdefault(name, []).append(value)
    return found


def is_confirmed(reply: Reply) -> bool:
    headers = headers_of(reply)
    applied = headers.get("preference-applied") == [STRICT]
    assert applied == ("Prefer" in headers.get("vary", []))
    return applied


def message_of(reply: Reply, code: str) -> str:
    error = json.loads(reply.body)
    assert (reply.status, error["code"]) == (400, code)
    return str(error["message"])


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@pytest.mark.parametrize("environment", ["live", "staging"])
def test_unknown_parameters_and_members_are_refused(tmp_path: Path, environment: str, operation: Operation) -> None:
    method, path, body = sample(operation.name)
    cases = [("an unknown parameter", "page=2", body, '"page" is not a parameter of this operation.')]
    if body:
        more = json.dumps({**json.loads(body), "notAMember": 1}).encode()
        cases.append(("an unknown member", "", more, '"notAMember" is not a member of this body.'))

    async def work(running: Running, ask: Ask) -> None:
        for case, query, sent, message in cases:
            target = {"path": path, "method": method, "body": sent}
            lenient = await ask(query, **target)
            assert lenient.status < 300, f"{operation.name} must ignore {case}"
            refused = await ask(query, prefer=STRICT, **target)
            assert refused.status == 400, f"{operation.name} must refuse {case} in strict handling"
            assert json.loads(refused.body)["message"] == message
            assert (is_confirmed(lenient), is_confirmed(refused)) == (False, True)
        taken = await ask(path=path, method=method, body=body, prefer=STRICT)
        assert taken.status < 300 and is_confirmed(taken)

    use_environment(tmp_path, environment, work)


def test_known_parameters_are_recognised_in_any_spelling(tmp_path: Path) -> None:
    async def work(running: Running, ask: Ask) -> None:
        known = await ask("limit=1&%73tatus=available&&", prefer=STRICT)
        assert known.status == 200 and is_confirmed(known)

    use_environment(tmp_path, "live", work)


@pytest.mark.parametrize("environment", ["live", "staging"])
def test_unknown_members_are_refused_and_nothing_is_added(tmp_path: Path, environment: str) -> None:
    async def work(running: Running, ask: Ask) -> None:
        async def create(**members: Any) -> Reply:
            body = json.dumps(REX | members).encode()
            return await ask(method="POST", body=body, prefer=STRICT, idempotency_key="once")

        assert message_of(await create(id=7), "invalid_body") == '"id" is not a member of this body.'
        assert message_of(await create(Status="sold", notAMember=None), "invalid_body") == (
            '"Status" and "notAMember" are not members of this body.'
        )
        assert message_of(await create(name="", notAMember="Collie"), "invalid_body") == (
            'name must not be empty or only white space; "notAMember" is not a member of this body.'
        )
        created = await create(status="sold")  # the idempotency key was not used up
        assert created.status == 201 and is_confirmed(created) and "idempotent-replayed" not in created.headers
        assert json.loads(created.body) == {"id": 3, **REX, "status": "sold"}

    use_environment(tmp_path, environment, work)


def test_a_create_that_was_accepted_may_be_refused_when_it_is_retried_strictly(tmp_path: Path) -> None:
    async def work(running: Running, ask: Ask) -> None:
        create = {"method": "POST", "body": json.dumps(REX | {"notAMember": 1}).encode(), "idempotency_key": "once"}
        assert (await ask(**create)).status == 201
        message_of(await ask(prefer=STRICT, **create), "invalid_body")
        assert (await ask(**create)).status == 201

    use_environment(tmp_path, "live", work)


def test_the_message_names_ten_and_counts_the_others(tmp_path: Path) -> None:
    async def work(running: Running, ask: Ask) -> None:
        query = "&".join(f"p{number}=1&p{number}=2" for number in range(13))
        named = ", ".join(f'"p{number}"' for number in range(10))
        message = message_of(await ask(f"limit=0&{query}", prefer=STRICT), "invalid_parameter")
        assert message == (
            f"limit must be a whole number from 1 to 100; {named} and 3 more are not parameters of this operation."
        )
        body = json.dumps({f"m{number}": 1 for number in range(5_000)}).encode()
        message = message_of(await ask(method="POST", body=body, prefer=STRICT), "invalid_body")
        assert '"m9" and 4990 more are not members of this body.' in message and '"m10"' not in message

    use_environment(tmp_path, "live", work)


def test_the_message_shortens_names_and_repeats_no_key(tmp_path: Path) -> None:
    async def work(running: Running, ask: Ask) -> None:
        secret = mint("live")
        escaped = secret.replace("_", "%5F")
        for sent in (secret, f"{secret}=1", f"x{escaped}", escaped + "&" + "%41" * 200, f"{'%25' * 20}{secret}"):
            message = message_of(await ask(sent, prefer=STRICT), "invalid_parameter")
            assert secret[10:20] not in message
        body = json.dumps({f"a{secret}": 1, secret: 2, "x" * 9_000: 3, "\ud800\x00\x1b": 4} | REX).encode()
        message = message_of(await ask(method="POST", body=body, prefer=STRICT), "invalid_body")
        assert message == (
            f'"apets_live_…", "pets_live_…", "{"x" * LENGTH_SHOWN}…" and "���" are not members of this body.'
        )
        assert message_of(await ask("=1", prefer=STRICT), "invalid_parameter").startswith('"" is not')

    use_environment(tmp_path, "live", work)


def test_pages_from_the_cache_and_304_say_how_they_were_handled(tmp_path: Path) -> None:
    async def work(running: Running, ask: Ask) -> None:
        first, strict, again = await ask("limit=1"), await ask("limit=1", prefer=STRICT), await ask("limit=1")
        assert first.body == strict.body == again.body
        assert [is_confirmed(reply) for reply in (first, strict, again)] == [False, True, False]
        etag = headers_of(first)["etag"]
        assert headers_of(strict)["etag"] == etag
        assert headers_of(strict)["vary"] == ["Authorization", "Prefer"]
        for prefer, confirmed in ((STRICT, True), ("handling=lenient", False)):
            unchanged = await ask("limit=1", prefer=prefer, if_none_match=etag[0])
            assert unchanged.status == 304 and is_confirmed(unchanged) == confirmed
        # A browser that has cached the lenient page must revalidate it before using it.
        message_of(await ask("limit=1&page=2", prefer=STRICT, if_none_match=etag[0]), "invalid_parameter")

    use_environment(tmp_path, "live", work)


def test_an_error_on_demand_takes_precedence(tmp_path: Path) -> None:
    async def work(running: Running, ask: Ask) -> None:
        simulated = await ask("page=2", prefer=f"{STRICT}, error=gone")
        assert simulated.status == 410
        assert headers_of(simulated)["preference-applied"] == ["error=gone"]
        delayed = await ask("page=2", prefer=f"{STRICT}, delay=1")
        message_of(delayed, "invalid_parameter")
        assert headers_of(delayed)["preference-applied"] == [f"delay=1, {STRICT}"]

    use_environment(tmp_path, "staging", work)


def test_on_live_an_error_on_demand_leaves_strict_handling_in_effect(tmp_path: Path) -> None:
    async def work(running: Running, ask: Ask) -> None:
        reply = await ask("page=2", prefer=f"error=gone, delay=9, {STRICT}")
        message_of(reply, "invalid_parameter")
        assert is_confirmed(reply)

    use_environment(tmp_path, "live", work)


def test_without_a_valid_key_it_has_no_effect(tmp_path: Path) -> None:
    async def work(running: Running, ask: Ask) -> None:
        for secret in (None, mint("live")):
            fields: dict[str, Any] = {"authorization": f"Bearer {secret}"} if secret else {}
            reply = await running.app.answer(request("/v1/pets", "page=2", prefer=STRICT, **fields))
            assert reply.status == 401 and not is_confirmed(reply)

    use_environment(tmp_path, "live", work)


@pytest.mark.parametrize(
    ("field", "strict"),
    [
        ("handling=strict", True),
        ('Handling = "strict"; wait=5', True),
        ("handling=STRICT", True),
        ("return=minimal, handling=strict", True),
        ("handling=lenient", False),
        ("handling=lenient, handling=strict", False),
        ("handling", False),
        ("handling=stricter", False),
        ('x="handling=strict"', False),
        ("handling=strict," + "x" * PREFER_MAX, False),
    ],
)
def test_the_preference_is_read_as_the_rfc_says(field: str, strict: bool) -> None:
    assert parse_preferences(field) == Preferences(strict=strict)


@pytest.mark.parametrize(
    "query",
    ["a&" * 4_000, "&".join(f"{number:x}" for number in range(1_600)), "%41" * 2_700, "%41&" * 2_000, "&" * 8_000],
    ids=["repeated", "distinct", "escapes", "escaped", "empty"],
)
def test_a_hostile_query_is_cheap(tmp_path: Path, query: str) -> None:
    async def work(running: Running, ask: Ask) -> None:
        took = []
        for _ in range(20):
            began = time.process_time()
            assert (await ask(query, prefer=STRICT)).status == (400 if query.strip("&") else 200)
            took.append(time.process_time() - began)
        assert min(took) < 0.005

    use_environment(tmp_path, "live", work)
