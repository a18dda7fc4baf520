"""The metrics of several workers add up, counters never decrease, and dead workers leave no gauges behind."""

import asyncio
import contextlib
import itertools
import logging
import math
import os
import resource
import signal
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from harness.backends import Redis, running
from harness.certificates import self_signed
from harness.commands import Commands
from harness.scraping import Scrape, scrape
from harness.served import Served, is_running, wait_for
from harness.servers import Server, serving, started
from petstore.errors import STATUS_OF_CODE, OperatorError
from petstore.keys import ENVIRONMENTS
from petstore.maintenance.certificate import certificate_expiry, served_expiry
from petstore.observability import metrics
from petstore.observability.metrics import Counter, Gauge, Histogram
from petstore.observability.monitoring import Monitoring
from petstore.observability.multiprocess import SIZES, WorkerMetrics, remove_old_numbers
from petstore.operations import COUNTED
from petstore.plans import PLANS


def worker_pids(server: Server) -> list[int]:
    assert server.process is not None
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    return [int(pid) for pid in children.split() if is_running(int(pid))]


def lists(found: Scrape) -> float:
    return found.value("petstore_requests_total", operation="listPets", status="200")


def test_a_scrape_is_the_sum_over_all_workers_and_a_killed_worker_does_not_lower_it(tmp_path: Path) -> None:
    with serving(tmp_path / "data", workers=2) as server:
        key = server.key()

        def send_lists(count: int) -> None:
            for _ in range(count):  # on separate connections, which the kernel distributes among the workers
                with httpx.Client(verify=False) as client:
                    assert client.get(server.url("/pets"), headers=key.headers).status_code == 200

        def lists_and_workers() -> tuple[float, float]:
            found = scrape(server)
            return lists(found), found.value("petstore_workers")

        send_lists(40)
        assert wait_for(lambda: lists_and_workers() == (40, 2))
        (first, second) = worker_pids(server)
        os.kill(first, signal.SIGKILL)
        assert wait_for(lambda: len(worker_pids(server)) == 2 and worker_pids(server) != [first, second])

        def lists_after_kill() -> float:
            # Each worker has its own accept queue. The kernel resets connections that wait in a dead worker's queue.
            with contextlib.suppress(httpx.TransportError):
                return lists(scrape(server))
            return lists(scrape(server))

        assert {lists_after_kill() for _ in range(20)} == {40}
        send_lists(10)
        assert wait_for(lambda: lists_and_workers() == (50, 2))
        assert scrape(server).value("petstore_worker_starts_total") == 3
        assert wait_for(lambda: scrape(server).value("petstore_connections") <= 1)


