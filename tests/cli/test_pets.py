"""Commands that show, search, update, remove and restore animals, import files and undo imports."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from harness.commands import Commands
from harness.pets import pet
from harness.served import wait_for
from harness.servers import PETSTORE, Key, Server
from petstore.audit import Actor
from petstore.backends import Backends
from petstore.formats.pet_texts import ORIGIN_COLUMNS
from petstore.pets import NewPet

TRIALS = 5  # how many times to check that a change takes effect in a running service


def add(petstore: Commands, *names: str) -> list[int]:
    return [petstore.json("pets", "add", "--name", name, "--category-id", "1")["id"] for name in names]


def names(petstore: Commands, *options: str) -> list[str]:
    return [pet["name"] for pet in petstore.json("pets", "list", *options)]


def written(path: Path, *rows: str) -> Path:
    path.write_text("name,categoryId\n" + "".join(f"{row}\n" for row in rows))
    return path


def answering(petstore: Commands, answer: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command with the answer to its prompt on standard input."""
    return subprocess.run(
        [*PETSTORE, *words], input=answer, capture_output=True, text=True, timeout=60, env=petstore.variables
    )


def test_show_prints_one_animal(petstore: Commands) -> None:
    (pet_id,) = add(petstore, "Rex")
    assert petstore.json("pets", "show", str(pet_id))["name"] == "Rex"
    assert petstore.text("pets", "show", str(pet_id)).startswith(f"{pet_id}  Rex  category 1  available\nAdded by ")
    message = petstore.fails_in_one_line("pets", "show", "99")
    assert message.startswith("no animal has the id 99 in live; list the ids with `petstore pets list --data ")
    assert "in staging" in petstore.fails_in_one_line("pets", "show", str(pet_id), "--env", "staging")
    petstore.text("pets", "remove", str(pet_id), "--yes")
    removed = petstore.fails_in_one_line("pets", "show", str(pet_id))
    assert f"to restore removed animals, run `petstore pets restore {pet_id} " in removed


def test_list_searches_names(petstore: Commands) -> None:
    add(petstore, "Rex", "Mia", "T-Rex", "Ærø")
    assert names(petstore, "--search", "rex") == ["Rex", "T-Rex"]
    assert names(petstore, "--search", "æRØ") == ["Ærø"]
    done = petstore.run("pets", "list", "--search", "rex", "--limit", "1")
    assert "run the same command with --after 1." in done.stderr
    assert names(petstore, "--search", "rex", "--after", "1") == ["T-Rex"]
    assert petstore.text("pets", "list", "--search", "nobody") == "No matching animals.\n"


def test_update_changes_an_animal(petstore: Commands) -> None:
    (pet_id,) = add(petstore, "Rex")
    changed = petstore.json("pets", "update", str(pet_id), "--name", "Max", "--category-id", "7", "--status", "sold")
    assert changed == pet(id=pet_id, name="Max", categoryId=7, status="sold")
    entry = petstore.entries()[0]
    assert (entry.action, entry.subject) == ("update animal", str(pet_id))
    assert entry.detail == "name Rex → Max; category id 1 → 7; status available → sold"
    petstore.text("pets", "update", str(pet_id), "--name", "Max")
    assert petstore.entries()[0] == entry, "an update without changes must not add an entry"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["1"], "nothing to change"),
        (["99", "--name", "Max"], "no animal has the id 99"),
        (["1", "--name", " "], "name must not be empty"),
        (["1", "--name", "x" * 256], "at most 255"),
        (["1", "--category-id", str(2**63)], "--category-id"),
        (["1", "--status", "gone"], "--status"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else None,
)
def test_a_bad_update_is_refused_in_one_line(petstore: Commands, words: list[str], says: str) -> None:
    add(petstore, "Rex")
    assert says in petstore.fails_in_one_line("pets", "update", *words)
    assert names(petstore) == ["Rex"]


