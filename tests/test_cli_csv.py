"""Bad rows of .csv files: each is reported on its line, and the rows after it are read."""

import json
from pathlib import Path

import pytest

from petstore.admin.pet_files import LINE_MAX
from tests.commands import Commands
from tests.test_cli_files import import_fails


def dry_run(petstore: Commands, file: Path) -> tuple[int, dict[int, str]]:
    """The number of good rows, and the bad ones by their lines."""
    report = json.loads(petstore.run("pets", "import", str(file), "--dry-run", "--json").stdout)
    assert report["bad_rows"] == len(report["bad"])
    return report["animals"], {row["line"]: row["reason"] for row in report["bad"]}


def test_csv_rows_after_one_that_cannot_be_read_are_read(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.csv"
    too_long = b"Rex," + b"1" * LINE_MAX
    rows = [b"name,categoryId,x", b"Rex,1", b"\xff,2", b"Mia,2", too_long, b"Bo,3", b'"Kim" y,4', b"Kim,one", b"Kim,4"]
    file.write_bytes(b"\n".join([*rows, b'Ada,5,"\xff', b'x"', b'Ada,5,"two', b'lines"', b"Ada\xfe,6"]))
    good, bad = dry_run(petstore, file)
    assert good == 5
    assert {3, 5, 7, 8, 10, 14} == set(bad)
    assert bad[3] == bad[10] == bad[14] == "not valid UTF-8"
    assert bad[5] == "longer than 64 KiB; one animal a line"
    assert bad[7].startswith("not valid CSV: ")
    assert bad[8].startswith("categoryId")
    assert len(import_fails(petstore, file)) == 6


@pytest.mark.parametrize("rest", [b"", b"Kim,4\n" * 30_000], ids=["to the end", "for more than 64 KiB"])
def test_quote_that_is_not_closed_is_reported_on_its_line(petstore: Commands, tmp_path: Path, rest: bytes) -> None:
    file = tmp_path / "animals.csv"
    file.write_bytes(b'name,categoryId\nRex,1\n"Mia,2\nBo,3\n' + rest)
    assert dry_run(petstore, file) == (2 + rest.count(b"\n"), {3: "not valid CSV: a quote is not closed"})
    file.write_bytes(b'name,categoryId\nRex,1\n"Mia,2\n"Bo",3\n' + rest)
    good, bad = dry_run(petstore, file)
    assert (good, list(bad)) == (2 + rest.count(b"\n"), [3])


def test_bad_row_of_several_lines_is_reported_on_its_first(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.csv"
    file.write_bytes(b'name,categoryId,x\nRex,1,"a\nb"\nMia,one,"a\n\nb"\nBo,2,\n')
    good, bad = dry_run(petstore, file)
    assert (good, list(bad)) == (2, [4])


def test_lines_that_each_open_and_close_a_quote_are_read_in_time_that_grows_with_the_file(
    petstore: Commands, tmp_path: Path
) -> None:
    """Each row reads on to the next quote; without a limit of lines, 20,000 of them would take minutes."""
    file = tmp_path / "animals.csv"
    file.write_bytes(b"name,categoryId\n" + b'a","b\n' * 20_000)
    report = json.loads(petstore.run("pets", "import", str(file), "--dry-run", "--json").stdout)
    assert report["animals"] == 0 and report["bad_rows"] > 0
