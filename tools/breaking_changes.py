"""`python -m tools.breaking_changes`: checks whether the OpenAPI document would break clients of the last release.

The check accepts additions: new operations, optional parameters, headers, statuses, error codes and members of
responses. It reports all other changes, including those that it cannot judge.

`docs/openapi/` has the document of each release and of this version. The check fails if this version's file is out of
date, so that the diff of that file shows every change of the interface. It also fails if the document breaks clients of
the previous release. Before the first release, it compares the document with this version's file instead. Finally, it
reports what the sunset of an operation would break without an announcement.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from petstore import __version__
from petstore.web.documents import as_json, openapi_document
from tools.kept import check_unreleased, is_released

Json = dict[str, Any]

DOCUMENTS = Path(__file__).parent.parent / "docs/openapi"
AFTER_EVERY_SUNSET = 1e12
# These announced changes take effect with the sunset.
ANNOUNCED = {
    "GET /pets/{petId}: the operation was removed",
    "POST /pets: 201: the header Location was removed",
}
ANNOTATIONS = {"title", "description", "examples", "example"}
LOWER_BOUNDS = {"minimum", "minLength", "minItems"}
UPPER_BOUNDS = {"maximum", "maxLength", "maxItems"}
FORMS = {"pattern", "format"}
JUDGED = {"type", "enum", "default", "required", "properties", "items", "additionalProperties"}
# The schema title and the member of each list of values that is documented as open.
GROWS = {("Error", "code")}


def breaking_changes(old: Json, new: Json) -> list[str]:
    """Returns one line for each change between the documents that can break a client of `old`."""
    old, new = resolved(old, old), resolved(new, new)
    return [*_base_addresses(old, new), *_operations(old, new)]


def _base_addresses(old: Json, new: Json) -> Iterator[str]:
    before, after = ([server["url"].rpartition("/")[2] for server in document["servers"]] for document in (old, new))
    if before != after:
        yield f"the version segments of the base addresses were {before} and are {after}"


def _operations(old: Json, new: Json) -> Iterator[str]:
    for path, methods in old["paths"].items():
        for method, before in methods.items():
            where = f"{method.upper()} {path}"
            after = new["paths"].get(path, {}).get(method)
            if after is None:
                yield f"{where}: the operation was removed"
                continue
            if before["operationId"] != after["operationId"]:
                yield f"{where}: the operationId has changed"
            if _authentication(old, before) != _authentication(new, after):
                yield f"{where}: the authentication has changed"
            yield from _parameters(where, before, after)
            yield from _request_bodies(where, before.get("requestBody"), after.get("requestBody"))
            yield from _responses(where, before["responses"], after["responses"])


def _authentication(document: Json, operation: Json) -> list[dict[str, tuple[str, str]]]:
    schemes = document["components"]["securitySchemes"]
    required = operation["security"] if "security" in operation else document["security"]
    return [{name: (schemes[name]["type"], schemes[name].get("scheme", "")) for name in each} for each in required]


def _parameters(where: str, old: Json, new: Json) -> Iterator[str]:
    before, after = ({(each["in"], each["name"]): each for each in side.get("parameters", [])} for side in (old, new))
    for (place, name), parameter in before.items():
        named = f"{where}: {place} {name}"
        if (place, name) not in after:
            yield f"{named}: the parameter was removed"
            continue
        now = after[place, name]
        if now.get("required") and not parameter.get("required"):
            yield f"{named}: the parameter has become required"
        yield from _stricter(named, parameter["schema"], now["schema"])
    for place, name in after.keys() - before.keys():
        if after[place, name].get("required"):
            yield f"{where}: {place} {name}: a new parameter is required"


def _request_bodies(where: str, old: Json | None, new: Json | None) -> Iterator[str]:
    where = f"{where}: body"
    if old is None or new is None:
        if old is not None:
            yield f"{where}: the body was removed"
        elif new is not None and new.get("required"):
            yield f"{where}: a new body is required"
        return
    if new.get("required") and not old.get("required"):
        yield f"{where}: the body has become required"
    for media_type, content in old["content"].items():
        if media_type not in new["content"]:
            yield f"{where}: {media_type} was removed"
        else:
            yield from _stricter(where, content["schema"], new["content"][media_type]["schema"])


def _responses(where: str, old: Json, new: Json) -> Iterator[str]:
    for status, before in old.items():
        named = f"{where}: {status}"
        after = new.get(status)
        if after is None:
            yield f"{named}: the status was removed"
            continue
        for name, header in before.get("headers", {}).items():
            now = after.get("headers", {}).get(name)
            if now is None:
                yield f"{named}: the header {name} was removed"
            elif header.get("required") and not now.get("required"):
                yield f"{named}: the header {name} has become optional"
            else:
                yield from _looser(f"{named}: header {name}", header["schema"], now["schema"])
        for media_type, content in before.get("content", {}).items():
            if media_type not in after.get("content", {}):
                yield f"{named}: {media_type} was removed"
            else:
                yield from _looser(named, content["schema"], after["content"][media_type]["schema"])


def _stricter(where: str, old: Json, new: Json) -> Iterator[str]:
    """Finds what clients could send and now cannot."""
    yield from _unjudged(where, old, new)
    if not set(_types(old)) <= set(_types(new)):
        yield f"{where}: the type was {old['type']} and is {new['type']}"
    if "enum" in new and ("enum" not in old or set(old["enum"]) - set(new["enum"])):
        yield f"{where}: fewer values are allowed"
    yield from (f"{where}: the {name} is stricter" for name in _tighter(old, new))
    yield from (f"{where}: the {name} has changed" for name in FORMS if name in new and new[name] != old.get(name))
    if "default" in old and old["default"] != new.get("default"):
        yield f"{where}: the default has changed"
    if new.get("additionalProperties", True) is False and old.get("additionalProperties", True) is not False:
        yield f"{where}: unknown members are refused"
    yield from (f"{where}: {name} has become required" for name in _required(new) - _required(old))
    for name, member in old.get("properties", {}).items():
        if name not in new.get("properties", {}):
            yield f"{where}: {name} was removed"
        else:
            yield from _stricter(f"{where}: {name}", member, new["properties"][name])
    if "items" in old and "items" in new:
        yield from _stricter(f"{where}: items", old["items"], new["items"])


def _looser(where: str, old: Json, new: Json) -> Iterator[str]:
    """Finds what clients can now receive but do not expect."""
    yield from _unjudged(where, old, new)
    if not set(_types(new)) <= set(_types(old)):
        yield f"{where}: the type was {old['type']} and is {new['type']}"
    if "enum" in old and ("enum" not in new or set(new["enum"]) - set(old["enum"])):
        yield f"{where}: more values are possible"
    yield from (f"{where}: the {name} is looser" for name in _tighter(new, old))
    yield from (f"{where}: the {name} has changed" for name in FORMS if name in old and old[name] != new.get(name))
    yield from (f"{where}: {name} has become optional" for name in _required(old) - _required(new))
    for name, member in old.get("properties", {}).items():
        now = new.get("properties", {}).get(name)
        if now is None:
            yield f"{where}: {name} was removed"
        elif (old.get("title"), name) in GROWS:
            yield from (f"{where}: {name}: {value} was removed" for value in _known(member) - _known(now))
        else:
            yield from _looser(f"{where}: {name}", member, now)
    if "items" in old and "items" in new:
        yield from _looser(f"{where}: items", old["items"], new["items"])


def _unjudged(where: str, old: Json, new: Json) -> Iterator[str]:
    known = ANNOTATIONS | LOWER_BOUNDS | UPPER_BOUNDS | FORMS | JUDGED
    for keyword in (old.keys() | new.keys()) - known:
        if old.get(keyword) != new.get(keyword):
            yield f"{where}: {keyword} has changed, which this check cannot judge"


def _types(schema: Json) -> list[str]:
    found = schema.get("type", [])
    return found if isinstance(found, list) else [found]


def _tighter(loose: Json, tight: Json) -> Iterator[str]:
    """Finds the bounds of `tight` that exclude values within the bounds of `loose`."""
    for name in sorted(LOWER_BOUNDS & tight.keys()):
        if name not in loose or tight[name] > loose[name]:
            yield name
    for name in sorted(UPPER_BOUNDS & tight.keys()):
        if name not in loose or tight[name] < loose[name]:
            yield name


def _required(schema: Json) -> set[str]:
    return set(schema.get("required", []))


def _known(schema: Json) -> set[str]:
    return set(schema["enum"] if "enum" in schema else schema.get("examples", []))


def resolved(node: Any, document: Json) -> Any:
    """Replaces each reference with its target, adding the target's name as title and the reference's other members."""
    if isinstance(node, list):
        return [resolved(each, document) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target: Any = document
        for step in node["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        siblings = {name: value for name, value in node.items() if name != "$ref"}
        return resolved({"title": step, **target, **siblings}, document)
    return {name: resolved(value, document) for name, value in node.items()}


def kept_document() -> Path:
    """Returns the path of this version's document."""
    return DOCUMENTS / f"{__version__}.json"