def test_status_of_several_animals_is_set_at_once(petstore: Commands) -> None:
    add(petstore, "Rex", "Mia", "Bo")
    assert petstore.json("pets", "set-status", "1", "sold")["status"] == "sold"
    changed = petstore.json("pets", "set-status", "2", "3", "pending")
    assert [(pet["id"], pet["status"]) for pet in changed] == [(2, "pending"), (3, "pending")]
    message = petstore.fails_in_one_line("pets", "set-status", "1", "98", "99", "sold")
    assert "ids 98, 99 in live; list the ids with `petstore pets list " in message
    assert [pet["status"] for pet in petstore.json("pets", "list")] == ["sold", "pending", "pending"]


def test_set_status_records_the_old_status_and_only_changes(petstore: Commands) -> None:
    add(petstore, "Rex", "Mia")
    petstore.text("pets", "set-status", "1", "sold")
    assert petstore.json("pets", "set-status", "1", "sold")["status"] == "sold"
    assert len(petstore.json("pets", "set-status", "1", "2", "sold")) == 2
    entries = [(entry.subject, entry.detail) for entry in petstore.entries() if entry.action == "set status"]
    assert entries == [("2", "available → sold"), ("1", "available → sold")]


def test_remove_asks_and_removes_several(petstore: Commands) -> None:
    add(petstore, "Rex", "Mia", "Bo")
    done = answering(petstore, "n\n", "pets", "remove", "1", "2")
    assert done.returncode == 2 and "Remove 2 animals from live? Aborted" in done.stderr
    assert "Aborted" in done.stderr and done.stderr.count("\n") == 1
    assert names(petstore) == ["Rex", "Mia", "Bo"]
    assert "no animal has the id 99" in petstore.fails_in_one_line("pets", "remove", "1", "99", "--yes")
    removed = answering(petstore, "y\n", "pets", "remove", "1", "2").stdout
    both = re.fullmatch(r"2 animals removed from live \(removal (rem_\w{12})\)\. To undo this, run `(.+)`\.\n", removed)
    assert both is not None, removed
    assert f"pets restore {both[1]} --data " in both[2]
    one = petstore.json("pets", "remove", "3", "--yes")
    assert one["removed"] == [3]
    assert names(petstore) == []
    entries = [(entry.action, entry.subject, entry.detail) for entry in petstore.entries()][:2]
    assert entries == [
        ("remove animal", "3", f"Bo, category 1, available, {one['removal']}"),
        ("remove animal", both[1], "2 animals: 1, 2"),
    ]
    assert add(petstore, "Next") == [4], "ids must never be reused"


def test_update_and_remove_take_effect_in_a_running_service(server: Server, key: Key) -> None:
    petstore = Commands(server)
    with httpx.Client(headers=key.headers, verify=False) as client:
        for _ in range(TRIALS):
            (pet_id,) = add(petstore, "Rex")
            url = server.url(f"/pets/{pet_id}")
            assert client.get(url).json()["name"] == "Rex"
            petstore.text("pets", "update", str(pet_id), "--name", "Max")
            assert client.get(url).json()["name"] == "Max"
            petstore.text("pets", "remove", str(pet_id), "--yes")
            assert client.get(url).status_code == 404
            petstore.text("pets", "restore", str(pet_id))
            assert client.get(url).json() == pet(id=pet_id, name="Max")


def test_removed_animals_are_restored_with_their_last_values(petstore: Commands) -> None:
    add(petstore, "Rex", "Mia")
    petstore.text("pets", "remove", "1", "2", "--yes")
    petstore.text("pets", "restore", "1")
    petstore.text("pets", "update", "1", "--name", "Max", "--status", "sold")
    petstore.text("pets", "remove", "1", "--yes")
    restored = petstore.text("pets", "restore", "2", "1", "2")
    assert restored == "1  Max  category 1  sold\n2  Mia  category 1  available\n"
    assert names(petstore) == ["Max", "Mia"]
    assert petstore.entries()[0].action == "restore animal"
    petstore.text("pets", "remove", "1", "--yes")
    assert petstore.json("pets", "restore", "1") == {"restored": [1]}


