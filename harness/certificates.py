"""Creates self-signed certificates for loopback."""

import subprocess
from pathlib import Path
from typing import NamedTuple

from harness.backends import program


class Certificate(NamedTuple):
    chain: Path
    key: Path


def self_signed(
    directory: Path, days: int = 2, names: str = "IP:127.0.0.1,DNS:localhost", *, rsa: bool = False
) -> Certificate:
    """Creates a certificate, and a private key that only its owner can read. `names` is in OpenSSL's format."""
    made = Certificate(directory / "cert.pem", directory / "key.pem")
    new_key = ["rsa:2048"] if rsa else ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run(
        [program("openssl"), "req", "-x509", "-newkey", *new_key, "-nodes", "-days", str(days),
         "-subj", "/CN=localhost", "-addext", f"subjectAltName={names}",
         "-keyout", str(made.key), "-out", str(made.chain)],
        check=True, capture_output=True,
    )  # fmt: skip
    return made
