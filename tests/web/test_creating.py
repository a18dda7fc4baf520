"""POST /pets: which bodies add an animal, and which do not."""

import json
from typing import Any

import httpx
import msgspec
import pytest

from harness.servers import Key, Server
from petstore.errors import InvalidBody
from petstore.pets import INT64_MAX, INT64_MIN, NESTING_MAX, parse_new_pet
from tests.pet_members import LEAST, MEMBERS
from tests.web.answers import PET, created, message_of

JSON = {"Content-Type": "application/json"}


def post(client: httpx.Client, server: Server, key: Key, body: bytes | str) -> httpx.Response:
    return client.post(server.url("/pets"), content=body, headers={**key.headers, **JSON})


def test_ids_grow(server: Server, key: Key, client: httpx.Client) -> None:
    ids = [created(server, client, key)["id"] for _ in range(20)]
    assert ids == sorted(set(ids))
    assert ids[0] >= 1


@pytest.mark.parametrize(
    "name",
    [
        "x", "x" * 255, "é" * 255, "🐕" * 255, " Rex ", "\u00a0Rex\u3000", "0", "Rex\u200b", "\u200b", "👩‍👩‍👧‍👦", "𝔸",
        "\u0080", "\u009f", "\ufeff", "\uffff", "\ufffd", "e\u0301", "\U0010ffff", '"\\/',
        "'; DROP TABLE pets; --", "<b>", "null",
    ],
    ids=ascii,
)  # fmt: skip
def test_a_name_is_stored_as_sent(server: Server, key: Key, client: httpx.Client, name: str) -> None:
    pet = created(server, client, key, name=name)
    assert pet["name"] == name
    assert client.get(server.url(f"/pets/{pet['id']}"), headers=key.headers).json()["name"] == name


def test_the_status_is_available_unless_the_client_sends_one(server: Server, key: Key, client: httpx.Client) -> None:
    for body in (VALID, VALID.replace(b"Rex", rb"\u0052ex")):  # names with and without escapes are parsed differently
        assert post(client, server, key, body).json()["status"] == "available"


# Values that a database might reject or change, although only the service decides what is valid.
ODD_VALUES = [
    "", " ", "\0", "a\0b", "\x1f", "\x7f", "\ud800", "\uffff", "é" * 255, "🐕" * 255, "x" * 256, "x" * 10_000, "'",
    "\\", 0, -1, 2**15, 2**31, -(2**31) - 1, 2**53 + 1, INT64_MAX, INT64_MIN, INT64_MAX + 1, INT64_MIN - 1, 1.5,
    None, True, [], {},
]  # fmt: skip


@pytest.mark.parametrize("member", [each.encode_name for each in MEMBERS])
def test_every_backend_takes_the_values_of_a_member_that_the_rules_allow(
    server: Server, key: Key, client: httpx.Client, member: str
) -> None:
    """Tests one member at a time. The rules decide what is valid, and every backend must store it unchanged."""
    wrong = []
    for value in ODD_VALUES:
        body = json.dumps({**msgspec.to_builtins(LEAST), member: value}).encode()
        response = post(client, server, key, body)
        if response.status_code != (201 if is_valid(body) else 400):
            wrong.append(f"{member} = {value!r:.20} is {response.status_code}")
        elif response.status_code == 201:
            path = server.url(f"/pets/{response.json()['id']}")
            if client.get(path, headers=key.headers).json()[member] != value:
                wrong.append(f"{member} = {value!r:.20} is stored as something else")
    assert wrong == []


def is_valid(body: bytes) -> bool:
    try:
        parse_new_pet(body)
    except InvalidBody:
        return False
    return True


def test_a_name_may_be_written_in_escapes(server: Server, key: Key, client: httpx.Client) -> None:
    escaped = json.dumps({**PET, "name": "🐕" * 255}, ensure_ascii=True)
    assert post(client, server, key, escaped).json()["name"] == "🐕" * 255


