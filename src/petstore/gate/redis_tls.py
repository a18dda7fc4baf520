"""TLS for connections to Redis. All connections of a link share an SSL context, created from the URL's options.

redis-py would create a context for each connection, which blocks the event loop for 40 ms, and read the files only
then. It would also trust the system's CAs in addition to the given one, let OpenSSL prompt for the password of a key on
the terminal, and not say which file is missing.
"""

import os
import ssl
from collections.abc import Mapping
from typing import Any

from redis.asyncio.connection import SSLConnection
from redis.exceptions import RedisError

TLS_OPTIONS = ("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_certfile", "ssl_keyfile", "ssl_password",
               "ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version", "ssl_ciphers")  # fmt: skip
PATHS = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")


class TlsConnection(SSLConnection):
    """A redis-py connection that uses an existing SSL context."""

    def __init__(self, *, tls: ssl.SSLContext, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context.context = tls


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Creates an SSL context from the `ssl_*` options in a URL. Raises ValueError if they are not valid."""
    for name in PATHS:
        if name in options and not os.access(options[name], os.R_OK):
            raise ValueError(f"{name}: {options[name]} is not readable")
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise ValueError("ssl_keyfile cannot be used without ssl_certfile")
    try:
        checked = SSLConnection(**options).ssl_context
        context = ssl.create_default_context(cafile=checked.ca_certs, capath=checked.ca_path, cadata=checked.ca_data)
        context.check_hostname = checked.check_hostname
        context.verify_mode = checked.cert_reqs
        if checked.certfile:
            context.load_cert_chain(checked.certfile, checked.keyfile, checked.password or "")
        if checked.min_version is not None:
            context.minimum_version = checked.min_version
        if checked.ciphers is not None:
            context.set_ciphers(checked.ciphers)
    except (OSError, ValueError, RedisError) as error:
        raise ValueError(f"the ssl_* options are not valid: {error}") from error
    return context
