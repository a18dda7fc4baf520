"""Vendored JavaScript and styles have a version, a licence and digests next to them, and match the digests."""

import hashlib
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
DIRECTORIES = sorted(file.parent for file in SOURCE.rglob("VERSION"))


@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda directory: directory.name)
def test_vendored_files_have_the_recorded_digests(directory: Path) -> None:
    recorded = dict(line.split("  ", 1)[::-1] for line in (directory / "SHA256SUMS").read_text().splitlines())
    present = {
        str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in directory.rglob("*")
        if file.is_file() and file.name not in ("SHA256SUMS", "VERSION")
    }
    assert present == recorded


@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda directory: directory.name)
def test_vendored_files_have_a_version_and_a_licence(directory: Path) -> None:
    assert re.match(r"[\w.@/-]+ \d+\.\d+\.\d+ \([\w.-]+\)", (directory / "VERSION").read_text())
    assert (directory / "LICENSE").stat().st_size > 100


def test_no_minified_file_is_outside_a_vendored_directory() -> None:
    files = [file for pattern in ("*.min.*", "*bundle*") for file in SOURCE.rglob(pattern)]
    assert len(files) >= len(DIRECTORIES) > 0
    assert [file for file in files if not any(directory in file.parents for directory in DIRECTORIES)] == []
