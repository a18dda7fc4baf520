"""CORS: web pages from allowed origins can call the API."""

from petstore.verify.findings import Findings, Skip, expect, expect_status
from petstore.verify.session import Session

EXPOSED = ["Link", "ETag", "Location", "Retry-After", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
           "X-Request-Id", "Deprecation", "Sunset", "Preference-Applied", "Idempotent-Replayed"]  # fmt: skip


def _origin(session: Session) -> str:
    address = session.addresses[0]
    return f"Origin: {'https' if address.secure else 'http'}://{address.authority}"


def exposed_headers(session: Session) -> Findings:
    """For pages from an allowed origin, preflight requests succeed, and the API's response headers are readable."""
    response = session.send("GET /pets?limit=1", _origin(session))
    if not response.values("access-control-allow-origin"):
        origin = _origin(session).partition(" ")[2]
        raise Skip(f"CORS is disabled for {origin}; to allow an origin, use `petstore serve --cors-origin ORIGIN`")
    found = {name.strip().lower() for name in response.value("access-control-expose-headers").split(",")}
    missing = [name for name in EXPOSED if name.lower() not in found]
    yield from expect(not missing, f"`Access-Control-Expose-Headers` with {', '.join(missing)}", response)
    preflight = session.send("OPTIONS /pets", _origin(session), "Access-Control-Request-Method: POST", key="")
    yield from expect_status(preflight, 204)
    methods = preflight.value("access-control-allow-methods")
    yield from expect("POST" in methods, "`Access-Control-Allow-Methods` with POST", preflight)
