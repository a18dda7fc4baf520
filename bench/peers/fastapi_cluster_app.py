"""A peer for the race in a cluster: FastAPI, SQLAlchemy on asyncpg, limits on Redis, uvicorn.

Design choices:

- Everything is ``async def``, which saves switching to a thread. Neither asyncpg nor Redis' asyncio client blocks.
- Both windows use the asyncio fixed-window limiter of ``limits`` on Redis, one after the other, as its documentation
  shows for several limits. If the second window refuses a request, the first one has already counted it: this peer
  does not have to be as exact as petstore.
- ``get_window_stats`` provides the headers, with a call per window, because the library has no call that both decides
  and returns them.
- Each create request is one transaction, with ``synchronous_commit`` on, so it is in the database's log before the 201.
- An Idempotency-Key is looked up and recorded in the same transaction. If two requests in flight use the same key, the
  primary key makes the second one a conflict.
- Models, headers, errors and cursors come from the peer for one machine, fastapi_app.py.

In one way, this peer does less work than petstore: it never checks a cached key again, so a revoked key would still
work.

Settings come from the environment: PEER_STORE, PEER_GATE, PEER_PORT, PEER_KEYS, PEER_SPENT_KEY,
PEER_PER_MINUTE, PEER_PER_DAY and PEER_SEED.
"""

import asyncio
import hashlib
import math
import os
import time
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPAuthorizationCredentials
from fastapi_app import (
    DEPRECATED,
    IDEMPOTENCY_LIFE,
    PETS,
    STATUSES,
    Headers,
    IdempotencyToken,
    Key,
    NewPet,
    Pet,
    PetStatus,
    bearer,
    created,
    http_error,
    invalid,
    key_rows,
    make_cursor,
    read_cursor,
)
from limits import RateLimitItemPerDay, RateLimitItemPerMinute
from limits.aio.storage import RedisStorage
from limits.aio.strategies import FixedWindowRateLimiter
from sqlalchemy import BigInteger, Index, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.exceptions import HTTPException as StarletteHTTPException

STORE = os.environ.get("PEER_STORE", "postgresql+asyncpg://localhost/peer")
ENGINE = create_async_engine(STORE, pool_size=16, max_overflow=0)
LIMITER = FixedWindowRateLimiter(
    RedisStorage("async+" + os.environ.get("PEER_GATE", "redis://localhost"), implementation="redispy")
)
KEYS: dict[bytes, Key] = {}


class Base(DeclarativeBase):
    type_annotation_map = {int: BigInteger}  # noqa: RUF012  # SQLAlchemy's own form


