"""How the path of a request is decoded: the same way by our server and by the adapter for other ASGI servers."""

from urllib.parse import unquote

ESCAPES_MAX = 64  # %XX in a path: no route has so many, so a path with more is not decoded


def decoded_path(path: str) -> str:
    """The path, percent-decoded except for segments with an encoded slash: they would become two segments.

    Decoding takes microseconds for each escape, and 8 KiB have room for 2,700 of them.
    """
    if "%" not in path or path.count("%") > ESCAPES_MAX:
        return path
    return "/".join(_decoded(segment) if "%" in segment else segment for segment in path.split("/"))


def _decoded(segment: str) -> str:
    plain = unquote(segment)
    return segment if "/" in plain else plain
