"""Four workers are one service: one quota, one catalogue, one set of keys."""

import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from petstore.plans import Limits
from petstore.server.workers import STOP_TIMEOUT, default_count
from petstore.settings import Settings
from petstore.usage import HOUR
from tests.servers import DEED, Server, serving

WORKERS = 4


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("many") / "data", "own", workers=WORKERS) as server:
        yield server


def worker_of(server: Server, response: httpx.Response) -> int:
    """The process id of the worker that sent a response."""
    _, port = response.extensions["network_stream"].get_extra_info("client_addr")
    return server.worker_behind(port)


def a_connection_to_each_worker(server: Server) -> list[httpx.Client]:
    """The kernel spreads connections over the workers, so enough of them reach all."""
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


def test_a_created_animal_is_in_every_worker_s_list_before_its_201_arrives(many: Server) -> None:
    key = many.key()
    clients = a_connection_to_each_worker(many)
    for number in range(60):
        writer = clients[number % WORKERS]
        # Every worker has the page in its memory before the animal is added.
        for reader in clients:
            reader.get(many.url("/pets?limit=100"), headers=key.headers)
        added = writer.post(many.url("/pets"), headers=key.headers, json={"name": f"Pet {number}", "categoryId": 1})
        assert added.status_code == 201
        for reader in clients:
            listed = reader.get(many.url("/pets?limit=100"), headers=key.headers).json()
            assert added.json() in listed
    for client in clients:
        client.close()


def test_a_revoked_key_is_refused_by_every_worker_from_the_next_request_on(many: Server) -> None:
    clients = a_connection_to_each_worker(many)
    for _ in range(10):
        key = many.key()
        for client in clients:
            assert client.get(many.url("/pets"), headers=key.headers).status_code == 200
        many.act(
            lambda backends, key_id=key.id: backends.stores["live"].revoke_key(key_id, DEED)  # type: ignore[misc]  # a lambda with a default
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
    rows = server.act(lambda backends: backends.stores["live"].usage_of([key.id], HOUR, hours))
    counted: Counter[str] = Counter()
    for row in rows:
        counted[row.response] += row.requests
    assert counted == {"ok": 30, "refused": 10}
    shown = server.act(lambda backends: backends.stores["live"].key(key.id))
    assert shown is not None and shown.last_used is not None


def test_creates_on_several_workers_at_once_all_succeed(many: Server) -> None:
    key = many.key()

    def create(number: int) -> int:
        with httpx.Client(timeout=15, verify=False) as client:
            return sum(
                client.post(
                    many.url("/pets"), headers=key.headers, json={"name": f"Pet {number}.{i}", "categoryId": i}
                ).status_code
                == 201
                for i in range(25)
            )

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(create, range(16))) == 400


def test_the_sockets_of_the_workers_are_open_only_on_the_chosen_address(many: Server) -> None:
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", many.port), timeout=2).close()
    assert Settings().host == "127.0.0.1"


# Two workers, and a signal that comes with the fork of the second one.
_SUPERVISED = """
import os, signal, time
from petstore.server.workers import Supervisor

count = 0
def second():
    global count
    count += 1
    if count == 2:
        os.kill(os.getpid(), signal.SIGTERM)

os.register_at_fork(before=second)
raise SystemExit(Supervisor("127.0.0.1", 0, 2, lambda sockets, ready: time.sleep(60), None).run())
"""


def test_a_stop_that_comes_with_a_fork_misses_no_worker() -> None:
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", _SUPERVISED], capture_output=True, timeout=20)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < STOP_TIMEOUT, "a worker had to be killed"


def test_workers_that_keep_dying_at_their_start_end_the_service() -> None:
    script = _SUPERVISED.replace("os.kill(os.getpid(), signal.SIGTERM)", "pass").replace("time.sleep(60)", "1 / 0")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=20)
    assert done.returncode == 1


def test_by_default_there_is_one_worker_per_core_that_may_be_used() -> None:
    script = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); from petstore.server.workers import"
    done = subprocess.run(
        [sys.executable, "-c", script + " default_count; print(default_count())"], capture_output=True
    )
    assert done.stdout.strip() == b"1"
    assert 1 <= default_count() <= 8
