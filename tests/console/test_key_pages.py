"""Keys, bans and usage, over HTTP without a browser, on each pair of backends, with a running service."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.commands import Commands
from harness.consoles import Console, ConsoleClient, cells, next_rows, running_console, text_of
from harness.served import wait_for
from harness.servers import Server, serving
from harness.stores import BY
from harness.wire import asking
from petstore.keys import Environment, mint, well_formed
from petstore.plans import Limits
from petstore.usage import OperationUsage


def status_of(server: Server, secret: str, environment: Environment = "live") -> int:
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.get(server.url("/pets", environment), headers=headers, verify=False).status_code


def test_a_created_key_works_and_its_secret_is_shown_once(server: Server, operator: ConsoleClient) -> None:
    key_id, secret = operator.create_key(name="Ada's app", scope="read", expires="90d")
    assert well_formed(secret, "live")
    assert status_of(server, secret) == 200
    assert secret not in operator.get(f"/live/keys/{key_id}").text
    record = Commands(server).json("keys", "show", key_id)
    assert (record["name"], record["plan"], record["scopes"]) == ("Ada's app", "free", ["read"])
    assert record["expires"] - record["created"] == pytest.approx(90 * 86_400)
    entry = Commands(server).entries()[0]
    assert (entry.action, entry.subject) == ("create key", key_id)


def test_head_does_not_use_up_the_secret_of_a_new_key(operator: ConsoleClient) -> None:
    made = operator.post("/live/keys", plan="free", scope="read")
    assert operator.http.head(made.headers["location"]).status_code == 200
    assert 'id="secret"' in operator.get(made.headers["location"]).text


def test_the_page_of_a_key_has_its_history(server: Server, operator: ConsoleClient) -> None:
    key_id, _ = operator.create_key(name="Ada's app")
    other, _ = operator.create_key(name="another")
    operator.post(f"/live/keys/{other}/suspend")
    operator.post(f"/live/keys/{key_id}/suspend")
    Commands(server).text("keys", "resume", key_id)
    page = operator.get(f"/live/keys/{key_id}")
    assert cells(page, "What") == ["resume key", "suspend key", "create key"]
    assert cells(page, "Detail") == ["suspended → active", "active → suspended", "free"]
    number = Commands(server).json("keys", "show", key_id)["history"][0]["number"]
    older = operator.get(f"/live/keys/{key_id}/history?before={number}")
    assert cells(older, "What") == ["suspend key", "create key"]
    assert operator.get("/live/keys/key_nobody/history").status_code == 404


def test_changed_limits_take_effect_with_the_next_request(server: Server, operator: ConsoleClient) -> None:
    key_id, secret = operator.create_key(plan="enterprise", per_minute="2", per_day="1,000")
    assert asking(server.port, 3, {"Authorization": f"Bearer {secret}"})[-1].status == 429
    fields = {"name": "Ada", "plan": "enterprise", "scope": ["read", "write"]}
    page = operator.submit(f"/live/keys/{key_id}", **fields, per_minute="5", per_day="50")
    assert "enterprise: 5 per minute, 50 per day" in text_of(page)
    responses = asking(server.port, 4, {"Authorization": f"Bearer {secret}"})
    assert [response.status for response in responses] == [200, 200, 200, 429]
    assert "per minute 2 → 5" in Commands(server).entries()[0].detail


def test_name_plan_scopes_and_expiry_of_a_key_can_be_changed(server: Server, operator: ConsoleClient) -> None:
    key_id, secret = operator.create_key(name="Trial")
    changed = {"name": "Customer", "plan": "pro", "scope": "read", "expires": "90d"}
    page = operator.submit(f"/live/keys/{key_id}", **changed)
    assert "The key was changed." in text_of(page) and "pro: 300 per minute" in text_of(page)
    record = Commands(server).json("keys", "show", key_id)
    assert (record["name"], record["plan"], record["scopes"]) == ("Customer", "pro", ["read"])
    assert record["expires"] == pytest.approx(time.time() + 90 * 86_400, abs=60)
    detail = Commands(server).entries()[0].detail
    assert "name Trial → Customer" in detail and "plan free → pro" in detail and "expires never → " in detail
    added = httpx.post(server.url("/pets"), headers={"Authorization": f"Bearer {secret}"}, json={}, verify=False)
    assert added.status_code == 403
    operator.submit(f"/live/keys/{key_id}", **{**changed, "expires": "never"})
    assert Commands(server).json("keys", "show", key_id)["expires"] is None


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"plan": "gold"}, "Choose a plan"),
        ({"expires": "0d"}, "is too short"),
        ({"scope": []}, "at least one scope"),
        ({"plan": "enterprise"}, "whole numbers"),
        ({"plan": "enterprise", "per_minute": "0", "per_day": "5"}, "from 1"),
        ({"expires": "soon"}, "'soon' is not a duration"),
    ],
)
def test_an_invalid_change_is_refused_and_the_form_keeps_its_values(
    operator: ConsoleClient, fields: dict[str, Any], error: str
) -> None:
    key_id, _ = operator.create_key(name="Ada", plan="enterprise", per_minute="2", per_day="1,000")
    refused = operator.post(
        f"/live/keys/{key_id}", **{"name": "Typed name", "plan": "free", "scope": ["read", "write"], **fields}
    )
    assert refused.status_code == 422
    assert error in text_of(refused)
    assert f'value="{fields.get("name", "Typed name")}"' in refused.text
    assert re.search(r'<details class="panel" id="change" open>', refused.text)


def test_a_suspended_key_is_401_until_it_is_resumed(server: Server, operator: ConsoleClient) -> None:
    key_id, secret = operator.create_key()
    page = operator.submit(f"/live/keys/{key_id}/suspend")
    assert status_of(server, secret) == 401
    assert "suspended" in text_of(page) and "Resume" in text_of(page)
    assert cells(operator.get(f"/live/keys?q={key_id}&state=suspended"), "State") == ["suspended"]
    page = operator.submit(f"/live/keys/{key_id}/resume")
    assert status_of(server, secret) == 200
    assert "no longer suspended" in text_of(page) and "active" in text_of(page)
    assert "is not suspended" in text_of(operator.submit(f"/live/keys/{key_id}/resume"))
    assert [entry.action for entry in Commands(server).entries()[:2]] == ["resume key", "suspend key"]


def test_a_secret_is_identified_and_never_shown_again(operator: ConsoleClient, new_name: Callable[[], str]) -> None:
    key_id, secret = operator.create_key("staging", name="Leaked app")
    found = operator.post("/live/keys/identify", secret=secret)
    assert found.status_code == 200
    assert "The secret belongs to Leaked app" in text_of(found) and f'href="/staging/keys/{key_id}"' in found.text
    assert secret not in found.text
    unknown = operator.post("/live/keys/identify", secret=mint("live"))
    assert unknown.status_code == 404 and "No key in live has this secret" in text_of(unknown)
    mistyped = operator.post("/live/keys/identify", secret=secret[:-1] + ("a" if secret[-1] != "a" else "b"))
    assert mistyped.status_code == 422 and "checksum" in text_of(mistyped)
    assert f"/staging/animals?added_by={key_id}" in operator.get(f"/staging/keys/{key_id}").text
    name = new_name()
    token = operator.console.add_operator(name)
    of_operator = operator.post("/live/keys/identify", secret=token)
    assert f"This is operator {name}'s token, not a key's secret." in text_of(of_operator)
    assert token not in of_operator.text
    assert operator.get(f"/live/keys/identify?secret={secret}").text.count("belongs to") == 0


def test_a_rotated_secret_that_has_ended_is_identified_as_such(operator: ConsoleClient) -> None:
    key_id, secret = operator.create_key()
    operator.submit(f"/live/keys/{key_id}/rotate", newest="1", overlap="0s")
    page = text_of(operator.post("/live/keys/identify", secret=secret))
    assert "The key was rotated, and this secret no longer works." in page and "rotate the key" not in page
    _, other = operator.create_key()
    assert "rotate the key" in text_of(operator.post("/live/keys/identify", secret=other))


def test_a_key_that_expired_while_it_was_suspended_is_resumed_as_expired(
    server: Server, operator: ConsoleClient
) -> None:
    key = server.key(expires=time.time() - 1)
    server.act(lambda backends: backends.stores["live"].keys.suspend(key.id, BY))
    page = text_of(operator.submit(f"/live/keys/{key.id}/resume"))
    assert "no longer suspended" in page and "expired" in page and "active again" not in page


def test_keys_are_filtered_by_plan_and_state_and_sorted(server: Server, operator: ConsoleClient) -> None:
    mark = f"sort{time.time_ns()}"
    ids = {name: operator.create_key("staging", name=f"{mark} {name}", plan=plan)[0]
           for name, plan in (("c", "free"), ("a", "pro"), ("b", "free"))}  # fmt: skip
    operator.submit(f"/staging/keys/{ids['b']}/revoke")
    server.act(lambda backends: backends.stores["staging"].usage.add(
        [OperationUsage(ids["c"], int(time.time()), "admitted", 1, "listPets")], {ids["c"]: time.time()}))  # fmt: skip

    def shown(query: str) -> list[str]:
        names = {key_id: name for name, key_id in ids.items()}
        return [names[each] for each in cells(operator.get(f"/staging/keys?q={mark}&{query}"), "Id")]

    assert shown("") == ["b", "a", "c"]
    assert shown("sort=name") == ["a", "b", "c"]
    assert shown("sort=last-used")[0] == "c"
    assert shown("plan=free") == ["b", "c"]
    assert shown("state=revoked") == ["b"]
    assert shown("state=active&sort=name") == ["a", "c"]
    assert shown("state=expired") == []
    assert "No matching keys" in text_of(operator.get(f"/staging/keys?q={mark}&state=suspended"))
    page = operator.get(f"/staging/keys?q={mark}")
    assert page.text.count('aria-label="1 request in the last day"') == 1


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"plan": "gold", "scope": "read"}, "Choose a plan"),
        ({"plan": "free"}, "at least one scope"),
        ({"plan": "free", "scope": "read", "expires": "0s"}, "is too short"),
        ({"plan": "enterprise", "scope": "read"}, "whole numbers"),
        ({"plan": "enterprise", "scope": "read", "per_minute": "0", "per_day": "5"}, "from 1"),
        ({"plan": "enterprise", "scope": "read", "per_minute": "9" * 18, "per_day": "5"}, "from 1"),
        ({"plan": "free", "scope": "read", "expires": "soon"}, "'soon' is not a duration"),
        ({"plan": "free", "scope": "read", "name": "x" * 256}, "at most 255"),
    ],
)
def test_an_invalid_key_is_refused_and_the_form_keeps_its_values(
    operator: ConsoleClient, fields: dict[str, str], error: str
) -> None:
    refused = operator.post("/live/keys", **{"name": "Typed name", **fields})
    assert refused.status_code == 422
    assert error in text_of(refused)
    for name in ("name", "per_minute", "per_day", "expires"):
        (kept,) = re.findall(rf'name="{name}"[^>]* value="([^"]*)"', refused.text)
        assert kept == {"name": "Typed name", **fields}.get(name, "")
    assert ('value="read" checked' in refused.text) == ("scope" in fields)
    assert f'value="{fields["plan"]}" checked' in refused.text or fields["plan"] == "gold"


@pytest.mark.parametrize(("overlap", "old_status"), [("0s", 401), ("24h", 200)])
def test_a_rotated_key_has_a_new_secret(server: Server, operator: ConsoleClient, overlap: str, old_status: int) -> None:
    key_id, old = operator.create_key()
    page = operator.submit(f"/live/keys/{key_id}/rotate", newest="1", overlap=overlap)
    (new,) = re.findall(r'<code id="secret">(\w+)</code>', page.text)
    assert (status_of(server, new), status_of(server, old)) == (200, old_status)


def test_a_form_from_before_a_colleagues_rotation_rotates_only_when_it_is_sent_again(
    server: Server, operator: ConsoleClient, console: Console
) -> None:
    def newest(page: httpx.Response) -> str:
        (found,) = re.findall(r'name="newest" value="(\d+)"', page.text)
        return str(found)

    colleague = console.sign_in("a colleague who rotates")
    key_id, _ = operator.create_key()
    seen = newest(operator.get(f"/live/keys/{key_id}"))
    theirs = colleague.submit(f"/live/keys/{key_id}/rotate", newest=seen, overlap="0s")
    (secret,) = re.findall(r'<code id="secret">(\w+)</code>', theirs.text)
    refused = operator.post(f"/live/keys/{key_id}/rotate", newest=seen, overlap="1h")
    assert refused.status_code == 422 and f"someone else has just rotated {key_id}" in text_of(refused)
    assert 'value="1h"' in refused.text and status_of(server, secret) == 200
    assert operator.post(f"/live/keys/{key_id}/rotate", overlap="1h").status_code == 422
    operator.submit(f"/live/keys/{key_id}/rotate", newest=newest(refused), overlap="0s")
    assert status_of(server, secret) == 401


def test_a_rotation_has_no_overlap_by_default(operator: ConsoleClient) -> None:
    key_id, _ = operator.create_key()
    assert re.findall(r'name="overlap"[^>]* value="([^"]*)"', operator.get(f"/live/keys/{key_id}").text) == ["0s"]


def test_the_page_of_a_rotated_key_says_when_the_old_secret_ends_and_ends_it_now(
    server: Server, operator: ConsoleClient, console: Console
) -> None:
    key_id, old = operator.create_key()
    assert "Disable the old secret now" not in operator.get(f"/live/keys/{key_id}").text
    page = operator.submit(f"/live/keys/{key_id}/rotate", newest="1", overlap="24h")
    (new,) = re.findall(r'<code id="secret">(\w+)</code>', page.text)
    assert "The old secret works until" in text_of(page) and "Disable the old secret now" in page.text
    seen = console.sign_in("a viewer of secrets", "viewer").get(f"/live/keys/{key_id}").text
    assert "The old secret works until" in seen and "Disable the old secret now" not in seen
    ended = operator.submit(f"/live/keys/{key_id}/end-old-secret")
    assert "The old secret no longer works." in text_of(ended) and "Disable the old secret now" not in ended.text
    assert (status_of(server, new), status_of(server, old)) == (200, 401)
    assert cells(ended, "What")[0] == "end old secret"
    assert "no overlap to end" in text_of(operator.submit(f"/live/keys/{key_id}/end-old-secret"))


def test_the_contact_of_a_key_is_shown_where_someone_may_have_to_write_to_its_owner(
    server: Server, operator: ConsoleClient
) -> None:
    key_id, secret = operator.create_key(contact="ada@example.com")
    for page in (
        operator.get(f"/live/keys/{key_id}"),
        operator.get(f"/live/keys/{key_id}/revoke"),
        operator.post("/live/keys/identify", secret=secret),
    ):
        assert "ada@example.com" in text_of(page)
    assert cells(operator.get("/live/keys?q=ADA@example"), "Id") == [key_id]
    fields = {"name": "Ada", "plan": "free", "scope": ["read", "write"], "contact": "bob@example.com"}
    changed = operator.submit(f"/live/keys/{key_id}", **fields)
    assert "bob@example.com" in text_of(changed) and cells(changed, "Detail")[0].startswith(
        "contact ada@example.com → bob"
    )
    assert "contact must have at most 255" in text_of(operator.post("/live/keys", **{**fields, "contact": "x" * 256}))


def test_keys_that_expire_soon_are_filtered(operator: ConsoleClient) -> None:
    soon, _ = operator.create_key(name="Expiring mark", expires="20d")
    later, _ = operator.create_key(name="Expiring mark", expires="60d")
    operator.create_key(name="Expiring mark")

    def found(choice: str) -> list[str]:
        return cells(operator.get(f"/live/keys?q=Expiring mark&expiring={choice}"), "Id")

    assert (found("7d"), found("30d"), found("90d")) == ([], [soon], [later, soon])
    assert len(found("")) == len(found("1000y")) == 3


def test_an_invalid_overlap_is_refused_and_the_form_keeps_it(operator: ConsoleClient) -> None:
    key_id, _ = operator.create_key()
    refused = operator.post(f"/live/keys/{key_id}/rotate", newest="1", overlap="a while")
    assert refused.status_code == 422
    assert "'a while' is not a duration" in text_of(refused)
    assert 'value="a while"' in refused.text


def test_revoking_asks_for_confirmation_and_takes_effect_with_the_next_request(
    server: Server, operator: ConsoleClient
) -> None:
    key_id, secret = operator.create_key(name="Old app")
    question = operator.get(f"/live/keys/{key_id}/revoke")
    assert "Revoke Old app ?" in text_of(question) and "LIVE" in text_of(question)
    assert status_of(server, secret) == 200
    page = operator.submit(f"/live/keys/{key_id}/revoke")
    assert status_of(server, secret) == 401
    assert "The key is revoked" in text_of(page)
    assert "Rotate" not in text_of(page)
    assert "is already revoked" in text_of(operator.submit(f"/live/keys/{key_id}/revoke"))
    assert operator.post(f"/live/keys/{key_id}/rotate", newest="1", overlap="1h").status_code == 422


def test_a_key_of_the_other_environment_is_not_found(operator: ConsoleClient) -> None:
    key_id, _ = operator.create_key("staging")
    assert operator.get(f"/staging/keys/{key_id}").status_code == 200
    assert operator.get(f"/live/keys/{key_id}").status_code == 404
    assert operator.post(f"/live/keys/{key_id}/revoke").status_code == 404
    assert operator.get("/third/keys").status_code == 404


def test_keys_are_listed_newest_first_with_state_and_quota(server: Server, operator: ConsoleClient) -> None:
    mark = f"mark{time.time_ns()}"
    ids = [operator.create_key("staging", name=f"{mark} {i}")[0] for i in range(52)]
    page = operator.get(f"/staging/keys?q={mark}")
    rest = next_rows(operator, page)
    assert rest is not None
    assert cells(page, "Id") + cells(rest, "Id") == ids[::-1]
    key = server.key(limits=Limits(100, 40), environment="staging")
    asking(server.port, 10, key.headers, path="/staging/v1/pets")
    page = operator.get(f"/staging/keys?q={key.id}")
    assert cells(page, "Today") == ["10 of 40"]
    assert cells(page, "State") == ["active"]
    assert 'aria-valuenow="10"' in page.text


def ban_a_key(server: Server) -> str:
    key = server.key(limits=Limits(1, 100))
    assert asking(server.port, 3, key.headers)[-1].code == "key_banned"
    return key.id


@pytest.mark.parametrize("back", ["", "key"])
def test_a_ban_is_listed_and_lifted(server: Server, operator: ConsoleClient, back: str) -> None:
    key_id = ban_a_key(server)
    assert wait_for(lambda: key_id in cells(operator.get("/live/bans"), "Id"))
    assert key_id not in operator.get("/staging/bans").text
    assert "This key is banned" in text_of(operator.get(f"/live/keys/{key_id}"))
    page = operator.submit(f"/live/bans/{key_id}/lift", back=back)
    assert page.url.path == (f"/live/keys/{key_id}" if back else "/live/bans")
    assert re.search(r"was lifted\. The per-minute limit is used up\. Requests .* from 20\S+ \S+Z\.", text_of(page))
    assert key_id not in cells(operator.get("/live/bans"), "Id")
    assert "is not banned" in text_of(operator.submit(f"/live/bans/{key_id}/lift"))
    assert "This key is banned" not in text_of(operator.get(f"/live/keys/{key_id}"))


def test_the_page_of_a_key_distinguishes_a_limit_from_a_ban(server: Server, operator: ConsoleClient) -> None:
    key_id = ban_a_key(server)
    path = f"/live/keys/{key_id}?span=week"
    assert wait_for(lambda: cells(operator.get(path), "Code") == ["key_banned", "rate_limit_exceeded"], seconds=5)
    assert cells(operator.get(path), "Path") == ["/v1/pets", "/v1/pets"]
    assert wait_for(lambda: "banned (429) 1" in text_of(operator.get(path)), seconds=10)


def test_the_overview_shows_the_usage_that_the_service_counted(server: Server, operator: ConsoleClient) -> None:
    key = server.key(limits=Limits(5, 100), environment="staging")
    asking(server.port, 8, key.headers, path="/staging/v1/pets")
    asking(server.port, 2, {}, path="/staging/v1/pets")

    def requests(span: str) -> tuple[int, int, int]:
        text = operator.get(f"/staging/overview/refresh?span={span}").text
        (found,) = re.findall(r'data-series="([^"]+)"', text)
        by_class = json.loads(found.replace("&#34;", '"'))["requests"]
        return sum(by_class["ok"]), sum(by_class["refused"]), sum(by_class["unauthorized"])

    assert wait_for(lambda: requests("hour")[1:] == (3, 2))
    for span in ("hour", "day", "week", "month"):
        assert requests(span)[0] >= 5
        assert requests(span)[1:] == (3, 2)
        overview = f"/staging/overview?span={span}"
        assert wait_for(lambda: key.id in operator.get(overview).text)  # noqa: B023  # used at once
    page = operator.get(f"/staging/keys/{key.id}?span=hour")
    assert 'data-class="refused">3<' in page.text
    assert "5 of 5" in text_of(page)


def test_the_page_of_a_key_has_the_request_ids_of_its_refusals_and_errors(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as own:
        key = own.key(limits=Limits(3, 100))
        paths = ["/pets/7", "/pets?limit=0", "/pets", "/pets"]
        answers = [httpx.get(own.url(path), headers=key.headers) for path in paths]
        assert [answer.status_code for answer in answers] == [404, 400, 200, 429]
        own.stop()  # workers write their usage on shutdown
        with running_console(own) as console:
            text = text_of(console.sign_in("ada").get(f"/live/keys/{key.id}"))
    assert answers[2].headers["x-request-id"] not in text
    for answer, operation in zip(answers, ("getPet", "listPets", "", "listPets"), strict=True):
        if answer.status_code != 200:
            about = f"{answer.status_code} {answer.json()['code']} {operation} {answer.request.url.path}"
            assert f"{about} {answer.headers['x-request-id']}" in text
