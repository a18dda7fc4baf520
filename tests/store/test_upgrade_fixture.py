"""The data of release 1.1 in `fixtures/1.1.0` are whole: read without the code of the service."""

import hashlib
import json
import re
import sqlite3
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import lmdb
import pytest

RELEASE = Path(__file__).parents[1] / "fixtures" / "1.1.0"
ROWS: dict[str, dict[str, list[list[Any]]]] = json.loads((RELEASE / "rows.json").read_text())
SECRETS: dict[str, Any] = json.loads((RELEASE / "secrets.json").read_text())
REDIS: dict[str, dict[str, Any]] = json.loads((RELEASE / "redis.json").read_text())
KEY_NAMES = {each["key_id"]: each["key"] for each in SECRETS["secrets"].values()}
ENVIRONMENTS = ("live", "staging")
OPERATIONS = ("listPets", "createPet", "getPet", "other")  # in the order in which 1.1 counts them
MARK = 0xA
WINDOWS = ("minute_start", "minute_used", "day_start", "day_used", "strikes", "ban_start", "ban_end", "bans")

Total = tuple[str, str, str, int, int]  # environment, key, operation, epoch, total


def unpacked(name: str, target: Path) -> Path:
    with zipfile.ZipFile(RELEASE / name) as archive:
        assert archive.testzip() is None
        archive.extractall(target)
    return target


def windows_in(record: bytes) -> dict[str, int]:
    return dict(zip(WINDOWS, struct.unpack("<4q8x4q", record), strict=True))


def lmdb_records(path: Path) -> dict[bytes, bytes]:
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        return {bytes(name): bytes(value) for name, value in txn.cursor()}


def lmdb_totals(records: dict[bytes, bytes]) -> Iterator[Total]:
    for name, value in records.items():
        if name[:1] == b"t":
            environment, epoch, *totals = struct.unpack("<6q", value)
            counters = struct.unpack_from("<Q", records.get(b"k" + name[1:], bytes(72)), 32)[0]
            for place, total in enumerate(totals):
                recent = counters >> 14 * place & 0x3FFF if counters >> 56 == MARK else 0
                if total + recent:
                    key = KEY_NAMES[name[1:].decode()]
                    yield ENVIRONMENTS[environment], key, OPERATIONS[place], epoch, total + recent


def redis_totals() -> Iterator[Total]:
    for name, stored in REDIS.items():
        if name.startswith("petstore:admitted:"):
            fields = {field: int(bytes.fromhex(value)) for field, value in stored["value"].items()}
            for place, operation in enumerate(OPERATIONS, 1):
                if str(place) in fields:
                    environment = ENVIRONMENTS[fields["environment"]]
                    yield environment, KEY_NAMES[name[19:-1]], operation, fields["epoch"], fields[str(place)]


def expected_totals(backend: str, file: str) -> list[Total]:
    """As secrets.json has them, after a look at what the table of collected totals says."""
    found = []
    for each in SECRETS["admissions"][backend]:
        if each["in"] == file:
            key, operation, epoch = each["key"], each["operation"], each["epoch"]
            counted = {
                (KEY_NAMES[key_id], of_epoch, of_operation): total
                for key_id, of_epoch, of_operation, total in ROWS[backend][f"{each['environment']} counted_admissions"]
            }
            assert counted.get((key, epoch, operation), 0) == each["counted"] == each["total"] - each["uncollected"]
            found.append((each["environment"], key, operation, epoch, each["total"]))
    return sorted(found)


