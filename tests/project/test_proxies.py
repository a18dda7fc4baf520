"""Slow and greedy clients behind each proxy configuration in deploy/, and the errors that the proxies return."""

import asyncio
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
import yaml

from harness.backends import program, running
from harness.faulty_proxy import Fault, Forwarded, Passed, faulty_proxy
from harness.greedy_clients import KINDS, Target, attack
from harness.isolated import ADDRESSES, isolated, load_firewall
from harness.proxies import CONFIGS, DEPLOY, Nginx, Proxy, proxy_for
from harness.served import wait_for
from harness.servers import Server, serving
from harness.wire import Response, receive, request

OPTIONS = ("--trusted-proxy", "127.0.0.1", "--address-per-minute", "1000000")
PER_CLIENT = 256
# nginx counts only connections with a request in progress. The firewall limits the others.
COUNTED_BY_NGINX = ("slow_body", "slow_streams")
HELD = [(config, kind) for config in CONFIGS for kind in KINDS if config != "nginx.conf" or kind in COUNTED_BY_NGINX]


def connections(kind: str) -> int:
    return 4 if kind == "slow_streams" else 300


def wait_until_ready(proxy: Proxy) -> None:
    assert wait_for(lambda: httpx.get(proxy.origin + "/readyz", verify=False).status_code == 200)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("proxies") / "data", "own", *OPTIONS) as server:
        yield server


@pytest.fixture(scope="module", params=CONFIGS)
def proxy(request: pytest.FixtureRequest, service: Server) -> Iterator[Proxy]:
    with running(proxy_for(request.param, service)) as started:
        wait_until_ready(started)
        yield started


def test_every_proxy_configuration_is_tested() -> None:
    found = {str(file.relative_to(DEPLOY)) for file in DEPLOY.rglob("*") if file.suffix in (".cfg", ".conf")}
    assert found == set(CONFIGS)


# Greedy clients


@pytest.mark.parametrize(("proxy", "kind"), HELD, indirect=["proxy"])
def test_one_address_holds_at_most_256_connections_and_others_are_served(
    service: Server, proxy: Proxy, kind: str
) -> None:
    target = Target(proxy.port, service.key_in_stock().secret)
    outcome = asyncio.run(attack(KINDS[kind], target, connections(kind), seconds=0.5))
    assert set(outcome.statuses) == {200}
    assert 0 < outcome.held <= PER_CLIENT


def test_the_container_takes_the_limit_from_a_variable(service: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    compose = yaml.safe_load((DEPLOY.parent / "compose.yaml").read_text())
    assert compose["services"]["proxy"]["environment"] == {"CONNECTIONS_PER_ADDRESS": "${CONNECTIONS_PER_ADDRESS:-256}"}
    monkeypatch.setenv("CONNECTIONS_PER_ADDRESS", "280")
    with running(proxy_for("container/haproxy.cfg", service)) as proxy:
        wait_until_ready(proxy)
        target = Target(proxy.port, service.key_in_stock().secret)
        outcome = asyncio.run(attack(KINDS["silent"], target, connections("silent"), seconds=0.0))
    assert PER_CLIENT < outcome.held <= 280


def in_one_ipv6_network(config: str) -> list[Any]:
    with (
        tempfile.TemporaryDirectory() as directory,
        serving(Path(directory) / "data", "own", *OPTIONS) as server,
        running(proxy_for(config, server, "::1")) as proxy,
    ):
        wait_until_ready(proxy)
        target = Target(proxy.port, server.key().secret, ADDRESSES[:2], ADDRESSES[2])
        outcome = asyncio.run(attack(KINDS["slow_body"], target, connections("slow_body"), seconds=0.5))
    return [outcome.held, *set(outcome.statuses)]


@pytest.mark.parametrize("config", CONFIGS)
def test_one_ipv6_network_holds_at_most_256_connections_and_others_are_served(config: str) -> None:
    held, *statuses = isolated(in_one_ipv6_network, config)
    assert statuses == [200]
    assert 0 < held <= PER_CLIENT


def behind_the_firewall() -> dict[str, list[Any]]:
    found = {}
    with (
        tempfile.TemporaryDirectory() as directory,
        serving(Path(directory) / "data", "own", *OPTIONS) as server,
        running(Nginx(server.port)) as proxy,
    ):
        for _ in range(2):  # loading the rules again replaces them
            load_firewall(proxy.port)
        for kind in KINDS:
            target = Target(proxy.port, server.key_in_stock().secret)
            outcome = asyncio.run(attack(KINDS[kind], target, connections(kind), seconds=0.5))
            found[kind] = [outcome.held, *set(outcome.statuses)]
    return found


def test_behind_the_firewall_one_address_holds_at_most_256_connections_to_nginx() -> None:
    program("nft")
    for kind, (held, *statuses) in isolated(behind_the_firewall).items():
        assert statuses == [200], kind
        assert 0 < held <= PER_CLIENT, kind


# Errors


class Node(NamedTuple):
    port: int


class Breaks(Fault):
    """A node that closes the connection without a response, or sends no response."""

    released: threading.Event

    def handle(self, request: Forwarded) -> Passed:
        if request.target == "/close":
            raise ConnectionResetError
        if request.target == "/hang":
            self.released.wait(60)
        return self.send(request)


@pytest.fixture(scope="module", params=CONFIGS)
def broken(request: pytest.FixtureRequest, service: Server) -> Iterator[Proxy]:
    """A proxy in front of a node that breaks."""
    Breaks.released = threading.Event()
    with faulty_proxy(service.port, Breaks) as port, running(proxy_for(request.param, Node(port))) as started:
        wait_until_ready(started)
        yield started
        Breaks.released.set()


def exchanged(proxy: Proxy, *parts: bytes) -> Response | None:
    """Sends the parts with a pause in between. Returns the response, or None if the proxy closes the connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((proxy.address, proxy.port), timeout=30) as plain, context.wrap_socket(plain) as tls:
        try:
            for number, part in enumerate(parts):
                time.sleep(0.3 if number else 0)  # so that the proxy forwards the first part
                tls.sendall(part)
        except OSError:
            pass  # the proxy has stopped reading, but may have sent a response
        response = HTTPResponse(tls)
        try:
            response.begin()
            body = response.read()
        except OSError:
            return None
        return Response(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


def assert_own_error(response: Response | None, status: int, code: str) -> None:
    """Asserts that this is an error of the proxy, which has the form of the service's errors."""
    assert response is not None
    body = msgspec.json.decode(response.body)
    assert (response.status, list(body)) == (status, ["code", "message", "status"])
    assert (body["status"], response.code) == (status, code)
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["strict-transport-security"] == "max-age=31536000"
    assert response.headers.get("retry-after") == ("2" if code == "unavailable" else None)
    assert "x-ratelimit-limit" not in response.headers


HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "message",
    [HEAD + b"Content-Length: x\r\n\r\n", HEAD + b"X: " + b"a" * 60_000 + b"\r\n\r\n", b"GET /" + b"a" * 60_000],
)
def test_a_malformed_head_gets_no_html_page(proxy: Proxy, message: bytes) -> None:
    response = exchanged(proxy, message)
    if response is not None:  # HAProxy closes the connection
        assert_own_error(response, response.status, "malformed_request")


