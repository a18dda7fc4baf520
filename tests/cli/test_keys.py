"""Commands that update, suspend, resume, identify, rotate, revoke, show and list keys."""

import contextlib
import json
import os
import pty
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.backends import Redis, running
from harness.commands import Commands
from harness.servers import PETSTORE, Key, Server
from harness.wire import asking
from petstore.keys import well_formed
from petstore.plans import Limits
from petstore.usage import OperationUsage
from petstore.wording import when
from tests.cli.samples import OF_A_KEY

TRIALS = 5  # how many times to check that a change takes effect in a running service


def make_key(petstore: Commands, *options: str) -> dict[str, Any]:
    made: dict[str, Any] = petstore.json("keys", "create", "--plan", "free", *options)
    return made


def status_of(server: Server, key: Key) -> int:
    return httpx.get(server.url("/pets"), headers=key.headers, verify=False).status_code


def banned(server: Server) -> Key:
    key = server.key(limits=Limits(1, 100))
    assert asking(server.port, 3, key.headers)[-1].code == "key_banned"
    return key


def answering(petstore: Commands, answer: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command with the answer to its prompt on standard input."""
    return subprocess.run(
        [*PETSTORE, *words], input=answer, capture_output=True, text=True, timeout=60, env=petstore.variables
    )


# update


def test_update_changes_plan_name_scopes_and_expiry(petstore: Commands) -> None:
    made = make_key(petstore, "--name", "Ada")
    changed = petstore.json("keys", "update", made["id"], "--plan", "pro", "--name", "Ada's shop", "--scope", "read",
                            "--expires", "90d")  # fmt: skip
    assert (changed["plan"], changed["per_minute"], changed["per_day"]) == ("pro", 300, 10_000)
    assert (changed["name"], changed["scopes"], changed["state"]) == ("Ada's shop", ["read"], "active")
    assert abs(changed["expires"] - time.time() - 90 * 86_400) < 60
    entry = petstore.entries()[0]
    assert (entry.action, entry.subject) == ("update key", made["id"])
    assert "plan free → pro" in entry.detail and "per minute 60 → 300" in entry.detail
    assert "name Ada → Ada's shop" in entry.detail and "scopes read+write → read" in entry.detail
    assert f"expires never → {when(changed['expires'])}" in entry.detail
    assert petstore.json("keys", "update", made["id"], "--expires", "never")["expires"] is None
    text = petstore.text("keys", "update", made["id"], "--scope", "read", "--scope", "write")
    assert "pro, 300 a minute, 10,000 a day, read+write" in text and "State: active; expires: never." in text


def test_update_without_a_difference_writes_no_audit_entry(petstore: Commands) -> None:
    made = make_key(petstore)
    petstore.text("keys", "update", made["id"], "--plan", "free", "--expires", "never")
    assert [entry.action for entry in petstore.entries()] == ["create key"]


def test_update_to_enterprise_and_back(petstore: Commands) -> None:
    key_id = make_key(petstore)["id"]
    assert "needs its own limits" in petstore.fails_in_one_line("keys", "update", key_id, "--plan", "enterprise")
    words = ["keys", "update", key_id, "--plan", "enterprise", "--per-minute", "5", "--per-day", "60"]
    assert petstore.json(*words)["per_day"] == 60
    changed = petstore.json("keys", "update", key_id, "--per-minute", "7")
    assert (changed["per_minute"], changed["per_day"]) == (7, 60)
    assert petstore.json("keys", "update", key_id, "--plan", "free")["per_minute"] == 60


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], "nothing to change"),
        (["--plan", "gold"], "--plan"),
        (["--per-minute", "5"], "free plan has fixed limits"),
        (["--plan", "pro", "--per-day", "5"], "pro plan has fixed limits"),
        (["--expires", "0d"], "the minimum is 1s"),
        (["--expires", "soon"], "--expires"),
        (["--name", "a\nb"], "control characters"),
        (["--scope", "admin"], "--scope"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_bad_update_is_refused_in_one_line(petstore: Commands, options: list[str], names: str) -> None:
    key_id = make_key(petstore)["id"]
    assert names in petstore.fails_in_one_line("keys", "update", key_id, *options)
    assert len(petstore.entries()) == 1


def test_an_expired_key_can_be_given_a_later_end(petstore: Commands) -> None:
    expired = petstore.server.key(expires=time.time() - 1)
    assert petstore.json("keys", "show", expired.id)["state"] == "expired"
    assert "later expiry" in petstore.fails_in_one_line("keys", "rotate", expired.id, "--overlap", "1h")
    assert petstore.json("keys", "update", expired.id, "--expires", "1h")["state"] == "active"


def test_an_update_takes_effect_in_a_running_service_and_keeps_the_counters(server: Server) -> None:
    petstore = Commands(server)
    for _ in range(TRIALS):
        key = server.key(limits=Limits(3, 100))
        assert [reply.status for reply in asking(server.port, 4, key.headers)] == [200] * 3 + [429]
        petstore.text("keys", "update", key.id, "--per-minute", "5")
        replies = asking(server.port, 3, key.headers)
        assert [reply.status for reply in replies] == [200, 200, 429]
        petstore.text("keys", "update", key.id, "--plan", "pro", "--scope", "read")
        (reply,) = asking(server.port, 1, key.headers)
        assert (reply.status, reply.headers["x-ratelimit-limit"]) == (200, "300")
        created = httpx.post(
            server.url("/pets"), headers=key.headers, json={"name": "x", "categoryId": 1}, verify=False
        )
        assert created.status_code == 403


# suspend and resume


def test_running_service_refuses_a_suspended_key_until_it_is_resumed(server: Server) -> None:
    petstore = Commands(server)
    key = server.key()
    unknown = httpx.get(server.url("/pets"), headers=server.key(expires=1.0).headers, verify=False)
    for _ in range(TRIALS):
        assert status_of(server, key) == 200
        assert petstore.json("keys", "suspend", key.id)["state"] == "suspended"
        refused = httpx.get(server.url("/pets"), headers=key.headers, verify=False)
        assert (refused.status_code, refused.json()) == (401, unknown.json())
        assert petstore.json("keys", "resume", key.id)["state"] == "active"
    assert status_of(server, key) == 200
    actions = [(entry.action, entry.detail) for entry in petstore.entries() if entry.subject == key.id][:2]
    assert actions == [("resume key", "suspended → active"), ("suspend key", "active → suspended")]


def test_suspend_and_resume_are_refused_twice(petstore: Commands) -> None:
    key_id = make_key(petstore)["id"]
    assert "not suspended" in petstore.fails_in_one_line("keys", "resume", key_id)
    assert "is suspended" in petstore.text("keys", "suspend", key_id)
    assert "already suspended" in petstore.fails_in_one_line("keys", "suspend", key_id)
    assert petstore.json("keys", "show", key_id)["suspended"] is not None
    assert "has been resumed. State: active." in petstore.text("keys", "resume", key_id)


def test_a_suspended_key_can_be_rotated_and_stays_suspended(petstore: Commands) -> None:
    key_id = make_key(petstore)["id"]
    petstore.text("keys", "suspend", key_id)
    assert petstore.json("keys", "rotate", key_id, "--overlap", "0s")["state"] == "suspended"


# identify


def test_identify_finds_the_key_of_a_secret(petstore: Commands) -> None:
    made = make_key(petstore, "--env", "staging", "--name", "Ada")
    done = answering(petstore, made["key"] + "\n", "keys", "identify", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["id"], found["name"], found["secret"]) == (0, made["id"], "Ada", "valid")
    assert made["key"] not in done.stdout + done.stderr
    (entry,) = [entry for entry in petstore.entries("staging") if entry.action == "identify key"]
    assert (entry.subject, entry.detail) == (made["id"], "")
    assert made["id"] in answering(petstore, made["key"], "keys", "identify").stdout
    leaked = f"# settings\nURL = 'https://api.example.com/v1'\nKEY = \"{made['key']}\"\n"
    assert made["id"] in answering(petstore, leaked, "keys", "identify").stdout
    assert (
        made["id"] in answering(petstore, f"\ufeffAuthorization: Bearer {made['key']}\r\n", "keys", "identify").stdout
    )


def test_identify_says_whether_the_secret_is_still_valid(petstore: Commands) -> None:
    made = make_key(petstore)
    second = petstore.json("keys", "rotate", made["id"], "--overlap", "24h")
    valid = json.loads(answering(petstore, made["key"], "keys", "identify", "--json").stdout)["secret"]
    assert valid == f"valid until {when(second['old_secret_until'])}"
    petstore.text("keys", "rotate", made["id"], "--overlap", "0s")
    ended = json.loads(answering(petstore, made["key"], "keys", "identify", "--json").stdout)
    assert (ended["id"], ended["secret"], ended["state"]) == (made["id"], "ended", "active")
    petstore.text("keys", "revoke", made["id"], "--yes")
    assert json.loads(answering(petstore, made["key"], "keys", "identify", "--json").stdout)["state"] == "revoked"


def test_identify_names_the_operator_of_a_token(petstore: Commands) -> None:
    token = petstore.json("operators", "add", "Ada L")["token"]
    said = answering(petstore, f"{token}\n", "keys", "identify")
    assert (
        said.returncode == 2 and "this is the token of operator Ada L, not a key's secret; to revoke it" in said.stderr
    )
    assert "operators revoke 'Ada L'" in said.stderr and token not in said.stderr
    petstore.text("operators", "revoke", "Ada L")
    assert "does not belong to an active operator" in answering(petstore, token, "keys", "identify").stderr


def test_identify_refuses_other_texts_without_repeating_them(petstore: Commands, tmp_path: Path) -> None:
    other = Commands(Server(tmp_path / "other"))
    unknown = make_key(other)["key"]
    for text in ("my-password", unknown[:-1] + "~", "x" * 100_000):
        done = answering(petstore, text, "keys", "identify")
        assert done.returncode == 2 and "not a Petstore secret" in done.stderr
        assert "my-password" not in done.stderr and "xxx" not in done.stderr and unknown[:20] not in done.stderr
    done = answering(petstore, unknown, "keys", "identify")
    assert (done.returncode, done.stderr) == (2, "petstore: this secret does not belong to any key\n")


@pytest.mark.parametrize("text", ["", "\n", "  \n"])
def test_identify_without_a_secret_says_so(petstore: Commands, text: str) -> None:
    done = answering(petstore, text, "keys", "identify")
    assert (done.returncode, done.stderr) == (
        2, "petstore: no secret was found on standard input\n"
    )  # fmt: skip


def test_a_secret_that_is_given_as_an_argument_is_not_repeated(petstore: Commands, tmp_path: Path) -> None:
    made = make_key(petstore)
    message = petstore.fails_in_one_line("keys", "identify", made["key"])
    assert made["key"] not in message and "pets_live_…" in message
    more = ("keys list --before", "usage --after", "pets list --added-by", "pets remove --added-by")
    of_a_key = [sample.arguments(tmp_path, made["key"]) for sample in OF_A_KEY]
    for words in (*of_a_key, *([*each.split(), made["key"]] for each in more)):
        message = petstore.fails_in_one_line(*words)
        assert made["key"] not in message and "run `petstore keys identify" in message, words


def at_a_terminal(petstore: Commands, question: str, answer: str, *words: str) -> tuple[int, str, str]:
    """Runs a command on a terminal and answers its prompt. Returns the exit code, stdout and the terminal output."""
    ours, theirs = pty.openpty()
    command = subprocess.Popen(
        [*PETSTORE, *words], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=petstore.variables,
        start_new_session=True,
    )  # fmt: skip
    shown = b""
    while question.encode() not in shown:
        shown += os.read(ours, 1000)
    os.write(ours, answer.encode() + b"\n")
    printed, _ = command.communicate(timeout=60)
    os.close(theirs)
    os.set_blocking(ours, False)
    with contextlib.suppress(OSError):
        shown += os.read(ours, 10_000)
    os.close(ours)
    return command.returncode, printed.decode(), shown.decode()


def test_identify_asks_on_a_terminal_without_showing_the_secret(tmp_path: Path) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    made = make_key(petstore)
    code, printed, shown = at_a_terminal(petstore, "Secret", made["key"], "keys", "identify")
    assert code == 0 and made["id"] in printed
    assert made["key"] not in printed + shown


# revoke


def test_revoke_asks_on_a_terminal_and_names_the_key(tmp_path: Path) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    made = make_key(petstore, "--name", "Ada's shop")
    words = ("keys", "revoke", made["id"])
    code, printed, shown = at_a_terminal(petstore, "Revoke it?", "n", *words)
    assert (code, printed) == (2, "") and "(Ada's shop, live, free)" in shown and "Aborted" in shown
    assert petstore.json("keys", "show", made["id"])["state"] == "active"
    code, printed, _ = at_a_terminal(petstore, "Revoke it?", "y", *words)
    assert code == 0 and f"{made['id']} is revoked" in printed
    assert petstore.json("keys", "show", made["id"])["state"] == "revoked"


def test_revoke_without_a_terminal_needs_yes(petstore: Commands) -> None:
    made = make_key(petstore)
    assert "--yes" in petstore.fails_in_one_line("keys", "revoke", made["id"])
    assert petstore.json("keys", "show", made["id"])["state"] == "active"
    assert petstore.json("keys", "revoke", made["id"], "--yes")["state"] == "revoked"
    assert "is already revoked" in petstore.fails_in_one_line("keys", "revoke", made["id"])


# contact and expiry


def test_a_key_has_a_contact(server: Server) -> None:
    petstore, key = Commands(server), banned(server)
    made = make_key(petstore, "--contact", "ada@example.com")
    assert made["contact"] == "ada@example.com"
    assert "contact      ada@example.com" in petstore.text("keys", "show", made["id"])
    assert made["id"] in [each["id"] for each in petstore.json("keys", "list", "--search", "ADA@EXAMPLE")]
    changed = petstore.json("keys", "update", made["id"], "--contact", "bob@example.com")
    assert (changed["contact"], petstore.entries()[0].detail) == (
        "bob@example.com", "contact ada@example.com → bob@example.com"
    )  # fmt: skip
    assert petstore.json("keys", "update", made["id"], "--contact", "")["contact"] == ""
    assert "contact must have at most 255" in petstore.fails_in_one_line(
        "keys", "create", "--plan", "free", "--contact", "a\x01"
    )
    petstore.text("keys", "update", key.id, "--contact", "ban@example.com")
    assert "ban@example.com" in [ban["contact"] for ban in petstore.json("bans", "list")]
    assert "ban@example.com" in petstore.text("bans", "list")


def test_create_repeats_name_scopes_and_expiry(petstore: Commands) -> None:
    options = ("--plan", "free", "--name", "Ada", "--scope", "read", "--expires", "30d", "--contact", "ada@example.com")
    printed = petstore.text("keys", "create", *options)
    made = petstore.json("keys", "list")[0]
    for line in ("name     Ada", "contact  ada@example.com", "scopes   read",
                 f"expires  in 30 days, {when(made['expires'])}"):  # fmt: skip
        assert line in printed
    assert "expires  never" in petstore.text("keys", "create", "--plan", "free")


def test_keys_that_expire_soon_are_listed(petstore: Commands) -> None:
    for name, options in (("soon", ["--expires", "20d"]), ("later", ["--expires", "60d"]), ("never", []),
                          ("revoked", ["--expires", "20d"])):  # fmt: skip
        made = make_key(petstore, "--name", name, *options)
    petstore.text("keys", "revoke", made["id"], "--yes")
    assert [key["name"] for key in petstore.json("keys", "list", "--expiring", "30d")] == ["soon"]
    assert [key["name"] for key in petstore.json("keys", "list", "--expiring", "90d")] == ["later", "soon"]
    assert petstore.text("keys", "list", "--expiring", "1d") == "No matching keys.\n"
    soon = petstore.json("keys", "list", "--expiring", "30d")[0]
    assert when(soon["expires"]) in petstore.text("keys", "list", "--expiring", "30d")


def test_show_says_when_a_key_was_resumed_and_when_an_old_secret_ends(petstore: Commands) -> None:
    key_id = make_key(petstore)["id"]
    assert re.search(r"^suspended +never$", petstore.text("keys", "show", key_id), re.MULTILINE)
    petstore.text("keys", "suspend", key_id)
    petstore.text("keys", "resume", key_id)
    resumed = when(petstore.entries()[0].at)
    assert re.search(rf"^suspended +resumed {resumed}$", petstore.text("keys", "show", key_id), re.MULTILINE)
    assert petstore.json("keys", "show", key_id)["old_secret_until"] is None
    until = petstore.json("keys", "rotate", key_id, "--overlap", "24h")["old_secret_until"]
    assert petstore.json("keys", "show", key_id)["old_secret_until"] == until
    assert f"works until {when(until)}" in petstore.text("keys", "show", key_id)


# rotate


@pytest.mark.parametrize("answer", ["", "n\n", "\n"])
def test_rotate_without_overlap_asks_first(petstore: Commands, answer: str) -> None:
    made = make_key(petstore)
    done = answering(petstore, answer, "keys", "rotate", made["id"])
    assert (done.returncode, done.stdout) == (2, "")
    assert "will stop working immediately. Use --overlap 24h" in done.stderr and "Aborted" in done.stderr
    assert [entry.action for entry in petstore.entries()] == ["create key"]


@pytest.mark.parametrize("words", [["--overlap", "0s"], ["--overlap", "24h"], ["--yes"]], ids=" ".join)
def test_rotate_with_overlap_or_yes_does_not_ask(petstore: Commands, words: list[str]) -> None:
    made = make_key(petstore)
    done = answering(petstore, "", "keys", "rotate", made["id"], *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "The old secret " in done.stdout


def test_rotate_continues_after_yes(petstore: Commands) -> None:
    made = make_key(petstore)
    done = answering(petstore, "y\n", "keys", "rotate", made["id"], "--json")
    assert json.loads(done.stdout)["key"] != made["key"]


# show and list


def test_show_has_one_state_and_what_is_used(server: Server) -> None:
    petstore = Commands(server)
    key, caught = server.key(limits=Limits(10, 100)), banned(server)
    asking(server.port, 3, key.headers)
    shown = petstore.json("keys", "show", key.id)
    assert (shown["state"], shown["banned_until"], shown["minute_used"], shown["day_used"]) == ("active", None, 3, 3)
    text = petstore.text("keys", "show", key.id)
    assert "this minute  3 of 10\n" in text and "today        3 of 100\n" in text
    shown = petstore.json("keys", "show", caught.id)
    assert shown["state"] == "banned" and shown["banned_until"] > time.time()
    assert f"state        banned until {when(shown['banned_until'])}\n" in petstore.text("keys", "show", caught.id)
    assert caught.id in [entry["id"] for entry in petstore.json("keys", "list", "--state", "banned")]
    petstore.text("keys", "suspend", caught.id)
    shown = petstore.json("keys", "show", caught.id)
    assert shown["state"] == "suspended" and shown["banned_until"] is not None


def test_list_filters_by_plan_state_and_text(petstore: Commands) -> None:
    free, pro = make_key(petstore, "--name", "Ada"), petstore.json("keys", "create", "--plan", "pro", "--name", "Bob")
    staging = make_key(petstore, "--name", "Ada's test", "--env", "staging")
    petstore.text("keys", "suspend", free["id"])
    petstore.text("keys", "revoke", pro["id"], "--yes")

    def listed(*options: str) -> list[str]:
        return [entry["name"] for entry in petstore.json("keys", "list", *options)]

    assert listed("--plan", "free") == ["Ada's test", "Ada"]
    assert listed("--plan", "pro", "--state", "active") == []
    assert listed("--state", "suspended") == ["Ada"]
    assert listed("--state", "revoked") == ["Bob"]
    assert listed("--search", "ada", "--state", "active") == ["Ada's test"]
    assert listed("--sort", "name") == ["Ada", "Ada's test", "Bob"]
    assert petstore.text("keys", "list", "--plan", "business") == "No matching keys.\n"
    assert staging["id"] in petstore.text("keys", "list", "--env", "staging")
    header = petstore.text("keys", "list").splitlines()[0].split("  ")
    assert [word.strip() for word in header if word.strip()] == [
        "ID", "ENV", "PLAN", "SCOPES", "STATE", "TODAY", "LAST USED", "EXPIRES", "NAME"
    ]  # fmt: skip


def test_list_sorts_by_last_use(petstore: Commands) -> None:
    first, second, never = (make_key(petstore)["id"] for _ in range(3))
    rows = [OperationUsage(key_id, 0, "admitted", 1, "listPets") for key_id in (first, second)]
    petstore.server.act(lambda backends: backends.stores["live"].usage.add(rows, {first: 900.0, second: 800.0}))
    listed = petstore.json("keys", "list", "--sort", "last-used")
    assert [entry["id"] for entry in listed] == [first, second, never]


def test_list_sorts_by_use_of_the_day(server: Server) -> None:
    petstore = Commands(server)
    quiet, busy = server.key(), server.key()
    asking(server.port, 2, quiet.headers)
    asking(server.port, 9, busy.headers)
    ids = [entry["id"] for entry in petstore.json("keys", "list", "--sort", "usage", "--limit", "10000")]
    assert [key_id for key_id in ids if key_id in (quiet.id, busy.id)] == [busy.id, quiet.id]
    done = petstore.run("keys", "list", "--sort", "usage", "--limit", "1", "--json")
    assert len(json.loads(done.stdout)) == 1 and "with a higher --limit" in done.stderr
    assert "--sort created" in petstore.fails_in_one_line("keys", "list", "--sort", "usage", "--before", busy.id)


def test_while_redis_is_away_commands_succeed_and_print_new_secrets(tmp_path: Path) -> None:
    with running(Redis()) as redis:
        server = Server(tmp_path / "data", "cluster")
        server.gate = redis.url()
        server.create()
        key = server.key()
        commands = Commands(server)
        redis.kill()
        made = commands.json("keys", "create", "--plan", "free")
        assert well_formed(made["key"], "live") and (made["state"], made["day_used"]) == ("active", None)
        rotated = commands.json("keys", "rotate", key.id, "--yes")
        assert well_formed(rotated["key"], "live")
        assert commands.json("keys", "suspend", key.id)["state"] == "suspended"
        assert "Redis is not responding" in commands.text("keys", "resume", key.id)
        assert "? of" in commands.text("keys", "show", key.id)
        used = commands.run("usage", key.id, "--json")
        assert (
            used.stderr.startswith("WARN the counts do not include the most recent requests") and used.returncode == 0
        )
        assert json.loads(used.stdout)["day_used"] is None
        assert commands.json("keys", "revoke", key.id, "--yes")["state"] == "revoked"
