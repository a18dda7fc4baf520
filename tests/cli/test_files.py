"""`petstore pets import` and `export`. An import first checks the file and reports bad rows. No value is lost."""

import asyncio
import csv
import io
import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from harness.commands import Commands
from harness.pets import pet
from harness.servers import PETSTORE, Key, Server
from harness.wire import asking
from petstore.backends import Backends
from petstore.errors import OperatorError
from petstore.formats.pet_files import BATCH, PetFile, write_pets
from petstore.formats.pet_rows import LINE_MAX
from petstore.formats.pet_texts import IMPORTED

pytestmark = pytest.mark.on("sqlite-lmdb")  # a file is parsed before a store is opened

ODD_NAMES = [
    "Rex", "🐕‍🦺 Ærø", 'the "best" cat', "comma, semicolon; tab-less", " kept spaces ", "'; DROP TABLE pets; --",
    "=1+1", "x" * 255, "🐈" * 255, "\u202eright to left", "line\u2028separator", "next\u0085line", "\\n", "null",
    "１２３", "a\ufeffb", "\ufeffmark",
]  # fmt: skip


def import_fails(petstore: Commands, file: Path) -> list[str]:
    """Asserts that an import fails and adds no animal or audit entry. Returns its message without the first line."""
    message = petstore.fails("pets", "import", str(file))
    assert petstore.json("pets", "list") == []
    assert petstore.entries() == []
    assert message.startswith(str(file))
    return [line.strip() for line in message.splitlines()[1:]]


