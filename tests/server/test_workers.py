"""Four workers act as one service, with one quota, one catalogue and one set of keys."""

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from harness.certificates import Certificate, self_signed
from harness.served import Served, is_running, wait_for
from harness.servers import READY_WITHIN, Server, serving, started
from harness.stores import BY
from petstore.plans import Limits
from petstore.server.workers import PAUSE_MAX, STOP_TIMEOUT, pause_after
from petstore.settings import Settings
from petstore.usage import HOUR

WORKERS = 4


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("many") / "data", "own", workers=WORKERS) as server:
        yield server


def worker_of(server: Server, response: httpx.Response) -> int:
    """Returns the process id of the worker that sent a response."""
    _, port = response.extensions["network_stream"].get_extra_info("client_addr")
    return server.worker_behind(port)


def a_connection_to_each_worker(server: Server) -> list[httpx.Client]:
    """Opens a connection to each worker. The kernel spreads connections, so enough attempts reach all workers."""
    found: dict[int, httpx.Client] = {}
    for _ in range(300):
        client = httpx.Client(timeout=15, verify=False)
        worker = worker_of(server, client.get(server.origin + "/healthz"))
        if worker in found:
            client.close()
        else:
            found[worker] = client
        if len(found) == WORKERS:
            break
    assert len(found) == WORKERS
    return list(found.values())


def test_a_limit_of_60_admits_exactly_60_of_200_concurrent_requests(many: Server) -> None:
    key = many.key("free")
    barrier = threading.Barrier(20)

    def ten_requests(_: int) -> list[tuple[int, int]]:
        with httpx.Client(timeout=15, verify=False) as client:
            barrier.wait()
            answers = [client.get(many.url("/pets"), headers=key.headers) for _ in range(10)]
            return [(answer.status_code, worker_of(many, answer)) for answer in answers]

    with ThreadPoolExecutor(20) as pool:
        answers = [answer for ten in pool.map(ten_requests, range(20)) for answer in ten]
    assert Counter(status for status, _ in answers) == {200: 60, 429: 140}
    assert len({worker for _, worker in answers}) > 1


def test_every_worker_refuses_a_revoked_key_with_the_next_request(many: Server) -> None:
    clients = a_connection_to_each_worker(many)
    for _ in range(10):
        key = many.key()
        for client in clients:
            assert client.get(many.url("/pets"), headers=key.headers).status_code == 200
        many.act(
            lambda backends, key_id=key.id: backends.stores["live"].keys.revoke(key_id, BY)  # type: ignore[misc]  # a lambda with a default
        )
        for client in clients:
            assert client.get(many.url("/pets"), headers=key.headers).status_code == 401
    for client in clients:
        client.close()


def test_usage_of_all_workers_adds_up_after_a_stop(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", workers=WORKERS).start()
    key = server.key(limits=Limits(30, 1_000))
    for _ in range(40):
        httpx.get(server.url("/pets"), headers=key.headers, verify=False)
    assert server.stop() == 0
    hours = [int(time.time()) // HOUR * HOUR - before for before in (0, HOUR)]
    rows = server.act(lambda backends: backends.stores["live"].usage.of_keys([key.id], HOUR, hours))
    counted: Counter[str] = Counter()
    for row in rows:
        counted[row.measure] += row.requests
    assert counted == {"admitted": 30, "refused": 10}
    shown = server.act(lambda backends: backends.stores["live"].keys.get(key.id))
    assert shown is not None and shown.last_used is not None


def test_the_sockets_of_the_workers_are_open_only_on_the_chosen_address(many: Server) -> None:
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", many.port), timeout=15).close()
    assert Settings().host == "127.0.0.1"


def children(server: Served) -> list[int]:
    assert server.process is not None
    main = server.process.pid
    return [int(child) for child in Path(f"/proc/{main}/task/{main}/children").read_text().split()]


def test_a_stop_during_a_start_misses_no_worker(tmp_path: Path) -> None:
    server = Served(tmp_path / "data", workers=WORKERS).start(wait=False)
    assert server.process is not None
    assert wait_for(lambda: len(children(server)) >= WORKERS - 1)
    started_workers = children(server)
    server.process.terminate()
    assert server.process.wait(STOP_TIMEOUT) == 0
    assert not any(map(is_running, started_workers))


def test_the_pause_before_the_next_start_grows_to_a_bound() -> None:
    pauses = [pause_after(crashes) for crashes in range(2_000)]
    assert pauses == sorted(pauses) and pauses[0] == 0.0 < pauses[1] < 1.0 and pauses[-1] == PAUSE_MAX


def write_junk(made: Certificate) -> None:
    made.chain.write_text("junk")


def renew_without_key(made: Certificate) -> None:
    key = made.key.read_bytes()
    self_signed(made.key.parent, days=30)
    made.key.write_bytes(key)


def over_tls(directory: Path, made: Certificate, workers: int) -> Served:
    files = ("--tls-cert", str(made.chain), "--tls-key", str(made.key))
    return Served(directory / "data", *files, workers=workers, scheme="https")


def failures(server: Served) -> int:
    return sum(entry["event"] == "worker failed" for entry in server.events)


def open_files(server: Served) -> int:
    assert server.process is not None
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


@pytest.mark.parametrize("spoil", [write_junk, renew_without_key])
def test_while_a_worker_cannot_start_the_others_get_all_connections(
    tmp_path: Path, spoil: Callable[[Certificate], None]
) -> None:
    made = self_signed(tmp_path)
    server = over_tls(tmp_path, made, workers=2)
    with started(server):
        healthy, killed = children(server)
        before = open_files(server)
        spoil(made)
        os.kill(killed, signal.SIGKILL)
        assert wait_for(lambda: failures(server) > 0)
        assert all("retry_seconds" in entry for entry in server.events if entry["event"] == "worker failed")
        for _ in range(30):  # the kernel spreads connections over the sockets that are open
            assert httpx.get(server.origin + "/healthz", verify=False, timeout=2).status_code == 200
        assert wait_for(lambda: failures(server) > 3) and healthy in children(server)
        self_signed(tmp_path)

        def is_served_by_both() -> bool:
            with httpx.Client(verify=False, timeout=READY_WITHIN) as client:
                return worker_of(server, client.get(server.origin + "/healthz")) != healthy

        assert wait_for(is_served_by_both)
        assert open_files(server) == before
        assert {entry["event"] for entry in server.events} == {"started", "worker died", "worker failed"}


def test_workers_that_keep_dying_end_the_service(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    server = over_tls(tmp_path, made, workers=1)
    with started(server):
        made.chain.write_text("junk")
        os.kill(children(server)[0], signal.SIGKILL)
        assert server.process is not None
        assert server.process.wait(READY_WITHIN) == 1
        names = [entry["event"] for entry in server.events]
        assert names[:2] == ["started", "worker died"] and names[-2:] == ["workers keep dying", "stopped"]
        assert names.count("worker failed") >= 4
