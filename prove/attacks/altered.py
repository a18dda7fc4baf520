"""`python -m prove.attacks.altered NAME[,NAME…] command …`: runs the petstore command with alterations.

Most alterations remove a bound or plant another fault, which a proof must notice. Two do not: `lookups=FILE` appends
the time of every lookup of an unknown key to a file, and `memory_max=BYTES` lowers a bound.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.programs import run
from petstore import data_dir
from petstore.keys import ApiKey
from petstore.maintenance import archive
from petstore.server import bodies, connection, http_server, messages
from petstore.web import admission, requests, site, static_files
from petstore.web.client_address import is_in

MEBIBYTE = 1024 * 1024
_kept: list[bytes] = []


def memory_outlives_connections(_: str) -> None:
    lost = connection.Connection.connection_lost

    def connection_lost(self: connection.Connection, error: Exception | None) -> None:
        _kept.append(os.urandom(MEBIBYTE))
        lost(self, error)

    _replace(connection.Connection, "connection_lost", connection_lost)


def memory_grows(_: str) -> None:
    def grow() -> None:
        for _ in range(64):
            time.sleep(0.05)
            _kept.append(os.urandom(2 * MEBIBYTE))

    threading.Thread(target=grow, daemon=True).start()


def targets_of_any_length(_: str) -> None:
    _replace(messages, "TARGET_MAX", 10**6)
    _replace(messages, "HEAD_MAX", 10**6)


def bodies_at_once(_: str) -> None:
    _replace(connection, "PART_MAX", 10**9)
    _replace(connection, "LARGE", 10**9)  # otherwise, all plain TCP responses would share one copy of the file


def trailers_kept(_: str) -> None:
    _replace(bodies, "TRAILERS_MAX", 10**9)
    read = bodies.ChunkedDecoder._read_line

    def read_and_keep(self: bodies.ChunkedDecoder, line: bytes) -> bool:
        _kept.append(line + b" ")
        return read(self, line)

    _replace(bodies.ChunkedDecoder, "_read_line", read_and_keep)


def fields_of_any_length(_: str) -> None:
    for module in (requests, static_files):
        _replace(module, "FIELD_PARSED_MAX", 10**6)
    _replace(messages, "CONNECTION_MAX", 10**6)


def any_memory(_: str) -> None:
    memory_max(str(10**12))


def memory_max(size: str) -> None:
    _replace(http_server, "MEMORY_MAX", int(size))
    _replace(http_server, "MEMORY_AFTER", int(size) * 7 // 8)


def any_number_of_lookups(_: str) -> None:
    _replace(admission, "LOOKUPS_PER_SECOND", 10**9)


def slow_chunks(_: str) -> None:
    decode = bodies.ChunkedDecoder.decode

    def slow(self: bodies.ChunkedDecoder, data: bytes) -> tuple[bytes, bytes | None]:
        until = time.process_time() + 0.2
        while time.process_time() < until:
            pass
        return decode(self, data)

    _replace(bodies.ChunkedDecoder, "decode", slow)


def slow_bodies(_: str) -> None:
    received = connection.Connection.data_received

    def slow(self: connection.Connection, data: bytes) -> None:
        if data.startswith(b"POST "):
            until = time.process_time() + 0.03
            while time.process_time() < until:
                pass
        received(self, data)

    _replace(connection.Connection, "data_received", slow)


def all_received_kept(_: str) -> None:
    received = connection.Connection.data_received

    def keep(self: connection.Connection, data: bytes) -> None:
        _kept.append(data + b" ")
        received(self, data)

    _replace(connection.Connection, "data_received", keep)


def backups_of_any_size(_: str) -> None:
    copy = archive._copy  # its bound is an argument, not a named constant
    _replace(archive, "MANIFEST_MAX", 10**12)
    _replace(archive, "_copy", lambda source, target, _, progress: copy(source, target, 10**12, progress))


def backups_with_any_schema(_: str) -> None:
    from petstore.store.sqlite import doctor

    _replace(doctor, "_foreign", lambda *_: [])


def files_that_others_can_read(_: str) -> None:
    import petstore.cli

    os.umask(0)
    _replace(data_dir, "UMASK", 0)
    _replace(petstore.cli, "UMASK", 0)


def other_owners_accepted(_: str) -> None:
    _replace(data_dir, "check_owner", lambda _: None)
    _replace(data_dir, "check_files", lambda _: None)


def resets_while_stopping(_: str) -> None:
    begin = http_server.HttpServer.begin_closing

    def begin_closing(self: http_server.HttpServer) -> int:
        self._connections_max = 0
        return begin(self)

    _replace(http_server.HttpServer, "begin_closing", begin_closing)


def uploads_kept(_: str) -> None:
    from petstore.formats import pet_rows

    blocks = pet_rows.Reading.__iter__

    def keep(self: pet_rows.Reading) -> Iterator[bytes]:
        for block in blocks(self):
            _kept.append(block)
            yield block

    _replace(pet_rows.Reading, "__iter__", keep)


def metrics_for_anybody(_: str) -> None:
    _replace(site.Site, "_may_scrape", lambda *_: True)


def metrics_for_this_machine(_: str) -> None:
    _replace(site.Site, "_may_scrape", lambda _, request: is_in(request.peer, site.LOOPBACK))


def fields_of_other_requests(_: str) -> None:
    """Gives every twentieth request without a body the header fields of the first request."""
    read = messages.HeadReader.read
    count = 0
    first: dict[str, str] | None = None

    def mixed(self: messages.HeadReader, head: bytes, peer: str, started: float) -> tuple[messages.RequestMessage, int]:
        nonlocal count, first
        request, length = read(self, head, peer, started)
        count += 1
        if first is None and not length and "authorization" in request.fields:
            first = request.fields
        if first is not None and not length and count % 20 == 0:
            request.fields = first
        return request, length

    _replace(messages.HeadReader, "read", mixed)


def lookups(file: str) -> None:
    from petstore.store.keys import Keys

    find = Keys.find
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    async def find_key(self: Keys, digest: bytes) -> ApiKey | None:
        found = await find(self, digest)
        if found is None:
            os.write(log, f"{time.time()}\n".encode())
        return found

    _replace(Keys, "find", find_key)


ALTERATIONS: dict[str, Callable[[str], None]] = {
    each.__name__: each
    for each in (
        memory_outlives_connections, memory_grows, bodies_at_once, trailers_kept, fields_of_any_length, any_memory,
        memory_max, targets_of_any_length, any_number_of_lookups, slow_chunks, slow_bodies, all_received_kept,
        backups_of_any_size, backups_with_any_schema, uploads_kept, files_that_others_can_read, other_owners_accepted,
        resets_while_stopping,
        metrics_for_anybody, metrics_for_this_machine, fields_of_other_requests, lookups,
    )
}  # fmt: skip


def program(*alterations: str | Path) -> list[str]:
    """Returns the value for `Server.program`: the petstore command with these alterations, if any."""
    return ["prove.attacks.altered", ",".join(map(str, alterations))] if alterations else ["petstore"]


def _replace(owner: object, name: str, value: Any) -> None:
    assert hasattr(owner, name), f"{name} has moved"
    setattr(owner, name, value)


def main() -> None:
    _, alterations, *words = sys.argv
    for word in alterations.split(","):
        name, _, value = word.partition("=")
        ALTERATIONS[name](value)
    run(program(alterations), words)


if __name__ == "__main__":
    main()
