"""Vendored JavaScript and styles. Each has a version, a licence and digests next to it, and matches the digests."""

import hashlib
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
FOLDERS = sorted(file.parent for file in SOURCE.rglob("VERSION"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_vendored_files_have_the_recorded_digests(folder: Path) -> None:
    recorded = dict(line.split("  ", 1)[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
    present = {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file() and file.name not in ("SHA256SUMS", "VERSION")
    }
    assert present == recorded


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_vendored_files_have_a_version_and_a_licence(folder: Path) -> None:
    assert re.match(r"[\w.@/-]+ \d+\.\d+\.\d+ \([\w.-]+\)", (folder / "VERSION").read_text())
    assert (folder / "LICENSE").stat().st_size > 100


def test_no_minified_file_is_outside_a_vendored_folder() -> None:
    files = [file for pattern in ("*.min.*", "*bundle*") for file in SOURCE.rglob(pattern)]
    assert len(files) >= len(FOLDERS) > 0
    assert [file for file in files if not any(folder in file.parents for folder in FOLDERS)] == []
