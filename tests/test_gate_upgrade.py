"""Records that an earlier version of the service has stored: in the file, in Redis and in a backup.

Two versions also run side by side during a reload, so an earlier version must be able to read new records.
"""

import contextlib
import struct
from pathlib import Path

import lmdb
from redis import Redis as Client

from petstore.gate import Gate
from petstore.gate.redis_script import key_record
from petstore.plans import Limits
from petstore.rate_limits import BANNED, DAY, LIMITED, SECOND, Windows
from tests.backends import Redis
from tests.commands import Commands
from tests.gates import NOW, ask, use_lmdb
from tests.places import GatePlace
from tests.servers import Server

START = int(NOW * SECOND)
STRUCK = struct.pack("<9q", START, 2, START, 5, START - 7_000, 1, 0, 0, 0)  # with the start of a strike window
BAN = struct.pack("<9q", START, 2, START, 9, 0, 0, START, START + 120_000, 2)


async def check(gate: Gate) -> None:
    assert await gate.windows(["key_struck", "key_banned"]) == [
        Windows(START, 2, START, 5, strikes=1),
        Windows(START, 2, START, 9, ban_start=START, ban_end=START + 120_000, bans=2),
    ]
    struck = await ask(gate, "key_struck", Limits(2, 9))
    assert (struck.outcome, struck.window) == (LIMITED, "minute")
    assert (await ask(gate, "key_struck", Limits(2, 9))).outcome is BANNED  # with the strike from before
    banned = await ask(gate, "key_banned", Limits(2, 9))
    assert (banned.outcome, banned.reset) == (BANNED, START + DAY)


AFTER = (START, 2, START, 5, 0, 0, START, START + 60_000, 1)  # what an earlier version reads after `check`


def put_in_file(data: Path) -> None:
    use_lmdb(data, lambda gate: gate.keys_version("live"))
    path = data / "gate.mdb"
    with lmdb.open(str(path), subdir=False, map_size=path.stat().st_size) as env, env.begin(write=True) as txn:
        txn.put(b"kkey_struck", STRUCK)
        txn.put(b"kkey_banned", BAN)


def test_records_of_an_earlier_version_in_the_file(tmp_path: Path) -> None:
    put_in_file(tmp_path)
    use_lmdb(tmp_path, check)
    with lmdb.open(str(tmp_path / "gate.mdb"), subdir=False, readonly=True) as env, env.begin() as txn:
        assert struct.unpack("<9q", txn.get(b"kkey_struck", b"")) == AFTER
        assert txn.get(b"kkey_banned") == BAN


def test_records_of_an_earlier_version_in_a_backup(tmp_path: Path) -> None:
    old, new = (Commands(Server(tmp_path / name)) for name in ("old", "new"))
    old.text("pets", "add", "--name", "Rex", "--category-id", "1")
    put_in_file(old.data)
    old.text("backup", str(tmp_path / "backup.zip"))
    new.run("restore", str(tmp_path / "backup.zip"))
    use_lmdb(new.data, check)


def test_records_of_an_earlier_version_in_redis(redis: Redis, tmp_path: Path) -> None:
    url = redis.url()
    with contextlib.closing(Client.from_url(url)) as client:
        client.set(key_record("key_struck"), STRUCK)
        client.set(key_record("key_banned"), BAN)
        GatePlace(tmp_path, url).use(check)
        stored = client.get(key_record("key_struck"))
        assert isinstance(stored, bytes) and struct.unpack("<9q", stored) == AFTER
        assert client.get(key_record("key_banned")) == BAN
