"""`petstore usage`, `audit`, `operators` and the paging of `keys list`, as text and JSON, on each pair of backends."""

import ast
import csv
import io
import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import petstore as package
from harness.commands import Commands
from harness.servers import Server
from harness.stores import import_file
from petstore.audit import ACTIONS, Actor, AuditEntry
from petstore.formats.pet_files import PetFile
from petstore.keys import KeyChanges, has_form, mint, new_key
from petstore.maintenance.bans import lift_ban
from petstore.operations import OPERATIONS, OTHER
from petstore.operators import mint_token, new_operator
from petstore.pets import NewPet, PetChanges
from petstore.plans import Limits
from petstore.usage import KeyMeasure, OperationUsage


def make_keys(petstore: Commands, count: int) -> list[str]:
    """Creates keys. Returns their ids, newest first."""

    async def work(backends: Any) -> list[str]:
        keys = [new_key("live", "free", now=time.time(), name=f"Key {i}") for i in range(count)]
        for key in keys:
            await backends.stores["live"].keys.create(key, mint("live"), Actor("ada", key.created))
        return [key.id for key in reversed(keys)]

    return petstore.server.act(work)


def use(petstore: Commands, *rows: OperationUsage) -> None:
    petstore.server.act(lambda backends: backends.stores["live"].usage.add(rows, {}))


def counted(key_id: str, at: int, measure: KeyMeasure, requests: int) -> OperationUsage:
    return OperationUsage(key_id, at, measure, requests, "listPets")


def test_usage_lists_the_busiest_keys_with_their_sparklines(petstore: Commands) -> None:
    quiet, busy, unused = make_keys(petstore, 3)
    now = int(time.time())
    use(petstore, counted(busy, now - 3600, "admitted", 50), counted(quiet, now - 3600, "admitted", 1))
    use(
        petstore,
        counted(busy, now, "admitted", 400),
        counted(busy, now, "refused", 30),
        counted(busy, now, "banned", 2),
    )
    first, second = petstore.json("usage")
    assert (first["key_id"], first["requests"], first["refused"], first["banned"]) == (busy, 482, 30, 2)
    assert (first["admitted"], first["plan"]) == (450, "free")
    assert set(first) == {"key_id", "name", "plan", "requests", "admitted", "refused", "banned", "last"}
    assert first["name"] == "Key 1"
    assert (second["key_id"], second["requests"]) == (quiet, 1)
    for span in ("hour", "day", "week", "month"):
        header, line, *_ = petstore.text("usage", "--span", span).splitlines()
        assert header.split() == ["KEY", "LAST", span.upper(), "REQUESTS", "ADMITTED", "429", "BANNED", "NAME"]
        assert line.split()[0] == busy
        assert re.search("[▁▂▃▄▅▆▇█] ", line)
    assert unused not in petstore.text("usage")
    done = petstore.run("usage", "--limit", "1")
    assert busy in done.stdout and quiet not in done.stdout
    assert done.stderr == f"There are more results. To see them, run the same command with --after {busy}.\n"
    assert [entry["key_id"] for entry in petstore.json("usage", "--after", busy)] == [quiet]
    assert petstore.text("usage", "--after", quiet) == "No more keys with requests in live within the last day.\n"
    assert "no key has the id key_nobody" in petstore.fails_in_one_line("usage", "--after", "key_nobody")
    assert petstore.json("usage", "--env", "staging") == []
    assert petstore.text("usage", "--env", "staging").startswith("No requests in staging")


def test_usage_of_one_key_is_shown_by_interval(petstore: Commands) -> None:
    (key_id,) = make_keys(petstore, 1)
    use(
        petstore,
        counted(key_id, int(time.time()), "admitted", 15),
        counted(key_id, int(time.time()), "client_error", 3),
    )
    shown = petstore.json("usage", key_id, "--span", "day")
    assert (shown["key_id"], shown["name"], shown["seconds"]) == (key_id, "Key 0", 3600)
    assert len(shown["steps"]) == 24
    newest = [step for step in shown["steps"] if step["ok"]]
    assert [(step["admitted"], step["ok"], step["client_error"], step["refused"]) for step in newest] == [
        (15, 12, 3, 0)
    ]
    text = petstore.text("usage", key_id)
    assert "0 of 1,000" in text and "█" in text
    assert text.splitlines()[-1].split()[-5:] == ["12", "3", "0", "0", "0"]
    assert "key_nobody" in petstore.fails_in_one_line("usage", "key_nobody")
    assert "--span" in petstore.fails_in_one_line("usage", "--span", "year")


