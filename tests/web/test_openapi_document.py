"""openapi.yaml is written by hand and must agree with the tables, types and settings in the code."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.in_process import Running, request, use_app
from petstore import __version__
from petstore.errors import STATUS_OF_CODE
from petstore.operations import OPERATIONS, Operation
from petstore.pets import NAME_MAX, NAME_PATTERN, STATUSES, Name, NewPet, Pet, PetStatus
from petstore.plans import PLANS
from petstore.rate_limits import DAY, MINUTE, SECOND
from petstore.store.database import IDEMPOTENCY_LIFETIME
from petstore.web.documents import Json, filled, openapi_document
from petstore.web.replies import REJECTIONS, Error
from petstore.web.requests import BODY_MAX, BODY_TIMEOUT, DEFAULT_LIMIT, MAX_LIMIT
from tests.interface import AFTER_SUNSET, DOCUMENT, DOCUMENTED
from tools.breaking_changes import AFTER_EVERY_SUNSET, resolved

ROOT = Path(__file__).parents[2]
GUIDE: str = DOCUMENT["info"]["description"]
SCHEMAS: Json = DOCUMENT["components"]["schemas"]
TEXT = json.dumps(DOCUMENT, ensure_ascii=False)


# The table of operations


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_an_operation_is_described(operation: Operation) -> None:
    described = DOCUMENTED.get(operation.name)
    assert described is not None, f"openapi.yaml has no {operation.name}"
    assert (described["method"], described["path"]) == (operation.method, operation.path)
    assert described.get("deprecated", False) == (operation.deprecation is not None)
    assert described["summary"] and described["description"].endswith("."), "a person reads them on the page"
    parameters = {each["name"] for each in described["parameters"] if each["in"] == "path"}
    assert parameters == set(re.findall(r"\{(\w+)\}", operation.path))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_headers_of_deprecation_are_documented_for_deprecated_operations_alone(operation: Operation) -> None:
    for status, response in DOCUMENTED[operation.name]["responses"].items():
        # Messages that are rejected while they are read belong to no operation. A 400 or 408 can be of either kind.
        expected = operation.deprecation is not None and status not in ("414", "431", "501", "505")
        assert ({"Deprecation", "Sunset"} <= response["headers"].keys()) == expected, status
        if expected:
            assert response["headers"]["Sunset"]["required"] == (int(status) not in REJECTIONS), status


def test_there_is_no_other_operation() -> None:
    assert DOCUMENTED.keys() == {operation.name for operation in OPERATIONS}


def test_after_the_sunset_only_the_deprecated_operation_is_missing() -> None:
    left = {each["operationId"] for item in AFTER_SUNSET["paths"].values() for each in item.values()}
    assert left == {operation.name for operation in OPERATIONS if operation.deprecation is None}
    assert "## Deprecation" in GUIDE and "## Deprecation" not in AFTER_SUNSET["info"]["description"]
    assert not re.search("getPet|Sunset|Deprecat|Location", json.dumps(AFTER_SUNSET))


# The table of errors


def test_the_guide_lists_every_code_with_its_statuses() -> None:
    listed = {
        code: {int(status) for status in statuses.split(", ")}
        for code, statuses in re.findall(r"^\| `(\w+)` \| ([\d, ]+) \|", GUIDE, re.MULTILINE)
    }
    expected = {code: {status} for code, status in STATUS_OF_CODE.items()}
    for status, (code, _) in REJECTIONS.items():
        expected[code].add(status)
    assert listed == expected
    assert SCHEMAS["Error"]["properties"]["code"]["examples"] == list(listed)


def test_every_code_has_an_example_or_belongs_to_no_operation() -> None:
    shown = {
        example["value"]["code"]
        for operation in DOCUMENTED.values()
        for response in operation["responses"].values()
        for example in response.get("content", {}).get("application/json", {}).get("examples", {}).values()
    }
    # Only undocumented addresses and methods get 404 not_found and 405.
    assert shown | {"not_found", "method_not_allowed"} == set(STATUS_OF_CODE)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_an_operation_shows_only_errors_that_it_can_return(operation: Operation) -> None:
    described = DOCUMENTED[operation.name]
    shown = {
        name: example
        for status, response in described["responses"].items()
        if status >= "400"
        for name, example in response["content"]["application/json"]["examples"].items()
    }
    scopes = {name for name in shown if "scope" in name}
    assert scopes == {f"insufficient_scope_{operation.scope}"}, f"openapi.yaml: the 403 of {operation.name} is wrong"
    if "requestBody" not in described:
        of_bodies = "[Bb]ody|name|Idempotency-Key"
        assert [name for name, example in shown.items() if re.search(of_bodies, json.dumps(example))] == []
    own = {each["name"] for each in described["parameters"] if each["in"] == "query"}
    named = re.findall(r"The query is ([^,]+)", json.dumps(shown))
    for query in (query for query in named if "=" in query and not query.startswith("page=")):
        assert own & {pair.split("=")[0] for pair in query.split("&")}, query


def test_responses_are_open_for_growth() -> None:
    assert "additionalProperties" not in TEXT
    assert "enum" not in SCHEMAS["Error"]["properties"]["code"]


# The types


def bare(schema: Any) -> Any:
    """Returns a schema without its descriptions and in a canonical form, so that schemas can be compared.

    Drops the type of an enumeration, because the values imply it, and sorts lists. Replaces a list of types, such as
    `[string, "null"]`, with the `anyOf` that msgspec generates.
    """
    if isinstance(schema, list):
        return sorted((bare(each) for each in schema), key=json.dumps)
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("type"), list):
        return bare({"anyOf": [_only(schema, kind) for kind in schema["type"]]})
    words = {"title", "description", "examples", "default", *(["type"] if "enum" in schema else [])}
    return {
        name: bare(value) for name, value in schema.items() if name not in words or isinstance(value, dict)
    }  # a dictionary belongs to a member with one of these names


def _only(schema: Json, kind: str) -> Json:
    """Returns the schema restricted to one of its types."""
    if kind == "null":
        return {"type": "null"}
    values = {"enum": [value for value in schema["enum"] if value is not None]} if "enum" in schema else {}
    return {**schema, "type": kind, **values}


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (Name | None, {"type": ["string", "null"], "minLength": 1, "maxLength": NAME_MAX, "pattern": NAME_PATTERN}),
        (PetStatus | None, {"type": ["string", "null"], "enum": [*STATUSES, None]}),
        (PetStatus | None, {"anyOf": [{"type": "string", "enum": [*STATUSES]}, {"type": "null"}]}),
    ],
)
def test_a_member_that_may_be_null_can_be_compared(kind: Any, written: Json) -> None:
    assert bare({"description": "A member.", **written}) == bare(msgspec.json.schema(kind))


TYPES: tuple[type, ...] = (Pet, NewPet, Error)  # what the service reads and writes


def test_every_schema_of_an_object_is_that_of_a_type() -> None:
    objects = {name for name, schema in SCHEMAS.items() if schema["type"] == "object"}
    assert objects == {kind.__name__ for kind in TYPES}, "add the type of a new schema to TYPES"


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: str(kind.__name__))
def test_a_schema_is_that_of_the_type(kind: type) -> None:
    _, schemas = msgspec.json.schema_components([kind])
    written = resolved(SCHEMAS[kind.__name__], DOCUMENT)
    assert bare(written) == bare(resolved(schemas[kind.__name__], {}))
    assert list(written["properties"]) == list(schemas[kind.__name__]["properties"])
    assert all(member["description"] for member in written["properties"].values())


@pytest.mark.parametrize("field", msgspec.structs.fields(Pet), ids=lambda field: field.name)
def test_a_member_of_an_animal_is_where_people_look_for_it(field: msgspec.structs.FieldInfo) -> None:
    shown = {ROOT / "docs/api.md": f"| `{field.encode_name}` |"}
    if field.name in NewPet.__struct_fields__:
        shown[ROOT / "src/petstore/web/static/samples.js"] = field.encode_name
    assert [file.name for file, text in shown.items() if text not in file.read_text()] == []


def test_the_default_of_a_new_animal_is_in_words() -> None:
    """A `default` keyword would make the member required in generated clients."""
    (default,) = (field.default for field in msgspec.structs.fields(NewPet) if field.name == "status")
    assert SCHEMAS["NewPet"]["properties"]["status"]["description"].endswith(f"Defaults to {default}.")
    assert SCHEMAS["PetStatus"]["enum"] == list(STATUSES)


# Settings and limits


def test_the_limits_in_the_document_are_those_of_the_service() -> None:
    (limit,) = (each["schema"] for each in DOCUMENTED["listPets"]["parameters"] if each["name"] == "limit")
    assert (limit["minimum"], limit["maximum"], limit["default"]) == (1, MAX_LIMIT, DEFAULT_LIMIT)
    assert SCHEMAS["Pets"]["maxItems"] == MAX_LIMIT
    words = " ".join(GUIDE.split())
    assert f"A page contains up to {DEFAULT_LIMIT} animals." in words
    assert f"set `limit` to a value from 1 to {MAX_LIMIT}." in words
    (described,) = (each for each in DOCUMENTED["listPets"]["parameters"] if each["name"] == "limit")
    assert described["description"].endswith(f"from 1 to {MAX_LIMIT}. Defaults to {DEFAULT_LIMIT}.")
    lengths = re.findall(r"a minute \((\d+) seconds\) and a day \(([\d,]+) seconds\)", words)
    assert lengths == [(str(MINUTE // SECOND), f"{DAY // SECOND:,}")]
    assert set(re.findall(r"limit=(\d{3,})`", TEXT)) == {str(MAX_LIMIT)}
    assert re.findall(r"larger than (\d+) KiB", TEXT) == [str(BODY_MAX // 1024)] * TEXT.count("KiB")
    assert f"within {BODY_TIMEOUT:.0f} seconds" in TEXT
    hours = re.findall(r"For (\d+) hours, a request with the same idempotency key and body", TEXT)
    assert [int(each) * 3600 for each in hours] == [IDEMPOTENCY_LIFETIME] * 2


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["the key's per-minute limit or 1,000, whichever is lower", "60", "3,600", "600"]),
        (
            {"ban_strikes": 2_000, "ban_seconds": 5, "ban_ceiling": 7_200, "address_per_minute": 1_234},
            ["2,000", "5", "7,200", "1,234"],
        ),
    ],
    ids=["defaults", "others"],
)
def test_the_served_document_has_the_settings_of_the_service(
    tmp_path: Path, settings: dict[str, Any], expected: list[str]
) -> None:
    async def work(running: Running) -> None:
        served = json.loads((await running.app.answer(request("/openapi.json"))).body)
        stated = re.search(
            r"If the count exceeds (.+), the key is banned for (.+) seconds\. .* up to (.+) seconds\. .*"
            r"are limited to (.+) per minute for each",
            " ".join(served["info"]["description"].split()),
        )
        assert stated is not None and list(stated.groups()) == expected

    use_app(tmp_path, work, **settings)


def test_the_plans_in_the_document_are_those_of_the_service() -> None:
    listed = re.findall(r"^\| (\w+) \| ([\d,]+|set per key) \| ([\d,]+|set per key) \|$", GUIDE, re.MULTILINE)
    assert listed == [
        (plan, f"{limits.per_minute:,}", f"{limits.per_day:,}") if limits else (plan, "set per key", "set per key")
        for plan, limits in PLANS.items()
    ]


# Links within the document


def test_every_link_leads_to_a_heading_of_the_guide() -> None:
    headings = {title.lower().replace(" ", "-") for title in re.findall(r"^## (.+)$", GUIDE, re.MULTILINE)}
    linked = re.findall(r"\]\(#([^)]+)\)", TEXT)
    assert linked
    assert set(linked) <= headings


def test_only_text_that_the_page_shows_as_markdown_has_links() -> None:
    """The reference page does not render links in descriptions of responses, headers and members."""
    parts = [json.dumps(SCHEMAS), json.dumps(DOCUMENT["components"]["headers"])]
    parts += [json.dumps(operation["responses"]) for operation in DOCUMENTED.values()]
    assert [part for part in parts if "](" in part] == []


# Values filled in at run time


@pytest.mark.parametrize("now", [0.0, AFTER_EVERY_SUNSET])
def test_version_and_base_addresses_are_filled_in(now: float) -> None:
    live, staging = "https://api.petstore.test/v1", "https://staging.petstore.test/v1"
    made = openapi_document(live, staging, now)
    assert [server["url"] for server in made["servers"]] == [live, staging]
    assert made["info"]["version"] == __version__ and made["info"]["contact"]["url"] == live
    assert f"| live | `{live}` |" in made["info"]["description"]
    assert "{{" not in json.dumps(made)


def test_a_placeholder_without_a_value_is_an_error() -> None:
    text = {"text": ["{{a}} and {{b}}, {c}", "{{a}}", 1]}
    assert filled(text, {"a": 1_000, "b": "{{c}}"}) == {"text": ["1,000 and {{c}}, {c}", 1_000, 1]}
    with pytest.raises(KeyError, match="b"):
        filled(text, {"a": "A"})
