"""The data that `tools.release_data` keeps of this version are whole: this version goes on with them.

The next version, which upgrades them, has the same to show. Then this file is about the release that it names.
"""

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from harness.backends import Redis, shared
from harness.commands import Commands
from harness.served import wait_for
from harness.servers import Server, started
from petstore.backends import Backends
from petstore.keys import digest_of
from tests.release_1_1 import load_postgres, unpack

RELEASE = Path(__file__).parents[1] / "fixtures" / "2.0.0"
KNOWN: dict[str, Any] = json.loads((RELEASE / "known.json").read_text())
REPLAYED, TOO_MANY = "true", httpx.codes.TOO_MANY_REQUESTS


def load_redis() -> str:
    url = shared(Redis).url()
    with redis.Redis.from_url(url) as client:
        for name, stored in json.loads((RELEASE / "redis.json").read_text()).items():
            client.set(name, bytes.fromhex(stored["value"]), px=stored["ttl_ms"])
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(backend: str, tmp_path: Path) -> Server:
    """The installation, at the moment when it was kept. Redis has a clock of its own."""
    made = Server(tmp_path / "data")
    if backend == "sqlite":
        unpack("data.zip", made.data, RELEASE)
    else:
        made.store, made.gate = load_postgres(RELEASE), load_redis()
    made.move_clock(KNOWN[backend]["unix"] - time.time())
    return made


def test_every_key_is_answered_as_before(server: Server, backend: str) -> None:
    with started(server):
        for name, each in KNOWN[backend]["secrets"].items():
            if each["GET /pets"] == TOO_MANY and backend == "postgres":
                continue  # its windows and its ban are over
            url = server.url("/pets", each["environment"])
            answer = httpx.get(url, headers={"Authorization": f"Bearer {each['secret']}"})
            assert answer.status_code == each["GET /pets"], name


def test_every_animal_and_every_idempotency_key_is_there(server: Server, backend: str) -> None:
    petstore, known = Commands(server), KNOWN[backend]
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


def test_every_admission_is_booked_once(server: Server, backend: str) -> None:
    """Those that only the gate had counted when the service was killed, too."""
    known = KNOWN[backend]
    month = time.strftime("%Y-%m", time.gmtime(known["unix"]))
    expected: dict[str, int] = {}
    for each in known["admitted"]:
        key_id = known["secrets"][each["key"]]["key_id"]
        expected[key_id] = expected.get(key_id, 0) + each["count"]

    def booked() -> dict[str, int]:
        petstore = Commands(server)
        rows = [
            *petstore.json("usage", "--month", month),
            *petstore.json("usage", "--month", month, "--env", "staging"),
        ]
        return {row["key_id"]: row["admitted"] for row in rows if row["admitted"]}

    with started(server):
        assert wait_for(lambda: booked() == expected), booked()


def test_imports_can_be_undone_and_operators_are_known(server: Server, backend: str) -> None:
    petstore = Commands(server)
    imports = {each["name"]: each for each in petstore.json("pets", "imports")}
    assert {each["state"] for each in imports.values()} == {"done", "undone", "interrupted"}
    interrupted = next(each for each in imports.values() if each["state"] == "interrupted")
    assert (interrupted["added"], interrupted["total"]) == (2, 4)
    assert petstore.json("pets", "undo-import", interrupted["id"], "--yes")["removed"] == 2
    operators = KNOWN[backend]["operators"]

    async def roles(backends: Backends) -> dict[str, str]:
        found = [await backends.stores["live"].operators.find(digest_of(each["token"])) for each in operators.values()]
        return {operator.name: operator.role for operator in found if operator is not None and not operator.revoked}

    assert server.act(roles) == {name: each["role"] for name, each in operators.items() if not each["revoked"]}


def test_a_backup_is_restored(tmp_path: Path) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    petstore.text("restore", str(RELEASE / "backup.zip"))
    for environment, pets in KNOWN["sqlite"]["pets"].items():
        assert petstore.json("pets", "list", "--env", environment, "--limit", "100") == pets
