"""Settings: everything that an operator can set, in one frozen object. docs/reference/settings.md lists them."""

import re
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from petstore.errors import OperatorError
from petstore.usage import USAGE_DAYS


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
    staging_url: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    access_log: bool = False

    cors_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    metrics_from: tuple[str, ...] = ()
    ietf_headers: bool = False

    address_per_minute: int = 600
    connections_per_address: int = 4096
    ban_seconds: int = 60
    ban_ceiling: int = 3600
    ban_strikes: int = 0
    usage_days: int = USAGE_DAYS
    clock_file: Path | None = None

    @property
    def public_base(self) -> str:
        """What links begin with: nothing, which makes them path-absolute, or the address that clients see."""
        return (self.public_url or "").rstrip("/")

    def base_url(self, environment: str) -> str:
        """The base address of an environment as clients see it, up to and including the version segment."""
        if environment == "live":
            return self.public_base + "/v1"
        if self.staging_url is not None:
            return self.staging_url.rstrip("/") + "/v1"
        return self.public_base + "/staging/v1"


def without_password(url: str) -> str:
    """The URL for messages and for the audit log: without the password, be it in the login or in the query.

    A URL that cannot be divided with certainty becomes `scheme://…`. Where a password has an unescaped `/`, `?`, `#`
    or `@`, the parser takes a part of it for the host, the port, the path or the query.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        return "…"
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{scheme}://…"
    login, at, hosts = parts.netloc.rpartition("@")
    if "@" in parts.path + parts.query + parts.fragment or not all(map(_HOST, hosts.split(","))):
        return f"{scheme}://…"
    query = [word for word in parts.query.split("&") if "password" not in word.partition("=")[0].lower()]
    return f"{scheme}://{login.partition(':')[0]}{at}{hosts}{parts.path}" + (
        f"?{'&'.join(query)}" if any(query) else ""
    )


def check_url(option: str, url: str) -> None:
    """Raises OperatorError, without the URL, where an unescaped password makes its parts uncertain."""
    if without_password(url).endswith("://…"):
        raise OperatorError(f"{option}: not a valid URL; write / ? # @ [ ] in a password as %2F %3F %23 %40 %5B %5D")
    for host in urlsplit(url).netloc.rpartition("@")[2].split(","):
        if (found := _HOST(host)) and found[2] and int(found[2][1:] or 0) > 65_535:
            raise OperatorError(f"{option}: a port is at most 65535")


_HOST = re.compile(r"(\[[^]]*\]|[^:\[\]]*)(:[0-9]*)?").fullmatch
