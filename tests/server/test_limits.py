"""The table of limits in SECURITY.md against the constants, and the memory limits in deploy/ against the table."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from petstore.server import bodies, connection, http_server, messages
from petstore.server.http_server import MEMORY_MAX
from petstore.settings import Settings

ROOT = Path(__file__).parents[2]
MEBIBYTE = 1024 * 1024
WORKER = 128 * MEBIBYTE  # without its connections
UNITS = {"": 1, "characters": 1, "digits": 1, "bytes": 1, "KiB": 1024, "MiB": MEBIBYTE, "s": 1}
# Of no concern to clients: bounds of caches, how often something is counted, and the end of a worker.
INTERNAL = {
    "SPELLINGS_MAX", "SPELLING_LENGTH_MAX", "HEAD_UNCOUNTED_MAX", "METHOD_MAX", "UNCOUNTED_MAX", "DRAIN_TIMEOUT",
    "HANDSHAKES_TIMEOUT",
}  # fmt: skip


def rows() -> list[tuple[str, str]]:
    """The value and the name of each limit."""
    section = (ROOT / "SECURITY.md").read_text().partition("## Limits")[2].partition("\n## ")[0]
    return re.findall(r"(?m)^\|[^|]*\| ([^|]+?) \| `([\w.]+)` \|$", section)


def constant(name: str) -> Any:
    if name.startswith("settings.Settings."):
        return getattr(Settings(data=Path("unused")), name.rpartition(".")[2])
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(f"petstore.{module}"), attribute)


@pytest.mark.parametrize(("value", "name"), rows(), ids=lambda text: str(text))
def test_the_table_of_limits_is_true(value: str, name: str) -> None:
    number, _, unit = value.partition(" ")
    assert int(number) * UNITS[unit] == constant(name)


def test_the_table_has_every_limit_of_the_server() -> None:
    named = {name.rpartition(".")[2] for _, name in rows()} | INTERNAL
    found = {
        name
        for module in (bodies, connection, http_server, messages)
        for name in vars(module)
        if re.fullmatch("[A-Z_]+_(MAX|TIMEOUT)", name)
    }
    assert found - named == set()


@pytest.mark.parametrize(
    ("file", "limit", "workers"),
    [
        ("petstore.service", r"MemoryMax=(\d+)(G)", 2 * 2),  # petstore.env sets two, and a reload starts as many again
        ("petstore-node.service", r"MemoryMax=(\d+)(G)", 2 * 2),
        ("petstore-console.service", r"MemoryMax=(\d+)(G)", 1),
        ("kubernetes.yaml", r"limits: {memory: (\d+)(G)i}", 2),
    ],
)
def test_the_memory_limits_of_the_units_have_room_for_all_connections(file: str, limit: str, workers: int) -> None:
    text = (ROOT / "deploy" / file).read_text()
    found = re.search(limit, text)
    assert found is not None and int(found[1]) * 1024 * MEBIBYTE > workers * (WORKER + MEMORY_MAX)
    if stated := re.search(r"allows ([\d,]+) connections, or ([\d,]+) with TLS", text):
        numbers = [int(number.replace(",", "")) for number in stated.groups()]
        assert numbers == [MEMORY_MAX // connection.CONNECTION_COST, MEMORY_MAX // http_server.TLS_COST]
    else:
        assert "LimitNOFILE" not in text
    if "WORKERS" in text:
        assert re.search(r"PETSTORE_WORKERS(=|, value: \")2\b", text)
