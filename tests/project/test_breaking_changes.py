"""The check for breaking changes in the OpenAPI document finds every kind of planted change."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.claims import Broken
from petstore import __version__
from petstore.web.documents import openapi_document
from tools import breaking_changes as tool
from tools import kept, release
from tools.breaking_changes import (
    AFTER_EVERY_SUNSET,
    ANNOUNCED,
    baseline,
    breaking_changes,
    kept_document,
    main,
    present_document,
)
from tools.kept import is_released
from tools.release import check_data_kept

Json = dict[str, Any]
Change = Callable[[Json], object]

BASELINE: Json = json.loads(baseline().read_bytes())
PRESENT = openapi_document("/v1", "/staging/v1", 0)


def list_pets(document: Json) -> Json:
    found: Json = document["paths"]["/pets"]["get"]
    return found


def create_pet(document: Json) -> Json:
    found: Json = document["paths"]["/pets"]["post"]
    return found


def schema(document: Json, name: str) -> Json:
    found: Json = document["components"]["schemas"][name]
    return found


def member(document: Json, of: str, name: str) -> Json:
    found: Json = schema(document, of)["properties"][name]
    return found


def limit(document: Json) -> Json:
    found: Json = list_pets(document)["parameters"][0]
    return found


def new_parameter(*, required: bool) -> Json:
    return {"name": "species", "in": "query", "required": required, "schema": {"type": "string"}}


def body_of(document: Json) -> Json:
    found: Json = create_pet(document)["requestBody"]
    return found


def created(document: Json) -> Json:
    found: Json = create_pet(document)["responses"]["201"]
    return found


BREAKING: dict[str, tuple[Change, str]] = {
    "operation removed": (lambda d: d["paths"]["/pets"].pop("post"), "POST /pets: the operation was removed"),
    "path removed": (lambda d: d["paths"].pop("/pets/{petId}"), "GET /pets/{petId}: the operation was removed"),
    "operation renamed": (lambda d: list_pets(d).update(operationId="pets"), "GET /pets: the operationId has changed"),
    "version changed": (lambda d: d["servers"][0].update(url="/v2"), "the version segments"),
    "authentication changed": (
        lambda d: d["components"]["securitySchemes"]["apiKey"].update(scheme="basic"),
        "GET /pets: the authentication has changed",
    ),
    "authentication of one operation": (lambda d: create_pet(d).update(security=[]), "POST /pets: the authentication"),
    "parameter removed": (lambda d: list_pets(d)["parameters"].pop(1), "query status: the parameter was removed"),
    "parameter required": (lambda d: limit(d).update(required=True), "query limit: the parameter has become required"),
    "new required parameter": (
        lambda d: list_pets(d)["parameters"].append(new_parameter(required=True)),
        "query species: a new parameter is required",
    ),
    "maximum lowered": (lambda d: limit(d)["schema"].update(maximum=50), "query limit: the maximum is stricter"),
    "minimum raised": (lambda d: limit(d)["schema"].update(minimum=2), "query limit: the minimum is stricter"),
    "default changed": (lambda d: limit(d)["schema"].update(default=50), "query limit: the default has changed"),
    "parameter of another type": (lambda d: limit(d)["schema"].update(type="string"), "query limit: the type was"),
    "pattern changed": (
        lambda d: create_pet(d)["parameters"][0]["schema"].update(pattern="^[a-z]+$"),
        "header Idempotency-Key: the pattern has changed",
    ),
    "body removed": (lambda d: create_pet(d).pop("requestBody"), "POST /pets: body: the body was removed"),
    "body of an operation that had none": (
        lambda d: list_pets(d).update(requestBody=body_of(d)),
        "GET /pets: body: a new body is required",
    ),
    "media type of the body removed": (
        lambda d: body_of(d)["content"].update({"text/json": body_of(d)["content"].pop("application/json")}),
        "POST /pets: body: application/json was removed",
    ),
    "member required": (lambda d: schema(d, "NewPet")["required"].append("status"), "body: status has become required"),
    "member of the body removed": (
        lambda d: schema(d, "NewPet")["properties"].pop("status"),
        "body: status was removed",
    ),
    "member of the body shorter": (lambda d: member(d, "NewPet", "name").update(maxLength=99), "name: the maxLength"),
    "unknown members refused": (
        lambda d: schema(d, "NewPet").update(additionalProperties=False),
        "body: unknown members are refused",
    ),
    "value no longer allowed": (lambda d: schema(d, "PetStatus")["enum"].pop(), "fewer values are allowed"),
    "new status of an animal": (lambda d: schema(d, "PetStatus")["enum"].append("lost"), "more values are possible"),
    "status of an animal opened": (lambda d: schema(d, "PetStatus").pop("enum"), "more values are possible"),
    "success removed": (lambda d: list_pets(d)["responses"].pop("200"), "GET /pets: 200: the status was removed"),
    "error removed": (lambda d: list_pets(d)["responses"].pop("429"), "GET /pets: 429: the status was removed"),
    "header removed": (
        lambda d: created(d)["headers"].pop("Location"),
        "POST /pets: 201: the header Location was removed",
    ),
    "header optional": (
        lambda d: d["components"]["headers"]["Retry-After"].update(required=False),
        "429: the header Retry-After has become optional",
    ),
    "header of another type": (
        lambda d: d["components"]["headers"]["X-RateLimit-Limit"]["schema"].update(type="string"),
        "200: header X-RateLimit-Limit: the type was integer",
    ),
    "response without a body": (lambda d: created(d).pop("content"), "POST /pets: 201: application/json was removed"),
    "member of a response removed": (
        lambda d: schema(d, "Error")["properties"].pop("status"),
        "400: status was removed",
    ),
    "member of a response optional": (
        lambda d: schema(d, "Pet")["required"].remove("status"),
        "status has become optional",
    ),
    "member of a response of another type": (lambda d: member(d, "Pet", "id").update(type="string"), "id: the type"),
    "longer pages": (lambda d: schema(d, "Pets").update(maxItems=500), "GET /pets: 200: the maxItems is looser"),
    "longer names": (lambda d: member(d, "Pet", "name").update(maxLength=999), "name: the maxLength is looser"),
    "error code removed": (lambda d: member(d, "Error", "code")["examples"].remove("gone"), "code: gone was removed"),
    "something that cannot be judged": (
        lambda d: member(d, "Pet", "name").update({"not": {"const": "Rex"}}),
        "name: not has changed, which this check cannot judge",
    ),
}  # fmt: skip

GROWTH: dict[str, Change] = {
    "new operation": lambda d: d["paths"].update({"/owners": d["paths"]["/pets"]}),
    "new method": lambda d: d["paths"]["/pets"].update(put=create_pet(d)),
    "new optional parameter": lambda d: list_pets(d)["parameters"].append(new_parameter(required=False)),
    "higher maximum": lambda d: limit(d)["schema"].update(maximum=500),
    "new optional member of the body": lambda d: schema(d, "NewPet")["properties"].update(age={"type": "integer"}),
    "new member of a response": lambda d: schema(d, "Pet")["properties"].update(age={"type": "integer"}),
    "new header": lambda d: created(d)["headers"].update({"X-New": {"schema": {"type": "string"}}}),
    "new error": lambda d: list_pets(d)["responses"].update({"451": list_pets(d)["responses"]["401"]}),
    "new error code": lambda d: member(d, "Error", "code")["examples"].append("new_code"),
    "other words": lambda d: list_pets(d).update(description="Other words.", summary="Others"),
}


@pytest.mark.parametrize("kind", BREAKING)
def test_a_breaking_change_is_found(kind: str) -> None:
    plant, expected = BREAKING[kind]
    planted = copy.deepcopy(PRESENT)
    plant(planted)
    found = breaking_changes(PRESENT, planted)
    assert any(expected in change for change in found), found


@pytest.mark.parametrize("kind", GROWTH)
def test_growth_is_not_breaking(kind: str) -> None:
    grown = copy.deepcopy(PRESENT)
    GROWTH[kind](grown)
    assert grown != PRESENT
    assert breaking_changes(PRESENT, grown) == []


def test_the_document_breaks_no_client_of_the_last_release() -> None:
    assert breaking_changes(BASELINE, PRESENT) == []


def test_after_the_sunset_exactly_what_was_announced_is_gone() -> None:
    after = openapi_document("/v1", "/staging/v1", AFTER_EVERY_SUNSET)
    assert set(breaking_changes(BASELINE, after)) == ANNOUNCED


def test_the_check_fails_and_names_what_breaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    promised = copy.deepcopy(BASELINE)
    promised["paths"]["/owners"] = promised["paths"]["/pets"]
    (tmp_path / "9.9.9.json").write_text(json.dumps(promised))
    assert main(["--against", str(tmp_path / "9.9.9.json")]) == 1
    assert "breaking change: GET /owners: the operation was removed" in capsys.readouterr().out


@pytest.fixture
def documents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty directory in place of docs/openapi."""
    monkeypatch.setattr(tool, "DOCUMENTS", tmp_path)
    return tmp_path


