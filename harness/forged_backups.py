"""Creates backups as an attacker could, with a valid checksum but with false sizes or malicious SQL."""

import contextlib
import hashlib
import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from petstore.maintenance import archive
from petstore.store.schema import NEWEST_SCHEMA

MEGABYTE = 1024 * 1024
# SQL that an attacker could add to a backup.
FORGED_SQL = {
    "a view": "CREATE VIEW extra AS SELECT 1",
    "a view in place of a table": "ALTER TABLE pets RENAME TO old; CREATE VIEW pets AS SELECT * FROM old",
    "a table": "CREATE TABLE extra (id INTEGER)",
    "a virtual table": "DROP TABLE operators; CREATE VIRTUAL TABLE operators USING fts5(name)",
    "an index": "CREATE INDEX extra ON pets (length(hex(zeroblob(1000))))",
    "an index with a condition": "CREATE INDEX extra ON pets (id) WHERE \"hex\" (name) <> 'x'",
    "a constraint": "DROP TABLE operators; CREATE TABLE operators (name TEXT CHECK (hex/**/(name) <> 'x'))",
    "a computed column": "DROP TABLE operators; CREATE TABLE operators (name TEXT, x AS (hex(name)))",
    # With this clause, the service would acknowledge new animals without adding them.
    "a conflict clause": "DROP INDEX pets_edited; ALTER TABLE pets RENAME TO old; CREATE TABLE pets (id INTEGER PRIMARY"
    " KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE ON CONFLICT IGNORE, category_id INTEGER, status TEXT, edited INTEGER"
    " DEFAULT 0); DROP TABLE old",
    "a unique index": "DROP INDEX pets_by_status; CREATE UNIQUE INDEX pets_by_status ON pets (status)",
    "a missing index": "DROP INDEX pets_by_status",
    "a trigger": "CREATE TRIGGER forged AFTER INSERT ON audit BEGIN"
    " UPDATE keys SET per_minute = 1000000; DELETE FROM audit; END",
}


class Zeros(NamedTuple):
    """A member that contains only zeros. Each block of one megabyte is compressed to a kilobyte."""

    name: str
    blocks: int


class Text(NamedTuple):
    name: str
    content: bytes


def manifest_of(size: int) -> Text:
    """Returns a manifest that claims this size for each member."""
    members: list[dict[str, Any]] = [
        {"name": name, "bytes": size, "schema": NEWEST_SCHEMA, "rows": {}} for name in ("live.db", "staging.db")
    ]
    claims = {"format": 1, "petstore": "1.0", "began": "2026-01-01", "members": members}
    return Text("manifest.json", json.dumps(claims).encode())


def forge(path: Path, *members: Zeros | Text, method: int = zlib.DEFLATED) -> None:
    """Writes a zip file that ends with its SHA-256 checksum, as `petstore backup` does."""
    with path.open("wb") as file:
        directory = b""
        for member in members:
            content, size, checksum = _deflated(member)
            offset = file.tell()
            head = struct.pack("<HHHHHIIIHH", 20, 0, method, 0, 33, checksum, len(content), size, len(member.name), 0)
            file.write(b"PK\x03\x04" + head + member.name.encode() + content)
            directory += (
                b"PK\x01\x02" + struct.pack("<H", 20) + head + struct.pack("<HHHII", 0, 0, 0, 0, offset)
                + member.name.encode()
            )  # fmt: skip
        start = file.tell()
        file.write(directory)
        file.write(b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), start, 64))
    seal(path)


def seal(path: Path) -> None:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with path.open("ab") as file:
        file.write(digest.encode())


def _deflated(member: Zeros | Text) -> tuple[bytes, int, int]:
    """Returns the compressed content, and the original size and CRC. Compresses a block of zeros only once."""
    compress = zlib.compressobj(9, zlib.DEFLATED, -15)
    if isinstance(member, Text):
        return compress.compress(member.content) + compress.flush(), len(member.content), zlib.crc32(member.content)
    block = compress.compress(bytes(MEGABYTE)) + compress.flush(zlib.Z_FULL_FLUSH)
    return block * member.blocks + compress.flush(), member.blocks * MEGABYTE, 0


def rewrite(source: Path, target: Path, sql: str) -> None:
    """Executes statements on the live.db of a backup, and updates its size and the checksum."""
    manifest = archive.read(source)
    work = target.with_name(f"{target.name}-work")
    work.mkdir()
    archive.unpack(source, manifest, work, lambda _: None)
    with contextlib.closing(apsw.Connection(str(work / "live.db"))) as connection:
        connection.execute(sql)
    members = [
        msgspec.structs.replace(member, bytes=(work / member.name).stat().st_size) for member in manifest.members
    ]
    archive.write(target, work, msgspec.structs.replace(manifest, members=members), lambda _: None)
    shutil.rmtree(work)
