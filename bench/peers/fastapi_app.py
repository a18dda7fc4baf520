"""A peer for the race: the pet store's three operations on FastAPI, SQLAlchemy, limits and uvicorn.

Design choices:

- Operations are plain ``def`` functions with sync sessions, which FastAPI runs in its threadpool. This is what its
  tutorial and its author's project template do. An async engine would not help, because aiosqlite also uses a thread
  per connection.
- Authentication and rate limits are ``async def`` dependencies, which saves switching to a thread, because they do
  no I/O once a key is cached. For the same reason, sessions are opened in operations instead of in a dependency.
- A plain ASGI middleware adds the headers, because ``BaseHTTPMiddleware`` costs a task and a stream per request.
- Pydantic checks the body in strict mode, and encodes the response without a second pass through ``response_model``.
- One engine reads. Another one writes over a single connection, because SQLite has one writer. WAL, synchronous=FULL
  and BEGIN IMMEDIATE ... COMMIT ensure that every animal is on disk before the 201. An Idempotency-Key is looked up and
  recorded in that transaction. A dependency with ``yield`` waits for a request in flight that uses the same key.

In two ways, this peer does less work than petstore: it keeps its counters only in this process, and it never checks a
cached key again. It has no bans, scopes, staging, logs or metrics, because the race does not use them.

Settings come from the environment: PEER_DB, PEER_PORT, PEER_KEYS (a file with one key per line), PEER_SPENT_KEY
(a key for one request a day), PEER_PER_MINUTE, PEER_PER_DAY, PEER_SEED.
"""

import asyncio
import base64
import hashlib
import math
import os
import time
import uuid
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from limits import RateLimitItem, RateLimitItemPerDay, RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator
from sqlalchemy import Connection, Engine, Index, create_engine, delete, event, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

STATUSES = ("available", "pending", "sold")
PetStatus = Literal["available", "pending", "sold"]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
DEPRECATED = {
    "Deprecation": "@1794614400",
    "Sunset": "Thu, 05 Dec 2030 00:00:00 GMT",
    "Link": '</v1/pets>; rel="successor-version", </docs>; rel="deprecation"',
}


class NewPet(BaseModel):
    model_config = ConfigDict(strict=True)

    name: Annotated[str, Field(min_length=1, max_length=255)]
    categoryId: Int64
    status: PetStatus = "available"

    @field_validator("name")
    @classmethod
    def printable(cls, name: str) -> str:
        if not name.strip() or any(c < " " or c == "\x7f" for c in name):
            raise ValueError("must not be blank or contain control characters")
        return name