@pytest.mark.parametrize(
    "name",
    [
        "", " ", "\u00a0", "\u3000 \u2003", " " * 255, "x" * 256, "🐕" * 256, "x" * 60_000, None, 1, 1.5, True,
        [], {}, ["Rex"],
        *(f"Re{chr(code)}x" for code in (*range(0x20), 0x7F)),
        "\x00", "Rex\n", "\tRex",
    ],
    ids=lambda name: ascii(name)[:20],
)  # fmt: skip
def test_a_bad_name_is_400_and_named(server: Server, key: Key, client: httpx.Client, name: Any) -> None:
    response = client.post(server.url("/pets"), json={**PET, "name": name}, headers=key.headers)
    message = message_of(response, "invalid_body")
    assert "name" in message
    assert "categoryId" not in message
    assert "status" not in message


@pytest.mark.parametrize(
    "name", [r"\ud800", r"\udfff", r"Rex\udc00", r"\ud83dx", r"\ude00\ud83d", r"\u0000", r"\u007f"]
)
def test_a_lone_surrogate_or_control_character_in_escapes_is_400(
    server: Server, key: Key, client: httpx.Client, name: str
) -> None:
    response = post(client, server, key, f'{{"name":"{name}","categoryId":1}}')
    assert "name" in message_of(response, "invalid_body")


@pytest.mark.parametrize("category", [0, 1, -1, INT64_MAX, INT64_MIN, 2**53 + 1])
def test_any_int64_is_a_category(server: Server, key: Key, client: httpx.Client, category: int) -> None:
    pet = created(server, client, key, categoryId=category)
    assert pet["categoryId"] == category
    response = client.get(server.url(f"/pets/{pet['id']}"), headers=key.headers)
    assert f'"categoryId":{category},' in response.text


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("1.0", 1), ("-0.0", 0), ("1e2", 100), ("1.5E+1", 15), ("100e-2", 1), ("9007199254740993.0", 2**53 + 1),
        ("9223372036854775807.0", INT64_MAX), ("-9.223372036854775808e18", INT64_MIN), ("1" + "0" * 999 + "e-999", 1),
    ],
    ids=lambda text: str(text)[:24],
)  # fmt: skip
def test_a_whole_number_is_a_category_however_it_is_written(
    server: Server, key: Key, client: httpx.Client, text: str, category: int
) -> None:
    response = post(client, server, key, f'{{"name":"Rex","categoryId":{text}}}')
    assert (response.status_code, response.json()["categoryId"]) == (201, category)


@pytest.mark.parametrize(
    "category",
    [
        "true", "false", '"1"', '""', "1.5", "null", "[]", "[1]", "{}", str(2**63), str(-(2**63) - 1), str(2**64),
        "1e400", "-1e400", "1e19", "9" * 30, "9" * 5_000, "9223372036854775808.0", "9223372036854775807.5",
        "9007199254740992.5", "1.00000000000000000001", "1e-400", "1e-99999999999999999999", "1e99999999999999999999",
        "0." + "0" * 5_000 + "1",
    ],
    ids=lambda text: text[:24],
)  # fmt: skip
def test_a_bad_category_is_400_and_named(server: Server, key: Key, client: httpx.Client, category: str) -> None:
    message = message_of(post(client, server, key, f'{{"name":"Rex","categoryId":{category}}}'), "invalid_body")
    assert "categoryId" in message
    assert "name" not in message


