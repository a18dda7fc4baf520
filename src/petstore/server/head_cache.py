"""What clients repeat: heads and their parts, as the bytes that came and as what they mean. For a second or two."""

import re

from petstore.server.messages import Head
from petstore.web.requests import Memo

HEAD_MAX = 1024  # bytes
HEADS_MAX = 4096

# A first line in which nothing is to be decoded, and which means the same before all fields that may follow it.
_PLAIN = re.compile(rb"GET (/[A-Za-z0-9/_-]*)(?:\?([A-Za-z0-9&=%+._~-]*))? HTTP/1\.1").fullmatch


class HeadCache:
    """Of one worker. The dictionaries are looked into from outside, since a call would cost more than the look."""

    def __init__(self) -> None:
        self.heads: dict[bytes, Head] = {}
        self.names: dict[bytes, str] = {}
        self.texts: dict[bytes, str] = {}
        self._old_heads: dict[bytes, Head] = {}
        self._fields: dict[bytes, Head] = {}  # one head with these fields

    def learn(self, head: bytes, meaning: Head) -> None:
        """To be called for a message that came whole and alone, and that the parser took: the same bytes will mean
        the same again, and this takes a tenth of reading them.
        """
        if meaning.keep_alive and len(head) < HEAD_MAX:
            self._remember(head, meaning)
            first, _, fields = head.partition(b"\r\n")
            if len(self._fields) < HEADS_MAX and _PLAIN(first):
                self._fields[fields] = meaning

    def recall(self, head: bytes) -> Head | None:
        known = self._old_heads.pop(head, None) or self._combine(head)
        if known is not None:
            self._remember(head, known)
        return known

    def _remember(self, head: bytes, meaning: Head) -> None:
        if len(self.heads) < HEADS_MAX:
            self.heads[head] = meaning

    def _combine(self, head: bytes) -> Head | None:
        """A client that walks through a list, or from animal to animal, says something new in its first line only."""
        first, _, fields = head.partition(b"\r\n")
        like = self._fields.get(fields)
        if like is None or len(head) >= HEAD_MAX:
            return None
        plain = _PLAIN(first)
        if plain is None:
            return None
        path, query = plain[1].decode(), (plain[2] or b"").decode()
        memo = Memo()
        memo.credential = like.memo.credential
        if path == like.path:
            memo.route, memo.tally = like.memo.route, like.memo.tally
        return Head("GET", path, query, like.fields, like.keep_alive, like.expects_continue, like.length, memo)

    # One object for equal names and values of headers: what thousands of heads remember should fit a cache.

    def name_of(self, raw: bytes) -> str:
        name = raw.decode("latin-1").lower()
        if len(raw) < HEAD_MAX and len(self.names) < HEADS_MAX:
            self.names[raw] = name
        return name

    def text_of(self, raw: bytes) -> str:
        text = raw.decode("latin-1").rstrip(" \t")
        if len(raw) < HEAD_MAX and len(self.texts) < HEADS_MAX:
            self.texts[raw] = text
        return text

    def age(self) -> None:
        """Once a second: they hold credentials, which are nothing to keep."""
        self.names, self.texts = {}, {}
        self._old_heads, self.heads = self.heads, {}
        self._fields = {}
