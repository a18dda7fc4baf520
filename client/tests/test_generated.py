"""Clients generated from the OpenAPI document list, create and get animals on a running service."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from harness.pets import pet
from harness.servers import Server, serving

pytestmark = pytest.mark.thorough

HERE = Path(__file__).parent
TYPESCRIPT = HERE / "typescript"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with four available animals and a sold one."""
    with serving(tmp_path_factory.mktemp("generated") / "data") as server:
        server.fill(4, status="available")
        server.fill(1, status="sold")
        yield server


@pytest.fixture
def document(shop: Server, tmp_path: Path) -> Path:
    saved = tmp_path / "openapi.json"
    saved.write_bytes(httpx2.get(shop.origin + "/openapi.json", verify=False).raise_for_status().content)
    return saved


def output(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_generated_python_client_works(shop: Server, document: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("post_hooks: []\n")  # do not format the generated code
    output(
        sys.executable, "-m", "openapi_python_client", "generate", "--path", document,
        "--config", tmp_path / "config.yaml", "--fail-on-warning",
        cwd=tmp_path,
    )  # fmt: skip
    # The generated project and package have other names than our client, so that both can be installed.
    project = tmp_path / "petstore-api-client"
    assert [each.parent.name for each in tmp_path.glob("*/*/__init__.py")] == ["petstore_api_client"]
    shutil.copy(HERE / "generated_pets.py", project)
    result = json.loads(
        output(sys.executable, "-W", "error", "generated_pets.py", shop.url(""), shop.key().secret, cwd=project)
    )
    rex = result["created"]
    assert rex == pet(id=rex["id"], name="Rex", categoryId=7)
    assert result["got"] == rex
    assert result["listed"][:4] == [1, 2, 3, 4]
    assert rex["id"] in result["listed"]
    assert 5 not in result["listed"], "this animal is sold"
    assert result["code"] == "pet_not_found"


@pytest.fixture
def node_modules() -> Path:
    if shutil.which("node") and (TYPESCRIPT / "node_modules/openapi-typescript").exists():
        return TYPESCRIPT / "node_modules"
    missing = "node, or client/tests/typescript/node_modules (npm ci), is missing"
    if os.environ.get("PETSTORE_TEST_REQUIRE_ALL"):
        pytest.fail(f"{missing}, and PETSTORE_TEST_REQUIRE_ALL is set")
    pytest.skip(f"{missing}: the TypeScript client was not tested")


def test_a_generated_typescript_client_compiles_strictly_and_works(
    shop: Server, document: Path, node_modules: Path, tmp_path: Path
) -> None:
    for name in ("pets.ts", "tsconfig.json", "package.json"):
        shutil.copy(TYPESCRIPT / name, tmp_path)
    (tmp_path / "node_modules").symlink_to(node_modules)
    output("node", "node_modules/openapi-typescript/bin/cli.js", document, "--output", "schema.d.ts", cwd=tmp_path)
    output("node", "node_modules/typescript/bin/tsc", cwd=tmp_path)
    result = json.loads(output("node", "built/pets.js", shop.url(""), shop.key().secret, cwd=tmp_path))
    rex = result["created"]
    assert rex == pet(id=rex["id"], name="Rex", categoryId=7)
    assert result["got"] == rex
    assert result["listed"][:4] == [1, 2, 3, 4]
    assert rex["id"] in result["listed"]
    assert 5 not in result["listed"], "this animal is sold"
    assert result["pages"] >= 3
    assert result["code"] == "pet_not_found"
    assert int(result["remaining"]) > 0
