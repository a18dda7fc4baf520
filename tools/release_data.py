"""`python -m tools.release_data`: writes the data of this version to tests/fixtures/VERSION, for upgrade tests.

There are two installations with the same history: one on SQLite and LMDB, one on PostgreSQL and Redis. Each service is
killed at the end, so that some rows are only in the write-ahead log and some admissions are only in the gate. The
command refuses to overwrite the data of a released version.
"""

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import redis

from harness.backends import Postgres, remove_shared, shared
from harness.commands import Commands
from harness.servers import Server
from harness.stores import BY
from petstore import __version__
from petstore.backends import Backends
from petstore.gate.redis_script import PREFIX
from petstore.pets import NewPet
from tools.kept import check_unreleased

FIXTURES = Path(__file__).parent.parent / "tests/fixtures"
FILES = ("live.db", "live.db-wal", "staging.db", "staging.db-wal", "gate.mdb")
BAN_SECONDS = "3600"
ONE = ("--plan", "enterprise", "--per-minute", "1", "--per-day", "1000")
ROTATED = "rotated, new secret"
# The name of each key, and its options for `keys create`.
KEYS = {
    "free": ("--plan", "free"),
    "read only": ("--plan", "pro", "--scope", "read"),
    "suspended": ("--plan", "free"),
    "revoked": ("--plan", "free"),
    "rotated": ("--plan", "business", "--expires", "90d"),
    "limited": ONE,
    "banned": ONE,
    "staging": ("--plan", "free", "--env", "staging"),
}
# The statuses of `GET /pets` with these keys before the service was killed. With the other keys, it was 200.
ANSWERS = {"suspended": 401, "revoked": 401, "limited": 429, "banned": 429}


class History:
    """Performs the actions of clients and operators, and records what tests need to know about them."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.petstore = Commands(server)
        self.secrets: dict[str, dict[str, Any]] = {}
        self.operators: dict[str, dict[str, Any]] = {}
        self.replays: list[dict[str, Any]] = []
        self.admitted: Counter[tuple[str, str]] = Counter()  # by key and operation

    def happen(self) -> None:
        for name, role in (("ada", "operator"), ("vic", "viewer"), ("bob", "operator")):
            token = self.petstore.json("operators", "add", name, "--role", role)["token"]
            self.operators[name] = {"token": token, "role": role, "revoked": name == "bob"}
        self.petstore.text("operators", "revoke", "bob")
        for name, options in KEYS.items():
            made = self.petstore.json("keys", "create", "--name", name, *options)
            self.know(name, name, made["id"], made["key"])
        self.server.start()
        for name in ("free", "staging"):
            for number in range(3):
                self.create(name, f"{name}-{number}")
        self.operate()
        self.list("limited", "limited")
        self.list("banned", "banned", "banned")  # more refusals than the limit, which bans the key
        self.list("free", "read only", ROTATED, "staging")  # no worker has written these to the usage yet
        self.server.kill()

    def operate(self) -> None:
        keys = {name: each["key_id"] for name, each in self.secrets.items()}
        self.petstore.text("keys", "suspend", keys["suspended"])
        self.petstore.text("keys", "revoke", keys["revoked"], "--yes")
        rotated = self.petstore.json("keys", "rotate", keys["rotated"], "--overlap", "24h")
        self.know(ROTATED, "rotated", keys["rotated"], rotated["key"])
        imported = {name: self.imported(name) for name in ("done.csv", "undone.csv")}
        self.petstore.text("pets", "undo-import", imported["undone.csv"], "--yes")
        self.petstore.text("pets", "update", "1", "--name", "Renamed", "--status", "sold")
        self.petstore.text("pets", "remove", "2", "3", "--yes")
        self.petstore.text("pets", "restore", "3")
        self.server.act(interrupted_import)

    def imported(self, name: str) -> str:
        file = self.server.data.parent / name
        rows = "".join(f"{name} {number},{number},available\n" for number in range(6))
        file.write_text(f"name,categoryId,status\n{rows}")
        made: str = self.petstore.json("pets", "import", str(file))["import"]
        return made

    def know(self, name: str, key: str, key_id: str, secret: str) -> None:
        environment = "staging" if key == "staging" else "live"
        self.secrets[name] = {"environment": environment, "key_id": key_id, "secret": secret,
                              "GET /pets": ANSWERS.get(key, 200)}  # fmt: skip

    def create(self, name: str, pet: str) -> None:
        body = json.dumps({"name": pet, "categoryId": 1})
        answer = self.send("POST", name, {"Idempotency-Key": pet, "Content-Type": "application/json"}, body)
        assert answer.status_code == httpx.codes.CREATED, answer.text
        self.replays.append({"secret": name, "token": pet, "body": body, "answer": answer.json()})
        self.admitted[name, "createPet"] += 1

    def list(self, *names: str) -> None:
        for name in names:
            if self.send("GET", name, {}).status_code == httpx.codes.OK:
                key = "rotated" if name == ROTATED else name
                self.admitted[key, "listPets"] += 1

    def send(self, method: str, name: str, headers: dict[str, str], body: str | None = None) -> httpx.Response:
        known = self.secrets[name]
        url = self.server.url("/pets", known["environment"])
        return httpx.request(
            method, url, headers={"Authorization": f"Bearer {known['secret']}", **headers}, content=body
        )

    def known(self) -> dict[str, Any]:
        pets = {
            environment: self.petstore.json("pets", "list", "--env", environment, "--limit", "100")
            for environment in ("live", "staging")
        }
        admitted = [{"key": key, "operation": operation, "count": count}
                    for (key, operation), count in sorted(self.admitted.items())]  # fmt: skip
        return {"secrets": self.secrets, "operators": self.operators, "replays": self.replays, "pets": pets,
                "admitted": admitted}  # fmt: skip


async def interrupted_import(backends: Backends) -> None:
    """Creates an import of four animals that was interrupted an hour ago, after two had been added."""
    imports = backends.stores["live"].imports
    begun = await imports.begin("x", "0" * 64, 4, BY)
    added = [NewPet(f"interrupted.csv {number}", number) for number in range(2)]
    await imports.add_chunk(begun.id, 0, added, time.time() - 3600)


def keep_files(history: History, target: Path) -> None:
    data, copy = history.server.data, history.server.data.with_name("copy")
    shutil.copytree(data, copy)  # because a backup opens the data and cleans it up
    Commands(Server(copy)).text("backup", str(target / "backup.zip"), "--force")
    with zipfile.ZipFile(target / "data.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in FILES:
            archive.write(data / name, name)


def keep_databases(history: History, target: Path) -> None:
    """Dumps the databases without session settings and psql commands, so that any driver can execute the script."""
    dump = [str(shared(Postgres).programs / "pg_dump"), "--inserts", "--no-owner", str(history.server.store)]
    script = subprocess.run(dump, capture_output=True, text=True, check=True).stdout
    of_session = r"(?m)^(?:SET .*|SELECT pg_catalog\.set_config.*|\\.*|--.*)\n"
    (target / "postgres.sql").write_text(re.sub(r"\n{3,}", "\n\n", re.sub(of_session, "", script)).lstrip())
    records = {}
    with contextlib.closing(redis.Redis.from_url(str(history.server.gate))) as client:
        for name in sorted(client.scan_iter(f"{PREFIX}*")):
            value, ttl = client.get(name), client.pttl(name)
            assert isinstance(value, bytes)
            records[name.decode()] = {"value": value.hex(), "ttl_ms": ttl if ttl > 0 else None}
    (target / "redis.json").write_text(json.dumps(records, indent=1) + "\n")


README = f"""# Data of Petstore {__version__}