def baseline() -> Path:
    """Returns the path of the previous release's document, or of this version's if there is no release yet."""
    others = [file for file in DOCUMENTS.glob("*.json") if file != kept_document()]
    return max(others, key=lambda file: [int(part) for part in file.stem.split(".")], default=kept_document())


def present_document() -> bytes:
    return as_json(openapi_document("/v1", "/staging/v1", 0)) + b"\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.breaking_changes")
    parser.add_argument("--against", type=Path, default=baseline(), help="a document to compare with")
    parser.add_argument("--keep", action="store_true", help="write the current document to this version's file")
    options = parser.parse_args(arguments)
    if options.keep:
        check_unreleased()
        DOCUMENTS.mkdir(exist_ok=True)
        kept_document().write_bytes(present_document())
        print(f"Wrote {kept_document()}.")
        return 0
    found = list(_findings(options.against))
    for finding in found:
        print(finding)
    print(f"OpenAPI: compared with {options.against.stem}, {len(found)} findings")
    return int(bool(found))


def _findings(against: Path) -> Iterator[str]:
    kept = kept_document()
    if not kept.is_file() or kept.read_bytes() != present_document():
        remedy = (
            "set the next version first" if is_released() else "run .venv/bin/python -m tools.breaking_changes --keep"
        )
        yield f"docs/openapi/{kept.name} is out of date; {remedy}"
    if not against.is_file():
        return
    before = json.loads(against.read_bytes())
    for change in breaking_changes(before, openapi_document("/v1", "/staging/v1", 0)):
        yield f"breaking change: {change}"
    for change in breaking_changes(before, openapi_document("/v1", "/staging/v1", AFTER_EVERY_SUNSET)):
        if change not in ANNOUNCED:
            yield f"breaking change after the sunset: {change}"


if __name__ == "__main__":
    sys.exit(main())
