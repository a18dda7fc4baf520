"""/metrics: who can read it, and whether it reports what happened."""

import time
from collections.abc import Callable

import httpx
import pytest

from harness.scraping import Scrape, scrape
from harness.served import wait_for
from harness.servers import Server, raw
from harness.wire import asking, request
from petstore.observability.metrics import METRICS
from petstore.plans import Limits
from petstore.usage import HOUR

REX = {"name": "Rex", "categoryId": 1}


def test_requests_are_counted_by_operation_status_and_plan(start: Callable[..., Server], client: httpx.Client) -> None:
    server = start("--address-per-minute", "2")
    free, enterprise = server.key("free"), server.key()
    created = client.post(server.url("/pets"), json=REX, headers=enterprise.headers).json()["id"]
    for path in ("/pets", "/pets", "/pets?limit=0", f"/pets/{created}", "/pets/999", "/nothing"):
        client.get(server.url(path), headers=enterprise.headers)
    client.head(server.url("/pets"), headers=free.headers)
    for _ in range(3):
        client.get(server.url("/pets"))
    found = scrape(server)
    expected = {
        ("live", "createPet", "201", "enterprise"): 1,
        ("live", "listPets", "200", "enterprise"): 2,
        ("live", "listPets", "400", "enterprise"): 1,
        ("live", "getPet", "200", "enterprise"): 1,
        ("live", "getPet", "404", "enterprise"): 1,
        ("live", "other", "404", "enterprise"): 1,
        ("live", "listPets", "200", "free"): 1,
        ("live", "listPets", "401", "none"): 2,
        ("live", "listPets", "429", "none"): 1,
    }
    counted = {
        (labels["environment"], labels["operation"], labels["status"], labels["plan"]): value
        for labels, value in ((dict(pairs), value) for pairs, value in found.of("petstore_requests_total").items())
        if labels["environment"] != "none"
    }
    assert counted == expected
    assert found.value("petstore_request_duration_seconds_count", operation="listPets") == 7
    assert 0 < found.value("petstore_request_duration_seconds_sum", operation="listPets") < 7
    assert found.value("petstore_admissions_total", subject="key", outcome="admitted") == 8
    assert found.value("petstore_admissions_total", subject="address", outcome="admitted") == 2
    assert found.value("petstore_admissions_total", subject="address", outcome="refused") == 1


def test_refused_and_banned_are_counted_apart(server: Server) -> None:
    before = scrape(server)
    key = server.key(limits=Limits(3, 100))
    statuses = [answer.status for answer in asking(server.port, 10, key.headers)]
    assert statuses == [200] * 3 + [429] * 7
    after = scrape(server)

    def grown(outcome: str) -> float:
        name = "petstore_admissions_total"
        return after.value(name, subject="key", outcome=outcome) - before.value(name, subject="key", outcome=outcome)

    assert (grown("admitted"), grown("refused"), grown("banned")) == (3, 3, 4)


def test_page_cache_hits_and_misses_are_counted(fresh: Server) -> None:
    fresh.fill(30)
    key = fresh.key()
    pages = asking(fresh.port, 20, key.headers, "/v1/pets?limit=10")
    tag = {**key.headers, "If-None-Match": pages[-1].headers["etag"]}
    assert [answer.status for answer in asking(fresh.port, 5, tag, "/v1/pets?limit=10")] == [304] * 5
    found = scrape(fresh)
    hits, misses = (found.value("petstore_page_cache_total", environment="live", result=r) for r in ("hit", "miss"))
    assert hits + misses == 25
    # Nothing was written, but cached pages are reread once a second.
    assert 1 <= misses <= 8


