"""Shared fixtures. Tests that create their own keys share one server per backend. Other tests start new servers."""

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

BACKENDS = tuple(HOSTS.values())  # as in the names of tests


def pytest_configure() -> None:
    _trust_one_authority()
    fork_from_now_on()
    let_ctrl_c_through()


def _trust_one_authority() -> None:
    """Makes httpx trust a single CA, because loading all 140 CAs of certifi takes 30 ms per client."""
    first = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----")
    with tempfile.NamedTemporaryFile("w", prefix="petstore-ca-", suffix=".pem", delete=False) as file:
        file.write(first[0] + first[1] + "\n")
    os.environ["SSL_CERT_FILE"] = file.name
    atexit.register(os.unlink, file.name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs each test on all backends of its fixtures, or only on those that its closest `on` marker names."""
    left_out = {item for item in items if not _runs_here(item)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _runs_here(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("on")
    if marker is None:
        return True
    if unknown := set(marker.args) - set(BACKENDS):
        raise pytest.UsageError(f"{item.nodeid}: unknown backends {unknown}; use some of {BACKENDS}")
    return not any(backend in item.name for backend in BACKENDS if backend not in marker.args)


def pytest_collection_finish() -> None:
    gc.freeze()  # the garbage collector need not scan thousands of tests that stay in memory until the end


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Lists the members in which two animals or two responses differ."""
    found = differences(left, right) if op == "==" else []
    return [f"{type(left).__name__} == {type(right).__name__}", *found] if found else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    with _missing_is_reported():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    with _missing_is_reported():
        yield


@contextlib.contextmanager
def _missing_is_reported() -> Iterator[None]:
    """Skips a test that lacks a program or permissions. In CI, a missing program is a failure."""
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
    """A real Chromium, closed after each test file because other tests cannot run an event loop while it is open."""
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
    """A Redis server that this test may stop, kill and suspend."""
    with running(Redis()) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def store_at(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    """The location of an empty store, on each backend."""
    url = empty_store() if request.param == "postgres" else None
    return StorePlace(tmp_path, url)


@pytest.fixture
def place(postgres: Postgres, tmp_path: Path) -> StorePlace:
    """The location of an empty store on PostgreSQL."""
    return StorePlace(tmp_path, postgres.url())


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    with cluster_running() as cluster:
        yield cluster


@pytest.fixture(params=["lmdb", "redis", "redis-cluster"])
def gate_at(request: pytest.FixtureRequest, tmp_path: Path) -> GatePlace:
    """The location of an empty gate, on each backend."""
    if request.param == "lmdb":
        return GatePlace(tmp_path)
    servers = shared(Redis) if request.param == "redis" else request.getfixturevalue("redis_cluster")
    return GatePlace(tmp_path, servers.url())


@pytest.fixture(scope="session", params=HOSTS, ids=list(HOSTS.values()))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server shared by all tests. Create your own keys, expect other tests' animals, and do not move its clock."""
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
    """Starts servers for this test with the given options, and stops them at the end."""
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
    """An empty server for this test, which may move the server's clock."""
    return start()


@pytest.fixture
def key(server: Server) -> Key:
    """A key of the shared server, with limits that no test reaches."""
    return server.key_in_stock()


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    """An HTTP client that fails the test on any response that the OpenAPI document does not describe."""
    hooks = {"response": [documented]}
    # Loading certificates would take longer than most tests.
    with httpx.Client(timeout=60, verify=False, event_hooks=hooks) as opened:
        yield opened


@pytest.fixture(params=HOSTS, ids=list(HOSTS.values()))
def petstore(request: pytest.FixtureRequest, tmp_path: Path) -> Commands:
    """The command line with a new, empty store, on each pair of backends."""
    commands = Commands(Server(tmp_path / "data", request.param))
    commands.server.create()
    return commands


@pytest.fixture(params=HOSTS, ids=list(HOSTS.values()))
def without_data(request: pytest.FixtureRequest, tmp_path: Path) -> Commands:
    """The command line before any data exists, on each pair of backends."""
    return Commands(Server(tmp_path / "data", request.param))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts `petstore serve` as an operator would, with data for this test only, and stops it at the end."""
    started: list[Served] = []

    def serve(*options: str, workers: int = 1) -> Served:
        started.append(Served(tmp_path / "data", *options, workers=workers))
        return started[-1].start()

    yield serve
    for own in started:
        own.stop()
