"""TLS: the context of the server, from a certificate and its key."""

import os
import ssl
import stat
from pathlib import Path

from petstore.errors import OperatorError


def tls_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """None without a certificate. Raises OperatorError when the certificate or its key cannot be used."""
    if cert is None or key is None:
        return None
    for option, file in (("--tls-cert", cert), ("--tls-key", key)):
        if not os.access(file, os.R_OK):
            raise OperatorError(f"{option} {file}: the file does not exist or is not readable")
    if key.stat().st_mode & stat.S_IROTH:
        raise OperatorError(f"--tls-key {key}: every user of this machine can read the private key; chmod 600 {key}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # which no client needs, and which costs the processor
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise OperatorError(
            f"--tls-cert {cert} and --tls-key {key}: not PEM files, or the key does not match ({error})"
        ) from error
    return context
