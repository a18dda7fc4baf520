"""Reads submitted forms. Limits their size, number of fields and transfer time.

The limits apply to the data that actually arrives, regardless of what the request headers claim.
"""

import asyncio
import logging
import re
from collections.abc import Sequence
from urllib.parse import parse_qsl

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

FORM_MAX = 64 * 1024
FORM_TIMEOUT = 10.0
FIELDS_MAX = 2_000  # must exceed the number of animals that one request can change
UPLOAD_FIELDS_MAX = 10
CONTENT_TYPE_MAX = 256  # characters
CLOSE = {"connection": "close"}  # the rest of the body is not read, so the connection cannot be reused
_CHARSET = re.compile(r"charset\s*=\s*\"?([^\";\s]*)", re.IGNORECASE).search

# python_multipart logs a warning for each malformed form, but client errors should not be logged.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


class Form:
    """The values of a form. If a value is invalid, the page shows the form again with these values."""

    def __init__(self, data: FormData | Sequence[tuple[str, str]] = ()) -> None:
        self._data = data if isinstance(data, FormData) else FormData(list(data))

    def text(self, name: str, default: str = "") -> str:
        value = self._data.get(name, default)
        return value if isinstance(value, str) else default

    def texts(self, name: str) -> list[str]:
        return [value for value in self._data.getlist(name) if isinstance(value, str)]

    def file(self, name: str) -> UploadFile | None:
        value = self._data.get(name)
        return value if isinstance(value, UploadFile) else None


async def read_form(
    request: Request, *, max_bytes: int = FORM_MAX, max_files: int = 0, seconds: float | None = FORM_TIMEOUT
) -> Form:
    """Reads a form. Raises HTTPException with 400 (invalid or incomplete), 408 (too slow) or 413 (too large)."""
    content_type = request.headers.get("content-type", "")
    if len(content_type) > CONTENT_TYPE_MAX:
        raise HTTPException(400, headers=CLOSE)
    charset = _CHARSET(content_type)
    # Accept only UTF-8, because a client could name a Python codec that always raises an error.
    if charset is not None and charset[1].lower() not in ("utf-8", "utf8"):
        raise HTTPException(400, headers=CLOSE)
    length = request.headers.get("content-length", "")
    if length and int(length) > max_bytes:
        raise HTTPException(413, headers=CLOSE)
    counted = Request(request.scope, _counted(request.receive, max_bytes))
    try:
        async with asyncio.timeout(seconds):
            if max_files:
                return Form(await counted.form(max_files=max_files, max_fields=UPLOAD_FIELDS_MAX))
            return Form(_fields(content_type, await counted.body()))
    except TimeoutError:
        raise HTTPException(408, headers=CLOSE) from None
    except ClientDisconnect:
        raise HTTPException(400, headers=CLOSE) from None


def _fields(content_type: str, body: bytes) -> list[tuple[str, str]]:
    """Returns the name and value of each field in the body. Raises HTTPException if the body is not a valid form.

    Does not use Starlette's parser, which makes a Python call for each field and is slow for 64 KiB of empty fields.
    """
    try:
        if content_type and content_type.partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
            raise ValueError
        return parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:  # wrong content type, too many fields, or bytes that a browser would have percent-encoded
        raise HTTPException(400, headers=CLOSE) from None


def _counted(receive: Receive, max_bytes: int) -> Receive:
    received = 0

    async def receive_counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > max_bytes:
            raise HTTPException(413, headers=CLOSE)
        return message

    return receive_counted
