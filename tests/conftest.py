"""Fixtures: one shared server per host for tests that bring their own key, and fresh ones for the rest."""

import atexit
import contextlib
import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import certifi
import httpx
import pytest
from playwright.sync_api import Browser

from harness.backends import Missing, Postgres, Redis, remove_shared, running, shared
from harness.browsers import browser_running
from harness.claims import Skipped
from harness.commands import Commands
from harness.differences import differences
from harness.processes import fork_from_now_on, let_ctrl_c_through
from harness.redis_topologies import RedisCluster, cluster_running
from harness.served import Served
from harness.servers import HOSTS, Host, Key, Server, empty_store, serving
from harness.stores import GatePlace, StorePlace
from tests.interface import documented

BACKENDS = ("sqlite-lmdb", "postgres-redis", "uvicorn-asgi")  # as they stand in the name of a test


def pytest_configure() -> None:
    _trust_one_authority()
    fork_from_now_on()
    let_ctrl_c_through()


def _trust_one_authority() -> None:
    """Each client of httpx loads all authorities of certifi, in 30 ms; for loopback one is as good as 140."""
    first = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----")
    with tempfile.NamedTemporaryFile("w", prefix="petstore-ca-", suffix=".pem", delete=False) as file:
        file.write(first[0] + first[1] + "\n")
    os.environ["SSL_CERT_FILE"] = file.name
    atexit.register(os.unlink, file.name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test runs on all backends of its fixtures, or on those that its closest marker `on` names."""
    left_out = {item for item in items if not _runs_here(item)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _runs_here(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("on")
    if marker is None:
        return True
    if unknown := set(marker.args) - set(BACKENDS):
        raise pytest.UsageError(f"{item.nodeid}: there is no backend {unknown}, but {BACKENDS}")
    return not any(backend in item.name for backend in BACKENDS if backend not in marker.args)


def pytest_collection_finish() -> None:
    gc.freeze()  # thousands of tests are there until the end, and the collector need not look at them again and again


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Names the members of animals and responses that differ."""
    found = differences(left, right) if op == "==" else []
    return [f"{type(left).__name__} == {type(right).__name__}", *found] if found else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    with _missing_is_told():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    with _missing_is_told():
        yield


@contextlib.contextmanager
def _missing_is_told() -> Iterator[None]:
    """A program that is not there is a failure in CI and a skip elsewhere. What needs more rights is a skip."""
    try:
        yield
    except Missing as missing:
        if os.environ.get("PETSTORE_TEST_REQUIRE_ALL"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    except Skipped as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium, for one file of tests: tests of other files could not run an event loop beside it."""
    with browser_running() as opened:
        yield opened


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    yield
    remove_shared()


@pytest.fixture
def postgres() -> Postgres:
    return shared(Postgres)


@pytest.fixture
def redis() -> Redis:
    return shared(Redis)


@pytest.fixture
def own_redis() -> Iterator[Redis]:
    """A server that this test may stop, kill and hang."""
    with running(Redis()) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def store_at(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    """An empty store, on each backend in turn."""
    url = empty_store() if request.param == "postgres" else None
    return StorePlace(tmp_path, url)


@pytest.fixture
def place(postgres: Postgres, tmp_path: Path) -> StorePlace:
    """An empty place for a store on PostgreSQL."""
    return StorePlace(tmp_path, postgres.url())


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    with cluster_running() as cluster:
        yield cluster


@pytest.fixture(params=["lmdb", "redis", "redis-cluster"])
def gate_at(request: pytest.FixtureRequest, tmp_path: Path) -> GatePlace:
    """An empty place for a gate, on each backend in turn."""
    if request.param == "lmdb":
        return GatePlace(tmp_path)
    servers = shared(Redis) if request.param == "redis" else request.getfixturevalue("redis_cluster")
    return GatePlace(tmp_path, servers.url())


@pytest.fixture(scope="session", params=HOSTS, ids=list(HOSTS.values()))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all tests share: make your own keys, expect other tests' animals, leave its clock alone."""
    with serving(
        tmp_path_factory.mktemp("shared") / "data", request.param, "--address-per-minute", "1000000"
    ) as shared:
        yield shared


@pytest.fixture(params=HOSTS, ids=list(HOSTS.values()))
def host(request: pytest.FixtureRequest) -> Host:
    chosen: Host = request.param
    return chosen


@pytest.fixture
def start(tmp_path: Path, host: Host) -> Iterator[Callable[..., Server]]:
    """Starts a server of the test's own, with options; stopped at the end."""
    started: list[Server] = []

    def start(*options: str, workers: int = 1) -> Server:
        own = Server(tmp_path / f"data{len(started)}", host, *options, workers=workers)
        started.append(own)
        return own.start()

    yield start
    for own in started:
        own.stop()


@pytest.fixture
def fresh(start: Callable[..., Server]) -> Server:
    """An empty server of the test's own, whose clock may be moved."""
    return start()


@pytest.fixture
def key(server: Server) -> Key:
    """A key of the shared server with limits that no test reaches."""
    return server.key_in_stock()


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    """Fails on an answer that the interface document does not have."""
    hooks = {"response": [documented]}
    # Without certificates: to load them would take longer than most tests.
    with httpx.Client(timeout=60, verify=False, event_hooks=hooks) as opened:
        yield opened


@pytest.fixture(params=["own", "cluster"], ids=["sqlite-lmdb", "postgres-redis"])
def petstore(request: pytest.FixtureRequest, tmp_path: Path) -> Commands:
    """The command line on empty data, on each pair of backends."""
    commands = Commands(Server(tmp_path / "data", request.param))
    commands.server.create()
    return commands


@pytest.fixture(params=["own", "cluster"], ids=["sqlite-lmdb", "postgres-redis"])
def without_data(request: pytest.FixtureRequest, tmp_path: Path) -> Commands:
    """The command line where no data exist, on each pair of backends."""
    return Commands(Server(tmp_path / "data", request.param))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts `petstore serve` as an operator does, on the test's own data; stopped at the end."""
    started: list[Served] = []

    def serve(*options: str, workers: int = 1) -> Served:
        started.append(Served(tmp_path / "data", *options, workers=workers))
        return started[-1].start()

    yield serve
    for own in started:
        own.stop()
