"""Behaviour that all pages share: empty tables, invalid parameters and unknown addresses."""

from pathlib import Path

import pytest

from harness.consoles import ConsoleClient, running_console, text_of
from harness.servers import Server


def test_empty_pages_name_the_next_step(tmp_path: Path) -> None:
    with running_console(Server(tmp_path / "data")) as own:
        client = own.client()
        client.get(own.link)
        assert "Add one above or import a file" in text_of(client.get("/live/animals"))
        assert "Create the first" in text_of(client.get("/live/keys"))
        assert "No keys are banned in live" in text_of(client.get("/live/bans"))
        assert "There are no entries in staging yet" in text_of(client.get("/staging/audit"))
        overview = text_of(client.get("/staging/overview"))
        assert "Create a key" in overview and "Add or import some" in overview
        assert "No matching animals" in text_of(client.get("/live/animals?q=nobody"))


@pytest.mark.parametrize("number", ["0", "-1", "1e3", "９", "9" * 30, "x", "%00", "%ff", "%ED%A0%80", "'"])
def test_an_invalid_parameter_is_never_a_server_error(operator: ConsoleClient, number: str) -> None:
    for path in (
        "animals/rows?after=",
        "audit/rows?before=",
        "keys/rows?before=",
        "animals?q=",
        "overview?span=",
        "keys/",
    ):
        assert operator.get(f"/live/{path}{number}").status_code in (200, 404)
    assert operator.post(f"/live/bans/{number}/lift").status_code == 404
    assert operator.post(f"/live/keys/{number}/revoke").status_code == 404
