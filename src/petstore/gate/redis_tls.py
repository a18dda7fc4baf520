"""TLS for connections to Redis. All connections of a link share an SSL context, created from the URL's options."""

import os
import ssl
from collections.abc import Mapping
from typing import Any

from redis.asyncio.connection import SSLConnection

TLS_OPTIONS = ("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_certfile", "ssl_keyfile", "ssl_password",
               "ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version", "ssl_ciphers")  # fmt: skip
PATHS = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
VERIFY_MODES = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class TlsConnection(SSLConnection):
    """A redis-py connection that uses an existing SSL context.

    By default, redis-py creates a context for each connection, which blocks the event loop for 40 ms.
    """

    def __init__(self, *, tls: ssl.SSLContext, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context.context = tls


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Creates an SSL context from the `ssl_*` options in a URL. Raises ValueError if they are not valid.

    If the options specify a CA, only that CA is trusted. By default, redis-py would also trust the system's CAs.
    """
    for name in PATHS:
        if name in options and not os.access(options[name], os.R_OK):
            raise ValueError(f"{name}: {options[name]} is not readable")
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise ValueError("ssl_keyfile cannot be used without ssl_certfile")
    verify_mode = options.get("ssl_cert_reqs", "required")
    if verify_mode not in VERIFY_MODES:
        raise ValueError(f"ssl_cert_reqs: {verify_mode} is not one of {', '.join(VERIFY_MODES)}")
    try:
        context = ssl.create_default_context(
            cafile=options.get("ssl_ca_certs"), capath=options.get("ssl_ca_path"), cadata=options.get("ssl_ca_data")
        )
        context.check_hostname = options.get("ssl_check_hostname", True) and verify_mode != "none"
        context.verify_mode = VERIFY_MODES[verify_mode]
        if "ssl_certfile" in options:
            # If the password were None, OpenSSL would prompt for it on the terminal.
            password = options.get("ssl_password", "")
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"), password)
        if "ssl_min_version" in options:
            context.minimum_version = ssl.TLSVersion(options["ssl_min_version"])
        if "ssl_ciphers" in options:
            context.set_ciphers(options["ssl_ciphers"])
    except OSError as error:
        raise ValueError(f"the ssl_* options are not valid: {error}") from error
    return context
