"""The files in deploy/ that docs/scaling.md speaks of, tried: HAProxy before nodes, and the unit of a node."""

import re
import shutil
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from petstore.plans import Limits
from tests.backends import Postgres, Process, Redis, missing, running, shared
from tests.nodes import Node, nodes_running
from tests.served import listens, wait_for

DEPLOY = Path(__file__).parent.parent / "deploy"


class HaProxy(Process):
    """With a configuration of deploy/ and the addresses of this machine."""

    def __init__(self, nodes: list[Node], config: str = "haproxy.cfg") -> None:
        super().__init__("haproxy")
        program = shutil.which("haproxy")
        if program is None:
            missing("HAProxy", "Debian's package haproxy")
        self._program = str(program)
        text = re.sub(r"bind :\d+", f"bind 127.0.0.1:{self.port}", (DEPLOY / config).read_text())
        text = text.replace("/run/secrets", str(self.folder / "secrets"))
        for number, node in enumerate(nodes, 1):
            text, replaced = re.subn(rf"(server node{number}) \S+", rf"\1 127.0.0.1:{node.port}", text)
            assert replaced == 1
        (self.folder / "haproxy.cfg").write_text(text)

    def command(self) -> list[str]:
        return [self._program, "-db", "-f", str(self.folder / "haproxy.cfg")]

    def answers(self) -> bool:
        return listens(self.port)


def test_haproxy_spreads_requests_and_goes_round_a_node_that_is_gone(tmp_path: Path) -> None:
    options = ("--trusted-proxy", "127.0.0.1", "--address-per-minute", "5")
    with (
        nodes_running(tmp_path, shared(Postgres), shared(Redis), *options, skews=(0.0,) * 3, workers=1) as nodes,
        running(HaProxy(nodes)) as proxy,
        httpx.Client(base_url=f"http://127.0.0.1:{proxy.port}", verify=False) as client,
    ):
        assert wait_for(lambda: client.get("/readyz").status_code == 200)
        key = nodes[0].key(limits=Limits(50, 1_000))

        def ask(_: int) -> tuple[int, str]:
            answer = httpx.get(f"http://127.0.0.1:{proxy.port}/v1/pets", headers=key.headers, verify=False)
            return answer.status_code, answer.headers["x-request-id"].partition("-")[0]

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(ask, range(60)))
        assert sorted(status for status, _ in answers) == [200] * 50 + [429] * 10
        assert len({node for _, node in answers}) == 3

        # Who asks is told by the proxy alone: a client cannot claim another address to escape its limit.
        claims = [client.get("/v1/pets", headers={"X-Forwarded-For": f"192.0.2.{n}"}).status_code for n in range(7)]
        assert claims == [401] * 5 + [429] * 2
        assert client.get("/metrics").status_code == 404

        nodes[1].kill()
        fresh = nodes[0].key()
        statuses = [client.get("/v1/pets", headers=fresh.headers).status_code for _ in range(30)]
        assert statuses == [200] * 30


def test_haproxy_of_the_compose_file_ends_tls_before_two_nodes(tmp_path: Path) -> None:
    with nodes_running(tmp_path, shared(Postgres), shared(Redis), skews=(0.0,) * 2, workers=1) as nodes:
        proxy = HaProxy(nodes, "container/haproxy.cfg")
        subprocess.run([DEPLOY / "container/make-secrets.sh"], cwd=proxy.folder, check=True)
        trust = ssl.create_default_context(cafile=proxy.folder / "secrets/proxy.pem")
        with running(proxy), httpx.Client(base_url=f"https://localhost:{proxy.port}", verify=trust) as client:
            assert wait_for(lambda: client.get("/readyz").status_code == 200)
            key = nodes[0].key()
            answers = [client.get("/v1/pets", headers=key.headers) for _ in range(20)]
            assert [answer.status_code for answer in answers] == [200] * 20
            assert len({answer.headers["x-request-id"].partition("-")[0] for answer in answers}) == 2
            assert client.get("/metrics").status_code == 404


def test_the_unit_of_a_node_is_one_that_systemd_understands(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        missing("systemd", "Debian's package systemd")
    # The program that it starts must exist for the check; where it is installed does not matter here.
    here = shutil.which("true")
    unit = tmp_path / "petstore-node.service"
    unit.write_text((DEPLOY / unit.name).read_text().replace("/opt/petstore/.venv/bin/petstore", str(here)))
    done = subprocess.run([str(program), "verify", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_a_node_may_do_no_more_than_a_service_on_one_machine() -> None:
    one, node = ((DEPLOY / name).read_text().splitlines() for name in ("petstore.service", "petstore-node.service"))
    beginning = next(line for line in one if line.startswith("# It needs its folder"))
    rules = {line for line in one[one.index(beginning) :] if line and not line.startswith("#")}
    assert len(rules) > 20 and rules <= set(node)


def test_the_unit_serves_with_settings_that_the_environment_file_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = (DEPLOY / "petstore-node.service").read_text()
    # An option would prevail over the file, whatever that says.
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
