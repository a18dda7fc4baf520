"""How a text is looked for: as a part of a name, with capital and small letters taken as the same."""

import re
import string

# What one look may cost: so many rows are read, then whoever asked is told how far it went.
SEARCH_STEP = 25_000

_SMALL = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_NEVER_STORED = re.compile("[\x00\ud800-\udfff]").search


def spellings(text: str) -> list[str]:
    """What to look for in names whose letters A to Z were made small, which every store does alike.

    What other letters become differs from store to store, so they are looked for as typed, all small, all capital
    and as words begin. Empty when no name can have the text.
    """
    if not text or _NEVER_STORED(text):
        return []
    return sorted({form.translate(_SMALL) for form in (text, text.lower(), text.upper(), text.title())})
