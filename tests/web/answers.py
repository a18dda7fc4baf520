"""Shared by the tests of the API: sends requests byte for byte and checks Error bodies."""

from typing import Any, NamedTuple

import httpx

from harness.servers import Key, Server, raw
from harness.stores import BY
from petstore.errors import STATUS_OF_CODE
from petstore.pets import PetStatus
from tests.interface import assert_documented, path_of

PET = {"name": "Rex", "categoryId": 1}


class Answer(NamedTuple):
    """A response to a request that was sent byte for byte. Header names are in lower case."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def values(self, name: str) -> list[str]:
        return [value for found, value in self.headers if found == name]


def ask(server: Server, line: str, *headers: str | bytes, key: Key | None = None, body: bytes = b"") -> Answer:
    """Sends one request exactly as given, on a new connection. `line` is the method and the target.

    Fails if the OpenAPI document does not describe the response.
    """
    lines = [f"{line} HTTP/1.1".encode(), b"Host: petstore.test", b"Connection: close"]
    if key is not None:
        lines.append(f"Authorization: Bearer {key.secret}".encode())
    lines += [header.encode() if isinstance(header, str) else header for header in headers]
    answer = parse(raw(server.port, b"\r\n".join([*lines, b"", body])))
    method, _, target = line.partition(" ")
    assert_documented(method, path_of(target), *answer)
    return answer


def parse(response: bytes) -> Answer:
    assert response.startswith(b"HTTP/1.1 "), f"not a response: {response[:100]!r}"
    head, _, body = response.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    return Answer(int(first.split()[1]), headers, body)


def created(server: Server, client: httpx.Client, key: Key, **members: Any) -> dict[str, Any]:
    """Adds an animal. Returns it as the response shows it."""
    path = server.url("/pets", key.record.environment)
    response = client.post(path, json={**PET, **members}, headers=key.headers)
    assert response.status_code == 201, response.text
    pet: dict[str, Any] = response.json()
    return pet


def change_status(server: Server, pet_id: int, status: PetStatus) -> None:
    """Changes the status as an operator would."""
    server.act(lambda backends: backends.stores["live"].pets.set_status([pet_id], status, BY))


def message_of(response: httpx.Response, code: str) -> str:
    """Returns the message of an Error body, after checking the rest of the response."""
    assert (response.status_code, response.headers["content-type"]) == (STATUS_OF_CODE[code], "application/json")
    error = response.json()
    assert list(error) == ["code", "message", "status"]
    assert (error["code"], error["status"]) == (code, STATUS_OF_CODE[code])
    message = error["message"]
    assert isinstance(message, str)
    assert message
    return message


def remaining(response: httpx.Response) -> int:
    return int(response.headers["x-ratelimit-remaining"])
