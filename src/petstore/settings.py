"""The operator's settings, in a single immutable object that validates them. See docs/reference/settings.md."""

import contextlib
import ipaddress
import math
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints
from urllib.parse import SplitResult, urlsplit

import msgspec

from petstore.errors import OperatorError
from petstore.keys import LIMIT_MAX, Environment
from petstore.rate_limits import SECOND, STRIKES_MAX, BanPolicy
from petstore.usage import USAGE_DAYS

BASES: dict[Environment, str] = {"live": "/v1", "staging": "/staging/v1"}
DEFAULT_PORTS = {"http": 80, "https": 443}
WORKERS_MAX = 8  # by default
_ORIGIN = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/?#@\s]+").fullmatch

Texts = tuple[str, ...]
_BANS = BanPolicy()  # the defaults


class Option(NamedTuple):
    """How operators give a setting.

    The command line, the environment variables and docs/reference/settings.md are derived from it and from the type,
    the name and the default of the field.
    """

    help: str
    least: int = 0  # the range of a number
    most: int = 0
    metavar: str | None = None  # the placeholder for the value
    default: str | None = None  # describes the default if the value does not
    name: str | None = None  # the option, if it is not named after the field
    selects_data: bool = False  # whether all commands that use the data have this option
    in_file: bool = False  # whether there is a second option, which names a file that contains the value
    hidden: bool = False


def default_workers() -> int:
    """Returns the number of cores that this process's CPU affinity and cgroup quota allow, up to WORKERS_MAX."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, math.ceil(int(quota) / int(period)))  # "max" means that there is no quota; int() rejects it
    return max(1, min(cores, WORKERS_MAX))


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    data: Annotated[Path, Option("The data directory.", metavar="DIR", selects_data=True)] = Path("petstore-data")
    store: Annotated[
        str | None,
        Option(
            "The store's URL: postgresql://…", metavar="URL", default="files in DIR", selects_data=True, in_file=True
        ),
    ] = None
    gate: Annotated[
        str | None,
        Option("The gate's URL: redis://…", metavar="URL", default="a file in DIR", selects_data=True, in_file=True),
    ] = None
    pgbouncer: Annotated[
        bool, Option("Use this if PostgreSQL is behind PgBouncer in transaction mode.", selects_data=True)
    ] = False
    clock_file: Annotated[
        Path | None,
        Option("For tests. A file with the number of seconds to add to the clock.", selects_data=True, hidden=True),
    ] = None

    host: Annotated[str, Option("The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Option("The port to listen on.", 1, 65_535)] = 8080
    workers: Annotated[
        int, Option("Number of worker processes.", 1, 256, default=f"one per core, at most {WORKERS_MAX}")
    ] = msgspec.field(default_factory=default_workers)
    public_url: Annotated[
        str | None, Option("The address that clients use. It is also used in absolute links.", metavar="URL")
    ] = None
    staging_url: Annotated[
        str | None,
        Option("A separate address for staging. At this address, staging is also available under /v1.", metavar="URL"),
    ] = None
    tls_cert: Annotated[Path | None, Option("PEM file with the certificate chain. Enables HTTPS.")] = None
    tls_key: Annotated[Path | None, Option("PEM file with the certificate's private key.")] = None
    access_log: Annotated[bool, Option("Log every request.")] = False

    cors_origins: Annotated[
        Texts, Option("Allow requests from web pages with this origin.", metavar="ORIGIN", name="--cors-origin")
    ] = ()
    trusted_proxies: Annotated[
        Texts, Option("Trust X-Forwarded-For headers from this network.", metavar="NETWORK", name="--trusted-proxy")
    ] = ()
    metrics_from: Annotated[
        Texts, Option("Allow access to /metrics from this network, in addition to this machine.", metavar="NETWORK")
    ] = ()
    ietf_headers: Annotated[
        bool, Option("Also send the RateLimit and RateLimit-Policy headers from the IETF draft.")
    ] = False

    address_per_minute: Annotated[
        int, Option("Maximum requests per minute that a client address can send without a valid key.", 1, LIMIT_MAX)
    ] = 600
    connections_per_address: Annotated[
        int, Option("Maximum number of connections from each client address to each worker.", 1, 10**6)
    ] = 4096
    ban_seconds: Annotated[
        int, Option("Length of a key's first ban, in seconds. Each further ban lasts twice as long.", 1, 10**9)
    ] = _BANS.length // SECOND
    ban_ceiling: Annotated[int, Option("Maximum length of a ban, in seconds.", 1, 10**9)] = _BANS.ceiling // SECOND
    ban_strikes: Annotated[
        int,
        Option("Maximum number of consecutive refused requests. One more refused request bans the key.", 0, LIMIT_MAX,
               default=f"the key's per-minute limit, at most {STRIKES_MAX:,}")
    ] = 0  # fmt: skip
    gate_outage: Annotated[
        Literal["degrade", "refuse"],
        Option("While Redis is unavailable, use per-node limits (degrade) or respond with 503 (refuse)."),
    ] = "degrade"
    postgres_pool: Annotated[int, Option("Maximum number of connections from each worker to PostgreSQL.", 1, 1_000)] = 8
    usage_days: Annotated[int, Option("Number of days to keep hourly usage.", 31, 100_000)] = USAGE_DAYS

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
        public = urlsplit(self.public_url or "").netloc
        if self.staging_url and public and leads_to_staging(public, self.staging_url, self.public_url):
            raise OperatorError(
                "--staging-url and --public-url must have different hosts;"
                f" on the host of --public-url, staging is at {BASES['staging']}"
            )


DEFAULTS = Settings()
# Maps each setting to its type and its option.
DECLARED: dict[str, tuple[Any, Option]] = {
    name: get_args(hint) for name, hint in get_type_hints(Settings, include_extras=True).items()
}


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
    if url.rstrip("/").endswith(BASES["live"]):
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


@lru_cache(maxsize=256)
def leads_to_staging(host: str, staging_url: str, public_url: str | None) -> bool:
    """Whether this Host header matches --staging-url.

    The ports are compared only if --staging-url includes a port or --public-url has the same host name.
    """
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
