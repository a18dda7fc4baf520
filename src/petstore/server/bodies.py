"""Streams request bodies that are chunked or have a content length. The application must limit their size."""

import asyncio
import re
from typing import Protocol

from petstore.errors import BodyTooLarge

BUFFER_MAX = 64 * 1024  # bytes to buffer before the connection stops reading
CHUNK_LINE_MAX = 4 * 1024  # maximum bytes in a chunk size line (including extensions) or a trailer line
CHUNK_OVERHEAD_MAX = 384 * 1024  # maximum total bytes of a body's chunk size lines and trailer lines
CHUNKS_MAX = 8_192  # maximum chunks per body, because even a short chunk takes about 1 µs to decode
TRAILERS_MAX = 100
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_SIZE = rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?"  # with extensions
_CHUNK_SIZE = re.compile(_SIZE).fullmatch
_CHUNK_LINE = re.compile(_SIZE + b"\r\n").match
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*").fullmatch


class Malformed(Exception):
    """The message is not valid HTTP/1.1 or exceeds a limit. `status` is the HTTP status to respond with."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class BrokenOff(ConnectionError):
    """The body ended early or is malformed."""


class BodySource(Protocol):
    def update_reading(self) -> None:
        """Called when a body's buffer fills up, and again when the application has emptied it."""

    def write(self, data: bytes) -> None: ...


class BodyStream:
    """A request body. The connection feeds it data, and the application reads from it."""

    def __init__(self, source: BodySource, length: int, *, continues: bool) -> None:
        """`length` is -1 if the body is chunked. `continues` says whether the client is waiting for 100 Continue."""
        self._source = source
        self._left = length
        self._chunks = ChunkedDecoder() if length < 0 else None
        self._continues = continues
        self._parts = bytearray()  # not a list, because a list of many small parts could use 40 times as much memory
        self._arrived: asyncio.Future[None] | None = None
        self._taken = 0  # bytes that the application has read
        self._broken = False
        self.complete = False

    @property
    def is_full(self) -> bool:
        """Whether the connection must stop reading until the application empties the buffer."""
        return len(self._parts) > BUFFER_MAX and not self.complete

    @property
    def held(self) -> int:
        """Returns how many bytes of the body are in memory.

        Assumes that the application keeps at most BUFFER_MAX of the bytes that it has read.
        """
        return len(self._parts) + min(self._taken, BUFFER_MAX)

    def feed(self, data: bytes) -> bytes:
        """Adds data, and returns any bytes that follow the body. Raises Malformed if a chunk is not valid."""
        if self._chunks is not None:
            try:
                part, rest = self._chunks.decode(data)
            except Malformed:
                self.break_off()
                raise
            self.complete = rest is not None
        else:
            part, rest = data[: self._left], data[self._left :]
            self._left -= len(part)
            self.complete = self._left == 0
        if part:
            self._parts += part
            if self.is_full:
                self._source.update_reading()
        self._wake()
        return rest or b""

    def take(self) -> bytes:
        """Removes the buffered bytes and returns them."""
        taken = bytes(self._parts)
        self._parts = bytearray()
        self._taken += len(taken)
        return taken

    async def read(self) -> bytes:
        """Returns the next bytes of the body, or b"" at the end.

        Raises BrokenOff if the body is incomplete or malformed, and BodyTooLarge if it has too many chunks.
        """
        while not self._parts and not self.complete:
            if self._chunks is not None and self._chunks.are_too_many:
                raise BodyTooLarge(f"The body must have at most {CHUNKS_MAX} chunks.")
            if self._broken:
                raise BrokenOff
            if self._continues:
                self._source.write(_CONTINUE)
                self._continues = False
            self._arrived = asyncio.get_running_loop().create_future()
            try:
                await self._arrived
            finally:
                self._arrived = None
        was_full = self.is_full
        taken = self.take()
        if was_full:
            self._source.update_reading()
        return taken

    def break_off(self) -> None:
        if not self.complete:
            self._broken = True
            self._wake()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)


