"""Request targets: which are decoded, and to which paths."""

import httpx
import pytest

from harness.servers import Key, Server
from petstore.server.messages import ESCAPES_MAX, TARGET_MAX
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
def test_a_target_gets_its_status(server: Server, key: Key, client: httpx.Client, target: str) -> None:
    sent = target.replace("PET", str(created(server, client, key)["id"]) if "PET" in target else "")
    assert ask(server, f"GET {sent}", key=key).status == TARGETS[target]
