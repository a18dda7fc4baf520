"""Bodies of requests: sized or chunked, as they arrive. How long one may be is the application's decision."""

import asyncio
import re
from typing import Protocol

from petstore.errors import BodyTooLarge

BUFFER_MAX = 64 * 1024  # bytes of a body that wait for the application before the connection stops reading
CHUNK_LINE_MAX = 4 * 1024  # bytes of a chunk's size with its extensions, or of a trailer
CHUNK_OVERHEAD_MAX = 384 * 1024  # bytes of all these lines
CHUNKS_MAX = 8_192  # reading one takes about a microsecond, however short it is
TRAILERS_MAX = 100
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_SIZE = rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?"  # with extensions
_CHUNK_SIZE = re.compile(_SIZE).fullmatch
_CHUNK_LINE = re.compile(_SIZE + b"\r\n").match
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*").fullmatch


class Malformed(Exception):
    """A message that is not HTTP/1.1, or is beyond a limit. The status is 413 for a body in too many chunks."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class BrokenOff(ConnectionError):
    """The body ended before its length, or is malformed: no more of it will come."""


class BodySource(Protocol):
    def update_reading(self) -> None:
        """Called when a body becomes full, and when the application has taken what made it full."""

    def write(self, data: bytes) -> None: ...


class BodyStream:
    """The body of a request, fed by the connection and read by the application."""

    def __init__(self, source: BodySource, length: int, *, continues: bool) -> None:
        """`length` -1: chunked. `continues`: the client waits for a 100 before it sends the body."""
        self._source = source
        self._left = length
        self._chunks = ChunkedDecoder() if length < 0 else None
        self._continues = continues
        self._parts = bytearray()  # one object: a list of the parts that arrive would be 40 times as large as they are
        self._arrived: asyncio.Future[None] | None = None
        self._taken = 0  # bytes
        self._broken = False
        self.complete = False

    @property
    def is_full(self) -> bool:
        """Whether the connection must not read more until the application has taken what has arrived."""
        return len(self._parts) > BUFFER_MAX and not self.complete

    @property
    def held(self) -> int:
        """Bytes in memory, with what the application has taken: of a longer body, it keeps the rest in a file."""
        return len(self._parts) + min(self._taken, BUFFER_MAX)

    def feed(self, data: bytes) -> bytes:
        """Returns what is behind the body. Raises Malformed, and breaks the stream off, for a malformed chunk."""
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
        """All that has arrived and was not taken yet."""
        taken = bytes(self._parts)
        self._parts = bytearray()
        self._taken += len(taken)
        return taken

    async def read(self) -> bytes:
        """The next bytes of the body; empty at its end.

        Raises BrokenOff, and BodyTooLarge for a body in too many chunks.
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
    """Decodes a chunked body (RFC 9112, 7.1), strictly. Trailers are checked and dropped as they arrive."""

    def __init__(self) -> None:
        self._pending = b""  # an unfinished line
        self._left = 0  # bytes of the present chunk, without its line end
        self._needs_line_end = False
        self._trailers: int | None = None  # how many have arrived; None before the last chunk
        self._chunks = 0
        self._overhead = 0

    @property
    def are_too_many(self) -> bool:
        return self._chunks > CHUNKS_MAX

    def decode(self, data: bytes) -> tuple[bytes, bytes | None]:
        """The decoded bytes, and what is behind the body once it has ended. Raises Malformed."""
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
        """Read chunks that have arrived completely. Returns where they end; the caller reads everything else.

        This takes half the time of reading the line, the bytes and the line end of a chunk in separate steps.
        Raises Malformed.
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
        """Whether the body has ended. Raises Malformed."""
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
        """Raises Malformed for what cannot become a line."""
        bare_line_end = b"\n" in unfinished or b"\r" in unfinished[:-1]
        wrong_end = self._needs_line_end and unfinished not in (b"", b"\r")
        if bare_line_end or wrong_end or len(unfinished) > CHUNK_LINE_MAX:
            raise Malformed(400)
        self._pending = unfinished


def _size_of(line: bytes) -> int:
    """Raises Malformed."""
    match = _CHUNK_SIZE(line) if len(line) <= CHUNK_LINE_MAX else None
    if match is None:
        raise Malformed(400)
    return int(match[1], 16)
