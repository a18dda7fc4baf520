"""This version can use the data that `tools.release_data` has saved from each release.

The tests use every directory in tests/fixtures that contains a `known.json`. Until the first release, there is none.
"""

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.commands import Commands
from harness.served import wait_for
from harness.servers import Server, started
from petstore.backends import Backends
from petstore.keys import digest_of
from tests.kept_data import load_postgres, load_redis, unpack

RELEASES = sorted(path.parent for path in (Path(__file__).parents[1] / "fixtures").glob("*/known.json"))
if not RELEASES:
    pytest.skip("no release has been made, so there is no saved data", allow_module_level=True)

REPLAYED, TOO_MANY = "true", httpx.codes.TOO_MANY_REQUESTS


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=RELEASES, ids=lambda release: str(release.name))
def release(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture
def known(release: Path, backend: str) -> dict[str, Any]:
    of_both: dict[str, Any] = json.loads((release / "known.json").read_text())
    of_one: dict[str, Any] = of_both[backend]
    return of_one


@pytest.fixture
def server(release: Path, backend: str, known: dict[str, Any], tmp_path: Path) -> Server:
    """The saved installation, with the clock set to the time of saving. Redis uses its own clock."""
    made = Server(tmp_path / "data")
    if backend == "sqlite":
        unpack(release / "data.zip", made.data)
    else:
        made.store, made.gate = load_postgres(release), load_redis(release)
    made.move_clock(known["unix"] - time.time())
    return made


def test_every_key_is_answered_as_before(server: Server, backend: str, known: dict[str, Any]) -> None:
    with started(server):
        for name, each in known["secrets"].items():
            if each["GET /pets"] == TOO_MANY and backend == "postgres":
                continue  # by the clock of Redis, its windows and its ban have ended
            url = server.url("/pets", each["environment"])
            answer = httpx.get(url, headers={"Authorization": f"Bearer {each['secret']}"})
            assert answer.status_code == each["GET /pets"], name


def test_every_animal_and_every_idempotency_key_is_there(server: Server, known: dict[str, Any]) -> None:
    petstore = Commands(server)
    for environment, pets in known["pets"].items():
        assert petstore.json("pets", "list", "--env", environment, "--limit", "100") == pets
    assert len(known["pets"]["live"]) == 10 and len(known["replays"]) == 6
    with started(server):
        for each in known["replays"]:
            secret = known["secrets"][each["secret"]]
            headers = {"Authorization": f"Bearer {secret['secret']}", "Idempotency-Key": each["token"],
                       "Content-Type": "application/json"}  # fmt: skip
            url = server.url("/pets", secret["environment"])
            answer = httpx.post(url, headers=headers, content=each["body"])
            assert (answer.headers["idempotent-replayed"], answer.json()) == (REPLAYED, each["answer"])


def test_every_admission_is_booked_once(server: Server, known: dict[str, Any]) -> None:
    """Admissions that only the gate had counted when the service was killed are included."""
    month = time.strftime("%Y-%m", time.gmtime(known["unix"]))
    expected: dict[str, int] = {}
    for each in known["admitted"]:
        key_id = known["secrets"][each["key"]]["key_id"]
        expected[key_id] = expected.get(key_id, 0) + each["count"]

    def recorded() -> dict[str, int]:
        petstore = Commands(server)
        rows = [
            *petstore.json("usage", "--month", month),
            *petstore.json("usage", "--month", month, "--env", "staging"),
        ]
        return {row["key_id"]: row["admitted"] for row in rows if row["admitted"]}

    with started(server):
        assert wait_for(lambda: recorded() == expected), recorded()


def test_imports_can_be_undone_and_operators_are_known(server: Server, known: dict[str, Any]) -> None:
    petstore = Commands(server)
    imports = {each["name"]: each for each in petstore.json("pets", "imports")}
    assert {each["state"] for each in imports.values()} == {"done", "undone", "interrupted"}
    interrupted = next(each for each in imports.values() if each["state"] == "interrupted")
    assert (interrupted["added"], interrupted["total"]) == (2, 4)
    assert petstore.json("pets", "undo-import", interrupted["id"], "--yes")["removed"] == 2
    operators = known["operators"]

    async def roles(backends: Backends) -> dict[str, str]:
        found = [await backends.stores["live"].operators.find(digest_of(each["token"])) for each in operators.values()]
        return {operator.name: operator.role for operator in found if operator is not None and not operator.revoked}

    assert server.act(roles) == {name: each["role"] for name, each in operators.items() if not each["revoked"]}


@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_backup_is_restored(release: Path, known: dict[str, Any], tmp_path: Path) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    petstore.text("restore", str(release / "backup.zip"))
    for environment, pets in known["pets"].items():
        assert petstore.json("pets", "list", "--env", environment, "--limit", "100") == pets