def test_batches_and_file_sizes_are_measured(fresh: Server, client: httpx.Client) -> None:
    key = fresh.key()
    for _ in range(5):
        client.post(fresh.url("/pets"), json=REX, headers=key.headers)
    found = scrape(fresh)
    assert found.value("petstore_store_batch_size_count", environment="live") >= 5
    assert found.value("petstore_store_batch_size_sum", environment="live") >= 5
    # The gauge is set while a write is in flight, and again when the queue is empty.
    assert wait_for(lambda: scrape(fresh).value("petstore_store_queue", environment="live") == 0)
    if fresh.store is None:
        assert found.value("petstore_store_wal_bytes", environment="live") > 4096
        assert found.value("petstore_store_bytes", environment="staging") >= 4096
        assert found.value("petstore_gate_bytes") >= 4096
    else:
        assert found.value("petstore_gate_batch_size_sum") >= 5
    assert found.value("petstore_free_bytes") > 0
    kinds = ("sqlite", "lmdb") if fresh.store is None else ("postgresql", "redis")
    assert found.value("petstore_build_info", store=kinds[0], gate=kinds[1]) == 1


def test_a_store_that_cannot_be_written_is_an_outage_that_ends(fresh: Server, client: httpx.Client) -> None:
    key = fresh.key()
    assert client.post(fresh.url("/pets"), json=REX, headers=key.headers).status_code == 201
    assert outages(scrape(fresh)) == (0, 0)
    with fresh.writes_held_up():
        for _ in range(2):
            assert client.post(fresh.url("/pets"), json=REX, headers=key.headers).status_code == 503
        found = scrape(fresh)
        assert outages(found) == (1, 1)
        assert found.value("petstore_store_errors_total", environment="live", access="write") >= 2
        assert found.value("petstore_requests_total", operation="createPet", status="503") == 2

    def back() -> bool:
        assert client.post(fresh.url("/pets"), json=REX, headers=key.headers).status_code == 201
        return outages(scrape(fresh)) == (1, 0)

    assert wait_for(back)
    assert outages(scrape(fresh), access="read") == (0, 0)


def outages(found: Scrape, access: str = "write") -> tuple[float, float]:
    """Returns how often the live store went down, and for how many workers it is down now."""
    return (
        found.value("petstore_store_outages_total", environment="live", access=access),
        found.value("petstore_store_down", environment="live", access=access),
    )