def test_counters_start_at_zero_when_the_service_starts(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    files: list[list[str]] = []
    for _ in range(2):
        server.start()
        key = server.key()
        assert httpx.get(server.url("/pets"), headers=key.headers, verify=False).status_code == 200
        found = scrape(server)
        assert (lists(found), found.value("petstore_workers")) == (1, 1)
        assert found.value("petstore_worker_starts_total") == 1
        files.append(sorted(path.name for path in (tmp_path / "data" / "metrics").iterdir()))
        server.stop()
    assert files[0] == files[1]


def test_two_services_on_one_data_directory_report_both(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as first:
        key = first.key()
        httpx.get(first.url("/pets"), headers=key.headers, verify=False)
        assert lists(scrape(first)) == 1
        with serving(tmp_path / "data") as second:
            httpx.get(second.url("/pets"), headers=key.headers, verify=False)
            found = scrape(second)
            assert (lists(found), found.value("petstore_workers")) == (2, 2)
        found = scrape(first)
        assert (lists(found), found.value("petstore_workers")) == (2, 1)


def test_redis_away_is_an_outage_of_the_gate(tmp_path: Path) -> None:
    with running(Redis()) as redis:
        server = Server(tmp_path / "data")
        server.gate = redis.url()
        try:
            server.start()
            key = server.key()

            def list_and_scrape() -> Scrape:
                httpx.get(server.url("/pets"), headers=key.headers, verify=False)
                return scrape(server)

            found = list_and_scrape()
            assert (found.value("petstore_gate_outages_total"), found.value("petstore_gate_down")) == (0, 0)
            redis.stop()
            found = list_and_scrape()
            assert (found.value("petstore_gate_outages_total"), found.value("petstore_gate_down")) == (1, 1)
            assert found.value("petstore_gate_errors_total") >= 1
            assert lists(found) == 2  # the node continues with its own counters
            redis.start()
            assert wait_for(lambda: scrape(server).value("petstore_gate_down") == 0)
            assert list_and_scrape().value("petstore_gate_outages_total") == 1
        finally:
            server.stop()


# Workers inside this process


@pytest.fixture(autouse=True)
def no_numbers_left() -> Iterator[None]:
    metrics.reset()
    yield
    metrics.reset()


def no_node_gauges() -> None:
    pass


async def scraped(worker: Monitoring) -> Scrape:
    _, body = await worker.scrape("")
    return Scrape(body.decode())


def test_counters_of_a_stopped_worker_stay_and_its_gauges_go(tmp_path: Path) -> None:
    async def work() -> None:
        first = Monitoring(tmp_path, no_node_gauges)
        metrics.REJECTED.add("400", by=3)
        metrics.CONNECTIONS.set(3)
        metrics.STORE_BATCH.observe(3, "live")
        await scraped(first)
        second = Monitoring(tmp_path, no_node_gauges)
        metrics.REJECTED.add("400", by=5)
        metrics.CONNECTIONS.set(5)
        metrics.STORE_BATCH.observe(5, "live")
        both = await scraped(second)
        assert (both.value("petstore_rejected_messages_total"), both.value("petstore_connections")) == (8, 8)
        assert both.value("petstore_workers") == both.value("petstore_worker_starts_total") == 2
        assert both.value("petstore_store_batch_size_sum", environment="live") == 8
        await first.close()
        one = await scraped(second)
        assert (one.value("petstore_rejected_messages_total"), one.value("petstore_connections")) == (8, 5)
        assert (one.value("petstore_workers"), one.value("petstore_worker_starts_total")) == (1, 2)
        await second.close()

    asyncio.run(work())


@pytest.mark.thorough
def test_two_hundred_killed_workers_leave_the_files_of_one(tmp_path: Path) -> None:
    """Each worker is killed before it can clean up. The next one continues with its counters."""
    program = """
import os, signal, sys
from pathlib import Path
from petstore.observability import metrics
from petstore.observability.multiprocess import WorkerMetrics
import prometheus_client.multiprocess  # once, before the forks
for _ in range(200):
    if (pid := os.fork()) == 0:
        worker = WorkerMetrics(Path(sys.argv[1]))
        metrics.WORKER_STARTS.add()
        metrics.WORKERS.set(1)
        worker.write()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["0.lock", "lock", *(f"{f}_0.db" for f in SIZES)])

    async def work() -> Scrape:
        worker = Monitoring(tmp_path, no_node_gauges)
        found = await scraped(worker)
        await worker.close()
        return found

    found = asyncio.run(work())
    assert (found.value("petstore_worker_starts_total"), found.value("petstore_workers")) == (201, 1)


def test_files_are_allocated_private_and_large_enough_for_all_labels(tmp_path: Path) -> None:
    """If a file had to grow on a full disk, the worker would be killed."""
    values: dict[str, list[str]] = {
        "environment": [*ENVIRONMENTS, "none"],
        "operation": [*COUNTED, "site"],
        "status": [str(status) for status in (200, 201, 204, 304, 400, 401, 403, 404, 405, 408, 410, 413, 414, 415,
                                              422, 429, 431, 500, 501, 503, 505)],
        "plan": [*PLANS, "none"],
        "subject": ["key", "address"],
        "outcome": ["admitted", "refused", "banned"],
        "result": ["hit", "miss"],
        "access": ["read", "write"],
        "reason": ["per_address", "total", "memory"],
        "code": [*STATUS_OF_CODE],
        "version": ["100.100.100"],
        "store": ["postgresql"],
        "gate": ["redis"],
    }  # fmt: skip

    async def work() -> Scrape:
        worker = Monitoring(tmp_path / "metrics", no_node_gauges)
        for metric in metrics.METRICS:
            for labels in itertools.product(*(values[name] for name in metric.labels)):
                if isinstance(metric, Counter):
                    metric.add(*labels)
                elif isinstance(metric, Gauge):
                    metric.set(1, *labels)
                else:
                    metric.observe(1, *labels)
        found = await scraped(worker)
        await worker.close()
        return found

    expected = math.prod(len(values[name]) for name in metrics.REQUESTS.labels)
    assert len(asyncio.run(work()).of("petstore_requests_total")) == expected
    assert stat.S_IMODE((tmp_path / "metrics").stat().st_mode) == 0o700
    for path in (tmp_path / "metrics").iterdir():
        state = path.stat()
        assert stat.S_IMODE(state.st_mode) == 0o600
        if path.suffix == ".db":
            assert state.st_size == SIZES[path.stem.rpartition("_")[0]]
            assert state.st_blocks * 512 >= state.st_size


def test_a_worker_that_cannot_make_its_files_serves_and_tries_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "metrics"
    directory.touch()  # a file in place of the directory

    async def work() -> None:
        worker = Monitoring(directory, lambda: metrics.FREE_BYTES.set(7))
        for _ in range(2):
            metrics.REJECTED.add("400")
            found = await scraped(worker)
            assert (found.value("petstore_free_bytes"), found.of("petstore_rejected_messages_total")) == (7, {})
        directory.unlink()
        assert (await scraped(worker)).value("petstore_rejected_messages_total") == 2
        await worker.close()

    with caplog.at_level(logging.ERROR, "petstore"):
        asyncio.run(work())
    assert [record.getMessage() for record in caplog.records] == ["metrics not written"]


def test_a_worker_that_finds_no_space_for_its_files_spoils_no_scrape(tmp_path: Path) -> None:
    async def work() -> None:
        other = Monitoring(tmp_path, no_node_gauges)
        await scraped(other)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))  # too small, as on a full disk
        try:
            with pytest.raises(OSError, match="File too large"):
                WorkerMetrics(tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (await scraped(other)).value("petstore_worker_starts_total") == 1
        await other.close()

    asyncio.run(work())


def test_numbers_are_written_once_a_second_without_a_scrape(tmp_path: Path) -> None:
    async def work() -> None:
        worker = Monitoring(tmp_path, no_node_gauges)
        worker.tick(0.0)
        await worker.close()  # waits until the files have been created
        other = Monitoring(tmp_path, no_node_gauges)
        assert (await scraped(other)).value("petstore_worker_starts_total") == 2
        metrics.REJECTED.add("431")
        other.tick(0.0)
        await other.close()
        third = Monitoring(tmp_path, no_node_gauges)
        found = await scraped(third)
        assert found.value("petstore_rejected_messages_total", status="431") == 1
        assert found.value("petstore_loop_lag_seconds_count") == 2
        await third.close()

    asyncio.run(work())


def test_numbers_of_an_earlier_run_are_removed_except_those_of_living_workers(tmp_path: Path) -> None:
    async def work() -> None:
        worker = Monitoring(tmp_path, no_node_gauges)
        await scraped(worker)
        remove_old_numbers(tmp_path)
        assert (await scraped(worker)).value("petstore_worker_starts_total") == 1
        await worker.close()

    asyncio.run(work())
    (tmp_path / "past").write_bytes(b"of an older version")
    remove_old_numbers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    remove_old_numbers(tmp_path / "missing")


def test_process_metrics_are_those_of_the_process(tmp_path: Path) -> None:
    async def work() -> Scrape:
        worker = Monitoring(tmp_path, no_node_gauges)
        found = await scraped(worker)
        await worker.close()
        return found

    found = asyncio.run(work())
    assert found.value("process_cpu_seconds_total") > 0
    assert 1 << 20 < found.value("process_resident_memory_bytes") < 1 << 32
    assert 0 < found.value("process_open_fds") < found.value("process_max_fds")
    assert found.value("process_start_time_seconds") > 1.7e9


def test_a_histogram_has_cumulative_buckets(tmp_path: Path) -> None:
    async def work() -> tuple[str, Scrape]:
        worker = Monitoring(tmp_path, no_node_gauges)
        metrics.REQUEST_SECONDS.observe(0.00001, "getPet")
        metrics.REQUEST_SECONDS.observe(0.003, "getPet", times=2)
        metrics.REQUEST_SECONDS.observe(99.0, "getPet")
        media_type, body = await worker.scrape("")
        await worker.close()
        return media_type, Scrape(body.decode())

    media_type, found = asyncio.run(work())
    name = "petstore_request_duration_seconds"
    by_bound = {dict(labels)["le"]: value for labels, value in found.of(f"{name}_bucket").items()}
    assert (by_bound["5e-05"], by_bound["0.0025"], by_bound["0.005"], by_bound["+Inf"]) == (1, 1, 3, 4)
    assert len(by_bound) == len(metrics.REQUEST_SECONDS.bounds) + 1
    assert found.value(f"{name}_count") == 4
    assert found.value(f"{name}_sum") == pytest.approx(99.00601)
    assert media_type.startswith("text/plain")


def test_names_follow_the_conventions_of_prometheus() -> None:
    names = [metric.name for metric in metrics.METRICS]
    assert len(set(names)) == len(names)
    for metric in metrics.METRICS:
        assert metric.name.startswith(("petstore_", "process_"))
        assert metric.name.endswith("_total") == isinstance(metric, Counter)
        assert not metric.name.endswith(("_count", "_sum", "_bucket"))
        assert isinstance(metric, Counter | Gauge | Histogram)
        assert metric.about.endswith(".")


def test_a_start_does_not_import_prometheus_client() -> None:
    code = "import sys, petstore.service, petstore.cli.serve; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_expiry_of_the_certificate_is_that_of_the_one_served(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    expiry = certificate_expiry(made.chain, made.key)
    server = Served(tmp_path / "data", "--tls-cert", str(made.chain), "--tls-key", str(made.key), scheme="https")
    with started(server):
        self_signed(tmp_path, days=30)  # renewed, but not yet served
        assert scrape(server).value("petstore_certificate_expiry_timestamp_seconds") == expiry


def test_an_expired_certificate_has_an_expiry_too(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    expired = tmp_path / "expired.pem"
    subprocess.run(
        ["openssl", "x509", "-in", made.chain, "-signkey", made.key, "-days", "-1", "-out", expired],
        check=True, capture_output=True,
    )  # fmt: skip
    with pytest.raises(OperatorError, match="expired"):
        certificate_expiry(expired, made.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(expired, made.key)
    assert served_expiry(server, expired, expired_too=True) < time.time()


def test_without_tls_the_expiry_of_a_certificate_is_absent(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        assert scrape(server).of("petstore_certificate_expiry_timestamp_seconds") == {}


def test_keys_that_expire_within_14_days_are_counted(tmp_path: Path) -> None:
    server = Served(tmp_path / "data")
    for expires in ("1d", "13d", "15d"):
        Commands(server).json("keys", "create", "--plan", "free", "--expires", expires)
    with started(server):
        wait_for(lambda: scrape(server).of("petstore_keys_expiring"))
        assert scrape(server).value("petstore_keys_expiring", environment="live") == 2
        assert scrape(server).value("petstore_keys_expiring", environment="staging") == 0
