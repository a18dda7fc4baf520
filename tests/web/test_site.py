"""The pages outside the API: the landing page, the reference page and its assets, probes, and caching."""

import asyncio
import gzip
import json
import re
from collections.abc import Callable

import httpx
import pytest

from harness.in_process import request
from harness.servers import Server
from petstore import __version__
from petstore.web.documents import OWN_ASSETS, SWAGGER_UI, Documents, openapi_document
from petstore.web.static_files import quality

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


def assets_of(page: str) -> list[str]:
    return re.findall(r'(?:src|href)="(docs/assets/[^"]+)"', page)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (BROWSER, "text/html; charset=utf-8"),
        ("text/html", "text/html; charset=utf-8"),
        ("text/*;q=0.5", "text/html; charset=utf-8"),
        ("text/html, application/json", "text/html; charset=utf-8"),
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("text/html;q=0.5, application/json", "application/json"),
        ("text/html;q=0", "application/json"),
        ("text/html;q=nonsense", "application/json"),
        ("", "application/json"),
    ],
)
def test_the_landing_page_is_html_for_people_and_json_for_programs(
    server: Server, client: httpx.Client, accept: str, kind: str
) -> None:
    answer = client.get(server.origin + "/", headers={"Accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
    assert answer.headers["vary"] == "Accept, Accept-Encoding"


def test_both_forms_of_the_landing_page_have_the_same_links(server: Server, client: httpx.Client) -> None:
    links = client.get(server.origin + "/").json()
    assert links == {
        "name": "Petstore",
        "version": __version__,
        "environments": {"live": "/v1", "staging": "/staging/v1"},
        "reference": "/docs",
        "document": "/openapi.json",
        "guide": "/docs#guide",
    }
    page = client.get(server.origin + "/", headers={"Accept": "text/html"}).text
    for link in ("docs", "openapi.json", "docs#guide"):
        assert f'href="{link}"' in page
    for text in ("Petstore", __version__, ">/v1<", ">/staging/v1<"):
        assert text in page
    for path in ("reference", "document", "guide"):
        assert client.get(server.origin + links[path]).status_code == 200


def test_the_landing_page_names_the_public_addresses(start: Callable[..., Server], client: httpx.Client) -> None:
    own = start("--public-url", "https://api.petstore.test/shop")
    links = client.get(own.origin + "/").json()
    assert links["environments"]["live"] == "https://api.petstore.test/shop/v1"
    assert links["reference"] == "https://api.petstore.test/shop/docs"
    page = client.get(own.origin + "/", headers={"Accept": "text/html"}).text
    assert "https://api.petstore.test/shop/v1" in page


def test_the_two_base_addresses_are_independent() -> None:
    servers = openapi_document("https://api.petstore.test/v1", "https://staging.petstore.test/v1", 0)["servers"]
    assert [each["url"] for each in servers] == ["https://api.petstore.test/v1", "https://staging.petstore.test/v1"]


def test_what_an_operator_set_is_no_markup() -> None:
    documents = Documents('https://x.test/"><script>alert(1)</script>/v1', "/staging/v1")
    asked = request("/", accept="text/html")
    file = documents.find(asked, 0)
    assert file is not None
    page = asyncio.run(file.answer(asked)).body.decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;/v1" in page
    assert "<script>alert" not in page


def test_livez_is_healthz(server: Server, client: httpx.Client) -> None:
    alive = [client.get(server.origin + path) for path in ("/livez", "/healthz")]
    assert [(each.status_code, each.json()) for each in alive] == [(200, {"status": "alive"})] * 2


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_has_nothing_inline_and_names_no_other_host(server: Server, client: httpx.Client, path: str) -> None:
    answer = client.get(server.origin + path, headers={"Accept": BROWSER})
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"https?://|//[a-z]|<style|style=|<script>|\son[a-z]+=", answer.text)


def test_assets_are_for_ever_and_their_address_tells_the_version(server: Server, client: httpx.Client) -> None:
    named = set()
    for path in ("/", "/docs"):
        named |= set(assets_of(client.get(server.origin + path, headers={"Accept": BROWSER}).text))
    (directory,) = {asset.rpartition("/")[0] for asset in named}
    assert re.fullmatch("docs/assets/[0-9a-f]{16}", directory)
    for name in (*OWN_ASSETS, SWAGGER_UI):
        answer = client.get(f"{server.origin}/{directory}/{name}")
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert re.match("text/(css|javascript)|image/svg", answer.headers["content-type"])
    assert {asset.rpartition("/")[2] for asset in named} <= {*OWN_ASSETS, SWAGGER_UI}


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/openapi.yaml", "asset"])
def test_documents_are_compressed_for_those_who_take_it(server: Server, client: httpx.Client, path: str) -> None:
    if path == "asset":
        path = next(f"/{each}" for each in assets_of(client.get(server.origin + "/docs").text) if SWAGGER_UI in each)
    plain = client.get(server.origin + path, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    tags = {plain.headers["etag"]}
    for accepted in ("gzip", "GZIP", "br, gzip;q=0.2", "*"):
        with client.stream("GET", server.origin + path, headers={"Accept-Encoding": accepted}) as answer:
            sent = b"".join(answer.iter_raw())
        assert answer.headers["content-encoding"] == "gzip"
        assert "Accept-Encoding" in answer.headers["vary"]
        assert gzip.decompress(sent) == plain.content
        assert int(answer.headers["content-length"]) == len(sent) < len(plain.content)
        tags.add(answer.headers["etag"])
    for accepted in ("gzip;q=0", "br", "", "gzip;q=0, *"):
        answer = client.get(server.origin + path, headers={"Accept-Encoding": accepted})
        assert "content-encoding" not in answer.headers
    assert len(tags) == 2  # one for each encoding


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/openapi.yaml"])
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_client_that_has_the_document_gets_304(
    server: Server, client: httpx.Client, path: str, encoding: str
) -> None:
    headers = {"Accept-Encoding": encoding}
    first = client.get(server.origin + path, headers=headers)
    assert first.headers["cache-control"] == "no-cache"
    again = client.get(server.origin + path, headers=headers | {"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for name in ("etag", "vary", "cache-control"):
        assert again.headers[name] == first.headers[name]


def test_head_tells_the_length_of_what_get_sends(server: Server, client: httpx.Client) -> None:
    for path in ("/", "/docs", "/openapi.json"):
        for encoding in ("identity", "gzip"):
            headers = {"Accept-Encoding": encoding}
            head = client.head(server.origin + path, headers=headers)
            with client.stream("GET", server.origin + path, headers=headers) as answer:
                assert len(b"".join(answer.iter_raw())) == int(head.headers["content-length"])


@pytest.mark.parametrize(
    ("field", "names", "expected"),
    [
        ("gzip", ("gzip", "*"), 1.0),
        ("gzip;q=0, *", ("gzip", "*"), 0.0),
        ("br;q=1.0 , gzip ; q=0.5", ("gzip", "*"), 0.5),
        ("*;q=0.1", ("gzip", "*"), 0.1),
        ("text/html;level=1;q=0.3", ("text/html",), 0.3),
        ("", ("gzip", "*"), 0.0),
        (",;,q=1", ("gzip", "*"), 0.0),
        ("gzip;q=much", ("gzip",), 0.0),
    ],
)
def test_a_list_of_preferences_is_read(field: str, names: tuple[str, ...], expected: float) -> None:
    assert quality(field, *names) == expected


def test_json_of_the_landing_page_is_readable(server: Server, client: httpx.Client) -> None:
    text = client.get(server.origin + "/").text
    assert json.loads(text)
    assert "\n  " in text
