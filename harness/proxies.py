"""Runs nginx and HAProxy with the configuration files in deploy/, in front of services on this machine."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from harness.backends import Missing, Process
from harness.certificates import self_signed

DEPLOY = Path(__file__).parents[1] / "deploy"


class Node(Protocol):
    """Something behind a proxy, such as a service on this machine."""

    @property
    def port(self) -> int: ...


class Proxy(Process):
    """A proxy. A test can change its configuration file, `config`, before starting the proxy."""

    def __init__(self, name: str, package: str, address: str) -> None:
        """`address` is the loopback address on which the proxy listens."""
        super().__init__(name)
        self.address = address
        found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
        if found is None:
            raise Missing(f"{name} is not installed (Debian: {package})")
        self._program = found
        self.config = self.directory / "config"

    def answers(self) -> bool:
        with socket.socket(socket.AF_INET6 if ":" in self.address else socket.AF_INET) as probe:
            return probe.connect_ex((self.address, self.port)) == 0

    @property
    def origin(self) -> str:
        return f"https://{_in_url(self.address)}:{self.port}"


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


class Nginx(Proxy):
    """nginx with deploy/nginx.conf. Replaces only the address, the certificate, the host name and the node."""

    def __init__(
        self, upstream: int, names: str = "api.example.com", *, address: str = "127.0.0.1", connections: int = 512
    ) -> None:
        """`connections` is the value of worker_connections, which Debian's nginx.conf sets."""
        super().__init__("nginx", "nginx", address)
        self.errors = self.directory / "error.log"
        certificate, key = self_signed(self.directory)
        site = (DEPLOY / "nginx.conf").read_text()
        for before, after in (
            ("127.0.0.1:8080", f"127.0.0.1:{upstream}"), ("listen 443", f"listen {_in_url(address)}:{self.port}"),
            ("/etc/ssl/api.example.com/fullchain.pem", str(certificate)),
            ("/etc/ssl/api.example.com/key.pem", str(key)), ("server_name api.example.com;", f"server_name {names};"),
        ):  # fmt: skip
            assert before in site
            site = site.replace(before, after)
        kinds = " ".join(f"{kind}_temp_path {self.directory}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
        self.config.write_text(
            f"{'user root; ' if os.geteuid() == 0 else ''}daemon off; worker_processes 1;"
            f" pid {self.directory}/pid; error_log {self.errors};"
            f" events {{ worker_connections {connections}; }}"
            f" http {{ access_log off; client_body_temp_path {self.directory}/body; {kinds}\n{site}\n}}"
        )

    def command(self) -> list[str]:
        return [self._program, "-e", str(self.errors), "-p", str(self.directory), "-c", str(self.config)]


class HaProxy(Proxy):
    """HAProxy with a file in deploy/. Replaces only the address, the certificate and the nodes."""

    def __init__(self, nodes: Sequence[Node], config: str = "haproxy.cfg", *, address: str = "127.0.0.1") -> None:
        """`config` is the name of a configuration file in deploy/."""
        super().__init__("haproxy", "haproxy", address)
        text = re.sub(r"bind :\d+", f"bind {address}:{self.port}", (DEPLOY / config).read_text())
        if "/run/secrets" in text:
            subprocess.run([DEPLOY / "container/make-secrets.sh"], cwd=self.directory, check=True)
            text = text.replace("/run/secrets", str(self.directory / "secrets"))
        else:
            made = self_signed(self.directory)
            (self.directory / "site.pem").write_bytes(made.chain.read_bytes() + made.key.read_bytes())
            text = text.replace("/etc/haproxy/site.pem", str(self.directory / "site.pem"))
        for number, node in enumerate(nodes, 1):
            text, replaced = re.subn(rf"(server node{number}) \S+", rf"\1 127.0.0.1:{node.port}", text)
            assert replaced == 1
        self.config.write_text(text)

    def command(self) -> list[str]:
        return [self._program, "-db", "-f", str(self.config)]


def proxy_for(config: str, node: Node, address: str = "127.0.0.1", *, connections: int = 512) -> Proxy:
    """Returns a proxy with a configuration file in deploy/, which uses the same node for all of its servers."""
    if config == "nginx.conf":
        return Nginx(node.port, address=address, connections=connections)
    servers = len(re.findall(r"(?m)^    server node", (DEPLOY / config).read_text()))
    return HaProxy([node] * servers, config, address=address)


# Every configuration of a proxy in deploy/.
CONFIGS = ("nginx.conf", "haproxy.cfg", "container/haproxy.cfg")