@pytest.mark.parametrize("status", [None, "", "Available", "SOLD", " sold", "lost", 1, True, [], {}, ["sold"]])
def test_a_bad_status_is_400_and_named(server: Server, key: Key, client: httpx.Client, status: Any) -> None:
    response = client.post(server.url("/pets"), json={**PET, "status": status}, headers=key.headers)
    message = message_of(response, "invalid_body")
    assert "status" in message
    assert "categoryId" not in message


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        ({}, {"name", "categoryId"}),
        ({"name": "Rex"}, {"categoryId"}),
        ({"categoryId": 1}, {"name"}),
        ({"status": "lost"}, {"name", "categoryId", "status"}),
        ({"name": "", "categoryId": "1", "status": None}, {"name", "categoryId", "status"}),
        ({"name": 1, "categoryId": 1, "status": "lost"}, {"name", "status"}),
        ({"name": "Rex", "categoryId": 1.5, "status": 5}, {"categoryId", "status"}),
        ({"Name": "Rex", "categoryID": 1, "category_id": 1}, {"name", "categoryId"}),
    ],
)
def test_one_message_names_every_field_at_fault(
    server: Server, key: Key, client: httpx.Client, body: dict[str, Any], faults: set[str]
) -> None:
    response = client.post(server.url("/pets"), json=body, headers=key.headers)
    message = message_of(response, "invalid_body")
    assert {field for field in ("name", "categoryId", "status") if field in message} == faults


def test_a_number_of_any_length_may_stand_in_an_unknown_member(server: Server, key: Key, client: httpx.Client) -> None:
    response = post(client, server, key, '{"name":"Rex","categoryId":1,"x":' + "9" * 5_000 + "}")
    assert response.status_code == 201


@pytest.mark.parametrize("id_", [None, "x", -1, [], 2**70])
def test_a_clients_id_is_ignored_whatever_it_is(server: Server, key: Key, client: httpx.Client, id_: Any) -> None:
    assert created(server, client, key, id=id_)["id"] not in (id_, None)


EMPTY = "must not be empty or only white space"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"name":"Rex","categoryId":1,"name":"Rex"}', "name must be given at most once"),
        ('{"name":"Rex","name":"Max","categoryId":1}', "name must be given at most once"),
        ('{"name":"Rex","categoryId":1,"categoryId":2}', "categoryId must be given at most once"),
        (
            '{"name":"Rex","categoryId":1,"status":"sold","status":"sold"}',
            "status must be given at most once",
        ),
        (
            '{"status":"sold","name":"Rex","categoryId":1,"status":"sold","name":"Rex"}',
            "name must be given at most once; status must be given at most once",
        ),
        ('{"name":"Rex","categoryId":1,"id":1,"id":2}', "a member must be given at most once"),
        ('{"name":"Rex","categoryId":1,"x":1,"x":1}', "a member must be given at most once"),
        ('{"name":"Rex","categoryId":1,"n\\u0061me":"Max"}', "name must be given at most once"),
        ('{"name":"Rex","categoryId":1,"x":{"y":1,"y":2}}', "a member must be given at most once"),
        ('{"name":"Rex","categoryId":1,"x":[{"y":{"z":1,"z":1}}]}', "a member must be given at most once"),
        ('{"name":"a","name":"b"}', "categoryId is required; name must be given at most once"),
        (
            '{"name":"","categoryId":1,"x":{"name":1,"name":1}}',
            f"name {EMPTY}; a member must be given at most once",
        ),
    ],
)
def test_a_member_twice_is_400(server: Server, key: Key, client: httpx.Client, body: str, message: str) -> None:
    assert message_of(post(client, server, key, body), "invalid_body") == f"{message}."


