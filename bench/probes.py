"""Checks before the race that all contenders respond in the same way to the same requests."""

import http.client
import json
import re
from dataclasses import dataclass
from typing import Any

from running import Running
from seed import animal

LIMITS = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
JSON = {"Content-Type": "application/json"}


class NotTheSame(Exception):
    """Raised if a contender responds differently, so that it cannot be compared."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Client:
    server: Running

    def ask(
        self, method: str, path: str, status: int, *, key: str = "", body: str | None = None, **headers: str
    ) -> Answer:
        """Sends one request. `key` defaults to the contender's first key. Raises NotTheSame."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        sent["Authorization"] = f"Bearer {key or self.server.keys[0]}"
        try:
            connection.request(method, path, body, sent | (JSON if body else {}))
            response = connection.getresponse()
            answer = Answer(response.status, response.headers, response.read())
        finally:
            connection.close()
        self.expect(answer.status == status, f"{method} {path} got a {answer.status}, not a {status}: {answer.body!r}")
        self.expect("X-Request-Id" in answer.headers, f"{method} {path} has no X-Request-Id")
        return answer

    def expect(self, true: bool, otherwise: str) -> None:
        if not true:
            raise NotTheSame(f"{self.server.name}: {otherwise}")

    def expect_error(self, answer: Answer, code: str) -> None:
        body = answer.json()
        self.expect(body.keys() == {"code", "message", "status"}, f"not an error body: {body}")
        self.expect((body["code"], body["status"]) == (code, answer.status), f"not the error {code}: {body}")


def check(server: Running, animals: int) -> None:
    """Checks one contender. Raises NotTheSame."""
    client = Client(server)
    check_lists(client)
    check_gets(client, animals)
    check_creates(client)
    check_idempotency_keys(client)
    check_keys(client)
    check_refusals(client)


def check_lists(client: Client) -> None:
    first = client.ask("GET", "/v1/pets", 200)
    client.expect(first.json() == [with_id(n) for n in range(1, 21)], "the first page is not animals 1 to 20")
    missing = [name for name in (*LIMITS, "ETag", "Cache-Control", "Vary") if name not in first.headers]
    client.expect(not missing, f"a list without {', '.join(missing)}")
    second = client.ask("GET", next_page(client, first), 200)
    client.expect(
        [pet["id"] for pet in second.json()] == list(range(21, 41)), "the second page is not animals 21 to 40"
    )
    counted = [int(answer.headers["X-RateLimit-Remaining"]) for answer in (first, second)]
    client.expect(counted[0] - counted[1] == 1, f"after two requests, {counted} remain")
    sold = client.ask("GET", "/v1/pets?limit=5&status=sold", 200)
    client.expect([pet["id"] for pet in sold.json()] == [2, 5, 8, 11, 14], "the filter by status is wrong")
    other_order = client.ask("GET", "/v1/pets?status=sold&limit=5", 200)
    client.expect(other_order.body == sold.body, "the order of parameters changes the response")
    client.ask("GET", "/v1/pets", 304, If_None_Match=first.headers["ETag"])


def with_id(number: int) -> dict[str, str | int]:
    return {"id": number, **animal(number)}


def next_page(client: Client, answer: Answer) -> str:
    link = re.fullmatch(r'<(/v1/pets\?[^>]+)>; rel="next"', answer.headers.get("Link", ""))
    client.expect(link is not None, "no link to the next page")
    return link[1] if link else ""


def check_gets(client: Client, animals: int) -> None:
    for number in (1, animals):  # the load only requests ids in between
        got = client.ask("GET", f"/v1/pets/{number}", 200)
        client.expect(got.json() == with_id(number), f"animal {number} is wrong: {got.body!r}")
        links = ", ".join(got.headers.get_all("Link", []))
        announced = all(name in got.headers for name in ("Deprecation", "Sunset", *LIMITS))
        client.expect(announced and "successor-version" in links, "a get does not announce its deprecation")
    client.expect_error(client.ask("GET", f"/v1/pets/{2**62}", 404), "pet_not_found")


def check_creates(client: Client) -> None:
    new = {"name": "Ünïcode <&> 🐈", "categoryId": -3, "status": "pending"}
    made = client.ask("POST", "/v1/pets", 201, body=json.dumps(new))
    pet = made.json()
    client.expect({name: pet[name] for name in new} == new, f"a different animal was added: {pet}")
    client.expect(made.headers["Location"] == f"/v1/pets/{pet['id']}", "no Location")
    client.expect(client.ask("GET", made.headers["Location"], 200).json() == pet, "the new animal cannot be read")


def check_idempotency_keys(client: Client) -> None:
    new, other = '{"name":"Once","categoryId":1}', '{"name":"Twice","categoryId":1}'
    token = {"Idempotency_Key": "probe-1"}
    first = client.ask("POST", "/v1/pets", 201, body=new, **token)
    client.expect("Idempotent-Replayed" not in first.headers, "the first create is marked as a replay")
    again = client.ask("POST", "/v1/pets", 201, body=new, **token)
    client.expect(again.json() == first.json(), f"a retried create added another animal: {again.body!r}")
    client.expect(again.headers.get("Idempotent-Replayed") == "true", "a replay is not marked as one")
    client.expect(again.headers["Location"] == first.headers["Location"], "a replay has another Location")
    client.expect_error(client.ask("POST", "/v1/pets", 422, body=other, **token), "idempotency_mismatch")
    made = client.ask("POST", "/v1/pets", 201, key=client.server.keys[1], body=other, **token)
    is_new = made.json()["id"] > first.json()["id"] and "Idempotent-Replayed" not in made.headers
    client.expect(is_new, "two API keys share an idempotency key")
    client.expect_error(client.ask("POST", "/v1/pets", 400, body=new, Idempotency_Key="a b"), "invalid_parameter")


def check_keys(client: Client) -> None:
    """Checks that every key has separate windows."""
    for key in client.server.keys[2::200]:
        answers = [client.ask("GET", "/v1/pets", 200, key=key) for _ in range(2)]
        left = [int(a.headers["X-RateLimit-Limit"]) - int(a.headers["X-RateLimit-Remaining"]) for a in answers]
        client.expect(left == [1, 2], f"a new key has used {left} after its first two requests")


def check_refusals(client: Client) -> None:
    wrong = {"name": " ", "categoryId": "1", "status": None}
    client.expect_error(client.ask("POST", "/v1/pets", 400, body=json.dumps(wrong)), "invalid_body")
    client.expect_error(client.ask("POST", "/v1/pets", 400, body="{"), "invalid_body")
    for query in ("limit=0", "limit=101", "status=lost", "cursor=mangled"):
        client.expect_error(client.ask("GET", f"/v1/pets?{query}", 400), "invalid_parameter")
    client.expect_error(client.ask("GET", "/v1/pets", 401, key="unknown"), "unauthorized")
