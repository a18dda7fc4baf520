"""Cursors: an opaque position in the list of animals, as text, with its own checksum."""

import binascii
import re
import struct
import zlib

from petstore.errors import InvalidParameter

_cursor = struct.Struct(">qI")
_CURSOR_SALT = zlib.crc32(b"petstore cursor 1")
_CURSOR_FORM = re.compile("[A-Za-z0-9_-]{16}").fullmatch  # 12 bytes without padding: one text for each position
_TO_URL, _FROM_URL = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")


def write_cursor(after: int) -> str:
    """An opaque position in the list, with its own checksum."""
    raw = after.to_bytes(8, signed=True)
    whole = raw + zlib.crc32(raw, _CURSOR_SALT).to_bytes(4)
    return binascii.b2a_base64(whole, newline=False).translate(_TO_URL).decode()


def read_cursor(text: str) -> int:
    """Raises InvalidParameter."""
    if _CURSOR_FORM(text):
        raw = binascii.a2b_base64(text.encode().translate(_FROM_URL))
        after, check = _cursor.unpack(raw)
        if check == zlib.crc32(raw[:8], _CURSOR_SALT) and after >= 0:
            return int(after)
    raise InvalidParameter("cursor is not one that this service gave out; start again without it.")
