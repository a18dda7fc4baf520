"""Keys, bans and figures on the pages, over HTTP alone and on each pair of backends; the running service obeys."""

import json
import re
import time

import httpx
import pytest

from petstore.keys import Environment, well_formed
from petstore.plans import Limits
from petstore.usage import Usage
from tests.commands import Commands
from tests.consoles import Visitor, cells, shown
from tests.served import wait_for
from tests.servers import Server
from tests.wire import asking


def status_of(server: Server, secret: str, environment: Environment = "live") -> int:
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.get(server.url("/pets", environment), headers=headers, verify=False).status_code


def test_a_created_key_works_and_its_secret_is_shown_once(server: Server, ada: Visitor) -> None:
    key_id, secret = ada.create_key(name="Ada's app", scope="read", expires="90d")
    assert well_formed(secret, "live")
    assert status_of(server, secret) == 200
    assert secret not in ada.get(f"/live/keys/{key_id}").text
    record = Commands(server).json("keys", "show", key_id)
    assert (record["name"], record["plan"], record["scopes"]) == ("Ada's app", "free", ["read"])
    assert record["expires"] - record["created"] == pytest.approx(90 * 86_400)
    entry = Commands(server).entries()[0]
    assert (entry.action, entry.subject) == ("create key", key_id)


def test_a_head_of_a_new_key_s_page_does_not_use_its_secret_up(ada: Visitor) -> None:
    made = ada.post("/live/keys", plan="free", scope="read")
    assert ada.client.head(made.headers["location"]).status_code == 200
    assert 'id="secret"' in ada.get(made.headers["location"]).text


def test_an_enterprise_key_has_limits_that_can_be_changed(server: Server, ada: Visitor) -> None:
    key_id, secret = ada.create_key(plan="enterprise", per_minute="2", per_day="1,000")
    assert asking(server.port, 3, {"Authorization": f"Bearer {secret}"})[-1].status == 429
    assert "5 a minute and 50 a day" in shown(ada.do(f"/live/keys/{key_id}/limits", per_minute="5", per_day="50"))
    answers = asking(server.port, 4, {"Authorization": f"Bearer {secret}"})
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    assert Commands(server).entries()[0].detail == "5 a minute, 50 a day"


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"plan": "gold", "scope": "read"}, "Choose a plan"),
        ({"plan": "free"}, "at least one scope"),
        ({"plan": "enterprise", "scope": "read"}, "whole numbers"),
        ({"plan": "enterprise", "scope": "read", "per_minute": "0", "per_day": "5"}, "from 1"),
        ({"plan": "enterprise", "scope": "read", "per_minute": "9" * 18, "per_day": "5"}, "from 1"),
        ({"plan": "free", "scope": "read", "expires": "soon"}, "'soon' is not a duration"),
        ({"plan": "free", "scope": "read", "name": "x" * 256}, "at most 255"),
    ],
)
def test_a_bad_key_is_refused_and_what_was_typed_stays(ada: Visitor, fields: dict[str, str], fault: str) -> None:
    refused = ada.post("/live/keys", **{"name": "Typed name", **fields})
    assert refused.status_code == 422
    assert fault in shown(refused)
    for name in ("name", "per_minute", "per_day", "expires"):
        (kept,) = re.findall(rf'name="{name}"[^>]* value="([^"]*)"', refused.text)
        assert kept == {"name": "Typed name", **fields}.get(name, "")
    assert ('value="read" checked' in refused.text) == ("scope" in fields)
    assert f'value="{fields["plan"]}" checked' in refused.text or fields["plan"] == "gold"


@pytest.mark.parametrize(("overlap", "old_status"), [("0s", 401), ("24h", 200)])
def test_a_rotated_key_has_a_new_secret(server: Server, ada: Visitor, overlap: str, old_status: int) -> None:
    key_id, old = ada.create_key()
    page = ada.do(f"/live/keys/{key_id}/rotate", overlap=overlap)
    (new,) = re.findall(r'<code id="secret">(\w+)</code>', page.text)
    assert (status_of(server, new), status_of(server, old)) == (200, old_status)


def test_without_a_choice_the_old_secret_ends_at_once(ada: Visitor) -> None:
    key_id, _ = ada.create_key()
    assert re.findall(r'name="overlap"[^>]* value="([^"]*)"', ada.get(f"/live/keys/{key_id}").text) == ["0s"]


def test_a_wrong_overlap_is_refused_and_stays(ada: Visitor) -> None:
    key_id, _ = ada.create_key()
    refused = ada.post(f"/live/keys/{key_id}/rotate", overlap="a while")
    assert refused.status_code == 422
    assert "'a while' is not a duration" in shown(refused)
    assert 'value="a while"' in refused.text


