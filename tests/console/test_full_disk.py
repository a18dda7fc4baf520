"""The console while the disk is full. It shows the cause and recovers automatically."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.commands import Commands
from harness.consoles import Console, ConsoleClient, cells, running_console, text_of
from harness.disks import filled, small_disk
from harness.servers import Server

FULL = "The disk used by"
PAGES = ["overview", "animals", "animals/1", "animals/imports", "keys", "keys/new", "bans", "bills", "deprecated",
         "audit", "operators", "health", "help", "nowhere"]  # fmt: skip


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    # The gate uses 16 MiB, and the disk must not be nearly full before the test fills it.
    with small_disk(tmp_path / "disk", 60) as disk:
        server = Server(disk / "data")
        server.fill(1)
        with running_console(server) as running:
            yield running


def fill(console: Console, operator: ConsoleClient) -> Path:
    """Fills the disk, including the free space in SQLite's log. Returns the file to delete."""
    ballast = filled(console.server.data.parent / "ballast")
    while operator.post("/live/animals", name="x" * 255, categoryId="1", status="sold").status_code == 303:
        pass
    return ballast


def test_every_page_and_form_names_a_full_disk(console: Console) -> None:
    operator, token = console.sign_in("ada"), console.add_operator("bo")
    key_id, _ = operator.create_key()
    for page in PAGES:
        assert FULL not in text_of(operator.get(f"/live/{page}")), page
    assert "badge down" not in operator.get("/live/health").text
    ballast = fill(console, operator)
    animals, data = cells(operator.get("/live/animals"), "Name"), console.server.data

    for page in [*PAGES, f"keys/{key_id}"]:
        shown = text_of(operator.get(f"/live/{page}"))
        assert f"{FULL} {data} has been full or nearly full since at least " in shown, page
        assert "(0 Bytes free)" in shown and "delete only replaced-… and gate.mdb.damaged-…" in shown, page
    assert FULL in text_of(operator.get("/live/overview/refresh", **{"HX-Request": "true"}))
    health = operator.get("/live/health")
    assert '<span class="badge down">full</span> 0 Bytes' in health.text
    assert f"<dt>Data directory</dt><dd><code>{data}</code>" in health.text

    forms: dict[str, dict[str, Any]] = {
        "animals": {"name": "Rex", "categoryId": "1", "status": "sold"},
        "animals/1": {"name": "Rex", "categoryId": "1", "status": "sold"},
        "animals/selected": {"id": "1", "to": "pending"},
        "animals/1/remove": {},
        "keys": {"name": "Ada", "plan": "free", "scope": ["read"]},
        f"keys/{key_id}": {"name": "Bo", "plan": "pro", "scope": ["read"]},
        f"keys/{key_id}/rotate": {"newest": "1", "overlap": "1h"},
        f"keys/{key_id}/suspend": {},
        "operators": {"name": "grace", "role": "viewer"},
        "operators/role": {"name": "bo", "role": "viewer"},
    }
    for path, fields in forms.items():
        failed = operator.post(f"/live/{path}", **fields)
        assert failed.status_code == 503, path
        assert f"{FULL} {data} is full. Free some space. Check whether the change was made" in text_of(failed), path
        assert "did not respond" not in text_of(failed), path
    page = f"/live/keys/{key_id}"
    for referer, linked in ((f"{console.origin}{page}?span=week", True), (f"https://example.com{page}", False)):
        headers = {"Origin": console.origin, "Referer": referer}
        failed = operator.http.post(f"{page}/suspend", headers=headers)
        assert (f'href="{page}?span=week">Go back' in failed.text) == linked
        assert ("Go back" in failed.text) == linked
    sign_in = console.client().post("/sign-in", token=token)
    assert sign_in.status_code == 503 and f"{FULL} {data} is full" in text_of(sign_in)
    assert cells(operator.get("/live/animals"), "Name") == animals

    ballast.unlink()
    assert operator.add_pet("Rex")
    assert FULL not in text_of(operator.get("/live/animals"))
    assert console.client().post("/sign-in", token=token).status_code == 303
    actions = [entry.action for entry in Commands(console.server).entries()]
    assert "suspend key" not in actions, "an action that failed for lack of space must not be recorded"
