"""Fixtures: both clients, and one shared server for tests that create their own keys."""

from collections.abc import Iterator

import pytest

from fakes import Kind
from harness.processes import let_ctrl_c_through
from harness.servers import Key, Server, serving


def pytest_configure() -> None:
    let_ctrl_c_through()


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server shared by all tests. Create your own keys, expect other tests' animals, and do not move its clock."""
    with serving(tmp_path_factory.mktemp("client") / "data") as shared:
        yield shared


@pytest.fixture
def key(server: Server) -> Key:
    """A key of the shared server, with limits that no test reaches."""
    return server.key()


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the developer's variables, so that they do not affect the tests."""
    monkeypatch.delenv("PETSTORE_API_KEY", raising=False)
    monkeypatch.delenv("PETSTORE_BASE_URL", raising=False)
