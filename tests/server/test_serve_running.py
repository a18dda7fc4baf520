"""`petstore serve` while it is running and on shutdown: signals, killed processes, and the log."""

import contextlib
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import httpx
import pytest

from harness.served import Served, is_running, wait_for
from harness.servers import Key, takes_connections
from harness.stores import BY
from harness.wire import asking, receive, request, split
from petstore.gate.recovery import SYNCED
from petstore.keys import mint
from petstore.server.workers import DRAIN_SECONDS

STOPS_WITHIN = 15.0  # the service promises 5 s; the rest is a margin for a busy machine
ENDS_WITHIN = 15.0  # a worker checks once a second; the rest is a margin


def terminate(own: Served) -> None:
    """Sends SIGTERM, as a service manager does."""
    assert own.process is not None
    own.process.terminate()


def interrupt(own: Served) -> None:
    """Sends SIGINT to the whole process group, as Ctrl-C on a terminal does."""
    assert own.process is not None
    os.killpg(own.process.pid, signal.SIGINT)


@pytest.mark.parametrize("stop", [terminate, interrupt])
def test_stop_takes_at_most_5_seconds_with_open_connections(
    serve: Callable[..., Served], stop: Callable[[Served], None]
) -> None:
    own = serve(workers=2)
    assert own.process is not None
    with contextlib.ExitStack() as open_ones:
        for _ in range(5):
            kept = open_ones.enter_context(socket.create_connection(("127.0.0.1", own.port), timeout=15))
            kept.sendall(request("GET", "/healthz"))
            assert kept.recv(12) == b"HTTP/1.1 200"
        stop(own)
        assert own.process.wait(timeout=STOPS_WITHIN) in (0, -signal.SIGINT, 130)
    assert not takes_connections(own.port)
    assert "Traceback" not in own.printed + own.log.read_text()


@pytest.mark.parametrize("stop", [terminate, interrupt])
def test_stop_finishes_an_accepted_create(serve: Callable[..., Served], stop: Callable[[Served], None]) -> None:
    own = serve()
    key = own.key()
    before = remaining(own, key)
    with socket.create_connection(("127.0.0.1", own.port), timeout=10) as connection:
        # Another writer has locked the store, so the create is accepted but cannot finish yet.
        other = apsw.Connection(str(own.data / "live.db"))
        other.execute("BEGIN IMMEDIATE")
        connection.sendall(request("POST", "/v1/pets", key.headers, b'{"name":"Last","categoryId":1}', close=True))
        asked = itertools.count(1)
        assert wait_for(lambda: before - remaining(own, key) == next(asked) + 1)
        release = threading.Timer(0.5, other.execute, ["ROLLBACK"])
        release.start()
        stop(own)
        (response,) = split(receive(connection).data)
        release.join()
        other.close()
    assert response.status == 201
    assert own.process is not None
    own.process.wait(timeout=STOPS_WITHIN)
    assert own.act(lambda backends: backends.stores["live"].pets.count())["available"] == 1


def connected(own: Served) -> socket.socket:
    """Opens a connection that is idle after one request."""
    kept = socket.create_connection(("127.0.0.1", own.port), timeout=15)
    kept.sendall(request("GET", "/healthz"))
    assert b"connection: close" not in kept.recv(65536)
    return kept


def log_of(own: Served) -> list[str]:
    return [entry["event"] for entry in own.events]


def test_during_a_drain_the_service_is_not_ready_and_answers_all_requests(serve: Callable[..., Served]) -> None:
    own = serve(workers=2)
    assert own.process is not None
    with connected(own) as idle, connected(own) as other:
        terminate(own)
        assert wait_for(lambda: "draining" in log_of(own))
        other.sendall(request("GET", "/readyz"))
        (not_ready,) = split(receive(other).data)
        assert (not_ready.status, not_ready.headers["connection"]) == (503, "close")
        answered = httpx.get(own.origin + "/healthz", timeout=15)  # on a new connection
        assert (answered.status_code, answered.headers["connection"]) == (200, "close")
        idle.sendall(request("GET", "/healthz"))
        (kept,) = split(receive(idle).data)
        assert (kept.status, kept.headers["connection"]) == (200, "close")
        assert own.process.wait(STOPS_WITHIN) == 0
    assert log_of(own) == ["started", "draining", "stopped"]


def test_ctrl_c_skips_the_drain_even_after_it_has_begun(serve: Callable[..., Served]) -> None:
    own = serve()
    assert own.process is not None
    with connected(own):
        terminate(own)
        assert wait_for(lambda: "draining" in log_of(own))
        began = time.monotonic()
        interrupt(own)
        assert own.process.wait(STOPS_WITHIN) == 0
        assert time.monotonic() - began < DRAIN_SECONDS


def test_without_a_connection_there_is_no_drain(serve: Callable[..., Served]) -> None:
    own = serve(workers=2)
    assert own.process is not None
    terminate(own)
    assert own.process.wait(STOPS_WITHIN) == 0
    assert log_of(own) == ["started", "stopped"]


def test_a_connection_without_a_request_is_not_closed_at_the_moment_of_a_stop(serve: Callable[..., Served]) -> None:
    own = serve()
    assert own.process is not None
    with connected(own) as idle, socket.create_connection(("127.0.0.1", own.port), timeout=15) as early:
        interrupt(own)
        assert idle.recv(1) == b""  # closed, because it has been used
        early.sendall(request("GET", "/healthz"))
        assert early.recv(65536).startswith(b"HTTP/1.1 200")


def remaining(own: Served, key: Key) -> int:
    """Sends a request and returns how many requests the key has left."""
    return asking(own.port, 1, key.headers, "/v1/nothing")[0].remaining


