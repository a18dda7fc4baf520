"""A next version of the service: a copy of the present code with one more migration for each backend."""

import shutil
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src/petstore"
# What a migration may do: add tables, indexes and columns. Processes of the previous version still run on the result.
HARMLESS = """
CREATE TABLE births_{0} (pet_id bigint PRIMARY KEY, born bigint NOT NULL);
CREATE INDEX births_by_time_{0} ON births_{0} (born);
ALTER TABLE pets ADD COLUMN chip_{0} integer;
"""
# A migration that fails every create, for the planted fault: a proof must notice it.
HARMFUL = "ALTER TABLE idempotency RENAME TO idempotency_{0};"


def copy_code(target: Path) -> Path:
    """Copy the present code to a directory, and return the directory, for PYTHONPATH."""
    shutil.copytree(SOURCE, target / "petstore", ignore=shutil.ignore_patterns("__pycache__"))
    return target


def add_migration(code: Path, sql: str = HARMLESS) -> int:
    """Make the code in a directory its next version. Returns the number of the new schema."""
    backends = list((code / "petstore/store/migrations").iterdir())
    number = 1 + max(int(file.name[:4]) for backend in backends for file in backend.glob("*.sql"))
    for backend in backends:
        (backend / f"{number:04}_next.sql").write_text(sql.format(number))
    return number