def test_usage_is_shown_for_one_operation(petstore: Commands) -> None:
    lists, gets = make_keys(petstore, 2)
    now = int(time.time())
    use(
        petstore,
        OperationUsage(lists, now, "admitted", 70, "listPets"),
        OperationUsage(gets, now, "admitted", 5, "getPet"),
    )
    use(
        petstore,
        OperationUsage(lists, now, "admitted", 2, "getPet"),
        OperationUsage(lists, now, "admitted", 1, "createPet"),
    )
    for operation, expected in (
        ("getPet", [(gets, 5), (lists, 2)]), ("listPets", [(lists, 70)]), ("createPet", [(lists, 1)]),
    ):  # fmt: skip
        found = petstore.json("usage", "--operation", operation)
        assert [(entry["key_id"], entry["requests"]) for entry in found] == expected
    shown = petstore.json("usage", lists, "--operation", "getPet")
    assert sum(interval["ok"] for interval in shown["steps"]) == 2
    assert sum(interval["ok"] for interval in petstore.json("usage", lists)["steps"]) == 73
    assert "--operation" in petstore.fails_in_one_line("usage", "--operation", "deletePet")


def test_usage_of_a_calendar_month_can_be_billed(petstore: Commands) -> None:
    big, small = make_keys(petstore, 2)
    first, last = _at(2024, 2, 1), _at(2024, 3, 1) - 1  # this February has 29 days
    use(petstore, counted(big, first - 1, "admitted", 1_000), counted(big, last + 1, "admitted", 1_000))
    use(petstore, counted(big, first, "admitted", 40), counted(big, last, "admitted", 5))
    use(petstore, counted(big, last, "client_error", 6), counted(big, last, "refused", 7))  # one error too many
    use(petstore, counted(small, first, "admitted", 1), counted(small, first, "server_error", 1))
    found = petstore.json("usage", "--month", "2024-02")
    assert [(each["key_id"], each["admitted"], each["refused"]) for each in found] == [(big, 45, 7), (small, 1, 0)]
    assert petstore.json("usage", "--month", "2024-02", "--operation", "getPet") == []
    assert petstore.json("usage", "--month", "2024-02", "--after", big)[0]["key_id"] == small
    one = petstore.json("usage", big, "--month", "2024-02")
    assert (one["admitted"], one["seconds"], len(one["steps"])) == (45, 86_400, 29)
    assert (one["steps"][0]["start"], one["steps"][0]["ok"], one["steps"][-1]["refused"]) == (first, 40, 7)
    assert (one["steps"][-1]["admitted"], one["steps"][-1]["ok"], one["steps"][-1]["client_error"]) == (5, 0, 6)
    assert re.search(r"admitted +45\n", petstore.text("usage", big, "--month", "2024-02"))
    assert "45" in petstore.text("usage", "--month", "2024-02").splitlines()[1].split()
    assert petstore.text("usage", "--month", "2024-01", "--env", "staging") == "No requests in staging in 2024-01.\n"
    assert petstore.text("usage", small, "--month", "2024-01").endswith("No requests in 2024-01.\n")
    assert "--month" in petstore.fails_in_one_line("usage", "--month", "2024-13")
    assert "cannot be combined with" in petstore.fails_in_one_line("usage", "--month", "2024-02", "--span", "day")


def test_the_bill_of_a_month_has_a_row_for_every_key(petstore: Commands) -> None:
    first, last = _at(2024, 2, 1), _at(2024, 3, 1) - 1
    moments = {"early": first - 9, "formula": first - 5, "unused": last - 9, "revoked": first - 9, "late": last + 1}

    async def make(backends: Any) -> dict[str, str]:
        ids = {}
        for name, at in moments.items():
            keys, by = backends.stores["live"].keys, Actor("ada", at)
            key = new_key("live", "pro", now=at, name="=1+1" if name == "formula" else f"{name}, Ltd.")
            ids[name] = key.id
            await keys.create(key, mint("live"), by)
            if name == "revoked":
                await keys.revoke(key.id, by)
        key = new_key("staging", "free", now=time.time())
        await backends.stores["staging"].keys.create(key, mint("staging"), Actor("ada", key.created))
        return {**ids, "staging": key.id}

    ids = petstore.server.act(make)
    use(
        petstore,
        counted(ids["early"], first - 1, "admitted", 9_000),
        counted(ids["early"], last + 1, "admitted", 9_000),
    )
    use(petstore, counted(ids["early"], first, "admitted", 40), counted(ids["early"], last, "refused", 7))
    use(petstore, OperationUsage(ids["early"], last, "admitted", 5, "createPet"))
    use(petstore, OperationUsage(ids["early"], last, "client_error", 5, "createPet"))
    use(petstore, OperationUsage(ids["formula"], first, "admitted", 2, "getPet"))
    use(petstore, OperationUsage(ids["formula"], first, "admitted", 1, "other"))
    printed = petstore.text("usage", "--month", "2024-02", "--csv")
    early, formula, *unused = csv.DictReader(io.StringIO(printed))
    operations = [*(each.name for each in OPERATIONS), OTHER]
    assert [*early] == ["key", "name", "environment", "plan", "admitted", *operations]
    nothing = {"environment": "live", "plan": "pro", "admitted": "0", **dict.fromkeys(operations, "0")}
    assert early == nothing | {
        "key": ids["early"], "name": "early, Ltd.", "admitted": "45", "listPets": "40", "createPet": "5",
    }  # fmt: skip
    assert formula == nothing | {"key": ids["formula"], "name": "'=1+1", "admitted": "3", "getPet": "2", "other": "1"}
    assert {row["key"] for row in unused} == {ids[name] for name in ("unused", "revoked", "late", "staging")}
    assert {row["environment"] for row in unused} == {"live", "staging"} and {row["admitted"] for row in unused} == {
        "0"
    }
    assert petstore.text("usage", "--csv", "--env", "staging").count("\n") == 2


