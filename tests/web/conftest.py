"""Fixtures of the web tests: for each host, a server whose clock the tests can move."""

from collections.abc import Iterator

import pytest

from harness.servers import HOSTS, Server, serving


@pytest.fixture(scope="session", params=HOSTS, ids=list(HOSTS.values()))
def one_for_all(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("timed") / "data", request.param, "--ietf-headers") as own:
        yield own


@pytest.fixture
def timed(one_for_all: Server) -> Server:
    """A server whose clock tests can move. Each test uses its own keys and starts at the current time."""
    one_for_all.move_clock(0)
    return one_for_all
