"""Four workers act as one service, with one quota, one catalogue and one set of keys."""

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from harness.certificates import Certificate, self_signed
from harness.scraping import scrape
from harness.served import Served, wait_for
from harness.servers import READY_WITHIN, Server, serving, started
from harness.stores import BY
from petstore.maintenance.certificate import certificate_expiry
from petstore.plans import Limits
from petstore.server.worker_process import PAUSE_MAX, Restarts
from petstore.server.workers import STOP_TIMEOUT
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


# Starts two workers and sends a signal while the second one is forked.
_SUPERVISED = """
import os, signal, time
from petstore.server.workers import Supervisor

count = 0
def second():
    global asked, count
    count += 1
    if count == 2:
        asked = time.monotonic()
        os.kill(os.getpid(), signal.SIGTERM)

os.register_at_fork(before=second)
code = Supervisor("127.0.0.1", 0, 2, lambda own, others, ready: time.sleep(60), None).run()
print(time.monotonic() - asked)
raise SystemExit(code)
"""


def test_a_stop_that_comes_with_a_fork_misses_no_worker() -> None:
    done = subprocess.run([sys.executable, "-c", _SUPERVISED], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < STOP_TIMEOUT, "a worker had to be killed"


def test_workers_that_keep_dying_at_their_start_end_the_service() -> None:
    script = _SUPERVISED.replace("os.kill(os.getpid(), signal.SIGTERM)", "pass").replace("time.sleep(60)", "1 / 0")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert done.returncode == 1


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# Starts two workers. While a certain file exists, a worker that starts fails.
_FAILING = """
import pathlib, sys, time
from petstore.observability import logs
from petstore.server import worker_process
from petstore.server.workers import Supervisor

logs.configure()
worker_process.PAUSE_MAX = worker_process.PAUSE_MIN  # a test does not wait for 30 seconds

def work(own, others, ready):
    if pathlib.Path(sys.argv[1]).exists():
        raise ValueError("cannot start")
    ready()
    time.sleep(60)

raise SystemExit(Supervisor("127.0.0.1", 0, 2, work, None).run())
"""


def test_a_worker_that_cannot_start_is_tried_again_while_others_serve(tmp_path: Path) -> None:
    fault, log = tmp_path / "fault", tmp_path / "log"

    def deaths() -> int:
        return log.read_text().count('"worker died"')

    with log.open("wb") as output:
        main = subprocess.Popen([sys.executable, "-c", _FAILING, str(fault)], stderr=output)
    try:
        assert wait_for(lambda: len(children(main.pid)) == 2)
        assert wait_for(lambda: len(list(Path(f"/proc/{main.pid}/fd").iterdir())) == 5)  # three streams, two sockets
        healthy, killed = children(main.pid)
        fault.touch()
        os.kill(killed, signal.SIGKILL)
        assert wait_for(lambda: deaths() > 8) and main.poll() is None, log.read_text()
        assert healthy in children(main.pid)
        fault.unlink()
        assert wait_for(lambda: len(children(main.pid)) == 2)
        assert wait_for(lambda: len(list(Path(f"/proc/{main.pid}/fd").iterdir())) == 5), "descriptors stayed open"
        assert "retry_seconds" in log.read_text() and "keep dying" not in log.read_text()
    finally:
        main.terminate()
        assert main.wait(10) == 0


# A reload in which the first new worker serves requests but the second one cannot start.
_HALF_RELOADED = """
import os, pathlib, signal, sys, time
from petstore.server.reload_variables import Handover
from petstore.server.sockets import worker_sockets
from petstore.server.worker_process import RETIRE
from petstore.server.workers import Supervisor

directory = pathlib.Path(sys.argv[1])
previous = os.fork()
if previous == 0:
    time.sleep(60)

def retired(number, frame):
    (directory / "retired").touch()
    os._exit(0)

def work(own, others, ready):
    try:
        (directory / "first").touch(exist_ok=False)
    except FileExistsError:
        while not (directory / "ready").exists():
            time.sleep(0.01)
        raise ValueError("cannot start")
    signal.signal(RETIRE, retired)
    ready()
    (directory / "ready").touch()
    time.sleep(60)

sockets = worker_sockets("127.0.0.1", 0, 2)
left = Handover([[each.detach() for each in group] for group in sockets], {previous: 0}, set(), {}, False)
raise SystemExit(Supervisor("127.0.0.1", 0, 2, work, left).run())
"""


def test_a_reload_that_fails_lets_new_workers_finish_their_requests(tmp_path: Path) -> None:
    main = subprocess.Popen([sys.executable, "-c", _HALF_RELOADED, str(tmp_path)], stderr=subprocess.DEVNULL)
    try:
        assert wait_for(lambda: (tmp_path / "retired").exists())
    finally:
        main.terminate()
        main.wait(10)


def test_the_pause_before_the_next_start_grows_to_a_bound() -> None:
    restarts = Restarts()
    pauses = [restarts.crashed(slot=1, now=0.0) for _ in range(2_000)]
    assert pauses == sorted(pauses) and 0.0 < pauses[0] < 1.0 and pauses[-1] == PAUSE_MAX
    assert restarts.take_due(PAUSE_MAX - 1) == [] and restarts.take_due(PAUSE_MAX) == [1]
    restarts.worked(slot=1)
    assert restarts.crashed(slot=1, now=0.0) == pauses[0]


def write_junk(made: Certificate) -> None:
    made.chain.write_text("junk")


def renew_without_key(made: Certificate) -> None:
    key = made.key.read_bytes()
    self_signed(made.key.parent, days=30)
    made.key.write_bytes(key)


@pytest.mark.parametrize("spoil", [write_junk, renew_without_key])
def test_a_replaced_worker_serves_the_certificate_of_the_start(
    tmp_path: Path, spoil: Callable[[Certificate], None]
) -> None:
    made = self_signed(tmp_path)
    expiry, chain = certificate_expiry(made.chain, made.key), made.chain.read_text()
    server = Served(
        tmp_path / "data", "--tls-cert", str(made.chain), "--tls-key", str(made.key), workers=2, scheme="https"
    )
    with started(server):
        assert server.process is not None
        spoil(made)
        for worker in children(server.process.pid):
            os.kill(worker, signal.SIGKILL)
        served = ssl.get_server_certificate(("127.0.0.1", server.port), timeout=READY_WITHIN)
        assert served == ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(chain))
        assert scrape(server).value("petstore_certificate_expiry_timestamp_seconds") == expiry
        assert {entry["event"] for entry in server.events} == {"worker died"}
