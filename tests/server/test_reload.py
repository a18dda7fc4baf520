"""`SIGHUP` reloads the code, the certificate and the files that contain URLs, without dropping requests."""

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from harness.backends import Postgres, Redis, free_port, running
from harness.certificates import Certificate, self_signed
from harness.served import Served, is_running, wait_for
from harness.servers import PETSTORE, READY_WITHIN, Server, started
from harness.wire import request
from petstore.plans import Limits
from prove.reloads import Load, events, reload, used_by


def workers(server: Server) -> set[int]:
    assert server.process is not None
    main = server.process.pid
    return {int(pid) for pid in Path(f"/proc/{main}/task/{main}/children").read_text().split()}


def over_tls(directory: Path, certificate: Certificate) -> Served:
    files = ["--tls-cert", str(certificate.chain), "--tls-key", str(certificate.key)]
    return Served(directory / "data", *files, scheme="https")


def test_a_reload_replaces_every_worker(tmp_path: Path) -> None:
    server = Served(tmp_path / "data", workers=2).start()
    try:
        assert server.process is not None
        before, pid = workers(server), server.process.pid
        key = server.key(limits=Limits(10**9, 10**9))
        with Load(server, key, tls=False) as load:
            reload(server)
        assert load.failures == [] and used_by(server, key) == load.answered > 0
        assert server.process.pid == pid and wait_for(lambda: not any(map(is_running, before)), 30)
        assert wait_for(lambda: len(workers(server)) == 2)
    finally:
        assert server.stop() == 0


def test_a_new_certificate_is_served_after_a_reload(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    server = over_tls(tmp_path, made).start()

    def certificate() -> str:
        return ssl.get_server_certificate(("127.0.0.1", server.port), timeout=READY_WITHIN)

    try:
        old = certificate()
        self_signed(tmp_path)
        reload(server)
        assert wait_for(lambda: certificate() != old)  # the old worker accepts until it handles the signal
    finally:
        server.stop()


def test_a_reload_into_broken_settings_changes_nothing(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    server = over_tls(tmp_path, made).start()
    try:
        assert server.process is not None
        before = workers(server)
        made.chain.write_text("not a certificate")
        os.kill(server.process.pid, signal.SIGHUP)
        assert wait_for(lambda: events(server, "reload failed") == 1)
        assert "not PEM files" in server.log.read_text()
        assert workers(server) == before
        assert httpx.get(server.origin + "/healthz", verify=False).status_code == 200
        self_signed(tmp_path)
        reload(server)
    finally:
        assert server.stop() == 0


def test_a_reload_reads_the_files_of_urls_again(tmp_path: Path, redis: Redis) -> None:
    file = tmp_path / "gate-url"
    file.write_text(redis.url())
    server = Served(tmp_path / "data", "--gate-file", str(file)).start()
    try:
        assert server.process is not None
        file.write_text("https://127.0.0.1")
        os.kill(server.process.pid, signal.SIGHUP)
        assert wait_for(lambda: events(server, "reload failed") == 1)
        assert "--gate" in server.log.read_text()
        file.write_text(redis.url())
        reload(server)
    finally:
        assert server.stop() == 0


def test_a_reload_into_a_store_that_does_not_answer_changes_nothing(tmp_path: Path, postgres: Postgres) -> None:
    file = tmp_path / "store-url"
    file.write_text(postgres.url())
    server = Served(tmp_path / "data", "--store-file", str(file)).start()
    try:
        before = workers(server)
        file.write_text(f"postgresql://me:secret@127.0.0.1:{free_port()}/pets")
        assert "--store postgresql://me@127.0.0.1" in failed_reload(server)
        assert workers(server) == before
        assert httpx.get(server.origin + "/readyz").status_code == 200
        assert "secret" not in server.log.read_text()
        file.write_text(postgres.url())
        reload(server)
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("outage", ["refuse", "degrade"])
def test_a_reload_into_a_gate_that_does_not_answer_changes_nothing(tmp_path: Path, redis: Redis, outage: str) -> None:
    file = tmp_path / "gate-url"
    file.write_text(redis.url())
    server = Served(tmp_path / "data", "--gate-file", str(file), "--gate-outage", outage).start()
    try:
        file.write_text(f"redis://127.0.0.1:{free_port()}")
        assert "--gate redis://127.0.0.1" in failed_reload(server)
        assert httpx.get(server.origin + "/readyz").status_code == 200
    finally:
        assert server.stop() == 0


def test_a_reload_during_an_outage_of_the_same_backends_is_possible(tmp_path: Path, own_redis: Redis) -> None:
    with running(Postgres()) as own_postgres:
        urls = ["--store", own_postgres.url(), "--gate", own_redis.url(), "--gate-outage", "refuse"]
        server = Served(tmp_path / "data", *urls)
        with started(server):
            own_redis.kill()
            own_postgres.kill()
            reload(server)
            own_postgres.start()
            own_redis.start()
            assert wait_for(lambda: httpx.get(server.origin + "/readyz").status_code == 200)


def failed_reload(server: Served) -> str:
    """Reloads the service and expects the reload to fail. Returns the cause from the log."""
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGHUP)
    assert wait_for(lambda: events(server, "reload failed") == 1, 30), server.log.read_text()
    return str(next(entry["cause"] for entry in server.events if entry["event"] == "reload failed"))


def test_reloads_that_are_asked_for_during_a_reload_become_one_after_it(tmp_path: Path) -> None:
    made, other = self_signed(tmp_path), tmp_path / "renewed"
    other.mkdir()
    renewed = self_signed(other)
    server = over_tls(tmp_path, made).start()
    try:
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGHUP)
        assert wait_for(lambda: events(server, "reload begins") == 1)
        renewed_text = renewed.chain.read_text()
        renewed.chain.replace(made.chain)
        renewed.key.replace(made.key)
        for _ in range(3):
            os.kill(server.process.pid, signal.SIGHUP)
            assert wait_for(lambda: events(server, "reload queued") == 1)
        assert wait_for(lambda: events(server, "reloaded") == 2), server.log.read_text()
        served = ssl.get_server_certificate(("127.0.0.1", server.port), timeout=READY_WITHIN)
        assert served.strip() == renewed_text.strip()
        assert (events(server, "reload begins"), events(server, "reload ignored")) == (2, 0)
    finally:
        assert server.stop() == 0


