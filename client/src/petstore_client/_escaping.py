"""Escapes characters that a terminal or a log viewer would interpret instead of displaying. No I/O."""

# Control characters (C0, DEL, C1), bidirectional formatting characters, line and paragraph separators, and lone
# surrogates, which cannot be encoded as UTF-8.
_INTERPRETED = (
    *range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
)  # fmt: skip
_ESCAPES = {code: f"\\u{code:04x}" for code in _INTERPRETED}


def escape(text: str) -> str:
    """Replaces each character that a terminal might interpret with an escape sequence, such as `\\u009b`.

    Escaping JSON in this way does not change its meaning.
    """
    return text.translate(_ESCAPES)
