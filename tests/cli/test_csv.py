"""Bad rows of .csv files: each is reported on its line, and the rows after it are read."""

import json
from pathlib import Path

from harness.commands import Commands
from petstore.admin.pet_files import LINE_MAX
from tests.cli.test_files import import_fails


def dry_run(petstore: Commands, file: Path) -> tuple[int, dict[int, str]]:
    """The number of good rows, and the bad ones by their lines."""
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
    assert bad[3] == bad[11] == "not valid UTF-8"
    assert bad[5] == "longer than 64 KiB; one animal a line"
    assert bad[7].startswith("not valid CSV, where each row takes one line: ")
    assert bad[8].startswith("categoryId")
    assert len(import_fails(petstore, file)) == 5


def test_quote_that_is_not_closed_is_reported_on_its_line(petstore: Commands, tmp_path: Path) -> None:
    file = tmp_path / "animals.csv"
    file.write_bytes(b'name,categoryId\nRex,1\n"Mia,2\n"Bo",3\n' + b"Kim,4\n" * 30_000)
    good, bad = dry_run(petstore, file)
    assert (good, list(bad)) == (30_002, [3])
    assert bad[3].startswith("not valid CSV, where each row takes one line: ")