def test_a_queued_reload_follows_a_reload_that_failed(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    server = over_tls(tmp_path, made).start()
    try:
        assert server.process is not None
        made.chain.write_text("not a certificate")
        for name in ("reload begins", "reload queued"):
            os.kill(server.process.pid, signal.SIGHUP)
            assert wait_for(lambda name=name: events(server, name) == 1)  # type: ignore[misc]  # a lambda with a default
        assert wait_for(lambda: events(server, "reload failed") == 2)
    finally:
        assert server.stop() == 0


def test_a_url_in_a_file_appears_in_no_argument_and_no_variable(tmp_path: Path, redis: Redis) -> None:
    file = tmp_path / "gate-url"
    file.write_text(redis.url())
    with started(Served(tmp_path / "data", "--gate-file", str(file))) as server:
        assert server.process is not None
        for pid in (server.process.pid, *workers(server)):
            for name in ("cmdline", "environ"):
                assert redis.url().encode() not in Path(f"/proc/{pid}/{name}").read_bytes()


def test_a_worker_that_replaces_a_dead_one_uses_the_urls_of_the_other_workers(tmp_path: Path, redis: Redis) -> None:
    file = tmp_path / "gate-url"
    file.write_text(redis.url())
    server = Served(tmp_path / "data", "--gate-file", str(file), "--gate-outage", "refuse")
    with started(server):
        file.write_text(f"redis://127.0.0.1:{free_port()}")
        (worker,) = workers(server)
        os.kill(worker, signal.SIGKILL)
        assert httpx.get(server.origin + "/readyz", timeout=READY_WITHIN).status_code == 200
        assert workers(server) != {worker}


def test_a_file_that_never_ends_blocks_neither_a_stop_nor_the_requests(tmp_path: Path) -> None:
    """The URL comes from a named pipe, which nobody opens for writing during the reload."""
    pipe = tmp_path / "gate-url"
    os.mkfifo(pipe)
    server = Served(tmp_path / "data", "--gate-file", str(pipe)).start(wait=False)
    try:
        pipe.write_text(f"redis://127.0.0.1:{free_port()}")
        server.wait_until_ready()
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGHUP)
        assert wait_for(lambda: events(server, "reload begins") == 1)
        assert httpx.get(server.origin + "/readyz").status_code == 200
    finally:
        assert server.stop() == 0


