"""What all responses have in common: limit headers, a request id, caching headers, and the format of errors."""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator

import httpx
import pytest

from harness.servers import Key, Server, raw
from petstore.errors import STATUS_OF_CODE
from petstore.keys import mint
from petstore.plans import Limits
from tests.web.answers import Answer, ask, parse

LIMIT_HEADERS = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")
VALID = b'{"name":"Rex","categoryId":1}'
# Text that must never appear in a message.
INTERNALS = re.compile(
    r"Traceback|File \"|line \d+, in |[A-Za-z](Error|Exception)\b|0x[0-9a-f]{6}"
    r"|\b(SELECT|INSERT|UPDATE|DELETE FROM|WHERE|COMMIT|BEGIN|PRAGMA)\b"
    r"|\.(py|db|mdb|so|rs|log)\b|/(usr|home|tmp|var|root|etc|work|opt)\b|site-packages|\\\\"
    r"|(?i:sqlite|apsw|lmdb|msgspec|asyncio|python|postgres|asyncpg|redis|httptools)"
    r"|pets_(live|test)_"
)

# The expected status, the method and target, additional headers, and the body.
WITH_KEY: list[tuple[int, str, list[str], bytes]] = [
    (200, "GET /pets", [], b""),
    (200, "HEAD /pets", [], b""),
    (200, "GET /pets?limit=1&status=sold", [], b""),
    (304, "GET /pets", ["If-None-Match: *"], b""),
    (304, "HEAD /pets", ["If-None-Match: *"], b""),
    (201, "POST /pets", [], VALID),
    (201, "POST /pets", ["Idempotency-Key: once"], VALID),
    (201, "POST /pets", ["Idempotency-Key: once"], VALID),
    (422, "POST /pets", ["Idempotency-Key: once"], VALID + b" "),
    (200, "GET /pets/1", [], b""),
    (200, "HEAD /pets/1", [], b""),
    (204, "OPTIONS /pets", [], b""),
    (204, "OPTIONS /pets/1", [], b""),
    (400, "GET /pets?limit=0", [], b""),
    (400, "HEAD /pets?limit=0", [], b""),
    (400, "GET /pets?limit='%20OR%201=1--", [], b""),
    (400, "GET /pets?status=lost", [], b""),
    (400, "GET /pets?cursor=x", [], b""),
    (400, "GET /pets?cursor=" + "x" * 8_000, [], b""),
    (414, "GET /pets?cursor=" + "x" * 20_000, [], b""),
    (400, "POST /pets", [], b""),
    (400, "POST /pets", [], b"{"),
    (400, "POST /pets", [], b"\xff\xfe"),
    (400, "POST /pets", [], b"[" * 60_000),
    (400, "POST /pets", [], b'{"x":' * 10_000),
    (400, "POST /pets", [], b'{"name":"\\ud800","categoryId":1e999,"status":{}}'),
    (400, "POST /pets", [], b'{"a":1,"a":1}'),
    (400, "POST /pets", [], b'{"name":"Rex","categoryId":' + b"9" * 5_000 + b"}"),
    (400, "POST /pets", ["Idempotency-Key: a b"], VALID),
    (404, "GET /pets/0", [], b""),
    (404, "HEAD /pets/0", [], b""),
    (404, "GET /pets/" + "9" * 5_000, [], b""),
    (404, "GET /pets/1%00", [], b""),
    (404, "GET /pets/", [], b""),
    (404, "GET /nothing", [], b""),
    (404, "GET ", [], b""),
    (404, "GET /%FF", [], b""),
    (404, "OPTIONS /nothing", [], b""),
    (405, "DELETE /pets", [], b""),
    (405, "TRACE /pets/1", [], b""),
    (405, "POST /pets/1", [], VALID),
    (413, "POST /pets", [], b"x" * 65_537),
    (415, "POST /pets", ["Content-Type: text/plain"], VALID),
    (415, "POST /pets", ["Content-Encoding: gzip"], VALID),
]  # fmt: skip
WITHOUT_KEY: list[tuple[int, str, list[str]]] = [
    (401, "GET /v1/pets", []),
    (401, "HEAD /v1/pets", []),
    (401, "POST /v1/pets", []),
    (401, "GET /v1/pets/1", []),
    (401, "GET /v1/nothing", []),
    (401, "GET /staging/v1/pets", []),
    (401, "GET /v1/pets", ["Authorization: Basic x"]),
    (401, "GET /v1/pets", [f"Authorization: Bearer {mint('live')}"]),
    (401, "GET /v1/pets", [f"Authorization: Bearer {mint('staging')}"]),
    (401, "GET /v1/pets", ["Authorization: Bearer " + "x" * 10_240]),
    (204, "OPTIONS /v1/pets", []),
    (204, "OPTIONS /healthz", []),
    (200, "GET /", []),
    (200, "GET /", ["Accept: text/html"]),
    (405, "POST /", []),
    (404, "GET /v2/pets", []),
    (404, "POST /nothing", []),
    (404, "HEAD /nothing", []),
    (404, "GET //v1/pets", []),
    (404, "GET /docs/../../etc/passwd", []),
    *(
        (200, f"{m} {p}", [])
        for m in ("GET", "HEAD")
        for p in ("/healthz", "/livez", "/readyz", "/openapi.json", "/docs")
    ),
    (200, "GET /openapi.yaml", []),
    (200, "GET /openapi.json", []),
    (304, "GET /openapi.json", ["If-None-Match: *"]),
    (200, "GET /docs", []),
    (405, "POST /healthz", []),
    (405, "DELETE /openapi.json", []),
    (405, "TRACE /docs", []),
]


