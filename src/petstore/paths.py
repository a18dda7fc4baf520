"""Decodes request paths. Used by the built-in server and by the adapter for other ASGI servers."""

from urllib.parse import unquote

ESCAPES_MAX = 64  # paths with more escapes (%XX) than this match no route, so they are not decoded


def decoded_path(path: str) -> str:
    """Percent-decodes the path, except for segments with an encoded slash, because decoding would split them in two.

    Returns a path unchanged if it has more than ESCAPES_MAX escapes, because decoding an escape takes microseconds and
    an 8 KiB path can contain 2,700 of them.
    """
    if "%" not in path or path.count("%") > ESCAPES_MAX:
        return path
    return "/".join(_decoded(segment) if "%" in segment else segment for segment in path.split("/"))


def _decoded(segment: str) -> str:
    plain = unquote(segment)
    return segment if "/" in plain else plain
