"""The address of the console in a browser."""

from typing import Any
from urllib.parse import urlsplit

from petstore.settings import Settings

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
DEFAULT_PORTS = {"http": 80, "https": 443}


class ConsoleOrigin:
    """The address of this console in a browser, and every `Host` and `Origin` that the console accepts."""

    def __init__(self, settings: Settings) -> None:
        scheme = "https" if settings.tls_cert else "http"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = settings.public_base or f"{scheme}://{host}:{settings.port}"
        self.secure = self.url.startswith("https://")
        # Browsers share cookies between ports, hence the port. They refuse a __Host- cookie that is not secure, or that
        # another host of the same domain sets.
        self.cookie_name = f"{'__Host-' if self.secure else ''}petstore_console_{settings.port}"
        self.cookie: dict[str, Any] = {
            "key": self.cookie_name, "path": "/", "httponly": True, "samesite": "strict", "secure": self.secure
        }  # fmt: skip
        local = [f"{scheme}://{name}:{settings.port}" for name in (*LOOPBACK, host)]
        self.allowed_origins = {_normalized(origin) for origin in (self.url, *local)}
        self.allowed_hosts = {urlsplit(origin).netloc for origin in self.allowed_origins}


def _normalized(origin: str) -> str:
    """As a browser writes an origin: lower case, no path, and no port where it is the default of the scheme."""
    parts = urlsplit(origin.lower())
    port = f":{parts.port}" if parts.port not in (None, DEFAULT_PORTS[parts.scheme]) else ""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{port}"