@pytest.mark.parametrize("archive", ["data.zip", "backup.zip"])
def test_rows_in_sqlite_are_those_in_the_list(archive: str, tmp_path: Path) -> None:
    data = unpacked(archive, tmp_path)
    tables = set()
    for environment in ENVIRONMENTS:
        with closing(sqlite3.connect(data / f"{environment}.db")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA user_version").fetchone() == (5,)
            for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                rows = [
                    [f"hex:{cell.hex()}" if isinstance(cell, bytes) else cell for cell in row]
                    for row in connection.execute(f"SELECT * FROM {table}")
                ]
                name = f"{environment} {table}"
                assert sorted(rows, key=repr) == sorted(ROWS["sqlite"][name], key=repr), name
                tables.add(name)
    assert tables == set(ROWS["sqlite"])


def test_data_directory_is_that_of_a_killed_service(tmp_path: Path) -> None:
    """A part of the rows is only in the write-ahead log."""
    data = unpacked("data.zip", tmp_path)
    (data / "live.db-wal").unlink()
    with closing(sqlite3.connect(data / "live.db")) as connection:
        (pets,) = connection.execute("SELECT count(*) FROM pets").fetchone()
    assert pets < len(ROWS["sqlite"]["live pets"])


def test_rows_in_postgres_are_as_many_as_in_the_list() -> None:
    script = (RELEASE / "postgres.sql").read_text()
    inserted = Counter(re.findall(r"(?m)^INSERT INTO petstore_(\w+\.\w+) VALUES \(.*\);$", script))
    last_ids = re.findall(r"(?m)^SELECT pg_catalog.setval\('petstore_(\w+\.\w+)', (\d+), true\);$", script)
    for name, rows in ROWS["postgres"].items():
        if name.endswith("_ids"):
            assert (name.replace(" ", "."), str(rows[0][0])) in last_ids, name
        else:
            assert inserted.pop(name.replace(" ", "."), 0) == len(rows), name
    assert not inserted


@pytest.mark.parametrize(
    ("archive", "file", "backend"),
    [
        ("data.zip", "gate.mdb", "sqlite"),
        ("backup.zip", "gate.mdb", "sqlite"),
        ("node.zip", "gate-outage.mdb", "postgres"),
    ],
)
def test_gate_in_lmdb_decodes_as_the_list_says(archive: str, file: str, backend: str, tmp_path: Path) -> None:
    records = lmdb_records(unpacked(archive, tmp_path) / file)
    windows = {KEY_NAMES[name[1:].decode()]: windows_in(value) for name, value in records.items() if name[:1] == b"k"}
    assert windows == SECRETS["windows"][file]
    assert sorted(lmdb_totals(records)) == expected_totals(backend, file)
    assert {name for name in records if name[:1] == b"v"} == {b"vlive", b"vstaging"}
    assert any(name[:1] == b"s" for name in records) or archive == "node.zip"


def test_gate_in_redis_decodes_as_the_list_says() -> None:
    records = {name[14:-1]: bytes.fromhex(each["value"]) for name, each in REDIS.items() if ":key:" in name}
    assert {KEY_NAMES[key]: windows_in(record) for key, record in records.items()} == SECRETS["windows"]["redis.json"]
    assert sorted(redis_totals()) == expected_totals("postgres", "redis.json")
    assert len(bytes.fromhex(REDIS["petstore:{versions}"]["value"])) == 32
    assert any(name.startswith("petstore:valid:") for name in REDIS)


@pytest.mark.parametrize("file", ["gate.mdb", "redis.json"])
def test_bans_are_in_force_and_windows_open(file: str) -> None:
    now = SECRETS["unix"] * 1_000
    windows = SECRETS["windows"][file]
    banned = {key for key, record in windows.items() if record["ban_start"] <= now < record["ban_end"]}
    answered = {each["key"] for each in SECRETS["secrets"].values() if each["answers"]["GET /pets"][1] == "key_banned"}
    assert banned == answered == {"banned", "staging banned"}
    assert windows["banned"]["bans"] == 2
    assert all(now - windows[key]["minute_start"] < 60_000 for key in ("banned", "limited", "day used up", "from 1.0"))


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_admissions_are_left_to_collect(backend: str) -> None:
    left = {each["environment"] for each in SECRETS["admissions"][backend] if each["uncollected"]}
    assert left == set(ENVIRONMENTS)


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_secrets_and_tokens_belong_to_the_stored_digests(backend: str) -> None:
    def digest(secret: str) -> str:
        return f"hex:{hashlib.sha256(secret.encode()).hexdigest()}"

    for environment in ENVIRONMENTS:
        given = {
            (digest(each["secret"]), each["key_id"])
            for each in SECRETS["secrets"].values()
            if each["environment"] == environment
        }
        assert {(row[0], row[1]) for row in ROWS[backend][f"{environment} secrets"]} == given
    operators = {name: digest(each["token"]) for name, each in SECRETS["operators"].items()}
    assert {row[0]: row[1] for row in ROWS[backend]["live operators"]} == operators


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_imports_are_in_every_state(backend: str) -> None:
    states = {}
    for each in SECRETS["imports"][backend]:
        rows = ROWS[backend][f"{each['environment']} import_rows"]
        assert sorted(row[2] for row in rows if row[0] == each["id"]) == each["places_in_import_rows"]
        assert set(each["in_pets"]) <= {row[0] for row in ROWS[backend][f"{each['environment']} pets"]}
        states[each["name"]] = each["state"]
    stored = [row for environment in ENVIRONMENTS for row in ROWS[backend][f"{environment} imports"]]
    assert {row[3]: row[8] for row in stored} == states
    assert set(states.values()) == {"loading", "moving", "done", "undoing", "undone", "discarded"}
