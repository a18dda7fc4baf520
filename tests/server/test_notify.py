"""The service tells systemd when it is ready, reloading, waiting for a migration, and stopping."""

import asyncio
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from harness.certificates import self_signed
from harness.served import Served, wait_for
from harness.servers import READY_WITHIN
from harness.stores import StorePlace
from petstore.store.postgres.migrations import MIGRATION_LOCK
from prove.reloads import events

# Each message is a state, followed by further variables (sd_notify(3)).
VALID = re.compile(
    r"READY=1\nSTATUS=Serving requests with \d workers?(, but the last reload failed: .+)?"
    r"|RELOADING=1\nMONOTONIC_USEC=(?P<sent>\d+)\nSTATUS=.+"
    r"|STOPPING=1\nSTATUS=.+"
    r"|EXTEND_TIMEOUT_USEC=(?P<extended>\d+)\nSTATUS=.+"
)


class Manager:
    """Receives messages as systemd does, and checks their form."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(READY_WITHIN)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def next(self) -> str:
        """Returns the name of the next state."""
        message = self._socket.recv(4096).decode()
        match = VALID.fullmatch(message)
        assert match is not None, message
        if match["sent"]:
            assert 0 <= time.monotonic() - int(match["sent"]) / 1e6 < READY_WITHIN
        if match["extended"]:
            assert int(match["extended"]) > 3_000_000, "the next extension comes after three seconds"
        return message.partition("=")[0]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    """A service manager that the service finds in its environment."""
    made = Manager(str(tmp_path / "notify") if request.param == "path" else f"@petstore-test-{os.getpid()}")
    monkeypatch.setenv("NOTIFY_SOCKET", made.address)
    yield made
    made.close()


def test_each_state_is_sent_once_and_each_reload_ends(manager: Manager, tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    files = ("--tls-cert", str(made.chain), "--tls-key", str(made.key))
    server = Served(tmp_path / "data", *files, workers=2, scheme="https").start()
    try:
        assert manager.next() == "READY"
        assert server.process is not None
        main = server.process.pid
        workers = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        assert not any(b"NOTIFY_SOCKET" in Path(f"/proc/{pid}/environ").read_bytes() for pid in workers)
        os.kill(main, signal.SIGHUP)
        assert [manager.next(), manager.next()] == ["RELOADING", "READY"]
        made.chain.write_text("not a certificate")
        os.kill(main, signal.SIGHUP)
        assert manager.next() == "RELOADING"
        os.kill(main, signal.SIGHUP)
        assert wait_for(lambda: events(server, "reload queued") == 1)
        assert [manager.next() for _ in range(3)] == ["READY", "RELOADING", "READY"]
        server.process.terminate()
        assert manager.next() == "STOPPING"
    finally:
        assert server.stop() == 0


def test_a_start_that_waits_for_a_migration_extends_its_timeout(manager: Manager, place: StorePlace) -> None:
    server = Served(place.data / "data", "--store", str(place.url))

    async def start_while_another_node_migrates() -> None:
        other = await asyncpg.connect(place.url)
        await other.execute("SELECT pg_advisory_lock($1)", MIGRATION_LOCK)
        server.start(wait=False)
        assert await asyncio.to_thread(manager.next) == "EXTEND_TIMEOUT_USEC"
        await other.close()

    try:
        asyncio.run(start_while_another_node_migrates())
        assert wait_for(lambda: manager.next() == "READY")
    finally:
        server.stop()
