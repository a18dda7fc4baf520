"""What clients repeat: heads and their parts, as the bytes that came and as what they mean. For a second or two."""

from petstore.web.wire import Head

HEAD_MAX = 1024  # bytes
HEADS_MAX = 4096


class Repeated:
    """Of one worker. The dictionaries are looked into from outside, since a call would cost more than the look."""

    def __init__(self) -> None:
        self.heads: dict[bytes, Head] = {}
        self.names: dict[bytes, str] = {}
        self.texts: dict[bytes, str] = {}
        self._old_heads: dict[bytes, Head] = {}

    def remember(self, head: bytes, meaning: Head) -> None:
        """To be called for a message that came whole and alone, and that the parser took: the same bytes will mean
        the same again, and this takes a tenth of reading them.
        """
        if meaning.keep_alive and len(head) < HEAD_MAX and len(self.heads) < HEADS_MAX:
            self.heads[head] = meaning

    def recall(self, head: bytes) -> Head | None:
        known = self._old_heads.pop(head, None)
        if known is not None:
            self.remember(head, known)
        return known

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