def check(answers: Iterable[Answer]) -> None:
    """Checks what all responses have in common. Their request ids must all differ."""
    ids = []
    for answer in answers:
        for name in LIMIT_HEADERS:
            assert len(answer.values(name)) == 1, (name, answer)
            assert re.fullmatch(r"[0-9]+", answer.values(name)[0]), (name, answer)
        limit, left, reset = (int(answer.values(name)[0]) for name in LIMIT_HEADERS)
        assert 0 <= left <= limit, answer
        assert time.time() - 2 < reset <= time.time() + 86_402, answer
        (request_id,) = answer.values("x-request-id")
        ids.append(request_id)
        if answer.status >= 400:
            assert answer.values("cache-control") == ["no-store"], answer
        if answer.status >= 400 and answer.body:
            assert answer.values("content-type") == ["application/json"], answer
            error = json.loads(answer.body)
            assert sorted(error) == ["code", "message", "status"], answer
            assert error["status"] == answer.status, answer
            if error["code"] != "malformed_request":
                assert STATUS_OF_CODE[error["code"]] == answer.status, answer
            assert error["message"], answer
            assert not INTERNALS.search(error["message"]), answer
    assert len(set(ids)) == len(ids) > 0


def bodiless(method_and_target: str) -> bool:
    return method_and_target.startswith("HEAD ")


def with_key(server: Server, base: str, key: Key) -> Iterator[tuple[int, str, Answer]]:
    """Sends each request in WITH_KEY. Yields the expected status, the method and target, and the response."""
    for status, line, headers, body in WITH_KEY:
        method, target = line.split(" ", 1)
        length = [f"Content-Length: {len(body)}"] if body or method == "POST" else []
        yield status, line, ask(server, f"{method} {base}{target}", *headers, *length, key=key, body=body)


@pytest.mark.parametrize("base", ["/v1", "/staging/v1"])
def test_responses_to_a_valid_key(server: Server, base: str) -> None:
    key = server.key(environment="live" if base == "/v1" else "staging")
    server.fill(1, key.record.environment)
    answers = []
    for status, line, answer in with_key(server, base, key):
        assert answer.status == status, line[:100]
        assert status < 400 or bodiless(line) or answer.body, line[:100]
        kept = status in (200, 304)  # a list or an animal, which caches must revalidate
        assert answer.values("cache-control") == ["private, no-cache" if kept else "no-store"], line[:100]
        assert answer.values("vary") == (["Authorization"] if kept else []), line[:100]
        answers.append(answer)
    check(answers)


def test_every_request_with_a_valid_key_counts_once(server: Server) -> None:
    key = server.key(limits=Limits(10_000, 10_000))
    answers = [answer for status, _, answer in with_key(server, "/v1", key) if status != 414]  # not a request
    left = [int(answer.values("x-ratelimit-remaining")[0]) for answer in answers]
    assert left == list(range(9_999, 9_999 - len(answers), -1))


def test_responses_without_a_valid_key_and_outside_the_interface(server: Server) -> None:
    answers = []
    for _ in range(2):  # what the first round caches must not change the second
        for status, line, headers in WITHOUT_KEY:
            answer = ask(server, line, *headers)
            assert answer.status == status, line[:100]
            assert status < 400 or bodiless(line) or answer.body, line[:100]
            answers.append(answer)
    check(answers)


