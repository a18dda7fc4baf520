"""Fixtures of the web suites: a server for each host whose clock may be moved."""

from collections.abc import Iterator

import pytest

from harness.servers import HOSTS, Server, serving


@pytest.fixture(scope="session", params=HOSTS, ids=list(HOSTS.values()))
def one_for_all(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("timed") / "data", request.param, "--ietf-headers") as own:
        yield own


@pytest.fixture
def timed(one_for_all: Server) -> Server:
    """A server whose clock may be moved: every test brings keys of its own and starts at the present."""
    one_for_all.move_clock(0)
    return one_for_all
