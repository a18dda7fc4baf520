"""Records the addresses of the service and the console, so that commands in another terminal can print them.

The service and the console each write their address to a file in the data directory on startup. The file is kept on
shutdown, because the next start will probably use the same address.
"""

import contextlib
import ipaddress
import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec

from petstore import data_dir
from petstore.files import replacing
from petstore.keys import Environment
from petstore.server.sockets import Address
from petstore.settings import BASES, DEFAULTS, Settings

CONSOLE_PORT = 8081


class ServiceAddress(msgspec.Struct, frozen=True):
    """The service's address as seen from this machine, and a curl command that can connect to it."""

    origin: str = f"http://{DEFAULTS.host}:{DEFAULTS.port}"
    curl: tuple[str, ...] = ("curl", "-i")

    def curl_line(self, environment: Environment, secret: str) -> str:
        """Returns a curl command that lists animals."""
        return shlex.join(
            [*self.curl, f"{self.origin}{BASES[environment]}/pets", "-H", f"Authorization: Bearer {secret}"]
        )


def service_address(settings: Settings, listening: Sequence[Address]) -> ServiceAddress:
    """Returns the first address that has a port, or the first Unix socket if no address has a port."""
    host, port = next((each for each in listening if each[1] is not None), listening[0])
    if port is None:  # curl connects to the Unix socket, so any host name works
        return ServiceAddress("http://localhost", ("curl", "-i", "--unix-socket", host.removeprefix("unix:")))
    # Use -k, because the certificate was issued for the name that clients use, not for this address.
    return ServiceAddress(origin(settings, _reachable(host), port), ("curl", "-ik" if settings.tls_cert else "-i"))


def origin(settings: Settings, host: str, port: int | None) -> str:
    if port is None:
        return host
    scheme = "https" if settings.tls_cert else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def sign_in_url(settings: Settings) -> str:
    return f"{settings.public_base or origin(settings, _reachable(settings.host), settings.port)}/sign-in"


def record_service(data: Path, address: ServiceAddress) -> None:
    _write(data / data_dir.SERVICE_ADDRESS, msgspec.json.encode(address).decode())


def record_console(data: Path, url: str) -> None:
    _write(data / data_dir.CONSOLE_ADDRESS, url)


def recorded_service(data: Path) -> ServiceAddress:
    """Returns the address of the most recently started service, or the default address if none was recorded."""
    try:
        return msgspec.json.decode((data / data_dir.SERVICE_ADDRESS).read_text(), type=ServiceAddress)
    except (OSError, ValueError):  # the service has never been started, or runs on another machine
        return ServiceAddress()


def recorded_console(data: Path) -> str:
    """Returns the sign-in URL of the most recently started console, or the default URL if none was recorded."""
    try:
        return (data / data_dir.CONSOLE_ADDRESS).read_text()
    except (OSError, ValueError):
        return sign_in_url(Settings(port=CONSOLE_PORT))


def _write(file: Path, text: str) -> None:
    """Writes an address to a file. Ignores errors such as a full disk, because the address is not essential."""
    with contextlib.suppress(OSError), replacing(file) as target:
        target.write(text)


def _reachable(host: str) -> str:
    """Returns a host at which this machine can reach the service, such as 127.0.0.1 if `host` is 0.0.0.0."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "localhost"