def worker_of(own: Served) -> int:
    """Returns the process id of the worker that answers a request, or 0 if there is no response."""
    with contextlib.suppress(httpx.TransportError):
        answered = httpx.get(own.origin + "/healthz", timeout=10).headers["X-Request-Id"]
        return next(int(entry["pid"]) for entry in own.events if entry.get("id") == answered)
    return 0


def workers_of(own: Served) -> set[int]:
    """Returns the process ids of the workers that have answered so far, according to the access log."""
    return {int(entry["pid"]) for entry in own.events if entry["event"] == "request"}


def test_of_two_services_on_one_directory_the_last_says_that_the_gate_is_at_rest(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    first = serve()
    note = first.data / "gate.mdb-boot"
    second = Served(first.data)
    second.start()
    second.stop()
    assert note.read_text() != SYNCED  # a power cut now would leave pages of different ages
    assert list(first.data.glob("*.damaged-*")) == []
    first.stop()
    assert note.read_text() == SYNCED


def test_who_is_connected_when_it_stops_is_answered_though_not_yet_accepted(serve: Callable[..., Served]) -> None:
    own = serve("--access-log")
    worker = worker_of(own)
    os.kill(worker, signal.SIGSTOP)  # so that connections wait to be accepted
    waiting = [socket.create_connection(("127.0.0.1", own.port), timeout=15) for _ in range(20)]
    for connection in waiting:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
    assert own.process is not None
    own.process.terminate()
    os.kill(worker, signal.SIGCONT)
    for connection in waiting:
        with connection:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_workers_end_when_the_main_process_is_killed(serve: Callable[..., Served]) -> None:
    own = serve("--access-log", workers=2)
    assert own.process is not None
    assert wait_for(lambda: worker_of(own) and len(workers_of(own)) == 2)
    workers = workers_of(own)
    own.process.kill()
    assert wait_for(
        lambda: not takes_connections(own.port) and not any(is_running(pid) for pid in workers), ENDS_WITHIN
    )


def converse(own: Served) -> list[str]:
    """Sends requests with valid and invalid keys, in valid and invalid positions. Returns the secrets in them."""
    good, revoked, other, unknown = own.key(), own.key(), own.key(environment="staging"), mint("live")
    own.act(lambda backends: backends.stores["live"].keys.revoke(revoked.id, BY))
    secrets = [good.secret, revoked.secret, other.secret, unknown, unknown[:-1] + "_"]
    with httpx.Client() as client:
        for secret in secrets:
            sent = {"Authorization": f"Bearer {secret}"}
            for path in ("/pets", "/pets/1", "/pets?limit=0", "/nothing", f"/pets?key={secret}", f"/pets/{secret}"):
                client.get(own.url(path), headers=sent)
            client.post(own.url("/pets"), headers=sent, content=b'{"name":"Rex","categoryId":1}')
            client.post(own.url("/pets"), headers=sent, content=b"{")
            client.get(own.url("/pets"), headers={"Authorization": f"Basic {secret}", "X-Api-Key": secret})
    return secrets


def test_log_is_json_lines_and_without_access_log_silent_on_requests(serve: Callable[..., Served]) -> None:
    own = serve()
    converse(own)
    assert own.process is not None
    (worker,) = Path(f"/proc/{own.process.pid}/task/{own.process.pid}/children").read_text().split()
    os.kill(int(worker), signal.SIGKILL)  # the log records this
    assert wait_for(lambda: '"worker died"' in own.log.read_text())
    own.stop()
    assert [entry["event"] for entry in own.events] == ["started", "worker died", "stopped"]


def test_access_log_has_each_request_with_the_id_of_its_key(serve: Callable[..., Served]) -> None:
    own = serve("--access-log")
    key = own.key()
    answer = httpx.get(own.url("/pets?limit=1"), headers=key.headers, verify=False)
    (entry,) = [entry for entry in own.events if entry.get("id") == answer.headers["X-Request-Id"]]
    assert (entry["method"], entry["path"], entry["status"]) == ("GET", "/v1/pets", 200)
    assert (entry["key"], entry["address"], entry["pet"]) == (key.id, "127.0.0.1", None)
    added = httpx.post(own.url("/pets"), json={"name": "Rex", "categoryId": 1}, headers=key.headers, verify=False)
    (entry,) = [entry for entry in own.events if entry.get("id") == added.headers["X-Request-Id"]]
    assert (entry["key"], entry["pet"]) == (key.id, added.json()["id"])


def test_no_secret_is_ever_logged(serve: Callable[..., Served]) -> None:
    own = serve("--access-log")
    secrets = converse(own)
    own.stop()
    log = own.log.read_text()
    assert len([entry for entry in own.events if entry["event"] == "request"]) >= 8 * len(secrets)
    assert not [secret for secret in secrets if secret[10:40] in log]


def test_log_on_a_terminal_is_readable_text(tmp_path: Path) -> None:
    """Standard error is a pseudo-terminal here."""
    ours, theirs = os.openpty()
    own = Served(tmp_path / "data", "--access-log")
    try:
        own.start(log=theirs, wait=False)
        assert wait_for(lambda: takes_connections(own.port))
        assert httpx.get(own.origin + "/readyz").status_code == 200
        with open(ours, closefd=False) as terminal:  # a file descriptor
            lines = [terminal.readline() for _ in range(2)]
    finally:
        own.stop()
        os.close(ours)
        os.close(theirs)
    assert not any(line.startswith("{") for line in lines)
    assert [("started" in line, "/readyz" in line) for line in sorted(lines)] == [(False, True), (True, False)]