def test_revoking_asks_first_and_then_holds_from_the_next_request_on(server: Server, ada: Visitor) -> None:
    key_id, secret = ada.create_key(name="Old app")
    question = ada.get(f"/live/keys/{key_id}/revoke")
    assert "Revoke Old app ?" in shown(question) and "LIVE" in shown(question)
    assert status_of(server, secret) == 200
    page = ada.do(f"/live/keys/{key_id}/revoke")
    assert status_of(server, secret) == 401
    assert "The key is revoked" in shown(page)
    assert "Rotate" not in shown(page)
    assert "is revoked already" in shown(ada.do(f"/live/keys/{key_id}/revoke"))
    assert ada.post(f"/live/keys/{key_id}/rotate", overlap="1h").status_code == 422


def test_a_key_of_the_other_environment_is_not_found(ada: Visitor) -> None:
    key_id, _ = ada.create_key("staging")
    assert ada.get(f"/staging/keys/{key_id}").status_code == 200
    assert ada.get(f"/live/keys/{key_id}").status_code == 404
    assert ada.post(f"/live/keys/{key_id}/revoke").status_code == 404
    assert ada.get("/third/keys").status_code == 404


def test_keys_are_listed_newest_first_with_state_and_quota(server: Server, ada: Visitor) -> None:
    mark = f"mark{time.time_ns()}"
    ids = [ada.create_key("staging", name=f"{mark} {i}")[0] for i in range(52)]
    page = ada.get(f"/staging/keys?q={mark}")
    more = re.search(r'hx-get="([^"]+)" hx-trigger="revealed"', page.text)
    assert more is not None
    rest = ada.get(more[1].replace("&amp;", "&"))
    assert cells(page, "Id") + cells(rest, "Id") == ids[::-1]
    key = server.key(limits=Limits(100, 40), environment="staging")
    asking(server.port, 10, key.headers, path="/staging/v1/pets")
    page = ada.get(f"/staging/keys?q={key.id}")
    assert cells(page, "Today") == ["10 of 40"]
    assert cells(page, "State") == ["active"]
    assert 'aria-valuenow="10"' in page.text


def banned(server: Server) -> str:
    key = server.key(limits=Limits(1, 100))
    assert asking(server.port, 3, key.headers)[-1].code == "key_banned"
    return key.id


@pytest.mark.parametrize("back", ["", "key"])
def test_a_ban_is_listed_and_lifted(server: Server, ada: Visitor, back: str) -> None:
    key_id = banned(server)
    assert wait_for(lambda: key_id in cells(ada.get("/live/bans"), "Id"))
    assert key_id not in ada.get("/staging/bans").text
    assert "Banned until" in shown(ada.get(f"/live/keys/{key_id}"))
    page = ada.do(f"/live/bans/{key_id}/lift", back=back)
    assert page.url.path == (f"/live/keys/{key_id}" if back else "/live/bans")
    assert "may come in again" in shown(page)
    assert key_id not in cells(ada.get("/live/bans"), "Id")
    assert "is not banned" in shown(ada.do(f"/live/bans/{key_id}/lift"))
    assert "Banned until" not in shown(ada.get(f"/live/keys/{key_id}"))


def test_the_overview_shows_what_the_service_counted(server: Server, ada: Visitor) -> None:
    key = server.key(limits=Limits(5, 100), environment="staging")
    asking(server.port, 8, key.headers, path="/staging/v1/pets")
    asking(server.port, 2, {}, path="/staging/v1/pets")

    def figures(span: str) -> tuple[int, int, int]:
        text = ada.get(f"/staging/overview/figures?span={span}").text
        (found,) = re.findall(r'data-series="([^"]+)"', text)
        answers = json.loads(found.replace("&#34;", '"'))["answers"]
        return sum(answers["ok"]), sum(answers["refused"]), sum(answers["unauthorized"])

    assert wait_for(lambda: figures("hour")[1:] == (3, 2))
    for span in ("hour", "day", "month"):
        assert figures(span)[0] >= 5
        assert figures(span)[1:] == (3, 2)
        overview = f"/staging/overview?span={span}"
        assert wait_for(lambda: key.id in ada.get(overview).text)  # noqa: B023  # used at once
    page = ada.get(f"/staging/keys/{key.id}?span=hour")
    assert 'data-answer="refused">3<' in page.text
    assert "5 of 5" in shown(page)


def test_old_refusals_of_a_key_are_told_by_the_hour(server: Server, ada: Visitor) -> None:
    key, now = server.key(), int(time.time())
    rows = [Usage(key.id, now - 5 * 86_400, "refused", 17), Usage(key.id, now, "banned", 4)]
    server.act(lambda backends: backends.stores["live"].add_usage(rows[:1], {}))
    server.act(lambda backends: backends.stores["live"].add_usage(rows[1:], {}))
    text = shown(ada.get(f"/live/keys/{key.id}"))
    assert re.search(r"Recent refusals .* UTC 1 min 0 4 .* UTC 1 h 17 0", text)
