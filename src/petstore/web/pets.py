"""The three operations of one environment: list, add, get. Values in, a Reply out; errors are raised."""

import hashlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import formatdate
from functools import partial

import msgspec

from petstore.errors import Gone, PetNotFound
from petstore.keys import ApiKey
from petstore.pets import Catalogue, IdempotencyKey, PetStatus, parse_new_pet
from petstore.web.page_cache import PageCache, Rendered
from petstore.web.replies import JSON, Lines, Reply, line
from petstore.web.requests import (
    BODY_MAX,
    BodyReader,
    ListQuery,
    Request,
    check_media_type,
    etag_matches,
    idempotency_token,
    parse_list_query,
    parse_pet_id,
    write_cursor,
)

REMOVAL = datetime(2030, 12, 5, tzinfo=UTC).timestamp()

encode = msgspec.json.encode


class PetOperations:
    def __init__(self, catalogue: Catalogue, announce: Callable[[], Awaitable[None]], base: str) -> None:
        """`announce` raises the version of the catalogue for everyone."""
        self._catalogue = catalogue
        self._announce = announce
        self._announced = -1  # the newest animal that all readers everywhere are known to see
        self.bodies = BodyReader()
        self._pets_url = f"{base}/pets"
        self.pages = PageCache(catalogue)
        # Sent with every answer of the deprecated operation, whatever its status.
        self.deprecation: Lines = (
            line("deprecation", "@1794614400")
            + line("sunset", formatdate(REMOVAL, usegmt=True))
            + line("link", f'<{self._pets_url}>; rel="successor-version"')
            + line("link", '</docs>; rel="deprecation"')
        )

    async def list_pets(self, request: Request, version: int, now: float) -> Reply:
        """`version` is the catalogue's, from the gate's step for this very request."""
        memo = request.memo
        query = memo.query
        if query is None:
            query = memo.query = parse_list_query(request.query)
        page = self.pages.find(query, version, now)
        if page is None:
            page = await self.pages.read(query, version, now, partial(self._render_page, query))
        conditions = request.headers("if-none-match")
        if conditions and etag_matches(conditions, page.etag):
            return Reply(304, page.headers)
        return Reply(200, JSON + page.headers, page.body)

    async def get_pet(self, request: Request, text: str, version: int, now: float) -> Reply:
        """Raises Gone from the removal date on, and PetNotFound."""
        if now >= REMOVAL:
            raise Gone("This operation was removed on 5 December 2030; use GET /pets with a status filter.")
        memo = request.memo
        pet_id = memo.pet_id
        if pet_id is None:
            pet_id = memo.pet_id = parse_pet_id(text)
            if pet_id is None:
                raise PetNotFound("There is no such animal.")
        rendered = self.pages.find(pet_id, version, now)
        if rendered is None:
            rendered = await self.pages.read(pet_id, version, now, partial(self._render_pet, pet_id))
        return Reply(200, JSON, rendered.body)

    async def create_pet(self, request: Request, key: ApiKey, now: float) -> Reply:
        """Raises what `BodyReader.read`, `parse_new_pet` and `Catalogue.add` raise."""
        memo = request.memo
        if memo.token is None:
            check_media_type(request)
            memo.token = idempotency_token(request) or ""
        token = memo.token
        body = request.body_at_hand()
        if body is None or len(body) > BODY_MAX:
            body = await self.bodies.read(request)
        new = parse_new_pet(body)
        idempotency_key = IdempotencyKey(key.id, token, hashlib.sha256(body).digest()) if token else None
        added = await self._catalogue.add(new, now, idempotency_key)
        pet = added.pet
        if added.replayed:
            await self._show(pet.id)
        elif pet.id > self._announced:
            self._announced = pet.id  # by the store, before it answered
        headers = JSON + line("location", f"{self._pets_url}/{pet.id}")
        if added.replayed:
            headers += line("idempotent-replayed", "true")
        return Reply(201, headers, encode(pet))

    async def _render_page(self, query: ListQuery) -> Rendered:
        limit, status, after = query
        pets, more = await self._catalogue.page(after=after, limit=limit, status=status)
        if pets:
            await self._show(pets[-1].id)
        body = encode(pets)
        link = self._next_link(limit, status, pets[-1].id) if more else ""
        # The link is part of what the client sees, so a page that gains a successor gets a new tag.
        etag = f'"{hashlib.sha256(body + link.encode()).hexdigest()[:32]}"'
        headers = f"etag: {etag}\r\ncache-control: private, no-cache\r\nvary: Authorization\r\n"
        return Rendered(headers + line("link", link) if more else headers, body, etag)

    async def _render_pet(self, pet_id: int) -> Rendered:
        pet = await self._catalogue.pet(pet_id)
        if pet is None:
            raise PetNotFound("There is no such animal.")
        await self._show(pet_id)
        return Rendered("", encode(pet))

    async def _show(self, pet_id: int) -> None:
        """To be called before a client is shown an animal from the store.

        One that is new to this worker may have been committed a moment ago, by a process that has not raised the
        version yet. One client could see it here, and another after that, from a page in memory elsewhere, could not:
        reads would go back in time. So the version is raised first, as the other process is about to do itself.
        """
        if pet_id > self._announced:
            newest = await self._catalogue.newest()
            await self._announce()
            self._announced = max(self._announced, newest)

    def _next_link(self, limit: int, status: PetStatus | None, last: int) -> str:
        kept = f"&status={status}" if status else ""
        return f'<{self._pets_url}?limit={limit}{kept}&cursor={write_cursor(last)}>; rel="next"'
