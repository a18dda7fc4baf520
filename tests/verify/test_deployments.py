"""`petstore verify` passes on every backend, with several workers and nodes, and behind the proxies in deploy/."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.backends import Postgres, Redis, running, shared
from harness.commands import Processes
from harness.nodes import nodes_running
from harness.proxies import HaProxy, Nginx, Proxy
from harness.served import wait_for
from harness.servers import Key, Server, serving, takes_connections
from petstore.plans import Limits
from petstore.verify.checks import CHECKS, Need
from tests.verify.results import broken, skipped, verified

LIMITS = Limits(12, 1_000)
TRUSTED = ("--trusted-proxy", "127.0.0.1")


def needing(*needs: Need) -> set[str]:
    return {check.name for check in CHECKS if set(needs) & set(check.needs)}


def test_nothing_is_broken(start: Callable[..., Server]) -> None:
    server = start("--cors-origin", "*", workers=2)
    server.fill(150, "staging")
    key, limit_key = server.key(environment="staging"), server.key(environment="staging", limits=LIMITS)
    results = verified([server.url("", "staging")], key, limit_key, sleep=server.move_clock)
    assert broken(results) == {}
    assert skipped(results) == needing("addresses")


def test_nothing_is_broken_on_live_and_nothing_is_added_unless_allowed(fresh: Server) -> None:
    fresh.fill(250)
    results = verified([fresh.url("")], fresh.key(), write=False)
    assert broken(results) == {}
    assert skipped(results) == needing("addresses", "write", "limit key", "errors on demand") | {"cors.exposed_headers"}
    animals = fresh.act(lambda backends: backends.stores["live"].pets.page(after=250, limit=1, status=None))
    assert animals.pets == []
    results = verified([fresh.url("")], fresh.key(), write=True)
    assert broken(results) == {}
    assert skipped(results) == needing("addresses", "limit key", "errors on demand") | {"cors.exposed_headers"}


def test_nothing_is_broken_at_the_level_of_the_specification(server: Server, key: Key) -> None:
    results = verified([server.url("")], key, level="spec")
    assert broken(results) == {}
    assert skipped(results) <= needing("limit key")


@pytest.mark.thorough
def test_nothing_is_broken_across_three_nodes(tmp_path: Path) -> None:
    with nodes_running(tmp_path, shared(Postgres), shared(Redis), *TRUSTED, skews=(0.0,) * 3) as nodes:
        urls = [node.url("", "staging") for node in nodes]
        key, limit_key = nodes[0].key(environment="staging"), nodes[0].key(environment="staging", limits=LIMITS)
        results = verified(urls, key, limit_key)
        assert broken(results) == {}
        assert skipped(results) == {"limits.retry_after", "cors.exposed_headers"}
        assert_nothing_is_broken_behind(HaProxy(nodes), nodes, key, urls)


def test_nothing_is_broken_behind_nginx(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "own", *TRUSTED, workers=2) as server:
        key = server.key(environment="staging")
        assert_nothing_is_broken_behind(Nginx(server.port), [server], key, [])


def assert_nothing_is_broken_behind(proxy: Proxy, servers: Sequence[Server], key: Key, also: list[str]) -> None:
    with running(proxy), pytest.MonkeyPatch.context() as patch:
        assert wait_for(lambda: takes_connections(proxy.port))
        patch.setenv("SSL_CERT_FILE", str(proxy.directory / "cert.pem"))
        patch.setenv("PETSTORE_VERIFY_KEY", key.secret)
        nodes = [word for url in also for word in ("--also", url)]
        url = f"https://127.0.0.1:{proxy.port}/staging/v1"
        done = Processes(servers[0]).run("verify", url, *nodes, "--json")
    found = {each["check"]: each for each in json.loads(done.stdout)}
    assert {name: each["detail"] for name, each in found.items() if each["result"] == "broken"} == {}
    assert done.returncode == 0
    assert sum(each["result"] == "ok" for each in found.values()) > 50
