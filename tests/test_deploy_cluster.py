"""The files in deploy/ for a cluster: HAProxy before three nodes, and the unit of a node."""

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from petstore.plans import Limits
from tests.backends import Postgres, Process, Redis, missing, running, shared
from tests.certificates import self_signed
from tests.nodes import Node, nodes_running
from tests.served import listens, wait_for

DEPLOY = Path(__file__).parent.parent / "deploy"


class HaProxy(Process):
    """As in deploy/haproxy.cfg, with the addresses of this machine."""

    def __init__(self, nodes: list[Node]) -> None:
        super().__init__("haproxy")
        program = shutil.which("haproxy")
        if program is None:
            missing("HAProxy", "Debian's package haproxy")
        self._program = str(program)
        made = self_signed(self.folder)
        (self.folder / "site.pem").write_bytes(made.chain.read_bytes() + made.key.read_bytes())
        text = (DEPLOY / "haproxy.cfg").read_text()
        for before, after in (
            ("bind :443", f"bind 127.0.0.1:{self.port}"),
            ("/etc/haproxy/site.pem", str(self.folder / "site.pem")),
        ):
            assert before in text
            text = text.replace(before, after)
        for number, node in enumerate(nodes, 1):
            text, replaced = re.subn(rf"(server node{number}) \S+", rf"\1 127.0.0.1:{node.port}", text)
            assert replaced == 1
        (self.folder / "haproxy.cfg").write_text(text)

    def command(self) -> list[str]:
        return [self._program, "-db", "-f", str(self.folder / "haproxy.cfg")]

    def answers(self) -> bool:
        return listens(self.port)


def test_haproxy_spreads_requests_and_avoids_a_dead_node(tmp_path: Path) -> None:
    options = ("--trusted-proxy", "127.0.0.1", "--address-per-minute", "5")
    with (
        nodes_running(tmp_path, shared(Postgres), shared(Redis), *options, skews=(0.0,) * 3, workers=1) as nodes,
        running(HaProxy(nodes)) as proxy,
        httpx.Client(base_url=f"https://127.0.0.1:{proxy.port}", verify=False) as client,
    ):
        assert wait_for(lambda: client.get("/readyz").status_code == 200)
        key = nodes[0].key(limits=Limits(50, 1_000))

        def ask(_: int) -> tuple[int, str]:
            answer = httpx.get(f"https://127.0.0.1:{proxy.port}/v1/pets", headers=key.headers, verify=False)
            return answer.status_code, answer.headers["x-request-id"].partition("-")[0]

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(ask, range(60)))
        assert sorted(status for status, _ in answers) == [200] * 50 + [429] * 10
        assert len({node for _, node in answers}) == 3

        # Only the proxy sets the client's address: a client cannot claim another one to escape its limit.
        claims = [client.get("/v1/pets", headers={"X-Forwarded-For": f"192.0.2.{n}"}).status_code for n in range(7)]
        assert claims == [401] * 5 + [429] * 2
        assert client.get("/metrics").status_code == 404
        assert "strict-transport-security" in client.get("/healthz").headers
        # Without TLS there is no answer to a key.
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{proxy.port}/v1/pets", headers=key.headers)

        nodes[1].kill()
        fresh = nodes[0].key()
        statuses = [client.get("/v1/pets", headers=fresh.headers).status_code for _ in range(30)]
        assert statuses == [200] * 30


def test_systemd_finds_no_fault_with_the_unit_of_a_node(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        missing("systemd", "Debian's package systemd")
    # systemd-analyze wants the unit's program to exist.
    here = shutil.which("true")
    unit = tmp_path / "petstore-node.service"
    unit.write_text((DEPLOY / unit.name).read_text().replace("/opt/petstore/.venv/bin/petstore", str(here)))
    done = subprocess.run([str(program), "verify", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_the_unit_of_a_node_has_the_same_restrictions() -> None:
    one, node = ((DEPLOY / name).read_text().splitlines() for name in ("petstore.service", "petstore-node.service"))
    beginning = next(line for line in one if line.startswith("# The service needs its data directory"))
    rules = {line for line in one[one.index(beginning) :] if line and not line.startswith("#")}
    assert len(rules) > 20 and rules <= set(node)


def test_haproxy_has_no_port_without_tls() -> None:
    binds = re.findall(r"^\s*bind (.+)$", (DEPLOY / "haproxy.cfg").read_text(), re.MULTILINE)
    assert binds and all(" ssl crt " in f" {bind}" for bind in binds)


@pytest.mark.parametrize("unit", ["petstore.service", "petstore-node.service", "petstore-backup.service"])
def test_the_units_write_no_core_file_and_have_a_memory_limit(unit: str) -> None:
    lines = (DEPLOY / unit).read_text().splitlines()
    assert "LimitCORE=0" in lines and any(line.startswith("MemoryMax=") for line in lines)


def test_the_unit_serves_with_settings_that_the_environment_file_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = (DEPLOY / "petstore-node.service").read_text()
    # An option on this line would win over the file.
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
