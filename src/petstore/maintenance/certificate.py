"""Determines when a TLS certificate expires."""

import contextlib
import ssl
from pathlib import Path

from petstore.errors import OperatorError

NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python's ssl module does not define


def certificate_expiry(cert: Path, key: Path) -> float:
    """Returns a certificate's expiry time in Unix seconds. Raises OperatorError if the certificate is not valid now."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(cert, key)
    except OSError as error:
        raise OperatorError(f"{cert} and {key} are not usable: {error}") from error
    return served_expiry(server, cert)


def served_expiry(server: ssl.SSLContext, cert: Path, *, expired_too: bool = False) -> float:
    """Returns the expiry time of the certificate that a server has loaded, in Unix seconds.

    Raises OperatorError if the file `cert` contains a different certificate, or if the certificate has expired and
    `expired_too` is false. Performs a TLS handshake in memory, so that OpenSSL decodes the certificate and no other
    library is needed.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # trust this certificate even if its issuer is unknown
    if expired_too:
        client.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
    try:
        client.load_verify_locations(cert)
        return _not_after(server, client)
    except ssl.SSLCertVerificationError as error:
        raise OperatorError(f"{cert}: {error.verify_message}") from error
    except OSError as error:
        raise OperatorError(f"{cert} is not usable: {error}") from error


def _not_after(server: ssl.SSLContext, client: ssl.SSLContext) -> float:
    """Returns the expiry time of the server's certificate, in Unix seconds. Raises SSLError if the handshake fails."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(to_client, to_server)
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    while True:
        try:
            client_end.do_handshake()
            break
        except ssl.SSLWantReadError:
            with contextlib.suppress(ssl.SSLWantReadError):
                server_end.do_handshake()
    return ssl.cert_time_to_seconds(str((client_end.getpeercert() or {})["notAfter"]))