class ChunkedDecoder:
    """A strict decoder for chunked bodies (RFC 9112, 7.1). Validates trailers but discards them."""

    def __init__(self) -> None:
        self._pending = b""  # an incomplete line
        self._left = 0  # bytes of the current chunk's data that have not arrived yet
        self._needs_line_end = False
        self._trailers: int | None = None  # trailers received so far; None until the last chunk has arrived
        self._chunks = 0
        self._overhead = 0

    @property
    def are_too_many(self) -> bool:
        return self._chunks > CHUNKS_MAX

    def decode(self, data: bytes) -> tuple[bytes, bytes | None]:
        """Returns the decoded bytes, and the bytes that follow the body (None until the body has ended).

        Raises Malformed if the data is not valid or exceeds a limit.
        """
        data = self._pending + data
        self._pending = b""
        decoded: list[bytes] = []
        position = 0
        while True:
            if not self._left and not self._needs_line_end and self._trailers is None:
                position = self._read_whole_chunks(data, position, decoded)
            if self._left:
                part = data[position : position + self._left]
                decoded.append(part)
                position += len(part)
                self._left -= len(part)
                if self._left:
                    return b"".join(decoded), None
                self._needs_line_end = True
            end = data.find(b"\r\n", position)
            if end < 0:
                self._keep(data[position:])
                return b"".join(decoded), None
            line = data[position:end]
            position = end + 2
            self._overhead += len(line) + 2
            if self._overhead > CHUNK_OVERHEAD_MAX:
                raise Malformed(400)
            if self._read_line(line):
                return b"".join(decoded), data[position:]

    def _read_whole_chunks(self, data: bytes, position: int, decoded: list[bytes]) -> int:
        """Reads complete chunks and returns the position after the last one. Raises Malformed if a limit is exceeded.

        This is twice as fast as reading each chunk's size, data and line end in separate steps.
        """
        while (line := _CHUNK_LINE(data, position)) is not None:
            start = line.end()
            end = start + int(line[1], 16)
            if start == end or start - position > CHUNK_LINE_MAX + 2 or data[end : end + 2] != b"\r\n":
                break
            self._chunks += 1
            if self._chunks > CHUNKS_MAX:
                raise Malformed(413)
            decoded.append(data[start:end])
            self._overhead += start - position + 2
            position = end + 2
        if self._overhead > CHUNK_OVERHEAD_MAX:
            raise Malformed(400)
        return position

    def _read_line(self, line: bytes) -> bool:
        """Reads one line and returns whether the body has ended. Raises Malformed if the line is not valid."""
        if self._needs_line_end:
            if line:
                raise Malformed(400)
            self._needs_line_end = False
        elif self._trailers is not None:
            if not line:
                return True
            self._trailers += 1
            if self._trailers > TRAILERS_MAX or len(line) > CHUNK_LINE_MAX or not _TRAILER(line):
                raise Malformed(400)
        else:
            self._left = _size_of(line)
            if self._left == 0:
                self._trailers = 0
            else:
                self._chunks += 1
                if self._chunks > CHUNKS_MAX:
                    raise Malformed(413)
        return False

    def _keep(self, unfinished: bytes) -> None:
        """Keeps an incomplete line for the next call. Raises Malformed if the line can no longer become valid."""
        bare_line_end = b"\n" in unfinished or b"\r" in unfinished[:-1]
        wrong_end = self._needs_line_end and unfinished not in (b"", b"\r")
        if bare_line_end or wrong_end or len(unfinished) > CHUNK_LINE_MAX:
            raise Malformed(400)
        self._pending = unfinished


def _size_of(line: bytes) -> int:
    """Parses a chunk size line and returns the size. Raises Malformed if the line is not valid."""
    match = _CHUNK_SIZE(line) if len(line) <= CHUNK_LINE_MAX else None
    if match is None:
        raise Malformed(400)
    return int(match[1], 16)
