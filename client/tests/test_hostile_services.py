"""A response of any size, speed or shape ends with an error within the promised time and memory."""

import gzip
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from fakes import Client, Kind
from hostile import Piece, endless, head, sending
from petstore_client import ConnectionFailed, PetstoreError, ServerError, TimedOut, UnexpectedResponse

CHUNKED = head(Transfer_Encoding="chunked")
CHUNK = b"10000\r\n" + b"x" * 65536 + b"\r\n"
EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"


def gigabyte_of_zeros() -> bytes:
    """Returns a megabyte of gzip that contains a gigabyte, apart from the end of the file."""
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    first = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + 1023 * (packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH))


def fail(kind: Kind, *pieces: Any, **options: Any) -> tuple[PetstoreError, float, float]:
    """Lists animals in vain. Returns the error, the seconds that it took and the MiB of memory at the peak."""
    with sending(*pieces) as base_url, Client(kind, base_url=base_url, **options) as client:
        tracemalloc.start()
        began = time.monotonic()
        try:
            with pytest.raises(PetstoreError) as raised:
                next(client.list_pets())
            return raised.value, time.monotonic() - began, tracemalloc.get_traced_memory()[1] / (1 << 20)
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    "pieces",
    [
        (CHUNKED, endless(CHUNK)),
        (head(Content_Length=10**12), endless(b"x" * 65536)),
        (head(Connection="close"), endless(b"x" * 65536)),
    ],
)
def test_an_endless_body_is_an_unexpected_response(kind: Kind, pieces: tuple[Iterator[Piece], ...]) -> None:
    raised, seconds, memory = fail(kind, *pieces)
    assert isinstance(raised, UnexpectedResponse)
    assert "larger than 8 MiB" in str(raised)
    assert memory < 40
    assert seconds < 20


def test_a_gigabyte_in_a_compressed_megabyte_is_an_unexpected_response(kind: Kind) -> None:
    body = gigabyte_of_zeros()
    raised, seconds, memory = fail(kind, head(Content_Encoding="gzip", Content_Length=len(body)), [body])
    assert isinstance(raised, UnexpectedResponse)
    assert "larger than 8 MiB" in str(raised)
    assert memory < 40
    assert seconds < 20


def test_a_body_that_is_not_compressed_as_its_header_says_is_an_unexpected_response(kind: Kind) -> None:
    raised, *_ = fail(kind, head(Content_Encoding="gzip", Content_Length=2), [b"[]"])
    assert isinstance(raised, UnexpectedResponse)


def test_a_compressed_body_is_read(kind: Kind) -> None:
    body = gzip.compress(b"[]")
    with (
        sending(head(Content_Encoding="gzip", Content_Length=len(body)), [body]) as base_url,
        Client(kind, base_url=base_url) as client,
    ):
        assert list(client.list_pets()) == []


def test_endless_interim_responses_end_with_an_error(kind: Kind) -> None:
    raised, seconds, memory = fail(kind, endless(EARLY_HINTS * 500), timeout=5, total_timeout=5)
    assert isinstance(raised, ConnectionFailed | TimedOut)
    assert memory < 40
    assert seconds < 20


@pytest.mark.parametrize(
    "pieces",
    [
        [endless(EARLY_HINTS, 0.02)],
        [endless(b"", 0.02)],
        [[b"HTTP/1.1 200 OK\r\nX-Slow: "], endless(b"x", 0.02)],
        [head(Content_Length=10**6), endless(b"x", 0.02)],
        [CHUNKED, endless(b"1\r\nx\r\n", 0.02)],
        [CHUNKED, [b"0\r\n"], endless(b"X-Trailer: x\r\n", 0.02)],
    ],
)
def test_a_response_that_never_ends_times_out(kind: Kind, pieces: list[Iterator[Piece]]) -> None:
    raised, seconds, _ = fail(kind, *pieces, timeout=0.3, total_timeout=0.4)
    assert isinstance(raised, TimedOut)
    assert 0.25 < seconds < 20


@pytest.mark.parametrize("value", ["<" * 60_000, "x" * 40_000])
def test_headers_that_are_too_large_are_not_interpreted(kind: Kind, value: str) -> None:
    raised, seconds, _ = fail(kind, head(Link=value, Content_Length=2), [b"[]"])
    assert isinstance(raised, UnexpectedResponse)
    assert "larger than 32 KiB" in str(raised)
    assert raised.headers == {}
    assert seconds < 5


def test_the_body_of_an_error_is_limited_too(kind: Kind) -> None:
    unavailable = head("503 Service Unavailable", Transfer_Encoding="chunked")
    raised, seconds, memory = fail(kind, unavailable, endless(CHUNK), total_timeout=20)
    assert isinstance(raised, ServerError)
    assert raised.code == "unknown"
    assert memory < 40
    assert seconds < 20
