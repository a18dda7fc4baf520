"""Parses Redis URLs and creates links from them.

redis-py parses the URL of one server. It would report an unknown option only when it connects, it ignores a database
that is not a number, and it has no URLs for Sentinels and for several servers.
"""

from typing import Any
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.sentinel import Sentinel

from petstore.errors import OperatorError
from petstore.gate import check_url
from petstore.gate.redis_cluster import ClusterLink
from petstore.gate.redis_link import ServerAddress, SingleLink
from petstore.gate.redis_tls import TLS_OPTIONS, TlsConnection, tls_context
from petstore.timeouts import CLIENT

SERVER_OPTIONS = ("db", "username", "password", "client_name", "protocol", "socket_timeout", "socket_keepalive",
                  "retry_on_timeout", "health_check_interval")  # fmt: skip
SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
OPTIONS_OF_KIND = {"": SERVER_OPTIONS, "sentinel": SENTINEL_OPTIONS, "cluster": ()}  # plus TLS_OPTIONS with TLS


def open_link(url: str) -> SingleLink | ClusterLink:
    """Returns a link, which connects when it is first used. Raises OperatorError if the URL is not valid.

    Accepts redis://host:port/db, valkey://host:port/db, redis+sentinel://host:port,host:port/name and
    redis+cluster://host:port,host:port. For TLS, use rediss, valkeys, rediss+sentinel or rediss+cluster.
    """
    kind = check_url(url).partition("+")[2]
    try:
        if kind == "sentinel":
            return _sentinel_link(url)
        if kind == "cluster":
            return ClusterLink(_servers(url), connection_options(url))
        return SingleLink(connection_options(url))
    except ValueError as error:
        raise OperatorError(f"--gate: {error}") from error


def connection_options(url: str) -> dict[str, Any]:
    """Returns the arguments for a redis-py connection, without host and port if the URL lists several servers.

    Raises ValueError if the URL is not valid.
    """
    parts = urlsplit(url)
    base, _, kind = parts.scheme.partition("+")
    tls = base in ("rediss", "valkeys")
    known = (*OPTIONS_OF_KIND[kind], *(TLS_OPTIONS if tls else ()))
    if unknown := [name for name in parse_qs(parts.query, keep_blank_values=True) if name not in known]:
        raise ValueError(f"{', '.join(unknown)}: unknown option; valid options: {', '.join(known) or 'none'}")
    if kind:
        parts = parts._replace(netloc=parts.netloc.rpartition("@")[0] + "@", path="")
    options: dict[str, Any] = dict(parse_url(parts._replace(scheme="redis").geturl()))
    if "db" not in options and parts.path.strip("/"):
        raise ValueError(f"{parts.path}: the database must be a number")
    tls_options = {name: options.pop(name) for name in TLS_OPTIONS if name in options}
    if tls:
        options |= {"connection_class": TlsConnection, "tls": tls_context(tls_options)}
    return options


def _servers(url: str) -> list[ServerAddress]:
    """Returns the servers listed in a URL. Raises ValueError if the list is not valid."""
    servers = []
    for server in urlsplit(url).netloc.rpartition("@")[2].split(","):
        host, _, port = server.rpartition(":")
        if not host or not port:
            raise ValueError(f"{server}: write each server as host:port, separated by commas")
        servers.append((host.strip("[]"), int(port)))
    return servers


def _sentinel_link(url: str) -> SingleLink:
    """Returns a link to the primary that the Sentinels report. Raises ValueError if the URL is not valid."""
    parts = urlsplit(url)
    service = parts.path.strip("/")
    if not service:
        raise ValueError(f"the name of the service is missing: {parts.scheme}://host:26379,host:26379/name")
    options = connection_options(url)
    # The credentials in the URL are for the Redis servers. The Sentinels may use separate credentials or none.
    login = {name.removeprefix("sentinel_"): options.pop(name) for name in SENTINEL_OPTIONS if name in options}
    shared = {name: value for name, value in options.items() if name not in ("username", "password")}
    shared |= {"socket_connect_timeout": CLIENT.gate_sentinel, "socket_timeout": CLIENT.gate_sentinel}
    sentinel = Sentinel([])  # type: ignore[no-untyped-call]  # redis-py declares no types for it
    sentinel.sentinels = [
        Redis.from_pool(ConnectionPool(host=host, port=port, **shared, **login)) for host, port in _servers(url)
    ]
    return SingleLink(options, sentinel, service)
