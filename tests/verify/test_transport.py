"""The HTTP client of `petstore verify`: it returns responses exactly as received, or says what is wrong with them."""

from collections.abc import Iterator

import pytest

from harness.hostile_server import hostile_server, silence
from petstore.verify.responses import Response, link_target
from petstore.verify.session import RUN_BYTES
from petstore.verify.transport import FIELDS_MAX, Budget, Connection, NoResponse, parse_address

OK = b"HTTP/1.1 200 OK\r\n"


def received(sent: bytes, request: str = "GET /pets", *, interim: bool = False, close: bool = True) -> Response:
    def response(target: str) -> Iterator[bytes]:
        yield sent
        if close:
            raise ConnectionError

    with hostile_server(response) as port:
        address = parse_address(f"http://127.0.0.1:{port}/v1")
        with Connection(address, Budget("the run", RUN_BYTES, 20.0)) as connection:
            connection.write(b"GET /v1/pets HTTP/1.1\r\n\r\n")
            return connection.read(request, interim=interim)


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (OK + b"Content-Length: 3\r\n\r\nabcd", b"abc"),
        (OK + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", b"abc"),
        (OK + b"Content-Length: 0\r\n\r\n", b""),
        (OK + b"\r\nabc", b"abc"),
        (OK + b"Transfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n00A;x=y\r\n0123456789\r\n0\r\n\r\n", b"abc0123456789"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Note: 1\r\n\r\n", b""),
        (
            b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\na",
            b"a",
        ),
        (b"HTTP/1.0 503\r\nContent-Length: 1\r\n\r\na", b"a"),
    ],
)
def test_a_body_is_read_as_its_length_says(sent: bytes, body: bytes) -> None:
    assert received(sent).body == body


def test_a_response_without_a_body_is_complete_after_its_headers() -> None:
    for status, request in ((200, "HEAD /pets"), (304, "GET /pets"), (204, "OPTIONS /pets")):
        response = received(b"HTTP/1.1 %d X\r\nContent-Length: 99\r\n\r\n" % status, request, close=False)
        assert (response.status, response.body) == (status, b"")


def test_an_interim_response_is_returned_on_request() -> None:
    response = received(b"HTTP/1.1 100 Continue\r\n\r\n", interim=True, close=False)
    assert (response.status, response.headers, response.body) == (100, (), b"")


def test_headers_are_kept_in_order_with_repeated_and_malformed_ones() -> None:
    fields = b"A: 1\r\nno colon\r\nB:\r\na:  2 \r\nX-\xe9: \xff\r\nContent-Length: 0\r\n"
    expected = (("a", "1"), ("no colon", ""), ("b", ""), ("a", "2"), ("x-é", "ÿ"), ("content-length", "0"))
    assert received(OK + fields + b"\r\n").headers == expected


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "closed without a complete response"),
        (OK + b"A: 1\r\n", "closed without a complete response"),
        (OK + b"Content-Length: 3\r\n\r\nab", "closed without a complete response"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "closed without a complete response"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "not an HTTP response: SSH-2.0-OpenSSH_9.2"),
        (b"HTTP/2 200 OK\r\n\r\n", "not an HTTP response: HTTP/2 200 OK"),
        (b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n", "not an HTTP response"),
        (b"HTTP/1.1 000 OK\r\n\r\n", "not an HTTP response"),
        (OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", "not a length: [12] and [12]"),
        (OK + b"Content-Length: -1\r\n\r\nab", "not a length: -1"),
        (OK + b"Content-Length: 1_0\r\n\r\nab", "not a length: 1_0"),
        (OK + b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\nab", "not a length: 999"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", "not a length: -1"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n\r\n", "not a length: "),
        (OK + b"A: 1\r\n" * (FIELDS_MAX + 1) + b"\r\n", "more than 100 headers"),
        (OK + b"A: " + b"x" * 9_000 + b"\r\n\r\n", "one that exceeds 8192 bytes"),
        (OK + b"A: " + b"x" * 40_000, "exceed 32 KiB"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 70_000, "exceed 32 KiB"),
    ],
)
def test_anything_else_is_not_a_response(sent: bytes, reason: str) -> None:
    with pytest.raises(NoResponse, match=reason):
        received(sent)


def test_an_exchange_ends_with_the_run() -> None:
    with hostile_server(silence) as port:
        connection = Connection(parse_address(f"http://127.0.0.1:{port}/v1"), Budget("the run", RUN_BYTES, 0.2))
        with connection, pytest.raises(NoResponse, match=r"the run took longer than 0\.2 s"):
            connection.write(b"GET /v1/pets HTTP/1.1\r\n\r\n")
            connection.read("GET /pets")


@pytest.mark.parametrize(
    ("value", "target"),
    [
        ('</v1/pets?cursor=a>; rel="next"', "http://127.0.0.1/v1/pets?cursor=a"),
        ('</docs>; rel="deprecation", <?cursor=a> ; rel=next', "http://127.0.0.1/v1/?cursor=a"),
        ('<http://[>; rel="next"', ""),
        ("<" * 8_000 + '/v1/pets>; rel="next"', "http://127.0.0.1/v1/pets"),
        ("<>" + " " * 8_000, ""),
    ],
)
def test_the_target_of_a_link(value: str, target: str) -> None:
    response = Response("GET /pets", "http://127.0.0.1/v1", 0.0, 0.0, 200, (("link", value),), b"")
    assert link_target(response, "next") == target
