"""The numbers of several workers: they add up, and never go back, whoever dies when."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from petstore.keys import ENVIRONMENTS
from petstore.observability import metrics
from petstore.observability.metrics import Counter, Gauge, Histogram
from petstore.observability.metrics.prometheus import render
from petstore.observability.metrics.shared import SLOT, NumbersFile, Values, Workers
from petstore.plans import PLANS
from tests.backends import Redis, running
from tests.scraping import Scrape, scrape
from tests.served import is_running, wait_for
from tests.servers import Server, serving

REX = {"name": "Rex", "categoryId": 1}


@pytest.fixture(autouse=True)
def nothing_is_left_counted() -> Iterator[None]:
    metrics.reset()
    yield
    metrics.reset()


def workers_of(server: Server) -> list[int]:
    assert server.process is not None
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    return [int(pid) for pid in children.split() if is_running(int(pid))]


def lists(found: Scrape) -> float:
    return found.value("petstore_requests_total", operation="listPets", status="200")


def test_any_worker_tells_the_sum_over_all_and_a_dead_one_takes_nothing_with_it(tmp_path: Path) -> None:
    with serving(tmp_path / "data", workers=2) as server:
        key = server.key()

        def ask(times: int) -> None:
            for _ in range(times):  # a connection each: the kernel spreads them over the workers
                with httpx.Client(verify=False) as client:
                    assert client.get(server.url("/pets"), headers=key.headers).status_code == 200

        ask(40)
        # Another worker's numbers may be a second old.
        assert wait_for(lambda: lists(scrape(server)) == 40)
        assert scrape(server).value("petstore_workers") == 2
        before = scrape(server).value("petstore_worker_starts_total")
        (first, second) = workers_of(server)
        os.kill(first, signal.SIGKILL)
        assert wait_for(lambda: len(workers_of(server)) == 2 and workers_of(server) != [first, second])

        def told() -> float:
            # Every worker has a queue of its own, and what waits in that of one who dies is reset: ask again.
            with contextlib.suppress(httpx.TransportError):
                return lists(scrape(server))
            return lists(scrape(server))

        assert {told() for _ in range(20)} == {40}  # while its successor settles what it has left
        ask(10)
        assert wait_for(lambda: lists(scrape(server)) == 50)
        assert wait_for(lambda: scrape(server).value("petstore_workers") == 2)
        assert scrape(server).value("petstore_worker_starts_total") == before + 1


def test_counters_go_on_over_a_restart_and_gauges_do_not(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    for expected in (1, 2, 3):
        server.start()
        key = server.key()
        assert httpx.get(server.url("/pets"), headers=key.headers, verify=False).status_code == 200
        found = scrape(server)
        assert lists(found) == expected
        assert found.value("petstore_workers") == 1
        server.stop()
    assert len(list((tmp_path / "data" / "metrics").glob("*.worker"))) == 1


def test_a_redis_that_goes_away_is_an_outage_of_the_gate(tmp_path: Path) -> None:
    with running(Redis()) as redis:
        server = Server(tmp_path / "data")
        server.gate = redis.url()
        try:
            server.start()
            key = server.key()

            def ask() -> Scrape:
                httpx.get(server.url("/pets"), headers=key.headers, verify=False)
                return scrape(server)

            found = ask()
            assert (found.value("petstore_gate_outages_total"), found.value("petstore_gate_down")) == (0, 0)
            redis.stop()
            found = ask()
            assert (found.value("petstore_gate_outages_total"), found.value("petstore_gate_down")) == (1, 1)
            assert found.value("petstore_gate_errors_total") >= 1
            assert lists(found) == 2  # the node goes on by itself
            redis.start()
            assert wait_for(lambda: scrape(server).value("petstore_gate_down") == 0)
            assert ask().value("petstore_gate_outages_total") == 1
        finally:
            server.stop()


# The files


def values(count: int) -> Values:
    return {"petstore_worker_starts": {(): count}, "petstore_connections": {(): count}}


def joined(folder: Path, count: int) -> Workers:
    """A worker of a node, in this process, that has counted so much."""
    metrics.reset()
    metrics.WORKER_STARTS.add(by=count)
    metrics.CONNECTIONS.set(count)
    metrics.STORE_BATCH.observe(count, "live")
    worker = Workers(folder)
    worker.join()
    worker.publish()
    return worker


def test_workers_add_up_and_the_dead_count_but_their_gauges_do_not(tmp_path: Path) -> None:
    first, second = joined(tmp_path, 3), joined(tmp_path, 5)
    total, alive = second.total()
    assert (total["petstore_worker_starts"], total["petstore_connections"], alive) == ({(): 8}, {(): 8}, 2)
    assert total["petstore_store_batch_size"]["live",] == [0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 8]
    metrics.reset()
    metrics.WORKER_STARTS.add(by=3)
    first.leave()
    third = joined(tmp_path, 1)
    total, alive = third.total()
    assert (total["petstore_worker_starts"], total["petstore_connections"], alive) == ({(): 9}, {(): 6}, 2)
    assert len(list(tmp_path.glob("*.worker"))) == 2


def test_a_file_that_was_added_but_not_yet_removed_is_not_added_twice(tmp_path: Path) -> None:
    joined(tmp_path, 3).leave()
    (dead,) = tmp_path.glob("*.worker")
    kept = dead.read_bytes()
    joined(tmp_path, 4).leave()
    dead.write_bytes(kept)  # as if the one that added it had died before the removal
    last = joined(tmp_path, 1)
    assert last.total()[0]["petstore_worker_starts"] == {(): 8}
    assert not dead.exists()


def test_what_is_known_of_dead_workers_does_not_grow_with_their_number(tmp_path: Path) -> None:
    for _ in range(20):
        joined(tmp_path, 1).leave()
    past = NumbersFile(tmp_path / "past").read()
    assert len(past.folded) == 1  # the one that was added last


@pytest.mark.parametrize(("damaged", "left"), [(2, 1), (1, 2)])
def test_a_write_that_was_cut_short_leaves_the_one_before_it(tmp_path: Path, damaged: int, left: int) -> None:
    file = NumbersFile(tmp_path / "numbers")
    file.write(values(1))
    file.write(values(2))
    with (tmp_path / "numbers").open("rb+") as broken:
        broken.seek(damaged % 2 * SLOT + 24)
        broken.write(b"\xff" * 40)
    assert grouped(NumbersFile(tmp_path / "numbers")) == values(left)


def grouped(file: NumbersFile) -> Values:
    found: Values = {}
    for name, labels, cell in file.read().cells:
        found.setdefault(name, {})[labels] = cell
    return found


def test_all_cells_that_can_exist_fit_a_slot(tmp_path: Path) -> None:
    known: dict[str, list[str]] = {
        "environment": [*ENVIRONMENTS, "none"],
        "operation": ["listPets", "createPet", "getPet", "other", "site"],
        "status": [str(status) for status in (200, 201, 204, 304, 400, 401, 403, 404, 405, 408, 409, 410, 413, 415,
                                              422, 429, 431, 500, 503)],
        "plan": [*PLANS, "none"],
        "subject": ["key", "address"],
        "outcome": ["admitted", "refused", "banned"],
        "result": ["hit", "miss"],
        "access": ["read", "write"],
        "version": ["100.100.100"],
        "store": ["postgresql"],
        "gate": ["redis"],
    }  # fmt: skip
    full: Values = {}
    for metric in metrics.METRICS:
        cell = [2.0**52] * (len(metric.bounds) + 2) if isinstance(metric, Histogram) else 2.0**52
        full[metric.name] = dict.fromkeys(itertools.product(*(known[name] for name in metric.labels)), cell)
    file = NumbersFile(tmp_path / "numbers")
    file.write(full)
    assert sum(map(len, full.values())) > 1_000
    assert (tmp_path / "numbers").stat().st_size == 2 * SLOT


def test_what_another_version_counted_is_left_out(tmp_path: Path) -> None:
    tmp_path.mkdir(exist_ok=True)
    old = NumbersFile(tmp_path / "past")
    old.write({"petstore_gone": {(): 1}, "petstore_store_batch_size": {("live",): [1, 2]}, **values(2)})
    old.close()
    total, _ = joined(tmp_path, 1).total()
    assert "petstore_gone" not in total
    assert total["petstore_worker_starts"] == {(): 3}
    assert total["petstore_store_batch_size"]["live",] == [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]


def test_a_histogram_is_told_in_cumulative_buckets() -> None:
    for seconds in (0.00001, 0.003, 0.003, 99.0):
        metrics.REQUEST_SECONDS.observe(seconds, "getPet")
    media_type, body = render({"petstore_request_seconds": dict(metrics.REQUEST_SECONDS.cells)}, "")
    found = Scrape(body.decode())
    name = "petstore_request_seconds_bucket"
    by_bound = {labels["le"]: value for labels, value in ((dict(k), v) for k, v in found.of(name).items())}
    assert (by_bound["5e-05"], by_bound["0.0025"], by_bound["0.005"], by_bound["+Inf"]) == (1, 1, 3, 4)
    assert found.value("petstore_request_seconds_sum") == pytest.approx(99.00601)
    assert media_type.startswith("text/plain")


def test_a_metric_has_one_name_and_its_kind_shows_in_it() -> None:
    names = [metric.name for metric in metrics.METRICS]
    assert len(set(names)) == len(names)
    for metric in metrics.METRICS:
        assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert isinstance(metric, Counter | Gauge | Histogram)


def test_the_library_is_imported_only_when_someone_asks() -> None:
    code = "import sys, petstore.service, petstore.cli.serve; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
