"""Commands for keys, bans and animals: their output as text and JSON, and their effect on a running service."""

import getpass
import json
import re
import time
from pathlib import Path
from typing import Any

import click
import httpx
import pytest

from harness.commands import Commands, Processes
from harness.pets import pet
from harness.served import wait_for
from harness.servers import Host, Key, Server, serving
from harness.wire import asking
from petstore.plans import Limits
from petstore.wording import when
from tests.cli.samples import COMMANDS_AND_GROUPS, OF_A_KEY, Sample


@pytest.fixture
def embedded(tmp_path: Path) -> Commands:
    commands = Commands(Server(tmp_path / "data"))
    commands.server.create()
    return commands


def make_key(petstore: Commands, *options: str) -> dict[str, Any]:
    made: dict[str, Any] = petstore.json("keys", "create", "--plan", "free", *options)
    return made


def status_of(server: Server, secret: str) -> int:
    return httpx.get(server.url("/pets"), headers={"Authorization": f"Bearer {secret}"}).status_code


def last_entry(petstore: Commands) -> tuple[str, str]:
    entry = petstore.entries()[0]
    assert entry.actor.startswith(getpass.getuser())
    assert abs(entry.at - time.time()) < 60
    return entry.action, entry.subject


@pytest.mark.on("sqlite-lmdb")
@pytest.mark.parametrize("words", COMMANDS_AND_GROUPS, ids=lambda words: " ".join(words) or "petstore")
def test_help_explains_the_command(without_data: Commands, words: tuple[str, ...]) -> None:
    done = without_data.run(*words, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    usage, *rest = done.stdout.strip().split("\n\n")
    assert usage.startswith("Usage: ")
    assert len(rest[0].strip()) > len("Options:")
    assert not rest[0].startswith("Options:")
    assert "..." not in done.stdout.replace("[ARGS]...", ""), "a text was cut off"
    assert not without_data.data.exists()


@pytest.mark.parametrize("words", COMMANDS_AND_GROUPS, ids=" ".join)
def test_every_option_and_argument_is_explained(words: tuple[str, ...]) -> None:
    command = COMMANDS_AND_GROUPS[words]
    for param in command.params:
        if isinstance(param, click.Option):
            assert param.help, param.name
        elif not isinstance(param.type, click.Choice):
            assert param.human_readable_name.strip("[]") in str(command.help), param.name


def test_times_are_printed_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert (when(1_794_710_052), when(None)) == ("2026-11-15 02:34:12Z", "never")
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.thorough
def test_commands_work_as_separate_processes(tmp_path: Path, host: Host) -> None:
    """Runs commands as a script does. Other tests run them in the test process, which saves Python's startup time."""
    petstore = Processes(Server(tmp_path / "data", host))
    made = petstore.json("keys", "create", "--plan", "free")
    assert [key["id"] for key in petstore.json("keys", "list")] == [made["id"]]
    assert made["id"] in petstore.text("keys", "list")
    assert "key_nobody" in petstore.fails_in_one_line("keys", "revoke", "key_nobody")


def test_created_key_is_shown_once_with_its_limits(petstore: Commands) -> None:
    made = make_key(petstore, "--name", "Ada's laptop", "--scope", "read", "--expires", "90d")
    assert made["key"].startswith("pets_live_")
    assert (made["name"], made["plan"], made["scopes"]) == ("Ada's laptop", "free", ["read"])
    assert (made["per_minute"], made["per_day"], made["state"]) == (60, 1000, "active")
    assert made["expires"] - made["created"] == pytest.approx(90 * 86_400)
    assert last_entry(petstore) == ("create key", made["id"])
    assert made["key"] not in petstore.text("keys", "show", made["id"]) + petstore.text("keys", "list")


@pytest.mark.on("sqlite-lmdb")
def test_created_key_as_text_has_id_plan_and_secret(petstore: Commands) -> None:
    printed = petstore.text("keys", "create", "--plan", "pro", "--env", "staging")
    (listed,) = petstore.json("keys", "list")
    assert listed["id"] in printed
    assert "pets_test_" in printed
    assert "300 a minute, 10,000 a day" in printed


def test_enterprise_key_has_custom_limits(petstore: Commands) -> None:
    made = petstore.json("keys", "create", "--plan", "enterprise", "--per-minute", "7", "--per-day", "70")
    assert (made["per_minute"], made["per_day"]) == (7, 70)


@pytest.mark.on("sqlite-lmdb")
@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--plan", "gold"], "--plan"),
        ([], "--plan"),
        (["--plan", "enterprise"], "--per-minute"),
        (["--plan", "enterprise", "--per-minute", "5"], "--per-day"),
        (["--plan", "enterprise", "--per-minute", "0", "--per-day", "5"], "--per-minute"),
        (["--plan", "free", "--per-minute", "5", "--per-day", "5"], "free"),
        (["--plan", "pro", "--per-minute", "3"], "pro plan has fixed limits; --per-minute and --per-day require"),
        (["--plan", "free", "--expires", "soon"], "soon"),
        (["--plan", "free", "--scope", "admin"], "--scope"),
        (["--plan", "free", "--env", "test"], "--env"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_key_is_refused_in_one_line(petstore: Commands, options: list[str], names: str) -> None:
    assert names in petstore.fails_in_one_line("keys", "create", *options)


def test_keys_are_listed_with_their_state(petstore: Commands) -> None:
    active, revoked, staging = make_key(petstore), make_key(petstore), make_key(petstore, "--env", "staging")
    expired = petstore.server.key(expires=time.time() - 1)
    petstore.text("keys", "revoke", revoked["id"], "--yes")
    states = {entry["id"]: entry["state"] for entry in petstore.json("keys", "list")}
    assert states == {active["id"]: "active", revoked["id"]: "revoked", expired.id: "expired",
                      staging["id"]: "active"}  # fmt: skip
    assert [entry["id"] for entry in petstore.json("keys", "list", "--env", "staging")] == [staging["id"]]
    lines = petstore.text("keys", "list").splitlines()
    assert {line.split()[0] for line in lines[1:]} == set(states)


@pytest.mark.on("sqlite-lmdb")
def test_empty_lists_say_so(petstore: Commands) -> None:
    for group in ("keys", "pets", "bans"):
        assert petstore.json(group, "list") == []
        assert petstore.text(group, "list").startswith("No ")


def test_key_is_shown_as_text_and_json(petstore: Commands) -> None:
    made = make_key(petstore, "--name", "Ada")
    del made["key"]
    shown = petstore.json("keys", "show", made["id"])
    assert shown == {**made, "rotated": None, "old_secret_until": None, "history": shown["history"], "errors": []}
    fields, _, _ = petstore.text("keys", "show", made["id"]).partition("\n\n")
    lines = dict(line.split(maxsplit=1) for line in fields.splitlines())
    assert (lines["id"], lines["name"], lines["plan"]) == (made["id"], "Ada", "free")


@pytest.mark.parametrize("sample", OF_A_KEY, ids=lambda sample: sample.words)
def test_unknown_key_is_refused_in_one_line(petstore: Commands, sample: Sample, tmp_path: Path) -> None:
    assert "key_nobody" in petstore.fails_in_one_line(*sample.arguments(tmp_path, "key_nobody"))


@pytest.mark.parametrize(
    "sample", [each for each in OF_A_KEY if each.words.startswith("keys") and each.access == "write"],
    ids=lambda sample: sample.words,
)  # fmt: skip
def test_a_revoked_key_stays_revoked(petstore: Commands, sample: Sample, tmp_path: Path) -> None:
    made = make_key(petstore)
    assert petstore.json("keys", "revoke", made["id"], "--yes")["state"] == "revoked"
    assert last_entry(petstore) == ("revoke key", made["id"])
    assert made["id"] in petstore.fails_in_one_line(*sample.arguments(tmp_path, made["id"]))
    assert petstore.json("keys", "show", made["id"])["state"] == "revoked"


def test_running_service_refuses_a_revoked_key_with_the_next_request(server: Server) -> None:
    petstore, key = Commands(server), server.key()
    assert status_of(server, key.secret) == 200
    assert key.id in petstore.text("keys", "revoke", key.id, "--yes")
    assert status_of(server, key.secret) == 401


@pytest.mark.parametrize(("overlap", "old_status"), [("0s", 401), ("24h", 200)])
def test_running_service_accepts_the_new_secret_of_a_rotated_key(server: Server, overlap: str, old_status: int) -> None:
    petstore, key = Commands(server), server.key()
    assert status_of(server, key.secret) == 200
    rotated = petstore.json("keys", "rotate", key.id, "--overlap", overlap)
    assert rotated["id"] == key.id
    assert status_of(server, rotated["key"]) == 200
    assert status_of(server, key.secret) == old_status
    assert last_entry(petstore) == ("rotate key", key.id)


@pytest.mark.parametrize("host", ["own", "cluster"])
def test_rotation_without_overlap_holds_when_the_service_clock_is_behind(host: Host, tmp_path: Path) -> None:
    with serving(tmp_path / "data", host) as server:
        petstore, key = Commands(server), server.key()
        server.move_clock(-30)
        assert status_of(server, key.secret) == 200
        rotated = petstore.json("keys", "rotate", key.id, "--yes")
        assert (status_of(server, key.secret), status_of(server, rotated["key"])) == (401, 200)
        assert abs(rotated["old_secret_until"] - time.time()) < 60
        assert petstore.json("keys", "show", key.id)["expires"] is None


@pytest.mark.on("sqlite-lmdb")
def test_rotated_key_as_text_shows_the_new_secret(petstore: Commands) -> None:
    made = make_key(petstore, "--expires", "90d")
    printed = petstore.text("keys", "rotate", made["id"], "--overlap", "0s")
    assert "pets_live_" in printed
    assert made["key"] not in printed
    assert printed.endswith("The old secret no longer works.\n")
    printed = petstore.text("keys", "rotate", made["id"], "--overlap", "100d")
    assert f"The old secret works until {when(made['expires'])}." in printed, "the key itself expires sooner"
    before = time.time()
    until = petstore.json("keys", "rotate", made["id"], "--overlap", "24h")["old_secret_until"]
    assert before <= until - 86_400 <= time.time()


def test_an_overlap_can_be_ended_early(petstore: Commands) -> None:
    made = make_key(petstore)
    petstore.text("keys", "rotate", made["id"], "--overlap", "24h")
    assert petstore.json("keys", "show", made["id"])["old_secret_until"] > time.time()
    assert "no longer works" in petstore.text("keys", "end-overlap", made["id"])
    assert petstore.json("keys", "show", made["id"])["old_secret_until"] is None
    assert last_entry(petstore) == ("end old secret", made["id"])
    assert "no overlap to end" in petstore.fails_in_one_line("keys", "end-overlap", made["id"])


def test_shown_key_has_the_time_of_its_last_rotation(petstore: Commands) -> None:
    made, other = make_key(petstore, "--env", "staging"), make_key(petstore, "--env", "staging")
    for overlap in ("24h", "0s"):
        petstore.text("keys", "rotate", made["id"], "--overlap", overlap)
    petstore.text("keys", "rotate", other["id"], "--overlap", "7d")
    at = petstore.json("keys", "show", made["id"])["rotated"]
    assert abs(at - time.time()) < 60
    assert f"rotated      {when(at)}, old secret expired immediately\n" in petstore.text("keys", "show", made["id"])
    assert "old secret works until" in petstore.text("audit", "--env", "staging", "--what", "rotate key")


def test_shown_key_has_its_history(petstore: Commands) -> None:
    made, other = make_key(petstore, "--name", "Ada"), make_key(petstore)
    petstore.text("keys", "update", made["id"], "--plan", "pro")
    petstore.text("keys", "suspend", other["id"])
    petstore.text("keys", "suspend", made["id"])
    history = petstore.json("keys", "show", made["id"])["history"]
    assert [entry["action"] for entry in history] == ["suspend key", "update key", "create key"]
    assert {entry["subject"] for entry in history} == {made["id"]}
    assert all(entry["actor"].startswith(getpass.getuser()) for entry in history)
    assert "plan free → pro" in history[1]["detail"]
    *_, header, newest, _, oldest = petstore.text("keys", "show", made["id"]).splitlines()
    assert header.split() == ["WHEN", "WHO", "WHAT", "DETAIL"]
    assert "suspend key" in newest and "create key" in oldest
    for _ in range(10):
        petstore.text("keys", "resume", made["id"])
        petstore.text("keys", "suspend", made["id"])
    assert len(petstore.json("keys", "show", made["id"])["history"]) == 23
    shown = petstore.text("keys", "show", made["id"])
    assert shown.count("suspend key") + shown.count("resume key") == 20
    assert f"For older entries, run `petstore audit --env live --search {made['id']} --" in shown


def banned(server: Server) -> Key:
    key = server.key(limits=Limits(1, 100))
    assert asking(server.port, 3, key.headers)[-1].code == "key_banned"
    return key


def test_the_last_errors_of_a_key_tell_a_limit_from_a_ban_within_five_seconds(server: Server) -> None:
    petstore = Commands(server)
    key = server.key(limits=Limits(3, 100))
    started = time.time()
    secret = key.headers["Authorization"].split()[1]
    assert asking(server.port, 1, key.headers, path=f"/v1/{secret}/%00%1b[2J%E2%80%AE")[0].code == "not_found"
    assert asking(server.port, 1, key.headers, path=f"/v1/pets/{'9' * 300}")[0].code == "pet_not_found"
    assert asking(server.port, 6, key.headers)[-1].code == "key_banned"

    def errors() -> list[dict[str, Any]]:
        return list(petstore.json("keys", "show", key.id)["errors"])

    assert wait_for(lambda: errors() and errors()[0]["code"] == "key_banned", seconds=5)
    shown = errors()
    assert {error["code"]: error["status"] for error in shown} == {
        "key_banned": 429, "rate_limit_exceeded": 429, "pet_not_found": 404, "not_found": 404,
    }  # fmt: skip
    assert all(started - 1 <= error["at"] <= time.time() + 1 for error in shown)
    assert set(shown[0]) == {"at", "request_id", "operation", "status", "code", "path"}
    assert {error["path"] for error in shown if error["status"] == 429} == {"/v1/pets"}
    assert shown[-1]["path"] == f"/v1/{secret[:10]}…/%00%1B[2J%E2%80%AE"
    assert len(shown[-2]["path"]) == 200
    text = petstore.text("keys", "show", key.id)
    assert re.search(r"Z +429 +key_banned +listPets +/v1/pets *\n", text)
    assert re.search(r"Z +429 +rate_limit_exceeded +listPets +/v1/pets *\n", text)
    assert secret not in text and secret not in json.dumps(shown)

    def hours(measure: str) -> int:
        shown = petstore.json("usage", key.id, "--span", "week")
        assert shown["seconds"] == 3600
        return sum(step[measure] for step in shown["steps"])

    assert wait_for(lambda: hours("refused") and hours("banned"), seconds=10)
    assert hours("admitted") == 3 and hours("refused") + hours("banned") == 5


@pytest.mark.parametrize("form", ["text", "json"])
def test_lifting_a_ban_takes_effect_in_a_running_service(server: Server, form: str) -> None:
    petstore, key = Commands(server), banned(server)
    petstore.text("keys", "update", key.id, "--name", "Ada's shop")
    (line,) = (line for line in petstore.text("bans", "list").splitlines() if key.id in line)
    assert line.split()[1] == "live" and "Ada's shop" in line
    (ban,) = (entry for entry in petstore.json("bans", "list") if entry["key_id"] == key.id)
    assert (ban["name"], ban["environment"]) == ("Ada's shop", "live")
    lifted = petstore.json("bans", "lift", key.id) if form == "json" else petstore.text("bans", "lift", key.id)
    (refused,) = asking(server.port, 1, key.headers)
    assert refused.code == "rate_limit_exceeded"
    admitted_from = int(refused.headers["x-ratelimit-reset"])
    if form == "json":
        after = {"state": "active", "used_up": "minute", "admitted_from": admitted_from}
        assert lifted == {"key_id": key.id, "lifted": True, **after}
    else:
        assert f"{key.id} is no longer banned" in lifted and f"admitted again from {when(admitted_from)}" in lifted
    assert last_entry(petstore) == ("lift ban", key.id)
    assert petstore.entries()[0].detail == f"until {when(ban['until'])}"
    assert key.id in petstore.fails_in_one_line("bans", "lift", key.id)


def test_running_service_shows_a_changed_status(server: Server, key: Key) -> None:
    petstore = Commands(server)
    pet = petstore.json("pets", "add", "--name", "Rex 🐕", "--category-id", "-7")
    url = server.url(f"/pets/{pet['id']}")
    assert httpx.get(url, headers=key.headers, verify=False).json() == pet
    assert petstore.json("pets", "set-status", str(pet["id"]), "sold") == {**pet, "status": "sold"}
    assert httpx.get(url, headers=key.headers, verify=False).json() == {**pet, "status": "sold"}
    assert last_entry(petstore) == ("set status", str(pet["id"]))


def test_added_animal_is_listed(petstore: Commands) -> None:
    rex = petstore.json("pets", "add", "--name", "Rex", "--category-id", "1")
    assert rex == pet(id=1, name="Rex", categoryId=1)
    assert last_entry(petstore) == ("add animal", "1")
    assert "Mia" in petstore.text("pets", "add", "--name", "Mia", "--category-id", "2", "--status", "sold")
    assert [pet["name"] for pet in petstore.json("pets", "list")] == ["Rex", "Mia"]
    assert [pet["name"] for pet in petstore.json("pets", "list", "--status", "sold")] == ["Mia"]
    assert [pet["name"] for pet in petstore.json("pets", "list", "--after", "1")] == ["Mia"]
    assert [pet["name"] for pet in petstore.json("pets", "list", "--limit", "2")] == ["Rex", "Mia"]
    assert petstore.json("pets", "list", "--env", "staging") == []
    header, first, second = petstore.text("pets", "list").splitlines()
    assert header.split() == [name.upper() for name in pet()]
    assert {"1", "Rex", "available"} <= set(first.split()) and {"2", "Mia", "sold"} <= set(second.split())
    assert "pending" in petstore.text("pets", "set-status", "1", "pending")


@pytest.mark.on("sqlite-lmdb")
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["add", "--name", " ", "--category-id", "1"], "name"),
        (["add", "--name", "x" * 256, "--category-id", "1"], "name"),
        (["add", "--name", "Rex", "--category-id", str(2**63)], "--category-id"),
        (["add", "--name", "Rex", "--category-id", "one"], "--category-id"),
        (["add", "--name", "Rex"], "--category-id"),
        (["set-status", "1", "sold"], "1"),
        (["set-status", "1", "gone"], "gone"),
        (["set-status", str(2**63), "sold"], str(2**63)),
        (["list", "--limit", "0"], "--limit"),
        (["list", "--after", str(2**63)], "--after"),
        (["list", "--status", "SOLD"], "--status"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_bad_command_on_animals_is_refused_in_one_line(petstore: Commands, words: list[str], names: str) -> None:
    assert names in petstore.fails_in_one_line("pets", *words)


@pytest.mark.on("sqlite-lmdb")
@pytest.mark.parametrize("words", [["nothing"], ["keys", "nothing"], ["pets", "list", "--nothing"], ["keys", "show"]])
def test_unknown_commands_and_options_are_refused_in_one_line(petstore: Commands, words: list[str]) -> None:
    petstore.fails_in_one_line(*words)


def test_one_animal_is_written_in_the_singular(embedded: Commands, tmp_path: Path) -> None:
    embedded.text("pets", "add", "--name", "Rex", "--category-id", "1")
    assert embedded.text("pets", "export", str(tmp_path / "out.csv")).startswith("1 animal written")
    assert embedded.text("pets", "import", str(tmp_path / "out.csv")).startswith("1 animal added to live (import imp_")
    assert "2 animals and 0 keys in live, 0 animals and" in embedded.text("backup", str(tmp_path / "backup.zip"))
    assert [entry["subject"] for entry in embedded.json("audit", "--what", "backup")] == ["backup.zip"]


def test_data_option_wins_over_the_variable(embedded: Commands, tmp_path: Path) -> None:
    embedded.run("pets", "add", "--name", "Rex", "--category-id", "1", "--data", str(tmp_path / "other"))
    assert embedded.json("pets", "list") == []
    assert len(embedded.json("pets", "list", "--data", str(tmp_path / "other"))) == 1
    assert embedded.data.is_dir()
