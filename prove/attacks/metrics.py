"""Clients request /metrics through a proxy in many spellings, and directly with headers that proxies add.

The service behind the proxies in deploy/ would give its metrics to everybody, so only the proxy can refuse.
"""

import contextlib
import itertools
import re
import socket
import ssl
from collections.abc import Iterator
from functools import partial

from harness.backends import Missing, running
from harness.claims import Skipped, hold, temporary_directory
from harness.proxies import HaProxy, Nginx, Proxy
from harness.served import wait_for
from harness.servers import Server, started
from prove.attacks.altered import program
from prove.proof import Figures, Parts, Scale

TIMEOUT = 10.0
DIRECT = ("--public-url", "https://api.example.com", "--address-per-minute", "1000000")
UNCHECKED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
UNCHECKED.check_hostname, UNCHECKED.verify_mode = False, ssl.CERT_NONE
PUBLIC = "api.example.com"
SPELLINGS = (
    "/metrics", "/metrics?", "/metrics?x=1", "/%6detrics", "/%6Detrics", "/%6d%65%74%72%69%63%73", "/metric%73?x",
    "//metrics", "///metrics", "/./metrics", "/../metrics", "/%2e/metrics", "/v1/../metrics", "/v1/%2e%2e/metrics",
    "/v1/..%2fmetrics", "/%2fmetrics", "/metrics/", "/metrics/.", "/metrics/../metrics", "/metrics;", "/metrics;x=1",
    "/metrics%3bx", "/metrics%3fx", "/metrics%20", "/metrics%00", "/metrics%2f", "/METRICS", "/Metrics", "/%4detrics",
    "/%256detrics", "/\\metrics", "/metrics#x", "http://127.0.0.1/metrics", "http://localhost:8080/metrics",
    "HTTP://localhost/%6detrics", "http://api.example.com/metrics", "http://localhost//metrics",
)  # fmt: skip
HOSTS = (PUBLIC, "localhost", "127.0.0.1", "[::1]:8080")
# Headers that a proxy on this machine might add to requests.
ADDED = (
    "Forwarded: for=127.0.0.1", "Via: 1.1 proxy", "X-Real-IP: 127.0.0.1", "X-Forwarded-For: 127.0.0.1",
    "X-Forwarded-For: 192.0.2.7", "X-Forwarded-For:", "X-FORWARDED-FOR: ::1", "X-Forwarded-Host: localhost",
    "X-Forwarded-Proto: https", "X-Forwarded-Port: 443", "X-Forwarded-Server: proxy", "X-Forwarded-Any: x",
)  # fmt: skip
# A proxy that adds no headers may pass on the Host header of its client.
OTHER_HOSTS = (
    PUBLIC, f"{PUBLIC}:443", "192.0.2.1", "127.0.0.1.example.com", "localhost.example.com", "[::2]", "0", "",
    "localhost,x", "x:localhost", "[127.0.0.1.example.com]",
)  # fmt: skip


def prove(scale: Scale) -> Figures:
    parts = Parts(scale)
    with temporary_directory() as data:
        server = Server(data / "anybody", "own", "--address-per-minute", "1000000")
        server.program = program("metrics_for_anybody")
        with started(server):
            hold(_status(server.port, "/metrics", f"Host: {PUBLIC}") == 200, "the service behind the proxies answers")
            for name, proxy in _proxies(server, scale.plant):
                with parts.part():
                    for spelling, host in itertools.product(SPELLINGS, HOSTS):
                        status = _status(proxy.port, spelling, f"Host: {host}", tls=True)
                        hold(status != 200, f"{name} returns no metrics for {spelling} with Host: {host}")
        for options in ([], ["--trusted-proxy", "127.0.0.1"]):
            server = Server(data / f"direct{len(options)}", "own", *DIRECT, *options)
            server.program = program("metrics_for_this_machine") if scale.plant else program()
            with parts.part(), started(server):
                _ask_directly(server.port)
    parts.judge()
    return {"proxies": 3, "spellings": len(SPELLINGS), "hosts": len(HOSTS), "fields of proxies": len(ADDED),
            "answered with metrics": 0}  # fmt: skip


def _proxies(server: Server, plant: bool) -> Iterator[tuple[str, Proxy]]:
    try:
        proxies = {
            "nginx": Nginx(server.port), "HAProxy": HaProxy([server] * 3),
            "HAProxy in a container": HaProxy([server] * 2, "container/haproxy.cfg"),
        }  # fmt: skip
    except Missing as missing:
        raise Skipped(str(missing)) from None
    with contextlib.ExitStack() as stack:
        for name, proxy in proxies.items():
            if plant:  # planted fault: a naive rule that refuses only one spelling
                text = proxy.config.read_text().replace("path,url_dec -m sub -i metrics", "path /metrics")
                proxy.config.write_text(re.sub(r"location ~\* metrics", "location = /none", text))
            stack.enter_context(running(proxy))
            hold(wait_for(partial(_serves, proxy)), f"{name} is ready")
            yield name, proxy


def _serves(proxy: Proxy) -> bool:
    return _status(proxy.port, "/readyz", f"Host: {PUBLIC}", tls=True) == 200


def _ask_directly(port: int) -> None:
    """Requests metrics from this machine, both directly and as a proxy on it would. Raises Broken."""
    for host in ("localhost", "127.0.0.1", "[::1]"):
        hold(_status(port, "/metrics", f"Host: {host}") == 200, f"this machine gets metrics with Host: {host}")
    for added in ADDED:
        hold(_status(port, "/metrics", "Host: localhost", added) == 404, f"no metrics with {added}")
    for host in OTHER_HOSTS:
        hold(_status(port, "/metrics", f"Host: {host}") != 200, f"no metrics for Host: {host}")
    hold(_status(port, f"http://{PUBLIC}/metrics", "Host: localhost") == 404, f"no metrics for http://{PUBLIC}")


def _status(port: int, target: str, *lines: str, tls: bool = False) -> int:
    """Returns the status of the response, or 0 if the connection was closed without one."""
    head = "\r\n".join([f"GET {target} HTTP/1.1", *lines, "Connection: close", "", ""])
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), TIMEOUT) as plain,
        UNCHECKED.wrap_socket(plain) if tls else plain as connection,
    ):
        connection.sendall(head.encode())
        answer = connection.recv(65536)
        return int(answer[9:12]) if answer.startswith(b"HTTP/1.") else 0
    return 0