`python -m tools.release_data` wrote these files with the code of {__version__}, for the tests of upgrades. They contain
two installations with the same history: one on SQLite and LMDB, one on PostgreSQL and Redis.

- `data.zip` is the data directory of a service that was killed (`kill -9`). Some committed rows are only in `*.db-wal`,
  and some admissions are only in the gate. Files that the next start creates again are left out.
- `backup.zip` is a backup of it.
- `postgres.sql` is the second installation: `pg_dump --inserts --no-owner`, without session settings.
- `redis.json` has the records of its Redis by name: `value` (hexadecimal) and `ttl_ms` (`null`: no expiry).
- `known.json` has for each backend:
  - `unix`: when the service was killed
  - `secrets`: the secrets of keys, and the status that `GET /pets` returns with each
  - `operators`: their tokens and roles
  - `replays`: creates with their idempotency keys and responses
  - `pets`: what `petstore pets list` prints
  - `admitted`: the requests of each key and operation

The history has keys that are suspended, revoked, rotated, at their limit and banned. One import is done, one is undone,
and one was interrupted after two of four animals. Animals were renamed, removed and restored.
"""


def main() -> int:
    check_unreleased()
    target = FIXTURES / __version__
    target.mkdir(parents=True, exist_ok=True)
    known: dict[str, Any] = {}
    try:
        with tempfile.TemporaryDirectory() as directory:
            bans = ("--ban-seconds", BAN_SECONDS)
            for backend, server, keep in (
                ("sqlite", Server(Path(directory) / "sqlite/data", "own", *bans), keep_files),
                ("postgres", Server(Path(directory) / "postgres/data", "cluster", *bans), keep_databases),
            ):
                server.data.parent.mkdir()
                history = History(server)
                history.happen()
                keep(history, target)
                known[backend] = {"unix": int(time.time()), **history.known()}
    finally:
        remove_shared()
    (target / "known.json").write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
    (target / "README.md").write_text(README)
    print(f"Wrote {', '.join(sorted(file.name for file in target.iterdir()))} to {target}.")
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # rejects any other arguments
    sys.exit(main())
