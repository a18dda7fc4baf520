"""The API's operations, as coroutines: what each of them sends, and what its response means. No I/O.

The async client awaits them. The sync client's shell blocks, so its coroutines finish without ever suspending.
"""

from collections.abc import Awaitable, Coroutine
from typing import Any
from urllib.parse import urlencode

import msgspec
from typing_extensions import deprecated

from petstore_client._calls import Caller
from petstore_client._keys import is_visible_ascii
from petstore_client._models import Page, Pet, Status
from petstore_client._pages import AsyncPetIterator, limit_of
from petstore_client._responses import RawResponse, read_page, read_pet

PAGE_SIZE = 100


class AsyncPetstoreWithRawResponse:
    """The operations of `AsyncPetstore`, each of which returns a `RawResponse` instead of the parsed value."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def list_pets(
        self,
        status: Status | None = None,
        *,
        max_items: int | None = None,
        page_size: int = PAGE_SIZE,
        cursor: str | None = None,
    ) -> RawResponse[Page]:
        """Requests one page of at most `max_items` animals. Takes the same arguments as the client's `list_pets`.

        Raises the same exceptions, and also ValueError if `max_items` is 0, because this method always sends a request.
        """
        if max_items is not None and max_items < 1:
            raise ValueError("max_items must be at least 1 for a raw response")
        path = _path_of_list(status, limit_of(page_size, max_items), cursor)
        return RawResponse(await self._caller.call("GET", path), read_page)

    async def create_pet(
        self, name: str, category_id: int, *, status: Status | None = None, idempotency_key: str | None = None
    ) -> RawResponse[Pet]:
        """Adds an animal. Takes the same arguments and raises the same exceptions as the client's `create_pet`."""
        if idempotency_key is None:
            idempotency_key = self._caller.shell.new_idempotency_key()
        _check_type("idempotency_key", idempotency_key, str)
        if not (is_visible_ascii(idempotency_key) and 1 <= len(idempotency_key) <= 255):
            raise ValueError("idempotency_key must be 1 to 255 visible ASCII characters")
        headers = {"content-type": "application/json", "idempotency-key": idempotency_key}
        body = _new_pet(name, category_id, status)
        return RawResponse(await self._caller.call("POST", "/pets", headers, body), read_pet)

    @deprecated("get_pet will be removed on 5 December 2030; use list_pets with a status instead")
    def get_pet(self, pet_id: int) -> Coroutine[Any, Any, RawResponse[Pet]]:
        """Requests one animal. Deprecated. Raises the same exceptions as the client's `get_pet`."""
        # This is not an `async def`, because `deprecated` would then import asyncio, which takes longer to import than
        # the rest of the package.
        return get_pet(self._caller, pet_id)


async def get_pet(caller: Caller, pet_id: int) -> RawResponse[Pet]:
    """Requests one animal. Issues no deprecation warning, because the client's own warning names the caller's line."""
    return RawResponse(await caller.call("GET", f"/pets/{pet_id:d}"), read_pet)


def list_pets(
    caller: Caller, status: Status | None, max_items: int | None, page_size: int, cursor: str | None
) -> AsyncPetIterator:
    """Iterates over at most `max_items` animals after `cursor`. Raises ValueError if `max_items` is negative."""
    if max_items is not None and max_items < 0:
        raise ValueError("max_items must be at least 0")
    operations = AsyncPetstoreWithRawResponse(caller)

    def fetch(limit: int, cursor: str | None) -> Awaitable[RawResponse[Page]]:
        return operations.list_pets(status, page_size=limit, cursor=cursor)

    return AsyncPetIterator(fetch, _path_of_list(status, limit_of(page_size, max_items)), max_items, page_size, cursor)


def _path_of_list(status: Status | None, limit: int, cursor: str | None = None) -> str:
    parameters = {"limit": limit, "status": status, "cursor": cursor}
    return "/pets?" + urlencode({name: value for name, value in parameters.items() if value is not None})


def _new_pet(name: str, category_id: int, status: Status | None) -> bytes:
    """Returns the body of a create request. Raises TypeError or ValueError if it could not be what the caller meant."""
    _check_type("name", name, str)
    _check_type("category_id", category_id, int)
    # msgspec cannot encode subclasses of str and int, apart from enums.
    new: dict[str, object] = {"name": str.__str__(name), "categoryId": int(category_id)}
    if status is not None:
        _check_type("status", status, str)
        new["status"] = str.__str__(status)
    try:
        return msgspec.json.encode(new)
    except UnicodeEncodeError as error:
        raise ValueError("the name is not valid Unicode") from error


def _check_type(name: str, value: object, expected: type) -> None:
    """Raises TypeError if a value has the wrong type, because JSON would silently have another value or type."""
    if not isinstance(value, expected) or isinstance(value, bool):
        raise TypeError(f"{name} must be {expected.__name__}, not {type(value).__name__}")
