"""Decodes the path of a request. Used by our server and by the adapter for other ASGI servers."""

from urllib.parse import unquote

ESCAPES_MAX = 64  # a path with more escapes (%XX) matches no route, so it is not decoded


def decoded_path(path: str) -> str:
    """Percent-decodes the path, except for segments with an encoded slash, which would become two segments.

    The number of escapes is limited because decoding each of them takes microseconds, and 8 KiB can hold 2,700.
    """
    if "%" not in path or path.count("%") > ESCAPES_MAX:
        return path
    return "/".join(_decoded(segment) if "%" in segment else segment for segment in path.split("/"))


def _decoded(segment: str) -> str:
    plain = unquote(segment)
    return segment if "/" in plain else plain