@pytest.mark.parametrize("words", [["key_1"], ["--limit", "5"], ["--operation", "getPet"], ["--json"]], ids=" ".join)
def test_the_bill_is_of_all_keys_and_operations(petstore: Commands, words: list[str]) -> None:
    left_out = words[0] if words[0].startswith("--") else "KEY_ID"
    assert f"cannot be combined with {left_out}" in petstore.fails_in_one_line("usage", "--csv", *words)


def _at(year: int, month: int, day: int) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp())


def test_audit_lists_and_filters_entries(petstore: Commands) -> None:
    key_id = petstore.json("keys", "create", "--plan", "enterprise", "--per-minute", "1", "--per-day", "2")["id"]
    limits = petstore.json("keys", "update", key_id, "--per-minute", "5", "--per-day", "60")
    assert (limits["per_minute"], limits["per_day"]) == (5, 60)
    petstore.text("keys", "revoke", key_id, "--yes")
    entries = petstore.json("audit")
    assert [entry["action"] for entry in entries] == ["revoke key", "update key", "create key"]
    assert {entry["subject"] for entry in entries} == {key_id}
    assert all(entry["actor"].endswith("(command line)") for entry in entries)
    assert [entry["action"] for entry in petstore.json("audit", "--what", "update key")] == ["update key"]
    assert len(petstore.json("audit", "--search", key_id.lower(), "--who", "COMMAND")) == 3
    assert petstore.json("audit", "--who", "nobody") == []
    assert petstore.text("audit", "--who", "nobody") == "No matching entries.\n"
    assert petstore.text("audit", "--env", "staging").startswith("No audit entries in staging yet")
    page = petstore.run("audit", "--limit", "1", "--json")
    assert f"--before {entries[0]['number']}" in page.stderr
    assert json.loads(page.stdout) == entries[:1]
    assert petstore.json("audit", "--before", str(entries[0]["number"])) == entries[1:]
    header, first, *_ = petstore.text("audit").splitlines()
    assert header.split() == ["NUMBER", "WHEN", "WHO", "WHAT", "SUBJECT", "NAME", "DETAIL"]
    assert key_id in first
    assert {entry["name"] for entry in entries} == {""}
    petstore.text("keys", "create", "--plan", "free", "--name", "Ada's shop")
    petstore.text("pets", "add", "--name", "Rex", "--category-id", "1")
    assert [entry["name"] for entry in petstore.json("audit")][:3] == ["", "Ada's shop", ""]
    assert re.search(r" create key +key_\w+ +Ada's shop +free", petstore.text("audit"))
    assert "--what" in petstore.fails_in_one_line("audit", "--what", "nonsense")


def test_operators_are_added_listed_and_revoked(petstore: Commands) -> None:
    assert petstore.text("operators", "list").startswith("No operators yet")
    added = petstore.json("operators", "add", "Ada Lovelace")
    assert has_form(added["token"], "pets_op_")
    assert "ada" in petstore.fails_in_one_line("operators", "add", "Ada Lovelace").lower()
    assert "pets_op_" in petstore.text("operators", "add", "grace")
    assert [entry["name"] for entry in petstore.json("operators", "list")] == ["Ada Lovelace", "grace"]
    assert added["token"] not in petstore.text("operators", "list") + petstore.text("audit")
    assert petstore.json("operators", "add", "viewer one", "--role", "viewer")["role"] == "viewer"
    assert [entry["role"] for entry in petstore.json("operators", "list")] == ["operator", "operator", "viewer"]
    petstore.text("operators", "revoke", "viewer one")
    assert "grace" in petstore.text("operators", "revoke", "grace")
    assert petstore.json("operators", "list")[1]["revoked"] is not None
    assert "grace" in petstore.fails_in_one_line("operators", "revoke", "grace")
    assert petstore.json("operators", "revoke", "Ada Lovelace")["name"] == "Ada Lovelace"
    again = petstore.json("operators", "add", "Ada Lovelace")
    assert again["token"] != added["token"]
    assert [entry.action for entry in petstore.entries()][:2] == ["add operator", "revoke operator"]
    petstore.fails_in_one_line("operators", "add", " ")