def test_a_malformed_body_is_malformed_request(service: Server, proxy: Proxy) -> None:
    headers = {**service.key_in_stock().headers, "Transfer-Encoding": "chunked"}
    assert_own_error(exchanged(proxy, request("POST", "/v1/pets", headers), b"zz\r\n"), 400, "malformed_request")


def test_metrics_are_not_found(proxy: Proxy) -> None:
    assert_own_error(exchanged(proxy, request("GET", "/metrics")), 404, "not_found")


def test_a_body_that_the_service_would_not_read_is_too_large(service: Server, proxy: Proxy) -> None:
    headers = {**service.key_in_stock().headers, "Content-Length": "600000"}
    assert_own_error(exchanged(proxy, request("POST", "/v1/pets", headers)), 413, "body_too_large")


def test_a_client_with_too_many_requests_gets_a_503(service: Server, proxy: Proxy) -> None:
    target = Target(proxy.port, service.key_in_stock().secret, other="127.0.0.3")
    outcome = asyncio.run(attack(KINDS["slow_streams"], target, connections("slow_streams"), seconds=1.0))
    assert_own_error(outcome.responses[-1], 503, "unavailable")


def test_a_node_that_closes_the_connection_is_a_502(broken: Proxy) -> None:
    assert_own_error(exchanged(broken, request("GET", "/close")), 502, "unavailable")


@pytest.mark.thorough  # takes 15 s for each proxy
def test_a_node_that_does_not_respond_is_a_504(broken: Proxy) -> None:
    assert_own_error(exchanged(broken, request("GET", "/hang")), 504, "unavailable")


# The limits of the service


def assert_own_limit(response: Response | None, status: int, code: str) -> None:
    """Asserts that this is an error of the service, passed on by the proxy."""
    assert response is not None
    assert (response.status, response.code) == (status, code)
    assert "x-ratelimit-limit" in response.headers
    assert response.headers["strict-transport-security"] == "max-age=31536000"


def test_bodies_are_passed_on_as_they_arrive(proxy: Proxy) -> None:
    response = exchanged(proxy, request("POST", "/v1/pets", {"Content-Length": "999"}), b"x")
    assert_own_limit(response, 401, "unauthorized")


@pytest.mark.parametrize("size", [70_000, 450_000])
def test_the_service_rejects_bodies_that_are_too_large(service: Server, proxy: Proxy, size: int) -> None:
    response = exchanged(proxy, request("POST", "/v1/pets", service.key_in_stock().headers, b"x" * size))
    assert_own_limit(response, 413, "body_too_large")


@pytest.mark.thorough  # takes 10 s for each proxy
def test_slow_clients_are_disconnected_within_ten_seconds(service: Server, proxy: Proxy) -> None:
    headers = {**service.key_in_stock().headers, "Content-Length": "999"}
    began = time.monotonic()
    with socket.create_connection((proxy.address, proxy.port)) as plain, ThreadPoolExecutor() as pool:
        plain.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
        head = pool.submit(exchanged, proxy, HEAD)
        body = pool.submit(exchanged, proxy, request("POST", "/v1/pets", headers), b"x")
        assert head.result() is None
        assert_own_limit(body.result(), 408, "request_timeout")
        assert receive(plain).closed
    assert time.monotonic() - began < 12