@pytest.mark.on("sqlite-lmdb", "postgres-redis")
def test_jsonl_is_imported(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.jsonl"
    file.write_text(
        '{"name": "Rex", "categoryId": 1}\n\n{"id": 99, "name": "Mia", "categoryId": -2, "status": "sold", "x": 1}'
    )
    added = petstore.json("pets", "import", str(file))
    assert added["added"] == 2
    assert petstore.json("pets", "list") == [
        pet(id=1, name="Rex", categoryId=1),
        pet(id=2, name="Mia", categoryId=-2, status="sold"),
    ]
    (entry,) = petstore.entries()
    detail = f"file with 2 animals, {added['import']}"
    assert (entry.action, entry.subject, entry.detail) == ("import", "animals.jsonl", detail)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_csv_is_imported(petstore: Commands, tmp_path: Path, encoding: str, ending: str) -> None:
    file = tmp_path / "animals.csv"
    lines = ["status,name,id,categoryId", "sold,Rex,99,1", ',"Mia, the ""cat""",,-2']
    file.write_text(ending.join(lines) + ending, encoding=encoding, newline="")
    assert petstore.text("pets", "import", str(file)).startswith("2 ")
    assert petstore.json("pets", "list") == [
        pet(id=1, name="Rex", categoryId=1, status="sold"),
        pet(id=2, name='Mia, the "cat"', categoryId=-2),
    ]


@pytest.mark.on("sqlite-lmdb", "postgres-redis")
def test_import_adds_to_the_named_environment(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.jsonl"
    file.write_text('{"name": "Rex", "categoryId": 1}\n')
    petstore.text("pets", "import", str(file), "--env", "staging")
    assert petstore.json("pets", "list") == []
    assert len(petstore.json("pets", "list", "--env", "staging")) == 1


@pytest.mark.on("sqlite-lmdb", "postgres-redis")
def test_bad_jsonl_rows_are_all_named_and_nothing_is_imported(petstore: Commands, tmp_path: Path) -> None:
    rows = {
        1: b'{"name": "Rex", "categoryId": 1}',
        2: b'{"name": "", "categoryId": true}',
        3: b'{"name": "Rex"',
        5: b'{"name": "\xff", "categoryId": 1}',
        6: b'{"name": "Rex", "categoryId": 1, "status": "gone"}',
        7: b'{"name": "Rex", "name": "Rex", "categoryId": 1}',
        8: b"[]",
        9: b'{"name": "Mia", "categoryId": 1}',
    }
    file = tmp_path / "animals.jsonl"
    file.write_bytes(b"\n".join(rows.get(number, b"") for number in range(1, 10)))
    reasons = dict(line.removeprefix("line ").split(": ", 1) for line in import_fails(petstore, file))
    assert list(reasons) == ["2", "3", "5", "6", "7", "8"]
    assert "name" in reasons["2"] and "categoryId" in reasons["2"]
    assert reasons["3"] == "the line is not valid JSON at column 15."
    assert "UTF-8" in reasons["5"]
    assert "status" in reasons["6"]
    assert reasons["7"] == "name must be given at most once."
    assert "object" in reasons["8"]


def test_misspelled_members_and_values_of_json_are_named(petstore: Commands, tmp_path: Path) -> None:
    lines = [
        '{"name": "Rex", "category_id": 1}',
        '{"name": "Rex", "categoryId": 1, "Status": "sold"}',
        '{"name": "Rex", "categoryId": true, "status": "Sold"}',
    ]
    expected = [
        'categoryId is required; unknown member "category_id"; did you mean categoryId?',
        'unknown member "Status"; did you mean status?',
        "categoryId must be a whole number that fits in 64 bits, not true;"
        ' status "Sold" is not one of available, pending, sold (case-sensitive).',
    ]
    for name, content in (("animals.jsonl", "\n".join(lines)), ("animals.json", "[" + ",\n".join(lines) + "]")):
        (tmp_path / name).write_text(content)
        found = import_fails(petstore, tmp_path / name)
        assert found == [f"line {number}: {reason}" for number, reason in enumerate(expected, 1)]


def test_control_characters_of_a_file_are_escaped_in_messages(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.csv"
    file.write_text("name,categoryId,\x1b[31mred\nRex,\u202e1\n")
    (line,) = import_fails(petstore, file)
    assert line == 'line 2: categoryId must be a whole number that fits in 64 bits, not "\\u202e1".'
    dry = petstore.run("pets", "import", str(file), "--dry-run")
    assert "\x1b" not in dry.stderr and "\u202e" not in dry.stdout


def test_bad_csv_rows_are_all_named_and_nothing_is_imported(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.csv"
    file.write_text('name,categoryId,status\nRex,1,sold\n" ",1,\nMia,one,\nMia\nMia,1.5,\nMia,1,SOLD\nMia,2,\n')
    reasons = dict(line.removeprefix("line ").split(": ", 1) for line in import_fails(petstore, file))
    assert list(reasons) == ["3", "4", "5", "6", "7"]
    assert "name" in reasons["3"]
    assert all("categoryId" in reasons[line] for line in "456")
    assert "status" in reasons["7"]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"Rex,1\nMia,2\n", f'header line is missing: the first line must be {",".join(IMPORTED)}, not "Rex,1"'),
        (b"name,status\nRex,sold\n", "categoryId"),
        (b"", "header"),
        (b"name,categoryId\nRex,1\nRen\xe9,2\n", '"Ren\\xe9,2" is not valid UTF-8; save the file as CSV UTF-8'),
        (b'name,categoryId\nRex,1\n"Mia,2\n', "CSV"),
        (b"name,categoryId,Status\nRex,1,sold\n", 'unknown column "Status"; did you mean status?'),
        (b"name, categoryId\nRex,1\n", 'unknown column " categoryId"; did you mean categoryId?'),
        (b"name,category_id\nRex,1\n", 'unknown column "category_id"; did you mean categoryId?'),
        (b"name,categoryId,stauts\nRex,1,sold\n", 'unknown column "stauts"; did you mean status?'),
        (b"name,categoryId\nRex,one\n", 'categoryId must be a whole number that fits in 64 bits, not "one".'),
        (
            b"name,categoryId,status\nRex,1,Available\n",
            'status "Available" is not one of available, pending, sold (case-sensitive).',
        ),
        (b"name,name,categoryId\nRex,Mia,1\n", "name more than once"),
        (b"name,categoryId,status,Status\nRex,1,sold,sold\n", "status more than once"),
    ],
    ids=[
        "no header",
        "header without categoryId",
        "empty",
        "bad UTF-8",
        "open quote",
        "other case",
        "space",
        "underscore",
        "typo",
        "no number",
        "status in another case",
        "two names",
        "two of other case",
    ],
)
def test_invalid_csv_is_refused(petstore: Commands, tmp_path: Path, content: bytes, names: str) -> None:
    file = tmp_path / "animals.csv"
    file.write_bytes(content)
    lines = import_fails(petstore, file)
    assert len(lines) == 1
    assert lines[0].startswith("line ")
    assert names in lines[0]


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.csv", "name,categoryId\n"), ("x.csv", "name,categoryId\n\n\n"), ("x.jsonl", ""), ("x.jsonl", "\n \n")],
)
def test_file_without_animals_is_refused(petstore: Commands, tmp_path: Path, name: str, content: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    assert petstore.fails_in_one_line("pets", "import", str(file)) == f"no animals in {file}"
    assert petstore.entries() == []
    assert petstore.json("pets", "imports") == []


def test_ndjson_is_imported_and_exported_as_json_lines(petstore: Commands, tmp_path: Path) -> None:
    file, target = tmp_path / "animals.ndjson", tmp_path / "out.NDJSON"
    file.write_text('{"name": "Rex", "categoryId": 1}\n', encoding="utf-8-sig")
    assert petstore.json("pets", "import", str(file))["added"] == 1
    assert petstore.json("pets", "export", str(target)) == {"exported": 1}
    assert json.loads(target.read_text())["name"] == "Rex"


def test_a_csv_row_wider_than_its_header_is_a_bad_row(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.csv"
    file.write_text("name,categoryId\nRex,2\nRex, the dog,1\n")
    assert import_fails(petstore, file) == ["line 3: the row has more values than the header line has columns (2)"]


def test_other_csv_columns_are_ignored(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.csv"
    file.write_text("ID,name,categoryId,,\n7,Rex,2,x,y\n")
    petstore.text("pets", "import", str(file))
    assert petstore.json("pets", "list") == [pet(id=1, name="Rex", categoryId=2)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("written_as", "content"),
    [
        ("csv", "name,categoryId\nRex,1\n"),
        ("jsonl", '{"name": "Rex", "categoryId": 1}\n'),
        ("json", '[{"name": "Rex", "categoryId": 1}]'),
    ],
)
def test_standard_input_is_imported(petstore: Commands, written_as: str, content: str) -> None:
    def from_pipe(*options: str) -> subprocess.CompletedProcess[str]:
        words = [*PETSTORE, "pets", "import", "-", *options]
        return subprocess.run(words, input=content, capture_output=True, text=True, timeout=60, env=petstore.variables)

    refused = from_pipe()
    assert refused.returncode == 2 and "use --format" in refused.stderr
    assert from_pipe("--format", written_as, "--dry-run").stdout.startswith("standard input: 1 animal, 0 bad rows")
    done = from_pipe("--format", written_as, "--json")
    assert json.loads(done.stdout)["added"] == 1, done.stderr
    assert petstore.json("pets", "imports")[0]["name"] == "standard input"
    again = from_pipe("--format", written_as)
    assert again.returncode == 2 and "has already been imported" in again.stderr


def test_json_is_imported_and_its_bad_rows_are_named(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.json"
    rex, mia, bad = '{"name": "Rex", "categoryId": 1}', '{"name": "Mia",\n "categoryId": 2}', '{"name": "Rex"}'
    file.write_text(f"\n[\n{rex}, {bad},\n{mia},\n{bad}, 7]")
    assert import_fails(petstore, file) == [
        "line 3: categoryId is required.",
        "line 6: categoryId is required.",
        "line 6: the object must be a JSON object with name and categoryId.",
    ]
    for content, reason in (
        (rex, "it does not begin with ["),
        (f"[{rex}", "it ends without ]"),
        (f"[{rex}],", "there is text after the closing ]"),
        ("", "it is empty"),
    ):
        file.write_text(content)
        assert import_fails(petstore, file) == [f"line 1: the file is not a valid JSON array: {reason}"]
    file.write_text(f"[{rex},\n{mia}, {rex}]", encoding="utf-8-sig")
    assert petstore.json("pets", "import", str(file))["added"] == 3
    assert [pet["name"] for pet in petstore.json("pets", "list")] == ["Rex", "Mia", "Rex"]


def test_devices_are_refused_even_behind_links(petstore: Commands, tmp_path: Path) -> None:
    link = tmp_path / "animals.csv"
    link.symlink_to(tmp_path / "second")
    (tmp_path / "second").symlink_to("/dev/zero")
    for file in (link, Path("/dev/zero")):
        message = petstore.fails_in_one_line("pets", "import", str(file), "--format", "csv")
        assert message == f"{file} is a device; import a file or a pipe instead"
    with Path("/dev/zero").open("rb") as endless:
        words = [*PETSTORE, "pets", "import", "-", "--format", "csv"]
        done = subprocess.run(words, stdin=endless, capture_output=True, text=True, timeout=60, env=petstore.variables)
    assert (done.returncode, done.stderr) == (
        2,
        "petstore: standard input is a device; import a file or a pipe instead\n",
    )


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_pipe_is_imported(petstore: Commands, tmp_path: Path, suffix: str) -> None:
    pipe = tmp_path / f"animals{suffix}"
    os.mkfifo(pipe)
    content = "name,categoryId\nRex,1\n" if suffix == ".csv" else '{"name": "Rex", "categoryId": 1}\n'
    writer = threading.Thread(target=pipe.write_text, args=(content,))
    writer.start()
    assert petstore.json("pets", "import", str(pipe))["added"] == 1
    writer.join()


def test_a_file_whose_name_is_not_utf_8_is_imported(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals\udcff.jsonl"
    file.write_text('{"name": "Rex", "categoryId": 1}\n')
    petstore.text("pets", "import", str(file))
    assert petstore.entries()[0].subject == "animals?.jsonl"


def test_progress_of_a_check_ends_at_the_size_of_the_file() -> None:
    content = b"name,categoryId\n" + b"Rex,1\n" * 5_000
    heard: list[int] = []

    assert asyncio.run(PetFile("x.csv", io.BytesIO(content)).check(heard.append)).animals == 5_000
    assert len(heard) >= 3 and heard == sorted(heard) and heard[-1] == len(content)


def test_lines_after_one_that_is_too_long_are_read(petstore: Commands, tmp_path: Path) -> None:
    good, bad = b'{"name": "Rex", "categoryId": 1', b'{"name": "Rex"}\n'
    file = tmp_path / "animals.jsonl"
    longest = good.ljust(LINE_MAX - 1) + b"}\n"
    file.write_bytes(b"".join([longest, good.ljust(LINE_MAX) + b"}\n", good.ljust(3 * LINE_MAX) + b"}\n", bad]))
    too_long = "the line is longer than 64 KiB; write one animal per line"
    second, third, fourth = import_fails(petstore, file)
    assert (second, third) == (f"line 2: {too_long}", f"line 3: {too_long}")
    assert fourth.startswith("line 4: ")
    file.write_bytes(longest)
    assert petstore.json("pets", "import", str(file))["added"] == 1


def test_a_csv_line_that_is_too_long_is_refused(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.csv"
    file.write_bytes(b"name,categoryId\nRex,1\nRex,".ljust(LINE_MAX + 100, b"1"))
    assert import_fails(petstore, file) == ["line 3: the line is longer than 64 KiB; write one animal per line"]


def test_checking_stops_after_10000_bad_rows(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.json"
    file.write_text("[" + "0,\n" * 30_000 + "0]")
    lines = petstore.fails("pets", "import", str(file)).splitlines()
    assert lines[0] == f"{file}: checking stopped after 10,000 bad rows, so nothing was imported"
    assert lines[-1].startswith("  and 9,900 more") and len(lines) == 102
    dry = petstore.run("pets", "import", str(file), "--dry-run")
    assert (dry.returncode, dry.stdout.count("line ")) == (1, 10_000)
    assert dry.stdout.splitlines()[-2:] == [
        f"{file}: 0 animals, 10,000 bad rows; nothing was added.",
        "Stopped checking after 10,000 bad rows.",
    ]


def test_other_tasks_run_during_an_export(tmp_path: Path) -> None:
    pages = 5
    server = Server(tmp_path / "data")
    server.fill(pages * BATCH)

    async def work(backends: Backends) -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        background = asyncio.create_task(other())
        live = backends.stores["live"]
        await write_pets(lambda after: live.pets.page(after=after, limit=BATCH, status=None), "jsonl", io.StringIO())
        background.cancel()
        return turns

    assert server.act(work) >= pages


def test_deeply_nested_value_is_a_bad_row(petstore: Commands, tmp_path: Path) -> None:
    nested = "[" * 60_000
    (tmp_path / "animals.csv").write_text(f"name,categoryId\nRex,{nested}\n")
    (tmp_path / "animals.jsonl").write_text(f'{{"name": "Rex", "categoryId": {nested}\n')
    assert import_fails(petstore, tmp_path / "animals.csv")[0].startswith("line 2: categoryId")
    assert import_fails(petstore, tmp_path / "animals.jsonl")[0].startswith("line 1: ")


def test_invalid_utf_8_is_reported_with_its_line(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.csv"
    file.write_bytes(b"name,categoryId\n" + b"Rex,1\n" * 1500 + b"\xff,2\n")
    assert import_fails(petstore, file)[0].startswith("line 1502:")


@pytest.mark.parametrize(
    ("command", "name"),
    [("import", "animals.txt"), ("import", "animals"), ("export", "animals.txt"), ("export", "animals.json")],
)
def test_unknown_suffix_is_refused_in_one_line(petstore: Commands, tmp_path: Path, command: str, name: str) -> None:
    (tmp_path / name).write_text("")
    message = petstore.fails_in_one_line("pets", command, str(tmp_path / name))
    assert ".jsonl" in message and ".csv" in message


@pytest.mark.parametrize("words", [["import", "no such.jsonl"], ["import", "."], ["export", "no such/out.jsonl"]])
def test_file_that_cannot_be_opened_is_refused_in_one_line(petstore: Commands, words: list[str]) -> None:
    petstore.fails_in_one_line("pets", *words)


@pytest.mark.on("sqlite-lmdb", "postgres-redis")
@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_odd_names_survive_import_and_export(petstore: Commands, tmp_path: Path, suffix: str) -> None:
    source, target, again = (tmp_path / f"{name}{suffix}" for name in ("source", "target", "again"))
    with source.open("w", encoding="utf-8", newline="") as file:
        if suffix == ".csv":
            csv.writer(file).writerows([("name", "categoryId"), *((name, -(2**63)) for name in ODD_NAMES)])
        else:
            file.writelines(json.dumps({"name": name, "categoryId": 2**63 - 1}) + "\n" for name in ODD_NAMES)
    petstore.text("pets", "import", str(source))
    assert [pet["name"] for pet in petstore.json("pets", "list")] == ODD_NAMES
    assert petstore.json("pets", "export", str(target)) == {"exported": len(ODD_NAMES)}
    petstore.text("pets", "import", str(target), "--env", "staging")
    petstore.text("pets", "export", str(again), "--env", "staging")
    assert target.read_bytes() == again.read_bytes()
    assert not list(tmp_path.glob("*.part"))


def test_export_to_standard_output_is_json_lines(petstore: Commands) -> None:
    petstore.text("pets", "add", "--name", "🐕", "--category-id", "1")
    petstore.text("pets", "add", "--name", "Mia", "--category-id", "2")
    lines = petstore.text("pets", "export", "-").splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["🐕", "Mia"]


@pytest.mark.on("sqlite-lmdb", "postgres-redis")
def test_export_of_nothing_is_an_empty_file(petstore: Commands, tmp_path: Path) -> None:
    assert petstore.text("pets", "export", str(tmp_path / "none.jsonl")).startswith("0 ")
    assert (tmp_path / "none.jsonl").read_bytes() == b""


@pytest.mark.thorough
@pytest.mark.on("sqlite-lmdb", "postgres-redis")
def test_30000_rows_are_imported_and_exported(petstore: Commands, tmp_path: Path) -> None:
    source, target = tmp_path / "many.csv", tmp_path / "many.jsonl"
    source.write_text("name,categoryId\n" + "".join(f"Pet {i},{i}\n" for i in range(30_000)))
    assert petstore.json("pets", "import", str(source))["added"] == 30_000
    assert petstore.json("pets", "export", str(target)) == {"exported": 30_000}
    with target.open() as lines:
        ids = [json.loads(line)["id"] for line in lines]
    assert ids == list(range(1, 30_001))


def test_one_bad_row_is_written_in_the_singular(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text("{}")
    assert "1 bad row, so nothing was imported" in petstore.fails("pets", "import", str(file))
    file.write_text("x\n" * 1_000)
    lines = petstore.fails("pets", "import", str(file)).splitlines()
    assert "1,000 bad rows" in lines[0] and lines[-1].startswith("  and 900 more") and len(lines) == 102


@pytest.mark.on("sqlite-lmdb", "postgres-redis")
def test_one_bad_row_among_many_imports_nothing(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "many.jsonl"
    row = '{"name": "Rex", "categoryId": 1}\n'
    file.write_text(row * 5000 + '{"name": "Rex"}\n' + row * 5000)
    assert import_fails(petstore, file) == ["line 5001: categoryId is required."]


@pytest.mark.on("sqlite-lmdb", "postgres-redis")
def test_running_service_shows_an_import_with_the_next_request(server: Server, key: Key, tmp_path: Path) -> None:
    path = "/v1/pets?limit=1&status=sold"
    before = asking(server.port, 1, key.headers, path)[0]
    file = tmp_path / "animals.jsonl"
    file.write_text('{"name": "Rex", "categoryId": 1, "status": "sold"}\n' * 2)
    Commands(server).text("pets", "import", str(file))
    after = asking(server.port, 1, key.headers, path)[0]
    assert after.headers["link"].endswith('rel="next"')
    assert after.headers["etag"] != before.headers["etag"] or "link" in before.headers


# A file that changes between its check and its import


def batches_of_changed(content: bytes, changed: bytes) -> list[str]:
    """Reads a file that was changed after its check. Returns the names that it yields before it notices the change."""
    source = io.BytesIO(content)
    file = PetFile("x.csv", source)
    found: list[str] = []

    async def work() -> None:
        checked = await file.check()
        source.seek(0)
        source.truncate()
        source.write(changed)
        async for first, pets in file.batches(checked):
            assert first == len(found)
            found.extend(pet.name for pet in pets)

    with pytest.raises(OperatorError, match=r"x\.csv has changed since it was checked"):
        asyncio.run(work())
    return found


def test_no_animal_of_a_changed_file_is_added() -> None:
    name = "Rex" * 70
    rows = [b"name,categoryId\n", *[name.encode() + b",1\n"] * (2 * BATCH + 1_500)]  # several blocks
    content = b"".join(rows)
    whole = [name] * (2 * BATCH)
    assert batches_of_changed(content, b"".join([rows[0], b"Max,1\n", *rows[2:]])) == []
    assert batches_of_changed(content, b"".join([*rows[:-1], b"Max,1\n"])) == whole
    assert batches_of_changed(content, b"".join(rows[:-1])) == whole
    assert batches_of_changed(content, b"".join([*rows, *rows[1:]])) == whole
    assert batches_of_changed(content, b"".join([*rows[: BATCH + 1_000], b"bad\n"])) == whole[:BATCH]
    assert batches_of_changed(content, b"") == []
