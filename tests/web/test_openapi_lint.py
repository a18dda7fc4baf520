"""Two linters, each with all its recommended rules, must not report a single warning about the OpenAPI document."""

import copy
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.backends import Missing
from petstore.web.documents import Json, as_json, openapi_document
from tools.breaking_changes import AFTER_EVERY_SUNSET

pytestmark = pytest.mark.static

LINTERS = Path(__file__).parents[1] / "openapi-lint"
DOCUMENTS = {
    "relative-addresses": openapi_document("/v1", "/staging/v1", 0),
    "two-hosts": openapi_document("https://api.petstore.test/v1", "https://staging.petstore.test/v1", 0),
    "after-the-sunset": openapi_document("/v1", "/staging/v1", AFTER_EVERY_SUNSET),
}


def run(*command: str | Path) -> str:
    """Returns what a linter prints. Telemetry is disabled."""
    quiet = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
    done = subprocess.run(
        ["node", *map(str, command)],
        env=os.environ | quiet, cwd=LINTERS, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.strip(), done.stderr
    return done.stdout


SPECTRAL = LINTERS / "node_modules/@stoplight/spectral-cli/dist/index.js"
REDOCLY = LINTERS / "node_modules/@redocly/cli/bin/cli.js"


@pytest.fixture(scope="module", autouse=True)
def linters() -> None:
    if not (shutil.which("node") and SPECTRAL.exists() and REDOCLY.exists()):
        raise Missing("node or tests/openapi-lint/node_modules (npm ci) is not installed: the document was not linted")


def spectral(document: Json, directory: Path) -> Any:
    return json.loads(
        run(SPECTRAL, "lint", saved(document, directory), "--ruleset", "spectral.json", "--format", "json", "--quiet")
    )


def redocly(document: Json, directory: Path) -> Any:
    return json.loads(run(REDOCLY, "lint", saved(document, directory), "--config", "redocly.yaml", "--format", "json"))


def saved(document: Json, directory: Path) -> Path:
    file = directory / "openapi.json"
    file.write_bytes(as_json(document))
    return file


@pytest.mark.parametrize("name", DOCUMENTS)
def test_spectral_has_no_warning(name: str, tmp_path: Path) -> None:
    assert spectral(DOCUMENTS[name], tmp_path) == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_redocly_has_no_warning(name: str, tmp_path: Path) -> None:
    found = redocly(DOCUMENTS[name], tmp_path)
    assert found["totals"] == {"errors": 0, "warnings": 0, "ignored": 0}, found["problems"]


def test_the_linters_find_what_is_wrong(tmp_path: Path) -> None:
    """Guards against linters that check nothing."""
    spoiled = copy.deepcopy(DOCUMENTS["relative-addresses"])
    del spoiled["info"]["contact"]
    spoiled["components"]["schemas"]["Unused"] = {"type": "string"}
    assert "info-contact" in {each["code"] for each in spectral(spoiled, tmp_path)}
    assert "no-unused-components" in {each["ruleId"] for each in redocly(spoiled, tmp_path)["problems"]}
