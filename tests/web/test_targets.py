"""Request targets: the same target gets the same response on our server, on uvicorn and on any other ASGI server."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.in_process import NOW, Running, use_app
from harness.servers import Key, Server
from petstore.paths import ESCAPES_MAX
from petstore.pets import NewPet
from petstore.web.asgi import TARGET_MAX, respond
from tests.web.answers import ask, created

# The expected status of each target. PET is replaced with the id of an animal.
TARGETS = {
    "/v1/pets": 200,
    "/v1/%70ets": 200,
    "/%761/pets": 200,
    "/v1/pets/PET": 200,
    "/v1/pets?limit=%31": 200,
    "/v1/pets?limit=%2F": 400,
    "/v1/pets?limit=1%2F": 400,
    "/v1/pets?a?b": 200,
    "/v1/pets%2FPET": 404,
    "/v1/pets%2fPET": 404,
    "/v1%2Fpets": 404,
    "/v1/pets%3Flimit=1": 404,
    "/v1/pets/PET%2F": 404,
    "/v1/pets/%2FPET": 404,
    "/v1/pets/%25PET": 404,
    "/v1/%2570ets": 404,
    "/v1/pets/PET%20": 404,
    "/v1/pets/PET%00": 404,
    "/v1/pets/%FF": 404,
    "/v1/pets/": 404,
    "/v1//pets": 404,
    "//v1/pets": 404,
    "/v1/./pets": 404,
    "/v1/%2E/pets": 404,
    "/v1/pets/%2e%2e": 404,
    "/v1/pets/..": 404,
    "/v1/pets/../pets": 404,
    "/v1/PETS": 404,
    "/v1/p%": 404,
    "/v1/%zzets": 404,
    "/v1/" + "%70ets" * (ESCAPES_MAX + 1): 404,
    "/v1/pets?" + "a" * TARGET_MAX: 414,
    "/v1/" + "%41" * (TARGET_MAX // 3): 414,
}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target[:30])
def test_a_target_gets_its_status_on_every_server(server: Server, key: Key, client: httpx.Client, target: str) -> None:
    sent = target.replace("PET", str(created(server, client, key)["id"]) if "PET" in target else "")
    assert ask(server, f"GET {sent}", key=key).status == TARGETS[target]


async def status_of(running: Running, path: str, query: str = "", **more: Any) -> int:
    """Returns the response status of an ASGI request. `path` is decoded, as ASGI servers pass it."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {running.secret}".encode())]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": headers, **more}
    await respond(running.app, scope, receive, send)
    status: int = sent[0]["status"]
    return status


def test_the_raw_path_decides(tmp_path: Path) -> None:
    async def work(running: Running) -> None:
        await running.store.pets.add(NewPet("Rex", 1), NOW)
        assert await status_of(running, "/v1/pets/1", raw_path=b"/v1/pets%2F1") == 404
        assert await status_of(running, "/v1/pets/1", raw_path=b"/v1/pets/%31") == 200
        # Some servers include the query in `raw_path`.
        assert await status_of(running, "/v1/pets", "limit=0", raw_path=b"/v1/pets?limit=0") == 400

    use_app(tmp_path, work)


@pytest.mark.parametrize("more", [{}, {"raw_path": None}], ids=["absent", "None"])
def test_without_a_raw_path_the_decoded_path_is_used_as_it_is(tmp_path: Path, more: dict[str, Any]) -> None:
    async def work(running: Running) -> None:
        await running.store.pets.add(NewPet("Rex", 1), NOW)
        for path, status in {"/v1/pets": 200, "/v1/pets/1": 200, "/v1/%70ets": 404, "/v1/pets/%31": 404}.items():
            assert await status_of(running, path, **more) == status, path
        assert await status_of(running, "/v1/" + "é" * TARGET_MAX, **more) == 414

    use_app(tmp_path, work)


@pytest.mark.parametrize("raw", [True, False], ids=["raw path", "no raw path"])
@pytest.mark.parametrize(
    ("root", "path", "status"),
    [
        ("/shop", "/shop/v1/pets", 200), ("/shop/", "/shop/v1/pets", 200), ("/shöp", "/shöp/v1/pets", 200),
        ("/shop", "/v1/pets", 200), ("/shop", "/shopv1/pets", 404), ("/shop", "/shop/shop/v1/pets", 404),
        ("", "/shop/v1/pets", 404), ("", "/v1/pets", 200), ("/", "/v1/pets", 200),
    ],
)  # fmt: skip
def test_the_path_is_below_the_root_path(tmp_path: Path, root: str, path: str, status: int, *, raw: bool) -> None:
    async def work(running: Running) -> None:
        more: dict[str, Any] = {"raw_path": path.replace("ö", "%C3%B6").encode()} if raw else {}
        assert await status_of(running, path, root_path=root, **more) == status

    use_app(tmp_path, work)
