"""The OpenAPI document as it is served. The proof `schema` checks the service against it."""

import json
import re
import time

import httpx
import msgspec
import yaml

from harness.servers import Key, Server
from petstore.errors import InvalidBody
from petstore.operations import deprecated_operations
from petstore.pets import NAME_PATTERN, parse_new_pet
from tests.interface import DOCUMENT, DOCUMENTED


def test_the_pattern_of_a_name_takes_what_the_service_takes_in_every_language() -> None:
    """It must contain no shorthand such as \\s, which matches U+FEFF in JavaScript but not in Python."""
    assert not re.search(r"\\[a-zA-Z]", NAME_PATTERN.replace("\\u", ""))
    for character in [*map(chr, range(0x3100)), "\ufeff", "\U0001f415"]:
        body = json.dumps({"name": character, "categoryId": 1}, ensure_ascii=False).encode()
        try:
            taken = bool(parse_new_pet(body))
        except InvalidBody:
            taken = False
        assert taken == bool(re.search(NAME_PATTERN, character)), ascii(character)


def test_the_served_document_is_the_one_of_the_package(server: Server, client: httpx.Client) -> None:
    document = client.get(server.origin + "/openapi.json").json()
    # The description includes the settings of this server.
    assert {**document, "info": {**document["info"], "description": ""}} == {
        **DOCUMENT,
        "info": {**DOCUMENT["info"], "description": ""},
    }
    assert document["openapi"].startswith("3.1")
    assert [server["url"] for server in document["servers"]] == ["/v1", "/staging/v1"]
    assert document["security"] == [{"apiKey": []}]
    assert document["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"
    assert not any("security" in operation for operation in DOCUMENTED.values())


def test_yaml_and_json_are_the_same_document(server: Server, client: httpx.Client) -> None:
    as_json = client.get(server.origin + "/openapi.json")
    as_yaml = client.get(server.origin + "/openapi.yaml")
    assert as_yaml.headers["content-type"] == "application/yaml"
    assert yaml.safe_load(as_yaml.text) == as_json.json()


def test_after_the_sunset_the_document_has_no_get_pet_and_no_location(fresh: Server, client: httpx.Client) -> None:
    before = client.get(fresh.origin + "/openapi.json")
    assert "getPet" in before.text
    for seconds, there in ((-1, True), (0, False)):
        fresh.move_clock(deprecated_operations()[0].end - time.time() + seconds + 0.5)
        for path in ("/openapi.json", "/openapi.yaml"):
            answer = client.get(fresh.origin + path, headers={"If-None-Match": before.headers["etag"]})
            document = yaml.safe_load(answer.text) if answer.status_code == 200 else before.json()
            assert ("get" in document["paths"].get("/pets/{petId}", {})) == there
            assert ("Location" in document["paths"]["/pets"]["post"]["responses"]["201"]["headers"]) == there
    assert not re.search("getPet|Sunset|Deprecation|gone", json.dumps(document["paths"]))


def test_a_pet_of_the_service_fits_the_schema_s_types(server: Server, key: Key, client: httpx.Client) -> None:
    document = client.get(server.origin + "/openapi.json").json()
    created = client.post(server.url("/pets"), headers=key.headers, json={"name": "Rex", "categoryId": 1}).json()
    schema = document["components"]["schemas"]["Pet"]
    assert list(created) == list(schema["properties"]) == schema["required"]
    assert json.loads(msgspec.json.encode(created)) == created