class Pet(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: int
    name: str
    categoryId: Annotated[int, Field(validation_alias="category_id")]
    status: str


PETS = TypeAdapter(list[Pet])


class Base(DeclarativeBase):
    pass


class PetRow(Base):
    __tablename__ = "pets"
    __table_args__ = (Index("pets_by_status", "status", "id"), {"sqlite_autoincrement": True})

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


def open_engine(file: str, *, begin: str, connections: int) -> Engine:
    engine = create_engine(f"sqlite:///{file}", pool_size=connections, max_overflow=0)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # transactions begin below instead of in the driver
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA busy_timeout=5000")

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


DB = os.environ.get("PEER_DB", "peer.db")
# One connection for each thread in the threadpool.
READS = open_engine(DB, begin="BEGIN", connections=40)
WRITES = open_engine(DB, begin="BEGIN IMMEDIATE", connections=1)


@dataclass(frozen=True, slots=True)
class Key:
    id: str
    windows: tuple[RateLimitItem, RateLimitItem]  # day first, so that the headers show the day if both are equal


KEYS: dict[bytes, Key] = {}
LIMITER = FixedWindowRateLimiter(MemoryStorage())
bearer = HTTPBearer(auto_error=False)


def load_key(digest: bytes) -> Key | None:
    with Session(READS) as session:
        row = session.get(KeyRow, digest)
    if row is None:
        return None
    return Key(digest.hex(), (RateLimitItemPerDay(row.per_day), RateLimitItemPerMinute(row.per_minute)))


async def authenticate(sent: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> Key:
    digest = hashlib.sha256(sent.credentials.encode()).digest() if sent else b""
    key = KEYS.get(digest)
    if key is None and sent:
        key = await run_in_threadpool(load_key, digest)
        if key:
            KEYS[digest] = key
    if key is None:
        raise HTTPException(401, "unauthorized", {"WWW-Authenticate": 'Bearer realm="petstore"'})
    return key


async def admit(request: Request, key: Annotated[Key, Depends(authenticate)]) -> Key:
    # There is no await between the test and the hits, so that each request counts in both windows or in neither.
    admitted = all(LIMITER.test(window, key.id) for window in key.windows)
    if admitted:
        for window in key.windows:
            LIMITER.hit(window, key.id)
    stats = [(window, LIMITER.get_window_stats(window, key.id)) for window in key.windows]
    if admitted:
        window, usage = min(stats, key=lambda s: s[1].remaining)
    else:
        window, usage = max((s for s in stats if s[1].remaining == 0), key=lambda s: s[1].reset_time)
    request.state.limits = (window.amount, usage.remaining, math.ceil(usage.reset_time))
    if not admitted:
        wait = max(1, math.ceil(usage.reset_time - time.time()))
        raise HTTPException(429, "rate_limit_exceeded", {"Retry-After": str(wait)})
    return key


IDEMPOTENCY_LIFE = 24 * 60 * 60.0
PRUNE_EVERY = 60.0
IN_FLIGHT: dict[tuple[str, str], asyncio.Event] = {}
pruned = time.time()
IdempotencyToken = Annotated[str | None, Header(alias="Idempotency-Key", pattern=r"^[!-~]{1,255}$")]


@dataclass(frozen=True, slots=True)
class Claim:
    """An Idempotency-Key that no other request in flight uses."""

    key_id: str
    token: str
    body_digest: bytes


async def claim_token(
    request: Request, key: Annotated[Key, Depends(admit)], token: IdempotencyToken = None
) -> AsyncIterator[Claim | None]:
    if token is None:
        yield None
        return
    digest = hashlib.sha256(await request.body()).digest()
    name = (key.id, token)
    while name in IN_FLIGHT:
        await IN_FLIGHT[name].wait()
    IN_FLIGHT[name] = asyncio.Event()
    try:
        yield Claim(key.id, token, digest)
    finally:
        IN_FLIGHT.pop(name).set()


class Headers:
    """Adds the request id and the rate limit headers to all responses, including errors."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = uuid.uuid4().hex
                if "limits" in state:
                    limit, remaining, reset = state["limits"]
                    headers["X-RateLimit-Limit"] = str(limit)
                    headers["X-RateLimit-Remaining"] = str(remaining)
                    headers["X-RateLimit-Reset"] = str(reset)
            await send(message)

        await self.app(scope, receive, send_with_headers)


app = FastAPI(openapi_url=None)
app.add_middleware(Headers)

MESSAGES = {
    "unauthorized": "The API key is missing or invalid.",
    "pet_not_found": "There is no animal with this identifier.",
    "rate_limit_exceeded": "The rate limit is exceeded.",
    "idempotency_mismatch": "This Idempotency-Key was used with another body.",
    "invalid_parameter": "cursor is not valid.",
}


@app.exception_handler(StarletteHTTPException)
async def http_error(_request: Request, error: StarletteHTTPException) -> JSONResponse:
    code = error.detail if error.detail in MESSAGES else error.detail.lower().replace(" ", "_")
    body = {"code": code, "message": MESSAGES.get(code, error.detail), "status": error.status_code}
    return JSONResponse(body, error.status_code, error.headers)


@app.exception_handler(RequestValidationError)
async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
    faults = error.errors()
    code = "invalid_body" if faults[0]["loc"][0] == "body" else "invalid_parameter"
    message = "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in faults)
    return JSONResponse({"code": code, "message": message, "status": 400}, 400)


def make_cursor(pet_id: int) -> str:
    raw = pet_id.to_bytes(8, "big")
    return base64.urlsafe_b64encode(raw + zlib.crc32(raw).to_bytes(4, "big")).decode()


def read_cursor(cursor: str) -> int:
    try:
        raw = base64.urlsafe_b64decode(cursor)
    except ValueError:
        raw = b""
    if len(raw) != 12 or zlib.crc32(raw[:8]).to_bytes(4, "big") != raw[8:]:
        raise HTTPException(400, "invalid_parameter")
    return int.from_bytes(raw[:8], "big")


@app.get("/readyz")
async def ready() -> str:
    return "ready"


@app.get("/v1/pets", dependencies=[Depends(admit)])
def list_pets(
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
    with Session(READS) as session:
        pets = PETS.validate_python(session.scalars(query).all())
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
def get_pet(pet_id: str) -> Response:
    canonical = pet_id.isascii() and pet_id.isdigit() and str(int(pet_id[:20])) == pet_id and int(pet_id) < 2**63
    with Session(READS) as session:
        row = session.get(PetRow, int(pet_id)) if canonical else None
    if row is None:
        raise HTTPException(404, "pet_not_found", DEPRECATED)
    return Response(Pet.model_validate(row).model_dump_json(), headers=DEPRECATED, media_type="application/json")


@app.post("/v1/pets")
def create_pet(new: NewPet, claim: Annotated[Claim | None, Depends(claim_token)]) -> Response:
    row = PetRow(name=new.name, category_id=new.categoryId, status=new.status)
    with Session(WRITES, expire_on_commit=False) as session:  # do not read the complete row again
        earlier = find_earlier(session, claim) if claim else None
        if earlier is None:
            session.add(row)
            if claim:
                session.flush()  # assigns the animal's id
                session.merge(
                    IdempotencyRow(
                        key_id=claim.key_id,
                        token=claim.token,
                        body_digest=claim.body_digest,
                        pet_id=row.id,
                        created=time.time(),
                    )
                )
            session.commit()
    return created(earlier or row, replayed=earlier is not None)


def find_earlier(session: Session, claim: Claim) -> PetRow | None:
    """Returns the animal that an earlier request with the same token added. Deletes old records once a minute."""
    global pruned
    expired = time.time() - IDEMPOTENCY_LIFE
    if time.time() - pruned > PRUNE_EVERY:
        pruned = time.time()
        session.execute(delete(IdempotencyRow).where(IdempotencyRow.created <= expired))
    record = session.get(IdempotencyRow, (claim.key_id, claim.token))
    if record is None or record.created <= expired:
        return None
    if record.body_digest != claim.body_digest:
        raise HTTPException(422, "idempotency_mismatch")
    return session.get(PetRow, record.pet_id)


def created(row: object, *, replayed: bool) -> Response:
    pet = Pet.model_validate(row)
    headers = {"Location": f"/v1/pets/{pet.id}"} | ({"Idempotent-Replayed": "true"} if replayed else {})
    return Response(pet.model_dump_json(), 201, headers=headers, media_type="application/json")


def key_rows() -> list[dict[str, bytes | int]]:
    """Returns rows for the keys in the file, and for a key with a limit of one request a day."""
    per_minute, per_day = int(os.environ.get("PEER_PER_MINUTE", "60")), int(os.environ.get("PEER_PER_DAY", "1000"))
    secrets = [(secret, per_minute, per_day) for secret in Path(os.environ["PEER_KEYS"]).read_text().split()]
    return [
        {"hash": hashlib.sha256(secret.encode()).digest(), "per_minute": minute, "per_day": day}
        for secret, minute, day in [*secrets, (os.environ["PEER_SPENT_KEY"], 1, 1)]
    ]


def prepare() -> None:
    """Creates the tables, the keys and, in an empty database, the animals that every contender gets."""
    Base.metadata.create_all(WRITES)
    animals = [
        {"name": f"Animal {i}", "category_id": i % 50, "status": STATUSES[i % 3]}
        for i in range(1, int(os.environ.get("PEER_SEED", "0")) + 1)
    ]
    with Session(WRITES) as session:
        session.execute(insert(KeyRow), key_rows())
        if animals and session.scalar(select(PetRow.id).limit(1)) is None:
            session.execute(insert(PetRow), animals)
        session.commit()


if __name__ == "__main__":
    prepare()
    # uvicorn[standard] would also choose uvloop and httptools. Requests are not logged.
    port = int(os.environ.get("PEER_PORT", "8080"))
    uvicorn.run(app, port=port, access_log=False, log_level="warning", loop="uvloop", http="httptools")
