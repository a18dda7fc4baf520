"""Compares docs/reference/limits.md with the constants and the server, and checks the memory limits in deploy/."""

import contextlib
import importlib
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from harness.servers import Key, Server
from harness.wire import receive, split
from petstore.server import bodies, connection, http_server, messages
from petstore.server.http_server import MEMORY_MAX
from petstore.settings import Settings
from petstore.store.database import Bounds
from petstore.web.requests import BODY_MAX

ROOT = Path(__file__).parents[2]
MEBIBYTE = 1024 * 1024
WORKER = 128 * MEBIBYTE  # without its connections
UNITS = {"": 1, "characters": 1, "digits": 1, "bytes": 1, "KiB": 1024, "MiB": MEBIBYTE, "s": 1}
MODULES = (
    "server.asgi_bridge", "server.bodies", "server.connection", "server.http_server", "server.messages",
    "web.admission", "web.client_address", "web.preferences", "web.requests", "console.background", "console.forms",
    "console.pet_files", "console.security", "console.sessions",
)  # fmt: skip
# Clients do not notice these limits: cache sizes, counting intervals, shutdown timeouts and page sizes.
INTERNAL = {
    "SPELLINGS_MAX", "SPELLING_LENGTH_MAX", "HEAD_UNCOUNTED_MAX", "METHOD_MAX", "UNCOUNTED_MAX", "DRAIN_TIMEOUT",
    "HANDSHAKES_TIMEOUT", "FIRST_REQUEST_TIMEOUT", "CACHED_KEYS_MAX", "MARKED_KEYS_MAX", "ADDRESSES_MAX",
    "COUNTERS_MAX", "JOBS_MAX", "WAIT_TIMEOUT", "ANSWER_TIMEOUT", "KEPT_MAX",
}  # fmt: skip


def rows() -> list[tuple[str, str, str]]:
    """Returns the value and name of each limit, and what happens when it is exceeded."""
    table = (ROOT / "docs/reference/limits.md").read_text()
    return re.findall(r"(?m)^\|[^|]*\| ([^|]+?) \| `([\w.]+)` \| ?([^|]*?) ?\|$", table)


def constant(name: str) -> Any:
    if name.startswith("settings.Settings."):
        return getattr(Settings(data=Path("unused")), name.rpartition(".")[2])
    if name.startswith("store.database.Bounds."):
        return getattr(Bounds(), name.rpartition(".")[2])
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(f"petstore.{module}"), attribute)


@pytest.mark.parametrize(("value", "name"), [row[:2] for row in rows()], ids=lambda text: str(text))
def test_the_table_of_limits_is_true(value: str, name: str) -> None:
    number, _, unit = value.partition(" ")
    assert int(number) * UNITS[unit] == constant(name)


def test_the_table_has_every_limit_of_the_server() -> None:
    named = {name for _, name, _ in rows()}
    found = {
        f"{module}.{name}"
        for module in MODULES
        for assigned in re.findall(r"(?m)^([A-Z][A-Z_, =]+) = ", source(module))
        for name in re.findall(r"[A-Z_]+_(?:MAX|TIMEOUT)", assigned)
        if name not in INTERNAL
    }
    assert found - named == set()


def source(module: str) -> str:
    return (ROOT / "src/petstore" / f"{module.replace('.', '/')}.py").read_text()


def beyond(key: Key) -> dict[str, bytes]:
    """Returns messages that slightly exceed a limit, by the name of the limit."""

    def head(*fields: str, start: str = "GET /v1/pets", host: str = "petstore.test") -> bytes:
        return "\r\n".join([f"{start} HTTP/1.1", f"Host: {host}", *credential, *fields, "", ""]).encode()

    def create(coding: str, body: bytes) -> bytes:
        return head(coding, start="POST /v1/pets") + body

    def chunked(body: bytes) -> bytes:
        return create("Transfer-Encoding: chunked", body)

    credential = [f"Authorization: Bearer {key.secret}"]
    line, lines = bodies.CHUNK_LINE_MAX, bodies.CHUNK_OVERHEAD_MAX
    return {
        "server.messages.HEAD_MAX": head(f"X: {'x' * messages.HEAD_MAX}"),
        "server.messages.TARGET_MAX": head(start=f"GET /v1/pets?{'x' * messages.TARGET_MAX}"),
        "server.messages.FIELDS_MAX": head(*["X: x"] * messages.FIELDS_MAX),
        "server.messages.HOST_MAX": head(host="x" * (messages.HOST_MAX + 1)),
        "server.messages.LENGTH_MAX": create(f"Content-Length: {'0' * messages.LENGTH_MAX}2", b"{}"),
        "server.messages.EMPTY_BYTES_MAX": b"\r\n" * (messages.EMPTY_BYTES_MAX // 2 + 1) + head(),
        "web.requests.BODY_MAX": create(f"Content-Length: {BODY_MAX + 1}", b"x" * (BODY_MAX + 1)),
        "server.bodies.CHUNK_LINE_MAX": chunked(b"2;" + b"x" * line + b"\r\n{}\r\n0\r\n\r\n"),
        "server.bodies.CHUNKS_MAX": chunked(b"1\r\n \r\n" * (bodies.CHUNKS_MAX + 1) + b"0\r\n\r\n"),
        "server.bodies.CHUNK_OVERHEAD_MAX": chunked((b"1;" + b"x" * 1000 + b"\r\n \r\n") * (lines // 1000)),
        "server.bodies.TRAILERS_MAX": chunked(b"0\r\n" + b"X: x\r\n" * (bodies.TRAILERS_MAX + 1) + b"\r\n"),
    }


@pytest.mark.on("sqlite-lmdb")
def test_a_message_beyond_a_limit_gets_the_status_in_the_table(server: Server) -> None:
    stated = {name: status for _, name, status in rows()}
    wrong = []
    for name, message in beyond(server.key()).items():
        with socket.create_connection(("127.0.0.1", server.port), timeout=15) as connection:
            with contextlib.suppress(ConnectionError):  # the server may close the connection first
                connection.sendall(message)
            received = receive(connection)
        statuses = [response.status for response in split(received.data)]
        if statuses != [int(stated[name])] or not received.closed:
            wrong.append(f"{name}: {statuses}, closed: {received.closed}; the table says {stated[name]}")
    assert wrong == []


@pytest.mark.parametrize(
    ("file", "limit", "workers"),
    [
        ("petstore.service", r"MemoryMax=(\d+)(G)", 2 * 2),  # petstore.env sets two, and a reload starts two more
        ("petstore-node.service", r"MemoryMax=(\d+)(G)", 2 * 2),
        ("petstore-console.service", r"MemoryMax=(\d+)(G)", 1),
        ("kubernetes.yaml", r"limits: {memory: (\d+)(G)i}", 2),
    ],
)
def test_the_memory_limits_of_the_units_have_room_for_all_connections(file: str, limit: str, workers: int) -> None:
    text = (ROOT / "deploy" / file).read_text()
    found = re.search(limit, text)
    assert found is not None and int(found[1]) * 1024 * MEBIBYTE > workers * (WORKER + MEMORY_MAX)
    if stated := re.search(r"memory for ([\d,]+) connections, or ([\d,]+) with TLS", text):
        numbers = [int(number.replace(",", "")) for number in stated.groups()]
        assert numbers == [MEMORY_MAX // connection.CONNECTION_COST, MEMORY_MAX // http_server.TLS_COST]
    else:
        assert "LimitNOFILE" not in text
    if "WORKERS" in text:
        assert re.search(r"PETSTORE_WORKERS(=|, value: \")2\b", text)
