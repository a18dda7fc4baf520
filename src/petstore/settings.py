"""One frozen Settings: everything an operator can choose. docs/operating.md explains each."""

import re
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    data: Path = Path("petstore-data")
    store: str | None = None
    gate: str | None = None
    gate_outage: Literal["degrade", "refuse"] = "degrade"
    postgres_pool: int = 8
    pgbouncer: bool = False

    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    public_url: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    access_log: bool = False

    cors_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    metrics_from: tuple[str, ...] = ()
    ietf_headers: bool = False

    address_per_minute: int = 600
    ban_seconds: int = 60
    ban_ceiling: int = 3600
    ban_strikes: int = 0
    clock_file: Path | None = None

    @property
    def public_base(self) -> str:
        """What links start with: nothing, so that they are path-absolute, or the address clients see."""
        return (self.public_url or "").rstrip("/")


def without_password(url: str) -> str:
    """A URL that may be shown and kept: neither in the login nor in the query is there a password.

    One that is none is not shown: what looks like a port or a path may be a password that was not encoded.
    """
    scheme = url.partition("://")[0]
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{scheme}://…"
    login, at, hosts = parts.netloc.rpartition("@")
    odd = "@" in parts.path + parts.query.partition("=")[0] + parts.fragment
    if odd or not all(map(_HOST, hosts.split(","))):
        return f"{scheme}://…"
    words = [word for word in parts.query.split("&") if "password" not in word.partition("=")[0].lower()]
    return f"{scheme}://{login.partition(':')[0]}{at}{hosts}{parts.path}" + (
        f"?{'&'.join(words)}" if any(words) else ""
    )


_HOST = re.compile(r"(\[[^]]*\]|[^:\[\]]*)(:[0-9]*)?").fullmatch