def test_messages_that_never_become_a_request_are_counted(server: Server) -> None:
    before = scrape(server).value("petstore_rejected_messages_total", status="400")
    raw(server.port, b"GET /v1/pets HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
    assert scrape(server).value("petstore_rejected_messages_total", status="400") == before + 1


def test_a_scrape_has_only_known_metrics_each_with_its_kind_and_its_help(server: Server) -> None:
    known = {metric.name.removesuffix("_total"): metric for metric in METRICS}
    families = scrape(server).families
    assert len(families) > 20
    for name, family in families.items():
        assert (family.documentation, family.type) == (known[name].about, known[name].kind)


def test_openmetrics_is_sent_on_request(server: Server, client: httpx.Client) -> None:
    wanted = {"Accept": "application/openmetrics-text; version=1.0.0"}
    answer = client.get(server.origin + "/metrics", headers=wanted)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    plain = client.get(server.origin + "/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    assert plain.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "sent",
    [
        {"X-Forwarded-For": "192.0.2.7"}, {"X-Forwarded-For": "127.0.0.1"}, {"Forwarded": "for=127.0.0.1"},
        {"X-Real-IP": "127.0.0.1"}, {"Via": "1.1 proxy"}, {"X-Forwarded-Proto": "https"}, {"X-Forwarded-Any": "x"},
        {"X-Forwarded-Host": "localhost"}, {"Host": "api.example.com"}, {"Host": "api.example.com:80"},
        {"Host": "127.0.0.1.example.com"}, {"Host": "localhost.example.com"},
    ],
    ids=str,
)  # fmt: skip
def test_metrics_through_a_proxy_are_an_unknown_path(
    server: Server, sent: dict[str, str], client: httpx.Client
) -> None:
    for method in ("GET", "POST"):
        hidden = client.request(method, server.origin + "/metrics", headers=sent)
        unknown = client.request(method, server.origin + "/nothing", headers=sent)
        assert hidden.status_code == unknown.status_code == 404
        assert hidden.content == unknown.content
        assert set(hidden.headers) == set(unknown.headers)


def test_this_machine_may_read_metrics_under_its_own_names(server: Server, client: httpx.Client) -> None:
    for name in ("127.0.0.1", "localhost", "127.0.0.1:8080", "localhost:9", "[::1]:8080", "[::1]"):
        assert client.get(server.origin + "/metrics", headers={"Host": name}).status_code == 200, name


def test_the_name_that_the_service_listens_on_is_this_machines_unless_clients_use_it(
    start: Callable[..., Server], client: httpx.Client
) -> None:
    for options, name, status in (
        (("--host", "0.0.0.0"), "0.0.0.0", 200),
        (("--host", "0.0.0.0", "--public-url", "https://0.0.0.0"), "0.0.0.0", 404),
        (("--host", "0.0.0.0", "--public-url", "https://api.example.com"), "api.example.com", 404),
        (("--host", "0.0.0.0", "--public-url", "https://api.example.com"), "LOCALHOST", 200),
    ):
        server = start(*options)
        found = client.get(f"{server.origin}/metrics", headers={"Host": name}).status_code
        assert found == status, (options, name)


def test_behind_a_trusted_proxy_the_clients_address_counts(start: Callable[..., Server], client: httpx.Client) -> None:
    server = start("--trusted-proxy", "127.0.0.1", "--metrics-from", "192.0.2.0/24")

    def status(**sent: str) -> int:
        headers = {name.replace("_", "-"): value for name, value in sent.items()}
        return client.get(server.origin + "/metrics", headers=headers).status_code

    assert status(X_Forwarded_For="192.0.2.7") == 200
    assert status(X_Forwarded_For="192.0.2.7", Host="api.example.com") == 200
    assert status(X_Forwarded_For="198.51.100.7") == 404
    assert status(X_Forwarded_For="192.0.2.7, 198.51.100.7") == 404
    assert status(X_Forwarded_For="127.0.0.1") == 404
    assert status(Forwarded="for=192.0.2.7") == 404
    assert status() == 200


def test_a_setting_allows_a_network_to_read_metrics(start: Callable[..., Server], client: httpx.Client) -> None:
    server = start("--metrics-from", "127.0.0.1")
    assert client.get(server.origin + "/metrics", headers={"Host": "metrics.example.com"}).status_code == 200
    assert client.get(server.origin + "/metrics", headers={"X-Forwarded-For": "127.0.0.1"}).status_code == 404


def test_a_trusted_proxy_that_names_no_client_may_not_read_metrics(
    start: Callable[..., Server], client: httpx.Client
) -> None:
    server = start("--trusted-proxy", "127.0.0.1", "--metrics-from", "127.0.0.0/8")
    for sent in ({"Forwarded": "for=192.0.2.7"}, {"Via": "1.1 proxy"}, {"X-Real-IP": "192.0.2.7"}):
        assert client.get(server.origin + "/metrics", headers=sent).status_code == 404
    assert client.get(server.origin + "/metrics", headers={"X-Forwarded-For": "127.0.0.9"}).status_code == 200


def test_metrics_have_the_rate_limit_headers(server: Server, client: httpx.Client) -> None:
    answer = client.get(server.origin + "/metrics")
    for name in ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "x-request-id"):
        assert len(answer.headers.get_list(name)) == 1


def test_usage_in_the_store_equals_the_metrics(fresh: Server) -> None:
    own = fresh.key(limits=Limits(4, 100))
    began = int(time.time()) // HOUR * HOUR
    asking(fresh.port, 6, own.headers)
    assert scrape(fresh).value("petstore_requests_total", operation="listPets", plan="enterprise") == 6
    fresh.stop()
    rows = fresh.act(lambda backends: backends.stores["live"].usage.of_keys([own.id], HOUR, [began, began + HOUR]))
    assert {row.measure: row.requests for row in rows} == {"admitted": 4, "refused": 2}


def test_requests_with_different_keys_are_counted_apart(server: Server) -> None:
    """A request that differs only in its key must not be counted for the key of the previous request."""
    before = scrape(server)
    keys = [server.key("free"), server.key("pro")]
    for _ in range(3):
        for key in keys:
            data = request("GET", "/v1/pets?limit=1", key.headers, close=True)
            assert raw(server.port, data).startswith(b"HTTP/1.1 200")
    after = scrape(server)
    for plan in ("free", "pro"):
        name, labels = "petstore_requests_total", {"operation": "listPets", "status": "200", "plan": plan}
        assert after.value(name, **labels) - before.value(name, **labels) == 3
