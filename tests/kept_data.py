"""Loads the data that `tools.release_data` saved for a release. See tests/fixtures/VERSION/README.md."""

import asyncio
import json
import zipfile
from pathlib import Path

import asyncpg
import redis

from harness.backends import Postgres, Redis, shared


def unpack(archive: Path, data: Path) -> Path:
    """Unpacks an archive into a data directory, which is created if it does not exist."""
    data.mkdir(mode=0o700, exist_ok=True)
    with zipfile.ZipFile(archive) as files:
        files.extractall(data)
    for path in data.iterdir():
        path.chmod(0o600)
    return data


def load_postgres(release: Path) -> str:
    """Loads the store of a release's second installation into a new database. Returns its URL."""
    url = shared(Postgres).url()

    async def load() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute((release / "postgres.sql").read_text())
        await connection.close()

    asyncio.run(load())
    return url


def load_redis(release: Path) -> str:
    """Loads the gate of a release's second installation into an empty Redis database. Returns its URL."""
    url = shared(Redis).url()
    with redis.Redis.from_url(url) as client:
        for name, stored in json.loads((release / "redis.json").read_text()).items():
            client.set(name, bytes.fromhex(stored["value"]), px=stored["ttl_ms"])
    return url
