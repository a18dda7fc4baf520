"""`petstore serve --demo`: the data that it makes, on both pairs of backends, and when it refuses to make any."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.backends import Postgres, Redis, free_port, shared
from harness.nodes import nodes_running
from harness.served import SECRET, Served, serve_fails_in_one_line, wait_for
from harness.servers import ENTRY, Host, Server
from petstore.admin.demo import ANIMALS, content_of, fill, has_data, is_demo
from petstore.backends import Backends
from petstore.keys import ENVIRONMENTS, Environment, KeyQuery
from petstore.operations import OPERATIONS, Operation
from petstore.pets import NewPet
from petstore.store.schema import Row, Table
from petstore.usage import DAY, HOUR

NOON = 1_800_014_400 + 4 * HOUR  # of a day of UTC


@pytest.fixture(scope="module", params=["own", "cluster"], ids=["sqlite-lmdb", "postgres-redis"])
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Server:
    host: Host = request.param
    server = Server(tmp_path_factory.mktemp("demo") / "data", host)
    server.act(lambda backends: fill(backends.stores, backends.gate, NOON))
    return server


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_demo_has_hundreds_of_animals_of_every_status(demo: Server, environment: Environment) -> None:
    counts = demo.act(lambda backends: backends.stores[environment].pets.count())
    assert sum(counts.values()) == ANIMALS[environment]  # one was added by hand, and one removed
    assert all(counts[status] > 0.05 * sum(counts.values()) for status in ("available", "pending", "sold"))


def test_a_demo_has_keys_of_every_plan_and_in_many_states(demo: Server) -> None:
    keys = demo.act(lambda backends: backends.stores["live"].keys.search(KeyQuery(), now=NOON))
    assert {key.plan for key in keys} == {"free", "pro", "business", "enterprise"}
    assert {key.state(NOON) for key in keys} == {"active", "suspended", "revoked"}
    assert any(key.expires is not None and NOON < key.expires < NOON + 7 * DAY for key in keys)


def test_usage_of_a_demo_is_a_day_with_less_at_night(demo: Server) -> None:
    rows = demo.act(lambda backends: backends.stores["live"].usage.totals(interval=HOUR, since=0))
    per_hour: Counter[int] = Counter()
    for row in rows:
        per_hour[row.start] += row.requests
    assert len(per_hour) >= 24
    assert max(per_hour) < NOON
    night, day = (next(n for at, n in per_hour.items() if at // HOUR % 24 == hour) for hour in (3, 14))
    assert 2 * night < day
    assert {"ok", "refused", "banned", "client_error", "server_error", "unauthorized"} == {row.response for row in rows}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_usage_of_a_demo_has_every_operation(demo: Server, operation: Operation) -> None:
    def busiest(backends: Backends) -> Any:
        usage = backends.stores["live"].usage
        return usage.busiest(interval=HOUR, since=NOON - DAY, limit=10, operation=operation.name)

    assert demo.act(busiest)


def test_no_key_of_a_demo_is_used_beyond_its_limits(demo: Server) -> None:
    async def work(backends: Backends) -> None:
        store = backends.stores["live"]
        for total in await store.usage.busiest(interval=HOUR, since=0, limit=100):
            key = await store.keys.get(total.key_id)
            assert key is not None
            assert total.requests - total.refused - total.banned <= key.per_day

    demo.act(work)


def test_audit_entries_of_a_demo_are_in_the_order_of_their_times(demo: Server) -> None:
    async def work(backends: Backends) -> None:
        for store in backends.stores.values():
            times = [entry.at for _, entry in (await store.audit.find()).entries]
            assert len(times) > 8
            assert times == sorted(times, reverse=True)

    demo.act(work)


def test_a_demo_is_recognised_also_after_changes(demo: Server) -> None:
    demo.act(lambda backends: backends.stores["live"].pets.add_by_hand(NewPet("Rex", 1), ENTRY))
    assert demo.act(lambda backends: has_data(backends.stores["live"]))
    assert demo.act(lambda backends: is_demo(backends.stores["live"]))


def test_two_demos_have_the_same_animals_and_usage(tmp_path: Path) -> None:
    async def content(backends: Backends) -> list[Any]:
        await fill(backends.stores, backends.gate, NOON)
        store = backends.stores["live"]
        return [
            await store.usage.totals(interval=60, since=0),
            (await store.pets.page(after=0, limit=500, status=None)).pets,
        ]

    assert Server(tmp_path / "a").act(content) == Server(tmp_path / "b").act(content)


def test_serve_prints_a_key_and_a_curl_line_for_each_environment(serve: Callable[..., Served]) -> None:
    own = serve("--demo")
    lines = [line for line in own.printed.splitlines() if line.strip().startswith("curl ")]
    assert len(lines) == 2
    for line in lines:
        words = re.fullmatch(r"  curl -i (\S+) -H '([^:]+): ([^']+)'", line)
        assert words is not None
        assert len(httpx.get(words[1], headers={words[2]: words[3]}).json()) == 20


def test_a_second_start_with_demo_serves_and_prints_no_key(serve: Callable[..., Served]) -> None:
    own = serve("--demo")
    (secret, _) = dict.fromkeys(SECRET.findall(own.printed))
    own.stop()
    own.start()
    assert SECRET.findall(own.printed) == []
    assert httpx.get(own.url("/pets"), headers={"Authorization": f"Bearer {secret}"}).status_code == 200


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
@pytest.mark.parametrize("files", [0, 1, 2, 4], ids=lambda files: f"after-{files}-files")
def test_a_start_that_was_interrupted_while_it_made_the_data_is_repeated(
    tmp_path: Path, number: signal.Signals, files: int
) -> None:
    own = Served(tmp_path / "data", "--demo").start(wait=False)
    assert own.process is not None
    assert wait_for(lambda: any(sum(1 for _ in path.iterdir()) >= files for path in own.data.glob("demo-*.part")))
    os.killpg(own.process.pid, number)
    own.process.wait(timeout=10)
    assert own.printed == ""
    with ExitStack() as stack:
        stack.callback(own.kill)
        own.start()
        assert len(set(SECRET.findall(own.printed))) == 2
        assert counts(own) == ANIMALS
        assert list(own.data.glob("demo-*")) == []


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_an_environment_that_is_still_empty_is_filled_by_the_next_start(
    tmp_path: Path, environment: Environment
) -> None:
    made = Server(tmp_path / "made")

    async def content(backends: Backends) -> dict[Table, list[Row]]:
        await fill(backends.stores, backends.gate, NOON)
        return await content_of(backends.stores[environment])

    rows = made.act(content)
    own = Served(tmp_path / "data", "--demo")
    own.act(lambda backends: backends.stores[environment].transfer.put_all(rows))
    with ExitStack() as stack:
        stack.callback(own.kill)
        own.start()
        (secret,) = set(SECRET.findall(own.printed))
        assert secret.startswith("pets_test_" if environment == "live" else "pets_live_")
        assert counts(own) == ANIMALS


def test_of_two_nodes_that_start_at_once_one_fills_each_environment(tmp_path: Path) -> None:
    with nodes_running(tmp_path, shared(Postgres), shared(Redis), "--demo", skews=(0.0, 0.0), workers=1) as nodes:
        printed = [secret for node in nodes for secret in set(SECRET.findall(node.log.read_text()))]
        assert len(printed) == 2
        assert counts(nodes[0]) == ANIMALS
        for secret in printed:
            environment: Environment = "live" if secret.startswith("pets_live_") else "staging"
            for node in nodes:
                answer = httpx.get(node.url("/pets", environment), headers={"Authorization": f"Bearer {secret}"})
                assert len(answer.json()) == 20


def counts(server: Server) -> dict[Environment, int]:
    async def work(backends: Backends) -> dict[Environment, int]:
        return {name: sum((await store.pets.count()).values()) for name, store in backends.stores.items()}

    return server.act(work)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_demo_with_other_data_is_one_line_and_exit_code_2(tmp_path: Path, environment: Environment) -> None:
    server = Server(tmp_path / "data")
    server.fill(1, environment)
    message = serve_fails_in_one_line(["--demo", "--data", str(server.data), "--port", str(free_port())])
    assert message == (
        f"petstore: --demo: {server.data} has other data already; give another --data, or leave --demo out\n"
    )
    assert server.act(lambda backends: backends.stores["live"].keys.page()) == []


def test_another_asgi_server_refuses_demo(tmp_path: Path) -> None:
    code = "from petstore.cli.serve import asgi; asgi()"
    environment = {**os.environ, "PETSTORE_DATA": str(tmp_path / "data"), "PETSTORE_DEMO": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (1, "petstore: --demo: only petstore serve makes the data of a demo\n")
    assert not (tmp_path / "data").exists()
