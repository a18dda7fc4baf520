"""CORS headers. Cross-origin requests are disabled unless the operator allows origins."""

import re

from petstore.web.replies import Lines, line
from petstore.web.requests import Request

EXPOSED = (
    "Link, ETag, Location, Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset,"
    " X-Request-Id, Deprecation, Sunset, Preference-Applied, Idempotent-Replayed"
)
ACCEPTED = "Authorization, Content-Type, Idempotency-Key, If-None-Match, Prefer"


def as_browsers_send(origin: str) -> str:
    """Returns an origin in lower case and without the default port."""
    return re.sub("^(http://.+):80$|^(https://.+):443$", r"\1\2", origin.lower())


class Cors:
    def __init__(self, origins: tuple[str, ...]) -> None:
        self._origins = frozenset(map(as_browsers_send, origins))

    def is_preflight(self, request: Request) -> bool:
        """Whether this is a preflight request that a browser sends for a page from an allowed origin."""
        asked = request.method == "OPTIONS" and "access-control-request-method" in request.fields
        return asked and self._allows(request.fields.get("origin"))

    def preflight(self, request: Request, methods: str) -> Lines:
        if not self.is_preflight(request):
            return ""
        return (
            line("access-control-allow-methods", methods)
            + line("access-control-allow-headers", ACCEPTED)
            + line("access-control-max-age", "600")
        )

    def expose(self, request: Request) -> Lines:
        """Returns the CORS headers for a response under a base address."""
        origin = request.fields.get("origin")
        if origin is None or not self._allows(origin):
            return line("vary", "Origin")
        return (
            line("vary", "Origin")
            + line("access-control-allow-origin", origin)
            + line("access-control-expose-headers", EXPOSED)
        )

    def _allows(self, origin: str | None) -> bool:
        return origin in self._origins or (origin is not None and "*" in self._origins)
