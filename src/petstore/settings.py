"""The operator's settings, in a single immutable object that validates them. See docs/reference/settings.md."""

import ipaddress
import re
from functools import lru_cache
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

from petstore.errors import OperatorError
from petstore.keys import LIMIT_MAX, Environment
from petstore.usage import USAGE_DAYS

BASES: dict[Environment, str] = {"live": "/v1", "staging": "/staging/v1"}
HOST_MAX = 300  # the maximum length of a host name and port; DNS names are shorter
DEFAULT_PORTS = {"http": 80, "https": 443}
# The minimum and maximum of each numeric setting.
RANGES = {
    "port": (1, 65_535),
    "workers": (1, 256),
    "address_per_minute": (1, LIMIT_MAX),
    "connections_per_address": (1, 10**6),
    "ban_seconds": (1, 10**9),
    "ban_ceiling": (1, 10**9),
    "ban_strikes": (0, LIMIT_MAX),  # 0 means the key's per-minute limit, capped at STRIKES_MAX
    "postgres_pool": (1, 1_000),
    "usage_days": (31, 100_000),
}
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+").fullmatch


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
        """Returns the prefix for links: the public address, or an empty string if there is none."""
        return (self.public_url or "").rstrip("/")

    def base_url(self, environment: Environment) -> str:
        """Returns an environment's base address as clients see it, including the version segment."""
        if environment == "staging" and self.staging_url is not None:
            return self.staging_url.rstrip("/") + BASES["live"]
        return self.public_base + BASES[environment]

    def check(self) -> None:
        """Raises OperatorError for the first setting that is not valid. Does not open files or connections."""
        for name, (least, most) in RANGES.items():
            if not least <= getattr(self, name) <= most:
                raise OperatorError(f"{_option(name)} {getattr(self, name)}: must be from {least} to {most}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise OperatorError("--tls-cert and --tls-key must be used together")
        _check_networks("--trusted-proxy", self.trusted_proxies)
        _check_networks("--metrics-from", self.metrics_from)
        if self.ban_seconds > self.ban_ceiling:
            raise OperatorError("--ban-seconds must not exceed --ban-ceiling")
        for origin in self.cors_origins:
            if origin != "*" and not (origin.isascii() and _ORIGIN(origin)):
                raise OperatorError(f"--cors-origin {origin}: give an origin like https://shop.example.com")
        check_base_url("--public-url", self.public_url)
        check_base_url("--staging-url", self.staging_url)
        if self.staging_url and self.public_url:
            host = urlsplit(self.public_url).netloc.lower()
            if leads_to_staging(host, self.staging_url, self.public_url):
                raise OperatorError(
                    "--staging-url and --public-url must have different hosts;"
                    " on the host of --public-url, staging is at /staging/v1"
                )


_NUMBERS = {field.name for field in msgspec.structs.fields(Settings) if field.type is int}
if unmatched := RANGES.keys() ^ _NUMBERS:
    raise ValueError(f"each number in Settings must have one row in RANGES: {', '.join(sorted(unmatched))}")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_networks(option: str, networks: tuple[str, ...]) -> None:
    for network in networks:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            raise OperatorError(f"{option} {network}: give an address or a network like 10.0.0.0/8") from None


def check_base_url(option: str, url: str | None) -> None:
    """Raises OperatorError if appending the version segment to this URL would not produce a valid base address."""
    if url is None:
        return
    if not url.isascii():
        raise OperatorError(f"{option} {url}: must be ASCII; write other characters as xn--… and %…")
    if not is_base_url(url):
        shown = without_password(url) if "@" in url else url
        raise OperatorError(f"{option} {shown}: use an address like https://api.example.com")
    if url.rstrip("/").endswith("/v1"):
        raise OperatorError(f"{option} {url}: remove /v1 from the end")


def is_base_url(url: str) -> bool:
    """Whether a URL consists only of a scheme, a host, and optionally a port and a path."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # the brackets do not match, or the port is not valid
        return False
    has_only_base = not (parts.query or parts.fragment or "@" in parts.netloc)
    return parts.scheme in DEFAULT_PORTS and bool(parts.hostname) and has_only_base


def leads_to_staging(host: str, staging_url: str, public_url: str | None) -> bool:
    """Whether this Host header matches --staging-url.

    The ports are compared only if --staging-url includes a port or --public-url has the same host name.
    """
    return len(host) <= HOST_MAX and _leads_to_staging(host, staging_url, public_url)


@lru_cache(maxsize=256)
def _leads_to_staging(host: str, staging_url: str, public_url: str | None) -> bool:
    staging, public = urlsplit(staging_url), urlsplit(public_url or "")
    try:
        sent = urlsplit(f"{staging.scheme}://{host}")
        port = sent.port
    except ValueError:  # the IPv6 address or the port is not valid
        return False
    if _name(sent) != _name(staging):
        return False
    if staging.port is None and _name(public) != _name(staging):
        return True
    default = DEFAULT_PORTS[staging.scheme]
    return (port or default) == (staging.port or default)


def _name(url: SplitResult) -> str:
    return (url.hostname or "").rstrip(".")


def without_password(url: str) -> str:
    """Removes passwords from the credentials and the query of a URL, for messages and the audit log.

    Returns `scheme://…` if the URL is ambiguous, for example because a password contains an unescaped `/`, `?`, `#` or
    `@`. In that case, the parser would mistake part of the password for the host, the port, the path or the query.
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
    """Raises OperatorError if an unescaped password makes the URL ambiguous. The message does not show the URL."""
    if without_password(url).endswith("://…"):
        raise OperatorError(
            f"{option}: not a valid URL; write % / ? # @ [ ] in a password as %25 %2F %3F %23 %40 %5B %5D"
        )
    for host in urlsplit(url).netloc.rpartition("@")[2].split(","):
        if (found := _HOST(host)) and found[2] and int(found[2][1:] or 0) > 65_535:
            raise OperatorError(f"{option}: the port must be at most 65535")


_HOST = re.compile(r"(\[[^]]*\]|[^:\[\]]*)(:[0-9]*)?").fullmatch
