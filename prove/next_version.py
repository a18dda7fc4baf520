"""Makes the next version of the service: a copy of the current code with one more migration."""

import shutil
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src/petstore"
# A migration may add tables, indexes and columns. Processes of the previous version must still work afterwards.
HARMLESS = """
CREATE TABLE births_{0} (pet_id bigint PRIMARY KEY, born bigint NOT NULL);
CREATE INDEX births_by_time_{0} ON births_{0} (born);
ALTER TABLE pets ADD COLUMN chip_{0} integer;
"""
# Planted fault, which a proof must notice: after this migration, create requests with an idempotency key fail.
HARMFUL = "ALTER TABLE idempotency RENAME TO idempotency_{0};"


def copy_code(target: Path) -> Path:
    """Copies the current code to a directory. Returns the directory, for use in PYTHONPATH."""
    shutil.copytree(SOURCE, target / "petstore", ignore=shutil.ignore_patterns("__pycache__"))
    return target


def add_migration(code: Path, sql: str = HARMLESS) -> int:
    """Turns the code in a directory into the next version. Returns the new schema version."""
    migrations = code / "petstore/store/migrations"
    number = 1 + max(int(file.name[:4]) for file in migrations.glob("*.sql"))
    (migrations / f"{number:04}_next.sql").write_text(sql.format(number))
    return number