def test_a_removal_is_restored_by_its_id(petstore: Commands) -> None:
    add(petstore, "Rex", "Mia", "Bo")
    removal = petstore.json("pets", "remove", "1", "2", "3", "--yes")["removal"]
    petstore.text("pets", "restore", "2")
    assert petstore.text("pets", "restore", removal) == "2 animals restored to live.\n"
    assert names(petstore) == ["Rex", "Mia", "Bo"]
    entry = petstore.entries()[0]
    assert (entry.action, entry.subject, entry.detail) == ("restore animal", removal, "2 animals")
    assert petstore.fails_in_one_line("pets", "restore", removal).endswith("have already been restored")
    for wrong, reason in (
        (["rem_unknown"], "removal rem_unknown was not found in live"),
        ([removal, "--env", "staging"], f"removal {removal} was not found in staging"),
        ([removal, removal], "only one removal can be restored at a time"),
        ([removal, "1"], "only one removal can be restored at a time"),
        (["rem_\N{SNOWMAN}"], "was not found"),
        (["x"], "'x' is not a 64-bit whole number"),
    ):
        assert reason in petstore.fails_in_one_line("pets", "restore", *wrong)


def test_what_cannot_be_restored_is_named_and_nothing_is_restored(petstore: Commands, tmp_path: Path) -> None:
    add(petstore, "Removed", "Present")
    added = petstore.json("pets", "import", str(written(tmp_path / "x.csv", "Imported,1", "By hand,1")))
    petstore.text("pets", "remove", "1", "4", "--yes")
    petstore.text("pets", "undo-import", added["import"], "--yes")
    for pet_id, reason in (
        ("2", "animal 2 has not been removed from live"),
        ("3", f"animal 3 was removed when {added['import']} was undone; to get it back, import x.csv again"),
        ("98", "removed animal 98 was not found in live"),
    ):
        assert reason in petstore.fails_in_one_line("pets", "restore", "1", pet_id)
    assert "in staging" in petstore.fails_in_one_line("pets", "restore", "1", "--env", "staging")
    assert names(petstore) == ["Present"]
    petstore.text("pets", "restore", "1", "4")  # animal 4 was removed by hand, not by undoing its import
    assert names(petstore) == ["Removed", "Present", "By hand"]


# Who added animals


def test_show_says_who_added_an_animal_and_when(server: Server, key: Key, tmp_path: Path) -> None:
    petstore, began = Commands(server), int(time.time())
    answer = httpx.post(
        server.url("/pets"), headers=key.headers, json={"name": "By a key", "categoryId": 1}, verify=False
    )
    assert "added" not in answer.text
    (by_hand,) = add(petstore, "By hand")
    imported = petstore.json("pets", "import", str(written(tmp_path / "x.csv", f"Imported {began},1")))["import"]
    operator = petstore.entries()[0].actor
    for pet_id, kind, name in (
        (answer.json()["id"], "key", key.id),
        (by_hand, "operator", operator),
        (by_hand + 1, "import", imported),
    ):
        shown = petstore.json("pets", "show", str(pet_id))
        assert shown["added_by"] == name and began <= shown["added_at"] <= time.time()
        assert f"Added by {kind} {name}, " in petstore.text("pets", "show", str(pet_id))
        assert pet_id in [pet["id"] for pet in petstore.json("pets", "list", "--added-by", name, "--limit", "1000")]
    listed = petstore.json("pets", "list", "--limit", "1000")
    assert not listed[0].keys() & set(ORIGIN_COLUMNS)


