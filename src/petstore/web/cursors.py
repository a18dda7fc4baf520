"""Cursors: an opaque position in the list of animals, as text, with its own checksum."""

import binascii
import re
import zlib

_SALT = zlib.crc32(b"petstore cursor 1")
_FORM = re.compile("[A-Za-z0-9_-]{16}").fullmatch  # 12 bytes without padding: one text for each position
_TO_URL, _FROM_URL = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")


def write_cursor(after: int) -> str:
    raw = after.to_bytes(8, signed=True)
    whole = raw + zlib.crc32(raw, _SALT).to_bytes(4)
    return binascii.b2a_base64(whole, newline=False).translate(_TO_URL).decode()


def read_cursor(text: str) -> int | None:
    """The position, or None for a text that `write_cursor` cannot have made."""
    if _FORM(text):
        raw = binascii.a2b_base64(text.encode().translate(_FROM_URL))
        after = int.from_bytes(raw[:8], signed=True)
        if raw[8:] == zlib.crc32(raw[:8], _SALT).to_bytes(4) and after >= 0:
            return after
    return None