class PetRow(Base):
    __tablename__ = "pets"
    __table_args__ = (Index("pets_by_status", "status", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    category_id: Mapped[int]
    status: Mapped[str]


class KeyRow(Base):
    __tablename__ = "api_keys"

    hash: Mapped[bytes] = mapped_column(primary_key=True)
    per_minute: Mapped[int]
    per_day: Mapped[int]


class IdempotencyRow(Base):
    __tablename__ = "idempotency"

    key_id: Mapped[str] = mapped_column(primary_key=True)
    token: Mapped[str] = mapped_column(primary_key=True)
    body_digest: Mapped[bytes]
    pet_id: Mapped[int]
    created: Mapped[float] = mapped_column(index=True)


async def load_key(digest: bytes) -> Key | None:
    async with AsyncSession(ENGINE) as session:
        row = await session.get(KeyRow, digest)
    if row is None:
        return None
    return Key(digest.hex(), (RateLimitItemPerDay(row.per_day), RateLimitItemPerMinute(row.per_minute)))


async def authenticate(sent: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> Key:
    digest = hashlib.sha256(sent.credentials.encode()).digest() if sent else b""
    key = KEYS.get(digest)
    if key is None and sent:
        key = await load_key(digest)
        if key:
            KEYS[digest] = key
    if key is None:
        raise HTTPException(401, "unauthorized", {"WWW-Authenticate": 'Bearer realm="petstore"'})
    return key


async def admit(request: Request, key: Annotated[Key, Depends(authenticate)]) -> Key:
    admitted = True
    for window in key.windows:
        admitted = admitted and await LIMITER.hit(window, key.id)
    stats = [(window, await LIMITER.get_window_stats(window, key.id)) for window in key.windows]
    if admitted:
        window, usage = min(stats, key=lambda s: s[1].remaining)
    else:
        window, usage = max((s for s in stats if s[1].remaining == 0), key=lambda s: s[1].reset_time)
    request.state.limits = (window.amount, usage.remaining, math.ceil(usage.reset_time))
    if not admitted:
        wait = max(1, math.ceil(usage.reset_time - time.time()))
        raise HTTPException(429, "rate_limit_exceeded", {"Retry-After": str(wait)})
    return key


app = FastAPI(openapi_url=None)
app.add_middleware(Headers)
app.exception_handler(StarletteHTTPException)(http_error)
app.exception_handler(RequestValidationError)(invalid)


@app.get("/readyz")
async def ready() -> str:
    return "ready"


@app.get("/v1/pets", dependencies=[Depends(admit)])
async def list_pets(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    status: PetStatus | None = None,
    cursor: str | None = None,
) -> Response:
    query = select(PetRow).order_by(PetRow.id).limit(limit + 1)  # one more, to see whether there is a next page
    if cursor is not None:
        query = query.where(PetRow.id > read_cursor(cursor))
    if status is not None:
        query = query.where(PetRow.status == status)
    async with AsyncSession(ENGINE) as session:
        pets = PETS.validate_python((await session.scalars(query)).all())
    body = PETS.dump_json(pets[:limit])
    etag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache", "Vary": "Authorization"}
    if len(pets) > limit:
        chosen = f"&status={status}" if status else ""
        following = f"/v1/pets?limit={limit}{chosen}&cursor={make_cursor(pets[limit - 1].id)}"
        headers["Link"] = f'<{following}>; rel="next"'
    if request.headers.get("If-None-Match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


@app.get("/v1/pets/{pet_id}", dependencies=[Depends(admit)])
async def get_pet(pet_id: str) -> Response:
    canonical = pet_id.isascii() and pet_id.isdigit() and str(int(pet_id[:20])) == pet_id and int(pet_id) < 2**63
    async with AsyncSession(ENGINE) as session:
        row = await session.get(PetRow, int(pet_id)) if canonical else None
    if row is None:
        raise HTTPException(404, "pet_not_found", DEPRECATED)
    return Response(Pet.model_validate(row).model_dump_json(), headers=DEPRECATED, media_type="application/json")


@app.post("/v1/pets")
async def create_pet(
    request: Request, new: NewPet, key: Annotated[Key, Depends(admit)], token: IdempotencyToken = None
) -> Response:
    row = PetRow(name=new.name, category_id=new.categoryId, status=new.status)
    async with AsyncSession(ENGINE, expire_on_commit=False) as session:  # do not read the complete row again
        if token is not None:
            digest = hashlib.sha256(await request.body()).digest()
            earlier = await find_earlier(session, key.id, token, digest)
            if earlier is not None:
                return created(earlier, replayed=True)
        session.add(row)
        if token is not None:
            await session.flush()  # assigns the animal's id
            session.add(
                IdempotencyRow(key_id=key.id, token=token, body_digest=digest, pet_id=row.id, created=time.time())
            )
        try:
            await session.commit()
        except IntegrityError:  # another request has used the token meanwhile
            await session.rollback()
            earlier = await find_earlier(session, key.id, token, digest)
            return created(earlier, replayed=True)
    return created(row, replayed=False)


async def find_earlier(session: AsyncSession, key_id: str, token: str, digest: bytes) -> PetRow | None:
    """Returns the animal that an earlier request with the same token added."""
    record = await session.get(IdempotencyRow, (key_id, token))
    if record is None:
        return None
    if record.created <= time.time() - IDEMPOTENCY_LIFE:
        await session.delete(record)
        await session.flush()
        return None
    if record.body_digest != digest:
        raise HTTPException(422, "idempotency_mismatch")
    return await session.get(PetRow, record.pet_id)


async def prepare() -> None:
    """Creates the tables, the keys and the animals that every contender gets."""
    animals = [
        {"name": f"Animal {i}", "category_id": i % 50, "status": STATUSES[i % 3]}
        for i in range(1, int(os.environ.get("PEER_SEED", "0")) + 1)
    ]
    async with ENGINE.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await connection.execute(insert(KeyRow), key_rows())
        for start in range(0, len(animals), 5_000):
            await connection.execute(insert(PetRow), animals[start : start + 5_000])
    await ENGINE.dispose()


if __name__ == "__main__":
    asyncio.run(prepare())
    port = int(os.environ.get("PEER_PORT", "8080"))
    uvicorn.run(app, port=port, access_log=False, log_level="warning", loop="uvloop", http="httptools")