REJECTED: list[tuple[int, str, bytes]] = [
    (400, "malformed_request", b"GET /v1/pets HTTP/1.1\r\nHost: a\r\nX Note: 1\r\n\r\n"),
    (400, "malformed_request", b"GET /v1/pets HTTP/1.1\r\n\r\n"),
    (400, "malformed_request", b"\x16\x03\x01\x02\x00\x01"),
    (400, "malformed_request", b"GET /v1/pets RTSP/1.0\r\nHost: a\r\n\r\n"),
    (414, "malformed_request", b"GET /v1/pets?" + b"a&" * 30_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"),
    (431, "malformed_request", b"GET /v1/pets HTTP/1.1\r\nHost: a\r\nX-Note: " + b"x" * 60_000 + b"\r\n\r\n"),
    (431, "malformed_request", b"GET /v1/pets HTTP/1.1\r\nHost: a\r\n" + b"A: 1\r\n" * 100 + b"\r\n"),
    (501, "malformed_request", b"POST /v1/pets HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"),
    (505, "malformed_request", b"GET /v1/pets HTTP/2.0\r\nHost: a\r\n\r\n"),
]


def test_responses_to_what_never_became_a_request(server: Server) -> None:
    answers = []
    for status, code, sent in REJECTED:
        answer = parse(raw(server.port, sent))
        assert (answer.status, _code(answer)) == (status, code), sent[:60]
        assert answer.values("connection") == ["close"]
        answers.append(answer)
    check(answers)


def test_rejected_messages_are_not_charged_to_the_address(start: Callable[..., Server]) -> None:
    own = start("--address-per-minute", "3")
    for _ in range(5):
        answer = parse(raw(own.port, b"GET / HTTP/2.0\r\nHost: a\r\n\r\n"))
        assert answer.values("x-ratelimit-remaining") == ["3"]


def test_request_ids_share_nothing(server: Server) -> None:
    ids = [ask(server, "GET /healthz").values("x-request-id")[0] for _ in range(50)]
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in ids)
    for start in range(0, 32, 4):
        assert len({each[start : start + 4] for each in ids}) > 40  # no part of an id is a constant or a counter


def test_responses_to_a_key_without_the_scope(server: Server) -> None:
    reader, writer = server.key(scopes=["read"]), server.key(scopes=["write"])
    answers = [
        ask(server, "POST /v1/pets", f"Content-Length: {len(VALID)}", key=reader, body=VALID),
        ask(server, "GET /v1/pets", key=writer),
        ask(server, "HEAD /v1/pets/1", key=writer),
    ]
    assert [answer.status for answer in answers] == [403] * 3
    check(answers)


def test_responses_to_a_limited_and_banned_key(server: Server) -> None:
    key = server.key(limits=Limits(1, 1_000))
    answers = [ask(server, "GET /v1/pets", key=key) for _ in range(4)]
    assert [_code(answer) for answer in answers[1:]] == ["rate_limit_exceeded", "key_banned", "key_banned"]
    for answer in answers[1:]:
        assert int(answer.values("retry-after")[0]) >= 1
    check(answers)


def test_responses_to_a_limited_address(start: Callable[..., Server]) -> None:
    own = start("--address-per-minute", "3")
    answers = [ask(own, "GET /v1/pets") for _ in range(5)]
    assert [_code(answer) for answer in answers] == ["unauthorized"] * 3 + ["rate_limit_exceeded"] * 2
    answers += [ask(own, "GET /healthz"), ask(own, "GET /nothing"), ask(own, "GET /v1/pets", key=own.key())]
    check(answers)


@pytest.mark.on("sqlite-lmdb")
def test_responses_when_the_store_cannot_be_written(fresh: Server) -> None:
    """Another process holds the write lock for longer than a request may wait."""
    key = fresh.key()
    with fresh.writes_held_up():
        answer = ask(fresh, "POST /v1/pets", f"Content-Length: {len(VALID)}", key=key, body=VALID)
    assert (answer.status, _code(answer)) == (503, "unavailable")
    assert int(answer.values("retry-after")[0]) >= 1
    healed = ask(fresh, "POST /v1/pets", f"Content-Length: {len(VALID)}", key=key, body=VALID)
    assert healed.status == 201
    assert json.loads(ask(fresh, "GET /v1/pets", key=key).body) == [json.loads(healed.body)]
    check([answer, healed])


def test_responses_to_what_the_service_did_not_foresee(fresh: Server, client: httpx.Client) -> None:
    """A row that no version of the service can have written makes an operation fail halfway."""
    key: Key = fresh.key()
    fresh.spoil()
    answers = [ask(fresh, "GET /v1/pets", key=key), ask(fresh, "GET /v1/pets/1", key=key)]
    assert [(answer.status, _code(answer)) for answer in answers] == [(500, "internal_error")] * 2
    check(answers)
    for answer in answers:
        assert answer.values("x-request-id")[0] in fresh.log.read_text()
    assert "Traceback" in fresh.log.read_text()
    assert client.get(fresh.url("/pets/2"), headers=key.headers).status_code == 404


def _code(answer: Answer) -> str:
    code: str = json.loads(answer.body)["code"]
    return code