def test_animals_are_listed_by_who_added_them_and_when(petstore: Commands) -> None:
    operator = added_at(petstore, "Early", 1_000_000_000.0), added_at(petstore, "Late", 1_000_086_400.0)
    assert operator == ("ada", "ada")

    def found(*options: str) -> list[str]:
        return [pet["name"] for pet in petstore.json("pets", "list", *options)]

    assert found("--added-by", "ada") == ["Early", "Late"]
    assert found("--since", "2001-09-10") == ["Late"]
    assert found("--until", "2001-09-10T00:00:00Z") == ["Early"]
    assert found("--since", "2001-09-09T01:46:40Z", "--until", "2001-09-09 01:46:41") == ["Early"]
    assert found("--since", "2001-09-09T01:46:41Z", "--until", "2001-09-10") == []
    assert petstore.text("pets", "list", "--since", "2001-09-10").endswith("\n1 animal matches.\n")
    assert petstore.run("pets", "list", "--added-by", "ada", "--limit", "1").stdout.endswith("\n2 animals match.\n")
    assert "match" not in petstore.text("pets", "list")
    assert "bob is neither the id of a key nor" in petstore.fails_in_one_line("pets", "list", "--added-by", "bob")
    assert "'noon' is not a time" in petstore.fails_in_one_line("pets", "list", "--since", "noon")


def added_at(petstore: Commands, name: str, at: float) -> str:
    """Adds an animal as the operator ada at the time `at`. Returns her name."""
    by = Actor("ada", at)
    petstore.server.act(lambda backends: backends.stores["live"].pets.add_by_hand(NewPet(name, 1), by))
    return by.name


def test_an_export_says_who_added_animals_only_on_request(petstore: Commands, tmp_path: Path) -> None:
    added_at(petstore, "Rex", 1_000_000_000.0)
    for name, plain, with_origin in (
        ("a.csv", "id,name,categoryId,status\n1,Rex,1,available\n",
         "id,name,categoryId,status,added_by,added_at\n1,Rex,1,available,ada,2001-09-09T01:46:40Z\n"),
        ("a.jsonl", '{"id":1,"name":"Rex","categoryId":1,"status":"available"}\n',
         '{"id":1,"name":"Rex","categoryId":1,"status":"available","added_by":"ada","added_at":"2001-09-09T01:46:40Z"}\n'),
    ):  # fmt: skip
        petstore.text("pets", "export", str(tmp_path / name))
        assert (tmp_path / name).read_text() == plain
        petstore.text("pets", "export", str(tmp_path / name), "--with-added-by", "--force")
        assert (tmp_path / name).read_text() == with_origin
        added = petstore.json("pets", "import", str(tmp_path / name))  # the import ignores id, added_by and added_at
        (pet,) = petstore.json("pets", "list", "--added-by", added["import"])
        assert petstore.json("pets", "show", str(pet["id"]))["added_at"] > 1_700_000_000
        petstore.text("pets", "undo-import", added["import"], "--yes")


def test_the_animals_of_a_broken_script_are_removed_and_restored(server: Server, tmp_path: Path) -> None:
    """A customer's script added 5,000 animals, other clients added more, and an operator corrected one."""
    petstore = Commands(server)
    broken, other = (petstore.json("keys", "create", "--plan", "free", "--name", name)["id"] for name in ("A", "B"))

    async def add_all(backends: Backends) -> None:
        live = backends.stores["live"].pets
        await live.add(NewPet("By another customer", 1), time.time(), key_id=other)
        for start in range(0, 5_000, 500):
            animals = (NewPet(f"Broken {i}", i) for i in range(start, start + 500))
            await asyncio.gather(*(live.add(each, time.time(), key_id=broken) for each in animals))

    server.act(add_all)
    first = petstore.json("pets", "list", "--added-by", broken, "--limit", "10000")[0]
    petstore.text("pets", "update", str(first["id"]), "--name", "Corrected")
    before = exported(petstore, tmp_path / "before.csv")
    refused = petstore.fails_in_one_line("pets", "remove", "--added-by", broken)
    assert (
        f"Remove 4,999 animals added by {broken} from live? 1 animal that an operator has changed will not be removed"
        in refused
    )
    removed = petstore.json("pets", "remove", "--added-by", broken, "--yes")
    assert removed == {"removed": 4_999, "kept": 1, "removal": removed["removal"], "environment": "live"}
    assert [pet["name"] for pet in petstore.json("pets", "list", "--added-by", broken)] == ["Corrected"]
    assert [pet["name"] for pet in petstore.json("pets", "list", "--added-by", other)] == ["By another customer"]
    entry = petstore.entries()[0]
    assert (entry.subject, entry.detail) == (removed["removal"], f"4,999 animals added by {broken}")
    again = petstore.fails_in_one_line("pets", "remove", "--added-by", broken, "--yes")
    assert f"there are no animals added by {broken}, apart from 1 animal that an operator has changed" in again
    assert petstore.json("pets", "restore", removed["removal"])["restored"] == 4_999
    assert exported(petstore, tmp_path / "after.csv") == before
    all_of_them = petstore.json("pets", "remove", "--added-by", broken, "--also-edited", "--yes")
    assert (all_of_them["removed"], all_of_them["kept"]) == (5_000, 0)