@pytest.fixture
def changelog(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A changelog in which this version is unreleased."""
    file = tmp_path_factory.mktemp("changelog") / "CHANGELOG.md"
    file.write_text(f"## [{__version__}] - Unreleased\n")
    monkeypatch.setattr(kept, "CHANGELOG", file)
    return file


def date(changelog: Path) -> None:
    changelog.write_text(f"## [{__version__}] - 2026-12-01\n")


@pytest.mark.usefixtures("changelog")
def test_a_change_of_the_document_is_kept_in_the_same_change(
    documents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 1, "the check must fail until the document is kept"
    assert main(["--keep"]) == 0
    assert main([]) == 0
    kept_document().write_bytes(present_document().replace(b"An animal", b"A beast", 1))
    assert main([]) == 1
    assert f"docs/openapi/{__version__}.json is out of date" in capsys.readouterr().out
    assert [file.name for file in documents.iterdir()] == [f"{__version__}.json"]


def test_the_kept_document_of_a_release_never_changes(
    documents: Path, changelog: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    date(changelog)
    with pytest.raises(SystemExit, match="is released"):
        main(["--keep"])
    assert list(documents.iterdir()) == []
    assert main([]) == 1
    assert "set the next version first" in capsys.readouterr().out


def test_the_baseline_is_the_release_before_this_version(documents: Path) -> None:
    assert baseline() == kept_document()
    for name in ("0.9.0", "0.10.0", __version__):
        (documents / f"{name}.json").write_bytes(b"{}")
    assert baseline().stem == "0.10.0"


def test_make_check_runs_the_check() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert "-m tools.breaking_changes" in makefile.partition("\ncheck:")[2].partition("\n\n")[0]


def test_a_release_keeps_its_data(changelog: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(release, "FIXTURES", tmp_path)
    check_data_kept()
    date(changelog)
    with pytest.raises(Broken, match=r"tools\.release_data"):
        check_data_kept()
    (tmp_path / __version__).mkdir()
    (tmp_path / __version__ / "known.json").write_text("{}")
    check_data_kept()


def test_a_version_without_a_section_in_the_changelog_is_named() -> None:
    with pytest.raises(ValueError, match=r"has no section for 9\.9\.9"):
        is_released("9.9.9")
