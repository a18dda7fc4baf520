"""Handlers for one environment's operations. Each returns a Reply or raises an error."""

import hashlib
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from petstore.errors import PetNotFound
from petstore.gate import CatalogueVersion
from petstore.keys import ApiKey
from petstore.operations import OPERATIONS, OperationName, end_of_items
from petstore.pets import IdempotencyKey, PetStatus, parse_new_pet, parse_whole_number
from petstore.store.pets import Pets
from petstore.web.deadlines import Deadlines
from petstore.web.page_cache import PageCache, Rendered
from petstore.web.replies import JSON, NO_STORE, PRIVATE, Reply, line
from petstore.web.requests import (
    ListQuery,
    Request,
    check_media_type,
    check_no_parameters,
    etag_matches,
    idempotency_token,
    last_segment,
    members_fault,
    parse_list_query,
    read_body,
    write_cursor,
)

encode = msgspec.json.encode


class PetOperations:
    """The handlers for one environment's operations.

    Each handler takes the request, the API key, the catalogue version that the gate returned, the current time, and
    whether to reject unknown parameters and members.
    """

    def __init__(self, pets: Pets, base_url: str, deadlines: Deadlines) -> None:
        self._pets = pets
        self._deadlines = deadlines
        self._pets_url = f"{base_url}/pets"
        self.pages = PageCache()
        self._location_end = end_of_items("/pets")

    async def list_pets(
        self, request: Request, key: ApiKey, version: CatalogueVersion, now: float, strict: bool
    ) -> Reply:
        """Returns a page of animals. Raises InvalidParameter."""
        query = parse_list_query(request.query, True) if strict else parse_list_query(request.query)
        page = self.pages.get(query, version, now)
        if page is None:
            page = await self._read(query, version)
        condition = request.fields.get("if-none-match")
        if condition is not None and etag_matches(condition, page.etag):
            return Reply(304, page.headers)
        return Reply(200, JSON + page.headers, page.body)

    async def get_pet(
        self, request: Request, key: ApiKey, version: CatalogueVersion, now: float, strict: bool
    ) -> Reply:
        """Returns one animal. Raises PetNotFound and, with strict handling, InvalidParameter."""
        if strict:
            check_no_parameters(request.query)
        pet_id = parse_whole_number(last_segment(request.path))
        # Single animals are not cached, because most entries would be used only once.
        pet = None if pet_id is None else await self._pets.get(pet_id)
        if pet is None:
            raise PetNotFound
        return Reply(200, JSON + PRIVATE, encode(pet))

    async def create_pet(
        self, request: Request, key: ApiKey, version: CatalogueVersion, now: float, strict: bool
    ) -> Reply:
        """Adds an animal. Raises the same errors as `read_body`, `parse_new_pet` and `Pets.add`."""
        if strict:
            check_no_parameters(request.query)
        check_media_type(request.fields)
        token = idempotency_token(request.fields)
        body = await (read_body(request) if request.stream is None else self._deadlines.pause(read_body(request)))
        new = parse_new_pet(body, members_fault if strict else None)
        idempotency_key = IdempotencyKey(key.id, token, hashlib.sha256(body).digest()) if token else None
        added = await self._pets.add(new, now, idempotency_key, self._deadlines.current(), key.id)
        headers = JSON + NO_STORE
        if now < self._location_end:  # after the sunset, the animal's address returns 410
            headers += line("location", f"{self._pets_url}/{added.pet.id}")
        if added.replayed:
            headers += line("idempotent-replayed", "true")
        return Reply(201, headers, encode(added.pet), added.pet.id)

    async def _read(self, query: ListQuery, version: CatalogueVersion) -> Rendered:
        """Reads a page from the store and adds it to the cache."""
        if self._pets.immediate:
            rendered = await self._render(query)
        else:
            rendered = await self.pages.share(query, partial(self._render, query))
        self.pages.put(query, rendered, version)
        return rendered

    async def _render(self, query: ListQuery) -> Rendered:
        limit, status, after = query
        pets, more = await self._pets.page(after=after, limit=limit, status=status)
        body = encode(pets)
        link = self._next_link(limit, status, pets[-1].id) if more else ""
        # The ETag also covers the link, so that the ETag changes when the page is no longer the last one.
        etag = f'"{hashlib.sha256(body + link.encode()).hexdigest()[:32]}"'
        headers = line("etag", etag) + PRIVATE
        return Rendered(headers + line("link", link) if more else headers, body, etag, ends_list=not more)

    def _next_link(self, limit: int, status: PetStatus | None, last: int) -> str:
        kept = f"&status={status}" if status else ""
        return f'<{self._pets_url}?limit={limit}{kept}&cursor={write_cursor(last)}>; rel="next"'


Handler = Callable[[PetOperations, Request, ApiKey, CatalogueVersion, float, bool], Awaitable[Reply]]

HANDLERS: dict[OperationName, Handler] = {
    "listPets": PetOperations.list_pets,
    "createPet": PetOperations.create_pet,
    "getPet": PetOperations.get_pet,
}
if unbound := HANDLERS.keys() ^ {each.name for each in OPERATIONS}:
    raise ValueError(f"each operation must have one handler: {', '.join(sorted(unbound))}")
