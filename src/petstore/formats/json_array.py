"""Splits a JSON array into its elements, reading it in blocks so that large files take little memory."""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

ELEMENT_MAX = 64 * 1024  # bytes

_WHITE_SPACE = re.compile(rb"[ \t\r\n]*").match
# Only character classes use possessive quantifiers, because Python before 3.11.5 matches possessive groups incorrectly.
_REST_OF_STRING = rb'[^"\\]*+(?:\\.[^"\\]*+)*'
_STRING = rb'"' + _REST_OF_STRING + rb'"'
_IN_STRING = re.compile(_REST_OF_STRING, re.DOTALL).match
# Both patterns stop at a bracket, or at a string that continues in the next block. The first pattern also stops at a
# comma.
_OUTSIDE_BRACKETS = re.compile(rb'[^"\[\]{},]*+(?:' + _STRING + rb'[^"\[\]{},]*+)*', re.DOTALL).match
_INSIDE_BRACKETS = re.compile(rb'[^"\[\]{}]*+(?:' + _STRING + rb'[^"\[\]{}]*+)*', re.DOTALL).match


class NotAnArray(ValueError):
    """Raised if the input is not a JSON array. `line` is the number of the line with the error."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def array_elements(blocks: Iterable[bytes]) -> Iterator[tuple[int, bytes] | None]:
    """Yields each array element with the number of the line where it begins. Yields None after each block.

    Checks only commas, brackets and strings, so the elements can be invalid JSON. If all elements are valid JSON, the
    array is valid too. Raises NotAnArray if the array is invalid or an element is too long.
    """
    line = 1
    expected: Literal["array", "first element", "element", "end"] = "array"
    element: _Element | None = None
    for block in _without_bom(blocks):
        at = 0
        while at < len(block):
            if element is not None:
                end = element.extend(block, at)
                line += block.count(b"\n", at, end)
                at = end
                if element.is_complete:
                    yield element.line, bytes(element.content)
                    element = None
                    expected = "element" if block[at : at + 1] == b"," else "end"
                    at += 1
                continue
            end = _end_of(_WHITE_SPACE, block, at)
            line += block.count(b"\n", at, end)
            at, byte = end, block[end : end + 1]
            if not byte:
                break
            if expected == "array":
                if byte != b"[":
                    raise NotAnArray(line, "it does not begin with [")
                expected, at = "first element", at + 1
            elif expected == "end":
                raise NotAnArray(line, "there is text after the closing ]")
            elif byte == b"]" and expected == "first element":
                expected, at = "end", at + 1
            elif byte in b",]":
                raise NotAnArray(line, "a value is missing between commas or brackets")
            else:
                element = _Element(line)
        yield None
    if expected != "end":
        raise NotAnArray(line, "it is empty" if expected == "array" else "it ends without ]")


class _Element:
    """An array element, which may span several blocks."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.content = bytearray()
        self.is_complete = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False  # the last byte was an unescaped backslash in a string

    def extend(self, block: bytes, start: int) -> int:
        """Adds bytes until the element or the block ends, and returns the index of the next byte.

        Raises NotAnArray if the element is too long.
        """
        at = start
        while at < len(block) and not self.is_complete:
            at = self._next_in_string(block, at) if self._in_string else self._next(block, at)
        self.content += block[start:at]
        if len(self.content) > ELEMENT_MAX:
            reason = f"a value is longer than {ELEMENT_MAX // 1024} KiB, or a bracket or quote is not closed"
            raise NotAnArray(self.line, reason)
        return at

    def _next(self, block: bytes, at: int) -> int:
        at = _end_of(_INSIDE_BRACKETS if self._depth else _OUTSIDE_BRACKETS, block, at)
        byte = block[at : at + 1]
        if not self._depth and byte and byte in b",]":
            self.is_complete = True
            return at
        if byte == b'"':
            self._in_string = True
        elif byte:
            self._depth = max(0, self._depth + (1 if byte in b"[{" else -1))
        return at + len(byte)

    def _next_in_string(self, block: bytes, at: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            return at + 1
        at = _end_of(_IN_STRING, block, at)
        byte = block[at : at + 1]  # a closing quote, a backslash at the end of the block, or nothing
        self._in_string = byte != b'"'
        self._is_escaped = byte == b"\\"
        return at + len(byte)


def _end_of(match: Callable[[bytes, int], re.Match[bytes] | None], block: bytes, at: int) -> int:
    """Returns the index where the match ends. All patterns can match an empty string, so there is always a match."""
    found = match(block, at)
    return found.end() if found else at


def _without_bom(blocks: Iterable[bytes]) -> Iterator[bytes]:
    start: bytes | None = b""
    for block in blocks:
        if start is None:
            yield block
        elif len(start + block) < len(codecs.BOM_UTF8):
            start += block
        else:
            yield (start + block).removeprefix(codecs.BOM_UTF8)
            start = None
    if start:
        yield start