def test_keys_are_listed_page_by_page(petstore: Commands) -> None:
    ids = make_keys(petstore, 5)
    assert [entry["id"] for entry in petstore.json("keys", "list")] == ids
    page = petstore.run("keys", "list", "--limit", "2", "--json")
    assert [entry["id"] for entry in json.loads(page.stdout)] == ids[:2]
    assert page.stderr == f"There are more results. To see them, run the same command with --before {ids[1]}.\n"
    assert [entry["id"] for entry in petstore.json("keys", "list", "--before", ids[1])] == ids[2:]
    assert [entry["id"] for entry in petstore.json("keys", "list", "--search", "kEy 3")] == [ids[1]]
    assert petstore.text("keys", "list", "--search", "nobody") == "No matching keys.\n"
    assert "key_nobody" in petstore.fails_in_one_line("keys", "list", "--before", "key_nobody")


def test_only_enterprise_keys_have_custom_limits(petstore: Commands) -> None:
    (key_id,) = make_keys(petstore, 1)
    words = ["keys", "update", key_id, "--per-minute", "5", "--per-day", "60"]
    assert "free plan has fixed limits" in petstore.fails_in_one_line(*words)


def test_every_act_records_a_known_action(petstore: Commands) -> None:
    """The audit page and `--what` offer these actions."""

    async def work(backends: Any) -> list[AuditEntry]:
        store, by = backends.stores["live"], Actor("ada", time.time())
        key, secret = new_key("live", "enterprise", now=by.at, limits=Limits(1, 1)), mint("live")
        await store.keys.create(key, mint("live"), by)
        await store.keys.update(key.id, KeyChanges(per_minute=2, per_day=2), by)
        await store.keys.suspend(key.id, by)
        await store.keys.resume(key.id, by)
        await store.keys.rotate(key.id, secret, 1, 0, by)
        await store.keys.identify(secret, by)
        await store.keys.rotate(key.id, mint("live"), 2, 60, by)
        await store.keys.end_old_secret(key.id, by)
        version = await backends.gate.keys_version("live")
        for _ in range(6):
            await backends.gate.admit("live", key.id, Limits(2, 2), version, time.time(), "other")
        await lift_ban(store, backends.gate, key.id, by)
        await store.keys.revoke(key.id, by)
        pet = await store.pets.add_by_hand(NewPet("Rex", 1), by)
        await store.pets.set_status([pet.id], "sold", by)
        await store.pets.update(pet.id, PetChanges(name="Max"), by)
        await store.removals.remove([pet.id], by)
        await store.removals.restore([pet.id], by)
        added = await import_file(store, PetFile("x.csv", io.BytesIO(b"name,categoryId\nMia,1\n")), by)
        await store.imports.undo(added.id, by)
        await store.operators.add(new_operator("grace", by.at), mint_token(), by)
        await store.operators.set_role("grace", "viewer", by)
        await store.operators.revoke("grace", by)
        return [entry for _, entry in (await store.audit.find()).entries]

    entries = petstore.server.act(work)
    elsewhere = ["backup", "restore", "copy", "sign in", "sign-in failed", "sign out", "sign out everywhere"]
    assert sorted({*(entry.action for entry in entries), *elsewhere}) == sorted(ACTIONS)
    assert {entry.actor for entry in entries} == {"ada"}


def test_every_action_in_the_code_is_known() -> None:
    place = {"entry": 0, "record": 1, "_change": 1, "removal_entry": 1}
    recorded = set()
    for file in Path(package.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                action = node.args[place[name]] if name in place and len(node.args) > place[name] else None
                if isinstance(action, ast.Constant):
                    recorded.add(action.value)
    named_by_variables = {"sign out", "sign out everywhere"}
    assert recorded == set(ACTIONS) - named_by_variables


@pytest.mark.parametrize("words", [["usage"], ["audit"], ["operators", "list"], ["keys", "list"]], ids=" ".join)
def test_empty_lists_are_json_too(petstore: Commands, words: list[str]) -> None:
    assert petstore.json(*words) == []


def test_usage_warns_if_the_gate_does_not_respond(tmp_path: Path) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    petstore.text("keys", "create", "--plan", "free")
    assert petstore.run("usage", "--csv").stderr == ""
    petstore.server.gate = "redis://127.0.0.1:1"
    for words in (["usage"], ["usage", "--csv"]):
        said = petstore.run(*words)
        assert said.returncode == 0 and said.stderr.startswith(
            "WARN the counts do not include the most recent requests: "
        ), said
