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
    Case("9112 9.3", "an HTTP/1.1 connection persists by default", get(), "stays", (200,)),
    Case("9112 9.3", "an HTTP/1.1 connection persists after an error", get(target=b"/v1/pets?limit=0"), "stays", (400,)),
    Case("9112 9.3", "an HTTP/1.1 connection persists after a 401", lines(b"GET /v1/pets HTTP/1.1", HOST), "stays", (401,)),
    Case("9112 9.3", "an HTTP/1.1 connection persists after a refused body", sized(b"{}"), "stays", (400,)),
    Case("9112 9.3", "an HTTP/1.0 connection closes by default", get(version=b"HTTP/1.0"), "closes", (200,)),
    Case("9112 9.3", "an HTTP/1.0 connection with keep-alive may persist", get(b"Connection: keep-alive", version=b"HTTP/1.0"), "either", (200,)),
    Case("9112 9.6", "close ends the connection after the response", get(b"Connection: close"), "closes", (200,)),
    Case("9112 9.6", "close is case-insensitive", get(b"Connection: CLOSE"), "closes", (200,)),
    Case("9110 7.6.1", "close also works in a list", get(b"Connection: keep-alive, close"), "closes", (200,)),
    Case("9110 7.6.1", "close also works in a second line", get(b"Connection: keep-alive", b"Connection: close"), "closes", (200,)),
    Case("9110 5.6.1", "empty elements of a list are ignored", get(b"Connection: , ,close,"), "closes", (200,)),
    Case("9110 7.6.1", "an unknown connection option is ignored", get(b"Connection: x-note"), "stays", (200,)),
    Case("9110 7.6.1", "closely does not mean close", get(b"Connection: closely"), "stays", (200,)),
    Case("9112 9.6", "what follows close is not processed", get(b"Connection: close") + sized(NEVER), "closes", (200,)),
    Case("9112 9.6", "what follows an HTTP/1.0 request is not processed", get(version=b"HTTP/1.0") + sized(NEVER), "closes", (200,)),
    Case("9112 9.6", "what follows a refused message is not processed", get(b"X Note: 1") + sized(NEVER), "closes", (400,)),
    Case("9112 C.2.2", "Keep-Alive has no effect", get(b"Keep-Alive: timeout=1, max=1"), "stays", (200,)),
    # 9112, 9.3.2: pipelining
    Case("9112 9.3.2", "responses are sent in the order of the requests", _HEALTH + get() + lines(b"GET /nothing HTTP/1.1", HOST), "stays", (200,), lambda got: [r.status for r in got.final] == [200, 200, 404, 200], ("GET", "GET", "GET")),
    Case("9112 9.3.2", "a quick response waits for a slow one", sized(FINE) + _HEALTH, "stays", (201,), lambda got: [r.status for r in got.final] == [201, 200, 200], ("POST", "GET")),
    Case("9112 9.3.2", "a response to a pipelined HEAD has no body", lines(b"HEAD /v1/pets HTTP/1.1", HOST, AUTH) * 2, "stays", (200,), lambda got: len(got.final) == 3, ("HEAD", "HEAD")),
    Case("9112 9.3.2", "requests before a refused message are still answered", get() * 3 + get(b"X Note: 1"), "closes", (200,), lambda got: [r.status for r in got.final] == [200, 200, 200, 400], ("GET",) * 4),
    Case("9112 2.2", "a message may arrive in pieces of any size", get(), "stays", (200,), octets=9),
    Case("9112 2.2", "a request is answered exactly once, after the empty line that ends its head", (get() + get()[:-4], b"\r\n", b"\r\n"), "stays", (200,), lambda got: [r.status for r in got.final] == [200, 200, 200], ("GET", "GET")),
    Case("9112 2.2", "a head may be split between CR and LF", (get()[:-1], get()[-1:]), "stays", (200,)),
    Case("9112 9.6", "a client that has closed its side still gets its response", get(), "closes", (200,), half_close=True),
    # 9110, 7.8: Upgrade
    Case("9110 7.8", "an upgrade may be ignored: h2c", get(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"), "stays", (200,)),
    Case("9110 7.8", "an upgrade may be ignored: websocket", get(b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="), "stays", (200,)),
    Case("9110 7.8", "an upgrade in HTTP/1.0 must be ignored", get(b"Connection: Upgrade", b"Upgrade: websocket", version=b"HTTP/1.0"), "closes", (200,)),
    Case("9110 7.8", "an upgrade may be ignored: with a body", sized(FINE, b"Connection: Upgrade", b"Upgrade: h2c"), "stays", (201,)),
    Case("9110 7.8", "an upgrade may be ignored: with a chunked body", post(chunk(FINE) + LAST, CHUNKED, b"Connection: Upgrade", b"Upgrade: h2c"), "stays", (201,), octets=50),
    Case("9110 7.6.1", "Upgrade without its connection option has no effect", get(b"Upgrade: websocket"), "stays", (200,)),
    Case("9112 9.7", "the HTTP/2 preface is not an HTTP/1.1 request", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "closes", (400, 501, 505)),
    Case("9110 10.1.4", "TE may be ignored", get(b"TE: trailers, deflate;q=0.5", b"Connection: TE"), "stays", (200,)),
    Case("9110 6.6.2", "Trailer has no effect", post(chunk(FINE) + b"0\r\nX-Sum: 1\r\n\r\n", CHUNKED, b"Trailer: X-Sum"), "stays", (201,)),
    # 9110, 10.1.1: Expect
    Case("9110 10.1.1", "a 100 is sent before the server waits for the body", (post(b"", _WAIT, b"Content-Length: %d" % len(FINE)), FINE), "stays", (201,), _statuses(100, 201), waits=True),
    Case("9110 10.1.1", "the expectation is case-insensitive", (post(b"", b"Expect: 100-CONTINUE", b"Content-Length: %d" % len(FINE)), FINE), "stays", (201,), _statuses(100, 201), waits=True),
    Case("9110 10.1.1", "a 100 is sent before the server waits for a chunked body", (post(b"", _WAIT, CHUNKED), chunk(FINE) + LAST), "stays", (201,), _statuses(100, 201), waits=True),
    Case("9110 15.2.1", "a 100 is sent only once, however many pieces the body arrives in", (post(b"", _WAIT, CHUNKED), chunk(FINE[:9]), chunk(FINE[9:20]), chunk(FINE[20:]) + LAST), "stays", (201,), _statuses(100, 201), waits=True),
    Case("9110 10.1.1", "the expectation must be ignored in HTTP/1.0", (post(b"", _WAIT, b"Content-Length: %d" % len(FINE), version=b"HTTP/1.0"), FINE), "closes", (201,), _never_100),
    Case("9110 10.1.1", "a final response may be sent instead of a 100: 401", lines(b"POST /v1/pets HTTP/1.1", HOST, _WAIT, b"Content-Length: 31") + NEVER, "either", (401,), _never_100),
    Case("9110 10.1.1", "after a final response, the server reads the body or closes: 415", (post(b"", _WAIT, b"Content-Type: text/plain", b"Content-Length: 31"), NEVER), "closes", (415,), _never_100, waits=True),
    Case("9110 10.1.1", "after a final response, the server reads the body or closes: 413", (post(b"", _WAIT, b"Content-Length: 99999999"), NEVER), "closes", (413,), _never_100, waits=True),
    Case("9110 10.1.1", "a 100 may be omitted if the body has arrived", sized(FINE, _WAIT), "stays", (201,)),
    Case("9110 10.1.1", "a request without a body gets no 100", get(_WAIT), "stays", (200,), _never_100),
    Case("9110 10.1.1", "an unknown expectation gets a 417 or is ignored", sized(FINE, b"Expect: a-miracle"), "either", (201, 417)),
]  # fmt: skip
