"""A response as received, and functions that show text from a server."""

import json
import re
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import urljoin

from petstore.wording import printable

SHOWN_MAX = 160  # maximum length of a string from the server in a message

_LINKS = re.compile(r'<([^<>]*)>\s*;\s*rel="?([^",;]+)"?').findall

Headers = tuple[tuple[str, str], ...]


class Response(NamedTuple):
    """A response as received. Header names are in lower case. Repeated headers are not joined."""

    request: str  # the method and path of the request, for messages
    base_url: str  # the address that the request was sent to
    received: float  # Unix time on this machine's clock
    seconds: float  # from the first byte of the request to the last byte of the response
    status: int
    headers: Headers
    body: bytes

    def values(self, name: str) -> list[str]:
        return [value for found, value in self.headers if found == name.lower()]

    def value(self, name: str) -> str:
        """Returns the value of a header, or an empty string if it is missing or occurs more than once."""
        found = self.values(name)
        return found[0] if len(found) == 1 else ""

    def number(self, name: str) -> int | None:
        text = self.value(name)
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None

    @property
    def date(self) -> float:
        """Returns the time in the `Date` header or, if the header is missing or invalid, the time on this machine."""
        try:
            return parsedate_to_datetime(self.value("date")).timestamp()
        except (ValueError, OverflowError):
            return self.received

    @property
    def json(self) -> Any:
        """Returns the JSON value in the body, or None if the body is not valid JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def error(self) -> dict[str, Any]:
        """Returns the object in the body, such as an `Error`, or an empty dictionary if the body is not an object."""
        value = self.json
        return value if isinstance(value, dict) else {}

    @property
    def pet(self) -> dict[str, Any]:
        """Returns the animal in the body, or an empty dictionary if the body is not an object with an id."""
        value = self.json
        return value if _has_id(value) else {}

    @property
    def pets(self) -> list[dict[str, Any]]:
        """Returns the animals in the body, or an empty list if the body is not an array of objects with ids."""
        value = self.json
        return value if isinstance(value, list) and all(map(_has_id, value)) else []

    @property
    def summary(self) -> str:
        """Returns a short description of the response, without control characters."""
        parts = str(self.status), shown(self.value("content-type")), shown(self.body.decode("latin-1"))
        return " ".join(filter(None, parts))


def link_target(response: Response, relation: str) -> str:
    """Returns the absolute URL of the link with this relation, or an empty string if there is none."""
    links = _LINKS(", ".join(response.values("link")))
    try:
        return next((urljoin(f"{response.base_url}/", url) for url, found in links if found == relation), "")
    except ValueError:  # not a URL
        return ""


def _has_id(value: Any) -> bool:
    return isinstance(value, dict) and type(value.get("id")) is int


def shown(text: str) -> str:
    """Decodes text that was read from the server as Latin-1, then shortens and escapes it."""
    start = text[: 4 * SHOWN_MAX]  # a character in UTF-8 has up to four bytes
    return shortened(start.encode("latin-1", "replace").decode("utf-8", "backslashreplace"))


def shortened(text: str, most: int = SHOWN_MAX) -> str:
    """Shortens text from the server, and escapes control characters."""
    return printable(text[:most]) + "…" * (len(text) > most)