def exported(petstore: Commands, file: Path) -> str:
    petstore.text("pets", "export", str(file), "--with-added-by")
    return file.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "nothing to remove; specify ids or use --added-by"),
        (["1", "--added-by", "ada"], "--added-by cannot be combined with ids"),
        (["1", "--since", "2026-11-18"], "--since, --until and --also-edited require --added-by"),
        (["--also-edited"], "--since, --until and --also-edited require --added-by"),
        (
            ["--added-by", "bob"],
            "bob is neither the id of a key nor an import or operator that has added animals to live",
        ),
        (
            ["--added-by", "ada", "--since", "2030-01-01"],
            "there are no animals added by ada since 2030-01-01 00:00:00Z",
        ),
    ],
)
def test_remove_refuses_wrong_combinations(petstore: Commands, options: list[str], message: str) -> None:
    added_at(petstore, "Rex", 1_000_000_000.0)
    assert message in petstore.fails_in_one_line("pets", "remove", *options, "--yes")
    assert names(petstore) == ["Rex"]


# Imports


def test_a_dry_run_counts_and_lists_every_bad_row(petstore: Commands, tmp_path: Path) -> None:
    file = written(tmp_path / "x.csv", "Rex,1", *["Mia,one"] * 150, "Bo,2")
    done = petstore.run("pets", "import", str(file), "--dry-run")
    assert (done.returncode, done.stderr) == (1, "")
    *bad, summary = done.stdout.splitlines()
    assert [line.split(":")[0] for line in bad] == [f"line {number}" for number in range(3, 153)]
    assert summary == f"{file}: 2 animals, 150 bad rows; nothing was added."
    report = json.loads(petstore.run("pets", "import", str(file), "--dry-run", "--json").stdout)
    assert (report["added"], report["import"], report["animals"], report["bad_rows"]) == (0, None, 2, 150)
    assert report["bad"][0]["line"] == 3 and "categoryId" in report["bad"][0]["reason"]
    written(file, "Rex,1")
    assert (
        petstore.text("pets", "import", str(file), "--dry-run") == f"{file}: 1 animal, 0 bad rows; nothing was added.\n"
    )
    assert (names(petstore), petstore.entries()) == ([], [])


def test_a_dry_run_creates_no_data(without_data: Commands, tmp_path: Path) -> None:
    without_data.text("pets", "import", str(written(tmp_path / "x.csv", "Rex,1")), "--dry-run")
    assert not without_data.data.exists()


