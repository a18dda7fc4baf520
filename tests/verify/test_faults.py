"""The check that covers a planted fault detects it and names its likely cause."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.backends import Postgres, Redis, running, shared
from harness.faulty_proxy import (
    AnswersWithHtml,
    CachesLists,
    CachesListsInSilence,
    Compresses,
    DecodesSlashes,
    DoublesHeader,
    DropsIdempotencyKey,
    Fault,
    MergesSlashes,
    RemovesHeader,
    RepeatsPosts,
    WeakensTags,
    faulty_proxy,
)
from harness.nodes import Node, nodes_running
from harness.servers import Server, serving, started
from petstore.keys import Environment
from petstore.plans import Limits
from tests.verify.results import broken, verified


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("verified") / "data", "own", "--address-per-minute", "100000") as server:
        server.fill(10)
        yield server


def test_without_a_fault_the_proxy_breaks_nothing(service: Server) -> None:
    with faulty_proxy(service.port, Fault) as port:
        results = verified([f"http://127.0.0.1:{port}/v1"], service.key())
    assert broken(results) == {}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "check", "cause"),
    [
        (RemovesHeader, "every_response.rate_limit_headers", "a proxy removed `X-RateLimit-Reset`"),
        (DoublesHeader, "every_response.rate_limit_headers_once", "a proxy added a second `X-RateLimit-Limit`"),
        (CachesLists, "caching.not_cached", "a cache answered: `Age: 0`"),
        (CachesLists, "creating.visible_at_once", "a cache answered: `Age: "),
        (CachesListsInSilence, "caching.not_cached", "a cache answered"),
        (DecodesSlashes, "paths.encoded_slash", "a proxy decodes `%2F`"),
        (MergesSlashes, "paths.slashes", "a proxy merges or removes slashes"),
        (RepeatsPosts, "creating.added_once", "a proxy retries POST requests"),
        (DropsIdempotencyKey, "idempotency.replay", "a proxy dropped `Idempotency-Key`"),
        (WeakensTags, "caching.strong_tag", "a proxy weakened the tag: `ETag: W/"),
        (Compresses, "caching.not_compressed", "a proxy compresses responses: `Content-Encoding: gzip`"),
        (AnswersWithHtml, "every_response.error_bodies", "a proxy answered with HTML: `Server: careless`"),
    ],
)
def test_a_fault_of_a_proxy_is_named(service: Server, fault: type[Fault], check: str, cause: str) -> None:
    with faulty_proxy(service.port, fault) as port:
        results = verified([f"http://127.0.0.1:{port}/v1"], service.key())
    assert f"likely cause: {cause}" in broken(results)[check]


@pytest.mark.thorough
def test_nodes_that_count_in_different_redis_servers_are_named(tmp_path: Path) -> None:
    store = shared(Postgres).url()
    with (
        running(Redis()) as other,
        started(Node(tmp_path / "one", store, shared(Redis).url(), workers=1)) as one,
        started(Node(tmp_path / "two", store, other.url(), workers=1)) as two,
    ):
        key, limit_key = one.key(), one.key(limits=Limits(10, 1_000))
        found = broken(verified([one.url(""), two.url("")], key, limit_key))
    for check in ("nodes.same_counters", "nodes.visible_everywhere", "limits.exact"):
        assert "likely cause: the addresses do not share a gate" in found[check]


@pytest.mark.thorough
@pytest.mark.parametrize(("environment", "skew"), [("live", 30.0), ("staging", 3.0)])
def test_a_clock_that_is_ahead_is_named(tmp_path: Path, environment: Environment, skew: float) -> None:
    with nodes_running(tmp_path, shared(Postgres), shared(Redis), skews=(0.0, skew), workers=1) as nodes:
        urls = [node.url("", environment) for node in nodes]
        found = broken(verified(urls, nodes[0].key(environment=environment)))
    assert f"likely cause: the clock of {urls[1]} is ahead" in found["nodes.same_time"]


@pytest.mark.thorough
def test_a_worker_that_keeps_old_pages_is_named(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", workers=2)
    server.program = ["harness.stale_worker", str(tmp_path / "stale")]
    with started(server):
        # The kernel may assign all connections to one worker, but hardly in all three runs.
        runs = [broken(verified([server.url("")], server.key())).get("creating.visible_at_once", "") for _ in range(3)]
    assert any("likely cause: a worker serves stale pages" in detail for detail in runs)
