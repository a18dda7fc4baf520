"""Connections, upgrades and Expect: RFC 9112, section 9; RFC 9110, sections 7.6, 7.8 and 10.1.1."""

from prove.cases import AUTH, CHUNKED, FINE, HOST, LAST, NEVER, Case, Check, chunk, get, lines, post, sized
from prove.http import Conversation

_WAIT = b"Expect: 100-continue"
_HEALTH = lines(b"GET /healthz HTTP/1.1", HOST)


def _statuses(*expected: int) -> Check:
    return lambda got: tuple(r.status for r in got.responses[: len(expected)]) == expected


def _never_100(got: Conversation) -> bool:
    return all(response.status != 100 for response in got.responses)


CASES = [
    # 9112, 9.3: persistence
    Case("9112 9.3", "1.1 persists unless told otherwise", get(), "stays", (200,)),
    Case("9112 9.3", "also after an error", get(target=b"/v1/pets?limit=0"), "stays", (400,)),
    Case("9112 9.3", "also after a 401", lines(b"GET /v1/pets HTTP/1.1", HOST), "stays", (401,)),
    Case("9112 9.3", "also after a body that was refused", sized(b"{}"), "stays", (400,)),
    Case("9112 9.3", "1.0 ends", get(version=b"HTTP/1.0"), "closes", (200,)),
    Case("9112 9.3", "1.0 with keep-alive may persist", get(b"Connection: keep-alive", version=b"HTTP/1.0"), "either", (200,)),
    Case("9112 9.6", "close ends the connection after the answer", get(b"Connection: close"), "closes", (200,)),
    Case("9112 9.6", "close is case-insensitive", get(b"Connection: CLOSE"), "closes", (200,)),
    Case("9110 7.6.1", "close in a list is close", get(b"Connection: keep-alive, close"), "closes", (200,)),
    Case("9110 7.6.1", "close in a second line is close", get(b"Connection: keep-alive", b"Connection: close"), "closes", (200,)),
    Case("9110 5.6.1", "empty elements of a list are ignored", get(b"Connection: , ,close,"), "closes", (200,)),
    Case("9110 7.6.1", "an unknown connection option is ignored", get(b"Connection: x-note"), "stays", (200,)),
    Case("9110 7.6.1", "closely is not close", get(b"Connection: closely"), "stays", (200,)),
    Case("9112 9.6", "what follows a close is not processed", get(b"Connection: close") + sized(NEVER), "closes", (200,)),
    Case("9112 9.6", "what follows a close is not processed: in 1.0", get(version=b"HTTP/1.0") + sized(NEVER), "closes", (200,)),
    Case("9112 9.6", "what follows a message that is refused is not processed", get(b"X Note: 1") + sized(NEVER), "closes", (400,)),
    Case("9112 C.2.2", "Keep-Alive is not needed and not obeyed", get(b"Keep-Alive: timeout=1, max=1"), "stays", (200,)),
    # 9112, 9.3.2: pipelining
    Case("9112 9.3.2", "answers come in the order of requests", _HEALTH + get() + lines(b"GET /nothing HTTP/1.1", HOST), "stays", (200,), lambda got: [r.status for r in got.final] == [200, 200, 404, 200], ("GET", "GET", "GET")),
    Case("9112 9.3.2", "a quick answer waits for a slow one", sized(FINE) + _HEALTH, "stays", (201,), lambda got: [r.status for r in got.final] == [201, 200, 200], ("POST", "GET")),
    Case("9112 9.3.2", "HEAD among them has no body", lines(b"HEAD /v1/pets HTTP/1.1", HOST, AUTH) * 2, "stays", (200,), lambda got: len(got.final) == 3, ("HEAD", "HEAD")),
    Case("9112 9.3.2", "answers due before a refused message still come", get() * 3 + get(b"X Note: 1"), "closes", (200,), lambda got: [r.status for r in got.final] == [200, 200, 200, 400], ("GET",) * 4),
    Case("9112 2.2", "a message may come in any pieces", get(), "stays", (200,), octets=9),
    Case("9112 2.2", "a head ends with its empty line, and is answered once, when that has come", (get() + get()[:-4], b"\r\n", b"\r\n"), "stays", (200,), lambda got: [r.status for r in got.final] == [200, 200, 200], ("GET", "GET")),
    Case("9112 2.2", "also between CR and LF", (get()[:-1], get()[-1:]), "stays", (200,)),
    Case("9112 9.6", "a client that has closed its half still gets its answer", get(), "closes", (200,), half_close=True),
    # 9110, 7.8: Upgrade
    Case("9110 7.8", "an upgrade may be ignored: h2c", get(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"), "stays", (200,)),
    Case("9110 7.8", "an upgrade may be ignored: websocket", get(b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="), "stays", (200,)),
    Case("9110 7.8", "an upgrade in 1.0 must be ignored", get(b"Connection: Upgrade", b"Upgrade: websocket", version=b"HTTP/1.0"), "closes", (200,)),
    Case("9110 7.8", "an upgrade may be ignored: of a request with a body", sized(FINE, b"Connection: Upgrade", b"Upgrade: h2c"), "stays", (201,)),
    Case("9110 7.8", "an upgrade may be ignored: of one with a chunked body", post(chunk(FINE) + LAST, CHUNKED, b"Connection: Upgrade", b"Upgrade: h2c"), "stays", (201,), octets=50),
    Case("9110 7.6.1", "Upgrade without its connection option is not for us", get(b"Upgrade: websocket"), "stays", (200,)),
    Case("9112 9.7", "the preface of HTTP/2 is not a request of 1.1", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "closes", (400, 501, 505)),
    Case("9110 10.1.4", "TE is ours to ignore", get(b"TE: trailers, deflate;q=0.5", b"Connection: TE"), "stays", (200,)),
    Case("9110 6.6.2", "Trailer announces and changes nothing", post(chunk(FINE) + b"0\r\nX-Sum: 1\r\n\r\n", CHUNKED, b"Trailer: X-Sum"), "stays", (201,)),
    # 9110, 10.1.1: Expect
    Case("9110 10.1.1", "100 comes before the body is awaited", (post(b"", _WAIT, b"Content-Length: %d" % len(FINE)), FINE), "stays", (201,), _statuses(100, 201), waits=True),
    Case("9110 10.1.1", "the expectation is case-insensitive", (post(b"", b"Expect: 100-CONTINUE", b"Content-Length: %d" % len(FINE)), FINE), "stays", (201,), _statuses(100, 201), waits=True),
    Case("9110 10.1.1", "also before a chunked one", (post(b"", _WAIT, CHUNKED), chunk(FINE) + LAST), "stays", (201,), _statuses(100, 201), waits=True),
    Case("9110 15.2.1", "100 comes once, in however many pieces the body comes", (post(b"", _WAIT, CHUNKED), chunk(FINE[:9]), chunk(FINE[9:20]), chunk(FINE[20:]) + LAST), "stays", (201,), _statuses(100, 201), waits=True),
    Case("9110 10.1.1", "in 1.0 the expectation must be ignored", (post(b"", _WAIT, b"Content-Length: %d" % len(FINE), version=b"HTTP/1.0"), FINE), "closes", (201,), _never_100),
    Case("9110 10.1.1", "a final answer may come instead: 401", lines(b"POST /v1/pets HTTP/1.1", HOST, _WAIT, b"Content-Length: 31") + NEVER, "either", (401,), _never_100),
    Case("9110 10.1.1", "then the body is awaited or the connection ends: 415", (post(b"", _WAIT, b"Content-Type: text/plain", b"Content-Length: 31"), NEVER), "closes", (415,), _never_100, waits=True),
    Case("9110 10.1.1", "then the body is awaited or the connection ends: 413", (post(b"", _WAIT, b"Content-Length: 99999999"), NEVER), "closes", (413,), _never_100, waits=True),
    Case("9110 10.1.1", "100 may be left out when the body is there", sized(FINE, _WAIT), "stays", (201,)),
    Case("9110 10.1.1", "no 100 for a request without a body", get(_WAIT), "stays", (200,), _never_100),
    Case("9110 10.1.1", "another expectation is 417, or ignored", sized(FINE, b"Expect: a-miracle"), "either", (201, 417)),
]  # fmt: skip