VALID = b'{"name":"Rex","categoryId":1}'
BAD_BODIES: dict[str, bytes] = {
    "absent": b"",
    "white space": b" \r\n\t",
    "array": b"[]",
    "array of an animal": b"[" + VALID + b"]",
    "null": b"null",
    "string": b'"x"',
    "number": b"1",
    "true": b"true",
    "truncated": VALID[:-1],
    "truncated in a string": VALID[:11],
    "trailing data": VALID + b"x",
    "trailing object": VALID + VALID,
    "trailing comma": b'{"name":"Rex","categoryId":1,}',
    "trailing null character": VALID + b"\x00",
    "NaN": b"NaN",
    "NaN inside": b'{"name":"Rex","categoryId":NaN}',
    "NaN in an unknown member": b'{"name":"Rex","categoryId":1,"x":NaN}',
    "Infinity inside": b'{"name":"Rex","categoryId":1,"x":-Infinity}',
    "1e400": b"1e400",
    "BOM": b"\xef\xbb\xbf" + VALID,
    "UTF-16": VALID.decode().encode("utf-16"),
    "UTF-16 without BOM": VALID.decode().encode("utf-16-le"),
    "UTF-32": VALID.decode().encode("utf-32"),
    "invalid UTF-8": b'{"name":"Rex\xff","categoryId":1}',
    "invalid UTF-8 in an unknown member": b'{"name":"Rex","categoryId":1,"x":"\xc0\x80"}',
    "surrogate in UTF-8": b'{"name":"Rex\xed\xa0\x80","categoryId":1}',
    "Latin-1": '{"name":"Rexé","categoryId":1}'.encode("latin-1"),
    "unescaped control character": b'{"name":"Rex","categoryId":1,"x":"\n"}',
    "single quotes": b"{'name':'Rex','categoryId':1}",
    "comment": VALID + b"// Rex",
    "leading zero": b'{"name":"Rex","categoryId":01}',
    "plus sign": b'{"name":"Rex","categoryId":+1}',
    "hexadecimal": b'{"name":"Rex","categoryId":0x1}',
    "form": b"name=Rex&categoryId=1",
    "NaN in an unterminated string": b'{"name":"' + b"x" * 60_000 + b"NaN",
    "60,000 nested brackets": b"[" * 60_000,
    "nested brackets in an unknown member": b'{"name":"Rex","categoryId":1,"x":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    "nested objects": b'{"x":' * 10_000,
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_body_that_is_not_one_json_object_is_400(server: Server, key: Key, client: httpx.Client, name: str) -> None:
    message_of(post(client, server, key, BAD_BODIES[name]), "invalid_body")


def nested(depth: int) -> bytes:
    """Returns an animal whose unknown member nests the body to this depth."""
    return b'{"name":"Rex","categoryId":1,"x":' + b'[{"y":' * (depth // 2 - 1) + b"[]" + b"}]" * (depth // 2 - 1) + b"}"


UNKNOWN_MEMBERS = {
    "nested 100 deep": nested(NESTING_MAX),
    "brackets in a string": b'{"name":"Rex","categoryId":1,"x":"' + b'\\"[{' * 10_000 + b'"}',
    "a known name in another case": b'{"name":"Rex","categoryId":1,"Status":"lost","NAME":1}',
    "a flat list of lists": b'{"name":"Rex","categoryId":1,"x":[' + b"[],{}," * 10_000 + b"[]]}",
}


@pytest.mark.parametrize("name", UNKNOWN_MEMBERS)
def test_an_unknown_member_of_any_form_is_ignored(server: Server, key: Key, client: httpx.Client, name: str) -> None:
    assert post(client, server, key, UNKNOWN_MEMBERS[name]).status_code == 201


@pytest.mark.parametrize("depth", [NESTING_MAX + 2, 500, 900])
def test_a_body_nested_more_than_100_deep_is_400(server: Server, key: Key, client: httpx.Client, depth: int) -> None:
    assert "nested too deeply" in message_of(post(client, server, key, nested(depth)), "invalid_body")


def test_white_space_around_the_object_is_json(server: Server, key: Key, client: httpx.Client) -> None:
    assert post(client, server, key, b" \r\n\t" + VALID + b"\r\n\t ").status_code == 201


@pytest.mark.on("sqlite-lmdb")
def test_a_refused_body_adds_nothing(fresh: Server, client: httpx.Client) -> None:
    key = fresh.key()
    for body in (*BAD_BODIES.values(), b'{"name":"","categoryId":1}', b'{"name":"Rex","categoryId":1,"status":null}'):
        assert post(client, fresh, key, body).status_code == 400
    assert client.get(fresh.url("/pets"), headers=key.headers).json() == []
