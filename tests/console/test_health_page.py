"""The health page, with and without a running service."""

import subprocess
import time
from pathlib import Path

import pytest

from harness.certificates import self_signed
from harness.commands import Commands
from harness.consoles import ConsoleClient, running_console, text_of
from harness.served import Served, wait_for
from harness.servers import Server, started
from harness.wire import asking
from petstore.console.health import latency_between
from petstore.errors import OperatorError
from petstore.maintenance.certificate import certificate_expiry


def test_the_page_shows_workers_latency_store_gate_backup_and_version(
    server: Server, operator: ConsoleClient, tmp_path: Path
) -> None:
    asking(server.port, 20, server.key().headers)
    assert wait_for(lambda: "1 running" in text_of(operator.get("/live/health")))
    assert wait_for(lambda: "99th percentile latency at most" in text_of(operator.get("/live/health")))
    text = text_of(operator.get("/live/health"))
    names = ("PostgreSQL", "Redis") if server.store else ("SQLite", "LMDB")
    for name in (f"{names[0]}, live up", f"{names[0]}, staging up", f"{names[1]} up"):
        assert name in text
    assert "Certificate none" in text
    if server.store is None:
        assert "Last backup never" in text
        Commands(server).text("backup", str(tmp_path / "backup.zip"))
        assert "Last backup never" not in text_of(operator.get("/live/health"))


def test_the_page_shows_when_the_certificate_of_the_service_expires(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    day = time.strftime("%Y-%m-%d", time.gmtime(certificate_expiry(made.chain, made.key)))
    server = Served(tmp_path / "data", "--tls-cert", str(made.chain), "--tls-key", str(made.key), scheme="https")
    with started(server), running_console(server) as console:
        client = console.client()
        client.get(console.link)
        assert wait_for(lambda: f"Certificate expires {day}" in text_of(client.get("/live/health")))


def test_without_a_service_the_page_says_so(tmp_path: Path) -> None:
    with running_console(Server(tmp_path / "data")) as console:
        client = console.client()
        client.get(console.link)
        assert wait_for(lambda: "No workers on this node" in text_of(client.get("/live/health")))


def test_latency_is_that_of_the_requests_between_two_readings() -> None:
    before = {0.001: 90.0, 0.1: 100.0, float("inf"): 100.0}
    after = {0.001: 90.0, 0.1: 198.0, float("inf"): 200.0}
    latency = latency_between(before, after)
    assert latency is not None
    assert (latency.requests, latency.p50, latency.p99) == (100, 100.0, float("inf"))
    assert latency_between(after, after) is None
    assert latency_between({}, {}) is None


def test_the_expiry_of_a_certificate_is_read(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    shown = subprocess.run(
        ["openssl", "x509", "-in", certificate, "-noout", "-enddate"], check=True, capture_output=True, text=True
    ).stdout
    import ssl

    assert certificate_expiry(certificate, key) == ssl.cert_time_to_seconds(shown.strip().removeprefix("notAfter="))
    with pytest.raises(OperatorError):
        certificate_expiry(key, key)