def test_a_file_that_was_imported_before_is_asked_about(petstore: Commands, tmp_path: Path) -> None:
    file = written(tmp_path / "x.csv", "Rex,1")
    first = petstore.json("pets", "import", str(file))
    other_name = tmp_path / "renamed.csv"
    file.rename(other_name)
    done = answering(petstore, "", "pets", "import", str(other_name))
    assert done.returncode == 2 and f"has already been imported: {first['import']}, 1 animal" in done.stderr
    assert first["import"] in petstore.run("pets", "import", str(other_name), "--dry-run").stdout
    assert names(petstore) == ["Rex"]
    assert names(petstore, "--env", "staging") == []
    petstore.text("pets", "import", str(other_name), "--env", "staging")  # not imported there before
    assert petstore.json("pets", "import", str(other_name), "--yes")["import"] != first["import"]
    assert answering(petstore, "y\n", "pets", "import", str(other_name)).returncode == 0
    assert names(petstore) == ["Rex"] * 3


def test_an_import_that_was_undone_can_be_repeated(petstore: Commands, tmp_path: Path) -> None:
    file = written(tmp_path / "x.csv", "Rex,1", "Mia,2", "Bo,3")
    add(petstore, "Before")
    added = petstore.json("pets", "import", str(file))
    petstore.text("pets", "set-status", "3", "sold")
    add(petstore, "After")
    done = answering(petstore, "", "pets", "undo-import", added["import"])
    kept = "1 animal changed since the import will be kept."
    question = f"Remove 2 animals added by {added['import']} (x.csv) from live? {kept}"
    assert done.returncode == 2 and question in done.stderr
    undone = petstore.json("pets", "undo-import", added["import"], "--yes")
    assert undone == {"import": added["import"], "environment": "live", "removed": 2, "kept": 1, "kept_ids": [3]}
    assert names(petstore) == ["Before", "Mia", "After"]
    entry = petstore.entries()[0]
    assert (entry.action, entry.subject, entry.detail) == (
        "undo import", added["import"], "x.csv, 2 animals, 1 kept"
    )  # fmt: skip
    again_message = petstore.fails_in_one_line("pets", "undo-import", added["import"], "--yes")
    assert again_message == f"{added['import']} has already been undone: 2 removed, 1 kept"
    again = petstore.json("pets", "import", str(file))
    text = petstore.text("pets", "undo-import", again["import"], "--yes")
    assert text == "3 animals removed from live.\n"


def test_undo_counts_what_it_removes_itself(petstore: Commands, tmp_path: Path) -> None:
    file = written(tmp_path / "x.csv", "Rex,1", "Mia,2", "Bo,3")
    added = petstore.json("pets", "import", str(file))
    petstore.text("pets", "remove", "2", "--yes")
    done = answering(petstore, "", "pets", "undo-import", added["import"])
    assert f"Remove 2 animals added by {added['import']} (x.csv) from live?" in done.stderr
    assert petstore.text("pets", "undo-import", added["import"], "--yes") == "2 animals removed from live.\n"


def test_undo_says_how_many_animals_were_kept(petstore: Commands, tmp_path: Path) -> None:
    added = petstore.json("pets", "import", str(written(tmp_path / "x.csv", "Rex,1", "Mia,2")), "--env", "staging")
    petstore.text("pets", "update", "1", "--name", "Max", "--env", "staging")
    text = petstore.text("pets", "undo-import", added["import"], "--yes")
    assert text == "1 animal removed from staging.\nKept 1 animal changed since the import. Ids: 1\n"


def test_undo_names_the_first_animals_that_stayed(petstore: Commands, tmp_path: Path) -> None:
    file = written(tmp_path / "x.csv", *(f"Pet {number},1" for number in range(14)))
    added = petstore.json("pets", "import", str(file))
    petstore.text("pets", "set-status", *(str(number) for number in range(2, 14)), "sold")
    petstore.text("pets", "add", "--name", "Rex", "--category-id", "1")  # not part of the import
    assert petstore.text("pets", "undo-import", added["import"], "--yes") == (
        "2 animals removed from live.\n"
        "Kept 12 animals changed since the import. Ids: 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 …\n"
    )


