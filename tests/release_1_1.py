"""The data of release 1.1, as `fixtures/1.1.0` has them: its README says what they are."""

import asyncio
import json
import zipfile
from pathlib import Path
from typing import Any

import asyncpg

from harness.backends import Postgres, shared
from petstore.keys import Environment

RELEASE = Path(__file__).parent / "fixtures" / "1.1.0"
ROWS: dict[str, dict[str, list[list[Any]]]] = json.loads((RELEASE / "rows.json").read_text())
SECRETS: dict[str, Any] = json.loads((RELEASE / "secrets.json").read_text())
NOW: int = SECRETS["unix"]


def unpack(archive: str, data: Path, release: Path = RELEASE) -> Path:
    """The files of an archive in a data directory, which is made if it is not there."""
    data.mkdir(mode=0o700, exist_ok=True)
    with zipfile.ZipFile(release / archive) as files:
        files.extractall(data)
    for path in data.iterdir():
        path.chmod(0o600)
    return data


def load_postgres(release: Path = RELEASE) -> str:
    """The URL of a database with the installation of a release."""
    url = shared(Postgres).url()

    async def load() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute((release / "postgres.sql").read_text())
        await connection.close()

    asyncio.run(load())
    return url


def pet_ids(backend: str, environment: Environment) -> set[int]:
    """The ids of the animals that clients of 1.1 see."""
    seen = {row[0] for row in ROWS[backend][f"{environment} pets"]}
    imports = [each for each in SECRETS["imports"][backend] if each["environment"] == environment]
    return seen.union(*(each["visible_in_1.1"] for each in imports))
