"""Finds the likely cause of a broken promise by looking for signs of proxies and caches in the response."""

from collections import Counter
from collections.abc import Callable

from petstore.verify.findings import Finding
from petstore.verify.responses import Response, shown

CACHE_HEADERS = ("x-cache", "x-cache-status", "cf-cache-status", "x-proxy-cache")


def _age(response: Response) -> str:
    return f"a cache answered: `Age: {shown(response.value('age'))}`" if response.value("age") else ""


def _cache_hit(response: Response) -> str:
    hits = (
        f"`{name}: {shown(response.value(name))}`" for name in CACHE_HEADERS if "hit" in response.value(name).lower()
    )
    found = next(hits, "")
    return f"a cache answered: {found}" if found else ""


def _html(response: Response) -> str:
    if "html" not in response.value("content-type") and not response.body.lstrip().startswith(b"<"):
        return ""
    server = response.value("server")
    return "a proxy answered with HTML" + (f": `Server: {shown(server)}`" if server else "")


def _compressed(response: Response) -> str:
    encoding = response.value("content-encoding")
    return f"a proxy compresses responses: `Content-Encoding: {shown(encoding)}`" if encoding else ""


def _weakened(response: Response) -> str:
    tag = response.value("etag")
    return f"a proxy weakened the tag: `ETag: {shown(tag)}`" if tag.startswith("W/") else ""


def _doubled(response: Response) -> str:
    names = [name for name, _ in response.headers if name not in ("link", "vary", "set-cookie")]
    twice = next((name for name, times in Counter(names).items() if times > 1), "")
    return f"a proxy added a second `{twice}`" if twice else ""


def _via(response: Response) -> str:
    return f"a proxy is involved: `Via: {shown(response.value('via'))}`" if response.value("via") else ""


def _server(response: Response) -> str:
    server = response.value("server")
    return f"a proxy, or a server other than Petstore: `Server: {shown(server)}`" if server else ""


# Functions in CERTAIN override the cause that the check suspects. Functions in POSSIBLE are called only if the check
# does not suspect a cause.
CERTAIN: list[Callable[[Response], str]] = [_age, _cache_hit, _html]
POSSIBLE: list[Callable[[Response], str]] = [_compressed, _weakened, _doubled, _via, _server]


def likely_cause(finding: Finding) -> str:
    """Returns the likely cause in a few words, or an empty string if no cause is found."""
    response = finding.response
    if response is None:
        return finding.cause
    for clue in CERTAIN:
        if cause := clue(response):
            return cause
    if finding.cause:
        return finding.cause
    return next((cause for clue in POSSIBLE if (cause := clue(response))), "")