@pytest.mark.parametrize(
    ("rows", "detail"), [(["Rex,1"], "file with 1 animal, imp_"), (["Rex,1", "Mia,2"], "file with 2 animals, imp_")]
)
def test_the_audit_entry_of_an_import_counts_its_animals(
    petstore: Commands, tmp_path: Path, rows: list[str], detail: str
) -> None:
    petstore.text("pets", "import", str(written(tmp_path / "x.csv", *rows)))
    assert petstore.entries()[0].detail.startswith(detail)


@pytest.mark.parametrize("import_id", ["imp_nobody", "\udcff", "x\0y", ""])
def test_undo_of_an_unknown_import_is_refused_in_one_line(petstore: Commands, import_id: str) -> None:
    assert "no import has the id" in petstore.fails_in_one_line("pets", "undo-import", import_id, "--yes")


def test_the_content_of_a_pipe_is_recognised_afterwards(petstore: Commands, tmp_path: Path) -> None:
    pipe, file = tmp_path / "pipe.csv", written(tmp_path / "x.csv", "Rex,1")
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(file.read_bytes(),))
    writer.start()
    added = petstore.json("pets", "import", str(pipe))
    writer.join()
    assert added["import"] in answering(petstore, "", "pets", "import", str(file)).stderr


def test_ctrl_c_while_a_pipe_is_read_adds_nothing(petstore: Commands, tmp_path: Path) -> None:
    """The pipe stays open, so the command waits for more input."""
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    command = subprocess.Popen(
        [*PETSTORE, "pets", "import", str(pipe)], stderr=subprocess.PIPE, text=True, env=petstore.variables
    )
    with pipe.open("w") as open_end:
        open_end.write("name,categoryId\n" + "Rex,1\n" * 5_000)
        open_end.flush()
        assert wait_for(lambda: _is_waiting(command.pid))
        command.send_signal(signal.SIGINT)
    _, message = command.communicate(timeout=60)
    assert command.returncode == 130 and "Interrupted. Run the same command again to resume.\n" in message
    assert (names(petstore), petstore.entries()) == ([], [])


ONE_BY_ONE = (
    "from petstore.cli import data, main;data.OPERATOR_BOUNDS = data.OPERATOR_BOUNDS._replace(import_chunk=1); main()"
)


def test_ctrl_c_in_an_undo_says_how_to_resume_and_the_next_undo_does(petstore: Commands, tmp_path: Path) -> None:
    """The command removes one animal per transaction, so that there is enough time to interrupt it."""
    count = 10_000
    added = petstore.json("pets", "import", str(written(tmp_path / "x.csv", *["Rex,1"] * count)))
    petstore.text("pets", "set-status", "7", str(count), "sold")
    words = ["pets", "undo-import", added["import"], "--yes"]
    command = subprocess.Popen(
        [sys.executable, "-c", ONE_BY_ONE, *words], stderr=subprocess.PIPE, text=True, env=petstore.variables
    )
    assert wait_for(lambda: petstore.run("pets", "show", "1").returncode == 2)
    command.send_signal(signal.SIGINT)
    _, message = command.communicate(timeout=60)
    assert command.returncode == 130, message
    assert "Interrupted. Run the same command again to resume" in message
    asked = answering(petstore, "", *words[:-1]).stderr
    found = re.search(
        r"([\d,]+) animals? already removed\. Remove ([\d,]+) animals added by .*\?"
        " 2 animals changed since the import will be kept",
        asked,
    )
    assert found is not None, asked
    removed, left = (int(number.replace(",", "")) for number in found.groups())
    assert removed > 0 and removed + left == count - 2
    undone = petstore.json(*words)
    assert (undone["removed"], undone["kept"], undone["kept_ids"]) == (count - 2, 2, [7, count])
    assert [pet["id"] for pet in petstore.json("pets", "list")] == [7, count]
    assert [entry.action for entry in petstore.entries()].count("undo import") == 1


def _is_waiting(pid: int) -> bool:
    """Returns whether the process has read everything in the pipe and is waiting for more."""
    return "pipe" in Path(f"/proc/{pid}/wchan").read_text()
