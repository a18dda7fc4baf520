"""Errors on demand: only on staging, `Prefer` can request any documented error and a delayed response."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.in_process import NOW, Running, pairs, request, until, use_app
from harness.servers import Server
from harness.stores import BY
from petstore.errors import STATUS_OF_CODE
from petstore.keys import mint, new_key
from petstore.observability import metrics
from petstore.pets import NewPet
from petstore.plans import Limits
from petstore.web.preferences import DELAYS_MAX, PREFER_MAX, Preferences, parse_preferences
from petstore.web.replies import Reply

SIMULATED = [code for code in STATUS_OF_CODE if code != "malformed_request"]
OWN_HEADERS = {
    "rate_limit_exceeded": "retry-after", "key_banned": "retry-after", "unavailable": "retry-after",
    "unauthorized": "www-authenticate", "insufficient_scope": "www-authenticate", "method_not_allowed": "allow",
}  # fmt: skip


@pytest.fixture(scope="module")
def staging_key(server: Server) -> str:
    return server.key(environment="staging").secret


def ask(server: Server, client: httpx.Client, key: str, prefer: Any, path: str = "/staging/v1/pets") -> httpx.Response:
    headers = [("Authorization", f"Bearer {key}")]
    headers += [("Prefer", each) for each in ([prefer] if isinstance(prefer, str) else prefer)]
    return client.get(server.origin + path, headers=headers)


@pytest.mark.parametrize("code", SIMULATED)
def test_every_code_is_simulated_as_the_service_gives_it(
    server: Server, client: httpx.Client, staging_key: str, code: str
) -> None:
    answer = ask(server, client, staging_key, f"error={code}")
    assert answer.status_code == STATUS_OF_CODE[code]
    body = answer.json()
    assert (body["code"], body["status"]) == (code, answer.status_code) and set(body) == {"code", "message", "status"}
    documented = documented_messages(client.get(server.origin + "/openapi.json").json(), code)
    assert body["message"] in documented or code in ("gone", "internal_error", "not_found", "method_not_allowed")
    assert answer.headers["preference-applied"] == f"error={code}"
    assert "Prefer" in answer.headers.get_list("vary", split_commas=True)
    assert answer.headers["cache-control"] == "no-store"
    for owner, header in OWN_HEADERS.items():
        if owner == code:
            assert header in answer.headers
    if code in ("rate_limit_exceeded", "key_banned", "unavailable"):
        assert answer.headers["retry-after"] == "2"
    if answer.status_code == 429:
        assert answer.headers["x-ratelimit-remaining"] == "0"


def documented_messages(document: dict[str, Any], code: str) -> set[str]:
    def examples(value: Any) -> list[Any]:
        if isinstance(value, dict):
            own = [value] if value.get("code") == code else []
            return own + [found for part in value.values() for found in examples(part)]
        return [found for part in value for found in examples(part)] if isinstance(value, list) else []

    return {each["message"] for each in examples(document) if "message" in each}


@pytest.mark.parametrize("status", sorted(set(STATUS_OF_CODE.values())))
def test_a_status_selects_its_first_code(server: Server, client: httpx.Client, staging_key: str, status: int) -> None:
    first = next(code for code in SIMULATED if STATUS_OF_CODE[code] == status)
    answer = ask(server, client, staging_key, f"code={status}")
    assert (answer.status_code, answer.json()["code"]) == (status, first)
    assert answer.headers["preference-applied"] == f"error={first}"


@pytest.mark.parametrize("prefer", [f"error={code}" for code in SIMULATED] + ["code=404", "delay=1"])
def test_live_and_callers_without_a_valid_key_get_nothing_simulated(
    server: Server, client: httpx.Client, staging_key: str, prefer: str
) -> None:
    live = ask(server, client, server.key_in_stock().secret, prefer, "/v1/pets")
    assert live.status_code == 200 and "preference-applied" not in live.headers
    wrong = ask(server, client, mint("staging"), prefer)
    assert wrong.status_code == 401 and "preference-applied" not in wrong.headers


IGNORED = [
    "error=malformed_request", "error=nonsense", "error=", "error", "code=200", "code=302", "code=9999", "code=414",
    "delay=0", "delay=11", "delay=-1", "delay=1.5", "delay=abc", "delay=１", "delay=01", "delay=999999999999999999999",
    "return=minimal", "respond-async", "", ",,,", ";;;", '"error=unavailable"', 'error="una"vailable', "error='gone'",
    'error="unavailable', "error==gone", "error=GONE", "erroneous=gone", "error=unavail able",
    "error=unavailable," + "x" * PREFER_MAX, "a," * 1000 + "error=unavailable", "x" * 5000, '"' * 4000, "=" * 3000,
    "retry-after=5",
]  # fmt: skip


@pytest.mark.parametrize("prefer", IGNORED, ids=lambda prefer: repr(prefer[:24]))
def test_what_is_unknown_or_out_of_range_is_ignored(
    server: Server, client: httpx.Client, staging_key: str, prefer: str
) -> None:
    answer = client.get(
        server.origin + "/staging/v1/pets",
        headers=[(b"Authorization", f"Bearer {staging_key}".encode()), (b"Prefer", prefer.encode())],
    )
    assert answer.status_code == 200 and "preference-applied" not in answer.headers


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("error=gone", Preferences("gone")),
        ("Error = gone", Preferences("gone")),
        ('error="gone"', Preferences("gone")),
        ("error=gone; foo=bar", Preferences("gone")),
        ("return=minimal, error=unavailable, retry-after=60", Preferences("unavailable", 60)),
        ("error=gone,error=unavailable", Preferences("gone")),
        ("code=503, error=gone", Preferences("gone")),
        ("error=nonsense, code=503", Preferences("unavailable")),
        ('foo="a,error=gone", delay=3', Preferences(None, None, 3)),
        ("retry-after=61, delay=10, error=key_banned", Preferences("key_banned", None, 10)),
    ],
)
def test_preferences_are_read_as_the_rfc_says(field: str, expected: Preferences) -> None:
    assert parse_preferences(field) == expected


def use_staging(data: Path, work: Callable[[Running, Callable[..., Any], str], Any], **limits: int) -> None:
    """Calls `work` with an app, a function that sends requests to staging, and the id of its key."""

    async def inside(running: Running) -> None:
        secret = mint("staging")
        key = new_key("staging", "enterprise", now=NOW, limits=Limits(limits.get("per_minute", 1000), 10**6))
        await running.staging.keys.create(key, secret, BY)

        async def ask(prefer: str = "", method: str = "GET", **more: Any) -> Reply:
            fields = {"authorization": f"Bearer {secret}", **({"prefer": prefer} if prefer else {}), **more}
            return await running.app.answer(request("/staging/v1/pets", method=method, **fields))

        await work(running, ask, key.id)

    use_app(data, inside)


def test_a_simulated_429_fits_its_retry_after_is_counted_and_is_no_strike(tmp_path: Path) -> None:
    async def work(running: Running, ask: Callable[..., Any], key_id: str) -> None:
        for remaining in (4, 3, 2):
            headers = dict(pairs((await ask("error=key_banned, retry-after=9")).headers))
            assert headers["x-ratelimit-remaining"] == "0" and headers["retry-after"] == "9"
            assert headers["x-ratelimit-reset"] == str(int(NOW) + 9)
            (windows,) = await running.gate.windows([key_id])
            assert windows.minute_used == 5 - remaining and windows.strikes == windows.bans == 0
        assert (await ask()).status == 200
        assert (await ask()).status == 200
        refused = await ask("error=gone")  # over the limit, so it is refused and nothing is simulated
        assert refused.status == 429 and "preference-applied" not in refused.headers

    use_staging(tmp_path, work, per_minute=5)


def test_nothing_is_performed_and_no_idempotency_key_is_used_up(tmp_path: Path) -> None:
    async def work(running: Running, ask: Callable[..., Any], key_id: str) -> None:
        create = {"method": "POST", "body": b'{"name":"Rex","categoryId":1}', "idempotency_key": "once"}
        assert (await ask("error=unavailable", **create)).status == 503
        assert not (await running.staging.pets.page(after=0, limit=9, status=None)).pets
        created = await ask(**create)
        assert created.status == 201 and "idempotent-replayed" not in created.headers

    use_staging(tmp_path, work)


def test_a_simulated_error_is_in_no_metric_of_requests_and_no_last_error(tmp_path: Path) -> None:
    async def work(running: Running, ask: Callable[..., Any], key_id: str) -> None:
        running.app.publish(0.0)
        before = dict(metrics.REQUESTS.cells), dict(metrics.SIMULATED.cells)
        await ask("error=internal_error")
        await ask("error=unavailable")
        running.app.publish(0.0)
        assert dict(metrics.REQUESTS.cells) == before[0]
        grown = {cell: n - before[1].get(cell, 0) for cell, n in metrics.SIMULATED.cells.items()}
        assert grown[("internal_error",)] == grown[("unavailable",)] == 1
        for counters in running.app.counters:
            await counters.flush(NOW)
            await counters.flush_errors()
        assert not await running.staging.usage.recent_errors(key_id)
        used = await running.staging.keys.get(key_id)
        assert used is not None and used.last_used == NOW

    use_staging(tmp_path, work)


def test_a_response_and_a_simulated_error_are_sent_that_much_later(tmp_path: Path) -> None:
    async def work(running: Running, ask: Callable[..., Any], key_id: str) -> None:
        began = time.monotonic()
        waiting = [asyncio.create_task(ask(prefer)) for prefer in ("delay=1", "error=gone, delay=1")]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert time.monotonic() - began > 0.99
        assert [reply.status for reply in await asyncio.gather(*waiting)] == [200, 410]

    use_staging(tmp_path, work)


def test_a_delay_ends_when_the_worker_stops_and_only_so_many_wait(tmp_path: Path) -> None:
    async def work(running: Running, ask: Callable[..., Any], key_id: str) -> None:
        await running.staging.pets.add(NewPet("Rex", 1), NOW)
        began = time.monotonic()
        waiting = [asyncio.create_task(ask("delay=10")) for _ in range(DELAYS_MAX)]
        waiting.append(asyncio.create_task(ask("error=gone, delay=10")))
        await until(lambda: waiting[-1].done())  # one delay too many: only its error is simulated
        late = dict(pairs(waiting.pop().result().headers))
        assert late["preference-applied"] == "error=gone"
        assert not any(task.done() for task in waiting)
        running.app.end_delays()
        replies = await asyncio.gather(*waiting)
        assert {reply.status for reply in replies} == {200} and time.monotonic() - began < 9
        assert all("preference-applied: delay=10\r\n" in reply.headers for reply in replies)
        running.app.publish(0.0)

    use_staging(tmp_path, work)
