"""Rows of .csv files: delimiters, and bad rows, which are reported with line numbers."""

import json
import os
from functools import partial
from pathlib import Path

import pytest

from harness.commands import Commands
from harness.other_user import as_nobody, directory_of_nobody
from petstore.formats.pet_rows import LINE_MAX
from tests.cli.test_files import import_fails

pytestmark = pytest.mark.on("sqlite-lmdb")  # a file is parsed before a store is opened


def dry_run(petstore: Commands, file: Path) -> tuple[int, dict[int, str]]:
    """Returns the number of good rows, and the bad rows by line number."""
    report = json.loads(petstore.run("pets", "import", str(file), "--dry-run", "--json").stdout)
    assert report["bad_rows"] == len(report["bad"])
    return report["animals"], {row["line"]: row["reason"] for row in report["bad"]}


def test_csv_rows_after_one_that_cannot_be_read_are_read(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.csv"
    too_long = b"Rex," + b"1" * LINE_MAX
    rows = [b"name,categoryId,x", b"Rex,1", b"\xff,2", b"Mia,2", too_long, b"Bo,3", b'"Kim" y,4', b"Kim,one", b"Kim,4"]
    file.write_bytes(b"\n".join([*rows, b'"Ada, the cat",5', b"Ada\xfe,6"]))
    good, bad = dry_run(petstore, file)
    assert good == 5
    assert {3, 5, 7, 8, 11} == set(bad)
    assert bad[3] == '"\\xff,2" is not valid UTF-8; save the file as CSV UTF-8'
    assert bad[11] == '"Ada\\xfe,6" is not valid UTF-8; save the file as CSV UTF-8'
    assert bad[5] == "the line is longer than 64 KiB; write one animal per line"
    assert bad[7].startswith("not valid CSV (each row must be on one line): ")
    assert bad[8].startswith("categoryId")
    assert len(import_fails(petstore, file)) == 5


def test_quote_that_is_not_closed_is_reported_on_its_line(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.csv"
    file.write_bytes(b'name,categoryId\nRex,1\n"Mia,2\n"Bo",3\n' + b"Kim,4\n" * 30_000)
    good, bad = dry_run(petstore, file)
    assert (good, list(bad)) == (30_002, [3])
    assert bad[3].startswith("not valid CSV (each row must be on one line): ")


@pytest.mark.parametrize("delimiter", [",", ";", "\t"], ids=["comma", "semicolon", "tab"])
def test_the_header_line_determines_the_delimiter(petstore: Commands, tmp_path: Path, delimiter: str) -> None:
    file = tmp_path / "animals.csv"
    rows = [["id", "name", "categoryId", "status"], ["9", '"Ada, the; cat\t"', "5", "sold"], ["", "Bo", "6", ""]]
    file.write_text("\ufeff" + "\r\n".join(delimiter.join(row) for row in rows))
    if delimiter == "\t":
        file.write_text(file.read_text().replace("cat\t", "cat"))
    else:
        file.write_text(file.read_text().replace("\t", ""))
    petstore.text("pets", "import", str(file))
    found = [(pet["name"], pet["categoryId"], pet["status"]) for pet in petstore.json("pets", "list")]
    assert found == [("Ada, the; cat", 5, "sold"), ("Bo", 6, "available")]


def test_a_misspelled_column_is_named_with_any_delimiter(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.csv"
    file.write_text("name;categoryID\nRex;1\n")
    assert dry_run(petstore, file)[1] == {1: 'unknown column "categoryID"; did you mean categoryId?'}


def test_unknown_columns_are_named_in_a_warning(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.csv"
    file.write_text("id,name,categoryId,colour,category,added_by,\n1,Rex,1,brown,dogs,ada,\n")
    dry = petstore.run("pets", "import", str(file), "--dry-run", "--json")
    assert json.loads(dry.stdout)["unknown_columns"] == ["colour", "category"]
    done = petstore.run("pets", "import", str(file), "--json")
    assert json.loads(done.stdout)["added"] == 1
    assert dry.stderr == done.stderr == 'Warning: unknown columns "colour", "category" are ignored.\n'


@pytest.mark.parametrize("content", ["", "name,categoryId\n"], ids=["nothing", "a header line"])
def test_a_dry_run_finds_a_file_that_the_import_would_refuse(petstore: Commands, tmp_path: Path, content: str) -> None:
    file = tmp_path / "animals.csv"
    file.write_text(content)
    done = petstore.run("pets", "import", str(file), "--dry-run")
    assert done.returncode == 1, done.stdout
    petstore.fails("pets", "import", str(file))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_file_that_may_not_be_read_names_the_user(petstore: Commands) -> None:
    with directory_of_nobody() as directory:
        file = directory / "animals.csv"
        file.write_text("name,categoryId\nRex,1\n")
        file.chmod(0o600)
        closed = directory / "closed"
        closed.mkdir(0o700)
        for path in (file, closed / "animals.csv"):
            said = as_nobody(partial(_stderr_of_import, petstore, path))
            reason = "the user nobody does not have permission to read this file"
            remedy = "change the file's permissions, or pipe the file to this command and use - as FILE"
            assert said == f"petstore: {path}: {reason}; {remedy}\n"
    assert "No such file" in petstore.fails_in_one_line("pets", "import", str(file))
    assert "Is a directory" in petstore.fails_in_one_line("pets", "import", str(petstore.data), "--format", "csv")


def _stderr_of_import(petstore: Commands, file: Path) -> str:
    return petstore.run("pets", "import", str(file)).stderr
