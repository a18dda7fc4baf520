"""A service and a console over the same data, on each pair of backends, for all tests of a file."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.consoles import Console, Visitor, running_console
from tests.servers import Server, serving

_names = itertools.count(1)


@pytest.fixture(scope="package", params=["own", "cluster"], ids=["sqlite-lmdb", "postgres-redis"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("console") / "data", request.param) as running:
        yield running


@pytest.fixture(scope="package")
def console(server: Server) -> Iterator[Console]:
    with running_console(server) as running:
        yield running


@pytest.fixture
def new_name() -> Callable[[], str]:
    return lambda: f"operator {next(_names)}"


@pytest.fixture
def ada(console: Console, new_name: Callable[[], str]) -> Visitor:
    """An operator of the test's own, signed in."""
    return console.signed_in(new_name())
