"""The files in deploy/ for a cluster: HAProxy in front of nodes, and the unit of a node."""

import re
import shutil
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from harness.backends import Postgres, Redis, program, running, shared
from harness.nodes import Node, nodes_running
from harness.proxies import DEPLOY, HaProxy
from harness.served import wait_for
from harness.servers import serving
from petstore.plans import Limits
from tests.project.test_deploy import TWO_HOSTS, assert_staging_has_two_addresses


def node_of(nodes: list[Node], request_id: str) -> int:
    """Returns the index of the node whose access log contains this request."""
    return next(index for index, node in enumerate(nodes) if request_id in node.log.read_text())


def test_haproxy_spreads_requests_and_avoids_a_dead_node(tmp_path: Path) -> None:
    options = ("--trusted-proxy", "127.0.0.1", "--address-per-minute", "5", "--access-log")
    with (
        nodes_running(tmp_path, shared(Postgres), shared(Redis), *options, skews=(0.0,) * 3, workers=1) as nodes,
        running(HaProxy(nodes)) as proxy,
        httpx.Client(base_url=f"https://127.0.0.1:{proxy.port}", verify=False) as client,
    ):
        assert wait_for(lambda: client.get("/readyz").status_code == 200)
        key = nodes[0].key(limits=Limits(50, 1_000))

        def ask(_: int) -> tuple[int, str]:
            answer = httpx.get(f"https://127.0.0.1:{proxy.port}/v1/pets", headers=key.headers, verify=False)
            return answer.status_code, answer.headers["x-request-id"]

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(ask, range(60)))
        assert sorted(status for status, _ in answers) == [200] * 50 + [429] * 10
        assert {node_of(nodes, request_id) for _, request_id in answers} == {0, 1, 2}

        # Only the proxy sets the client's address, so a client cannot evade its limit by sending other addresses.
        claims = [client.get("/v1/pets", headers={"X-Forwarded-For": f"192.0.2.{n}"}).status_code for n in range(7)]
        assert claims == [401] * 5 + [429] * 2
        assert client.get("/metrics").status_code == 404
        assert "strict-transport-security" in client.get("/healthz").headers
        # Without TLS, a request with a key gets no response.
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{proxy.port}/v1/pets", headers=key.headers)

        nodes[1].kill()
        fresh = nodes[0].key()
        statuses = [client.get("/v1/pets", headers=fresh.headers).status_code for _ in range(30)]
        assert statuses == [200] * 30


@pytest.mark.thorough
def test_haproxy_of_the_compose_file_ends_tls_before_two_nodes(tmp_path: Path) -> None:
    with nodes_running(tmp_path, shared(Postgres), shared(Redis), "--access-log", skews=(0.0,) * 2, workers=1) as nodes:
        proxy = HaProxy(nodes, "container/haproxy.cfg")
        trust = ssl.create_default_context(cafile=proxy.directory / "secrets/proxy.pem")
        with running(proxy), httpx.Client(base_url=f"https://localhost:{proxy.port}", verify=trust) as client:
            assert wait_for(lambda: client.get("/readyz").status_code == 200)
            key = nodes[0].key()
            answers = [client.get("/v1/pets", headers=key.headers) for _ in range(20)]
            assert [answer.status_code for answer in answers] == [200] * 20
            assert {node_of(nodes, answer.headers["x-request-id"]) for answer in answers} == {0, 1}
            assert client.get("/metrics").status_code == 404


def test_systemd_finds_no_fault_with_the_unit_of_a_node(tmp_path: Path) -> None:
    analyze = program("systemd-analyze")
    # systemd-analyze requires that the unit's program exists.
    here = shutil.which("true")
    unit = tmp_path / "petstore-node.service"
    unit.write_text((DEPLOY / unit.name).read_text().replace("/opt/petstore/.venv/bin/petstore", str(here)))
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "")


@pytest.mark.parametrize("unit", ["petstore-node.service", "petstore-console.service"])
def test_the_unit_has_the_restrictions_of_the_service(unit: str) -> None:
    one, other = ((DEPLOY / name).read_text().splitlines() for name in ("petstore.service", unit))
    beginning = next(line for line in one if line.startswith("# The service needs only its data directory"))
    rules = {line for line in one[one.index(beginning) :] if line and not line.startswith("#")}
    assert len(rules) > 20 and rules <= set(other)


def test_haproxy_has_no_port_without_tls() -> None:
    binds = re.findall(r"^\s*bind (.+)$", (DEPLOY / "haproxy.cfg").read_text(), re.MULTILINE)
    assert binds and all(" ssl crt " in f" {bind}" for bind in binds)


@pytest.mark.parametrize(
    "unit", ["petstore.service", "petstore-node.service", "petstore-backup.service", "petstore-console.service"]
)
def test_the_units_write_no_core_file_and_have_a_memory_limit(unit: str) -> None:
    lines = (DEPLOY / unit).read_text().splitlines()
    assert "LimitCORE=0" in lines and any(line.startswith("MemoryMax=") for line in lines)


def test_the_unit_serves_with_settings_that_the_environment_file_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = (DEPLOY / "petstore-node.service").read_text()
    # An option on this line would override the environment file.
    assert re.findall(r"^ExecStart=\S+ (.+)$", unit, re.MULTILINE) == ["serve"]
    own = dict(line.split("=", 1) for line in re.findall(r"^Environment=(.+)$", unit, re.MULTILINE))
    assert own["PETSTORE_HOST"] == "0.0.0.0"
    node = Node(tmp_path / "node", shared(Postgres).url(), shared(Redis).url(), workers=int(own["PETSTORE_WORKERS"]))
    for name, value in (own | {"PETSTORE_HOST": "127.0.0.1"}).items():
        monkeypatch.setenv(name, value)
    try:
        node.start()
    finally:
        assert node.stop() == 0


def test_behind_haproxy_staging_can_have_a_separate_host(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "own", *TWO_HOSTS) as server, running(HaProxy([server] * 3)) as proxy:
        assert wait_for(lambda: httpx.get(f"https://127.0.0.1:{proxy.port}/readyz", verify=False).status_code == 200)
        assert_staging_has_two_addresses(server, proxy.port)
