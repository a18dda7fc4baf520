"""Which link a Redis URL stands for."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from petstore.errors import OperatorError
from petstore.gate.redis_cluster import ClusterLink, ServerAddress
from petstore.gate.redis_link import SingleLink
from petstore.timeouts import CLIENT

OPTIONS = ("db", "username", "password", "client_name", "protocol", "socket_timeout", "socket_keepalive",
           "retry_on_timeout", "health_check_interval")  # fmt: skip
TLS_OPTIONS = (*OPTIONS, "ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_certfile", "ssl_keyfile", "ssl_password",
               "ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version", "ssl_ciphers")  # fmt: skip
OPTIONS_OF_SCHEME = {"redis": OPTIONS, "valkey": OPTIONS, "rediss": TLS_OPTIONS, "valkeys": TLS_OPTIONS}


def open_link(url: str) -> SingleLink | ClusterLink:
    """The link of a URL; it connects when it is first used. Raises OperatorError for a URL that is not valid.

    redis://host:port/db, rediss:// (TLS), valkey://, valkeys:// (TLS); redis+sentinel://host:port,host:port/name;
    redis+cluster://host:port,host:port.
    """
    scheme = url.partition(":")[0]
    try:
        if scheme == "redis+sentinel":
            _check_options(url, ())
            return SingleLink(_login(url), *_sentinels(url))
        if scheme == "redis+cluster":
            _check_options(url, ())
            return ClusterLink(_servers(url), _login(url))
        return SingleLink(connection_options(url))
    except ValueError as error:
        raise OperatorError(f"--gate: {error}") from error


def connection_options(url: str) -> dict[str, Any]:
    """The options of a connection to one server. Raises ValueError."""
    _check_options(url, OPTIONS_OF_SCHEME.get(url.partition(":")[0], ()))
    options = parse_url("redis" + url.removeprefix("valkey") if url.startswith("valkey") else url)
    if "db" not in options and urlsplit(url).path.strip("/"):
        raise ValueError(f"{urlsplit(url).path}: the database must be a number")
    return dict(options)


def _check_options(url: str, known: Sequence[str]) -> None:
    """Raises ValueError. redis-py would only fail when it connects, and would not name the valid options."""
    unknown = [name for name in parse_qs(urlsplit(url).query, keep_blank_values=True) if name not in known]
    if not all(map(str.isidentifier, unknown)):
        raise ValueError("its query cannot be understood; write ? and @ in a password as %3F and %40")
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no such option; known here: {', '.join(known) or 'none'}")


def _login(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    found = {"username": parts.username, "password": parts.password}
    return {name: unquote(value) for name, value in found.items() if value}


def _servers(url: str) -> list[ServerAddress]:
    """Raises ValueError."""
    servers = []
    for server in urlsplit(url).netloc.rpartition("@")[2].split(","):
        host, _, port = server.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{server}: give host:port, several with a comma in between")
        servers.append((host.strip("[]"), int(port)))
    return servers


def _sentinels(url: str) -> tuple[Sentinel, str]:
    """The Sentinels, and the service that they are asked for. Raises ValueError."""
    service = urlsplit(url).path.strip("/")
    if not service:
        raise ValueError("name the service: redis+sentinel://host:26379,host:26379/name")
    # Without a limit redis-py waits for seconds for a Sentinel that does not answer, and retries it.
    limits = {"socket_timeout": CLIENT.gate_sentinel, "socket_connect_timeout": CLIENT.gate_sentinel}
    options: Any = {**limits, "retry": Retry(NoBackoff(), 0)}
    return Sentinel(_servers(url), sentinel_kwargs=options), service  # type: ignore[no-untyped-call]  # redis-py's