def test_a_reload_that_fails_lets_new_workers_finish_their_requests(tmp_path: Path) -> None:
    server = Served(tmp_path / "data", workers=2)
    server.program = ["harness.failing_worker", str(tmp_path)]
    with started(server), contextlib.ExitStack() as stack:
        assert server.process is not None
        before, key = workers(server), server.key()
        (tmp_path / "fault").touch()
        os.kill(server.process.pid, signal.SIGHUP)
        found: list[socket.socket] = []

        def is_served_by_new_worker() -> bool:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=15))
            connection.sendall(request("GET", "/healthz"))
            assert connection.recv(12) == b"HTTP/1.1 200"
            found.append(connection)
            return server.worker_behind(connection.getsockname()[1]) not in before

        assert wait_for(is_served_by_new_worker)
        with server.writes_held_up():
            found[-1].sendall(request("POST", "/v1/pets", key.headers, b'{"name":"Rex","categoryId":1}'))
            (tmp_path / "go").touch()
            assert wait_for(lambda: events(server, "reload failed") == 1)
            assert workers(server) > before
        assert wait_for(lambda: b"HTTP/1.1 201" in found[-1].recv(65536))
        assert wait_for(lambda: workers(server) == before)


def test_a_client_within_its_tls_handshake_is_answered_by_the_retired_worker(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    server = Served(
        tmp_path / "data", "--tls-cert", str(made.chain), "--tls-key", str(made.key), workers=1, scheme="https"
    ).start()
    try:
        trusting = ssl.create_default_context(cafile=made.chain)
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=READY_WITHIN) as early,
            httpx.Client(base_url=server.origin, verify=trusting) as other,
        ):
            assert other.get("/healthz").status_code == 200  # the worker has accepted both connections
            reload(server)
            assert wait_for(lambda: other.get("/healthz").headers.get("connection") == "close")
            with trusting.wrap_socket(early, server_hostname="127.0.0.1") as late:
                late.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert late.recv(65536).startswith(b"HTTP/1.1 200")
    finally:
        server.stop()


def test_a_stop_during_a_reload_ends_all_workers(tmp_path: Path) -> None:
    server = Served(tmp_path / "data", workers=2).start()
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGHUP)
    assert server.stop() == 0
    assert events(server, "worker died") == 0


def test_sockets_of_systemd_are_served(tmp_path: Path) -> None:
    """The service inherits a listening socket as descriptor 3, as it does from petstore.socket."""
    printed = tmp_path / "out"
    with socket.socket() as listening, printed.open("wb") as output:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        command = [*PETSTORE, "serve", "--data", str(tmp_path / "data"), "--port", "1", "--workers", "2"]
        script = "import os, sys; os.environ['LISTEN_PID'] = str(os.getpid()); os.execv(sys.argv[1], sys.argv[1:])"

        def pass_on() -> None:
            os.dup2(listening.fileno(), 3)
            os.set_inheritable(3, True)

        served = subprocess.Popen(
            [sys.executable, "-c", script, *command], env={**os.environ, "LISTEN_FDS": "1"}, close_fds=False,
            preexec_fn=pass_on, stdout=output, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:

            def ready() -> bool:
                try:
                    return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == 200
                except httpx.TransportError:
                    return False

            assert wait_for(ready)
            assert wait_for(lambda: "\n" in printed.read_text())
            assert printed.read_text().startswith(f"Petstore listens on http://127.0.0.1:{port}\n")
        finally:
            served.terminate()
            assert served.wait(10) == 0
