"""Freshness, on every backend. Two workers have warm caches. A third process commits changes but never announces them.

The tests cover each case of store/freshness.py. What happens when the gate itself is unavailable, fails over or loses
its data is tested in tests/gate/: test_redis.py, test_topologies.py and test_recovery.py.
"""

import asyncio
import hashlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.backends import Redis, shared
from harness.in_process import NOW, Clock, request
from harness.servers import empty_store
from harness.stores import BY, ENTRY, PATIENT, StorePlace, imported
from petstore.audit import Actor
from petstore.backends import open_gate_for, open_stores_for
from petstore.changes import CHANGES, Change
from petstore.errors import OperatorError, Unavailable
from petstore.keys import ApiKey, KeyChanges, digest_of, mint, new_key
from petstore.operators import new_operator
from petstore.pets import IdempotencyKey, Matching, NewPet, Pet, PetChanges, PetQuery
from petstore.plans import Limits
from petstore.settings import Settings
from petstore.store import Store, StorePolicy, close_stores, open_stores
from petstore.store.freshness import ADDED, EDITED, KEPT_SECONDS, KEYS, NOTHING, Freshness, Numbers
from petstore.store.schema import PETS
from petstore.usage import AdmissionTotal, OperationUsage, RecentError
from petstore.web.app import App
from petstore.web.replies import Reply
from tests.pet_members import pet_row


class Key(NamedTuple):
    record: ApiKey
    secret: str


class Worker:
    """An app with its own stores and caches, like one in another process."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def ask(self, key: Key, query: str = "", path: str = "/v1/pets", **more: Any) -> Reply:
        return await self.app.answer(request(path, query, authorization=f"Bearer {key.secret}", **more))

    async def names(self, key: Key, query: str = "") -> list[str]:
        reply = await self.ask(key, query)
        assert reply.status == 200, reply.body
        return [each.split(b'"')[0].decode() for each in reply.body.split(b'"name":"')[1:]]


class World:
    """Two workers, the animals Ada, Bea and Cleo, and the store of a process that never announces its changes."""

    def __init__(self, place: StorePlace, gate: str | None) -> None:
        self.place = place
        self.clock = Clock()
        self._settings = Settings(data=place.data, store=place.url, gate=gate)

    async def __aenter__(self) -> "World":
        self._opened = AsyncExitStack()
        self._gate = open_gate_for(self._settings)  # shared, because a process can open an LMDB file only once
        self._opened.push_async_callback(self._gate.close)
        self.a, self.b = [await self._worker(), await self._worker()]

        async def nothing(changes: Collection[Change]) -> None: ...

        stores = open_stores(self.place.url, self.place.data, StorePolicy(bounds=PATIENT), lambda _: nothing)
        self._opened.push_async_callback(close_stores, stores.values())
        self.dying = stores["live"]
        for name in ("Ada", "Bea", "Cleo"):
            await self.dying.pets.add(NewPet(name, 1), NOW)
        self.key, self.other = await self.new_key(), await self.new_key()
        for worker in (self.a, self.b):  # completes this second's check, so it finds no later change
            await worker.ask(self.other, path="/v1/pets/1")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    async def _worker(self) -> Worker:
        stores = open_stores_for(self._settings, self._gate, bounds=PATIENT)
        self._opened.push_async_callback(close_stores, stores.values())
        await stores["live"].database.ping()
        return Worker(App(self._settings, stores, self._gate, self.clock))

    async def new_key(self) -> Key:
        secret = mint("live")
        key = new_key("live", "enterprise", now=NOW, limits=Limits(10**6, 10**6))
        await self.dying.keys.create(key, secret, BY)
        return Key(key, secret)


@pytest.fixture(params=["sqlite-lmdb", "postgres-redis"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "sqlite-lmdb":
        return World(StorePlace(tmp_path), None)
    return World(StorePlace(tmp_path, empty_store()), shared(Redis).url())


def use(world: World, work: Callable[[World], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with world:
            await work(world)

    asyncio.run(inside())


# A change that is never announced, the first request that sees it, and what the pages show afterwards.


class Case(NamedTuple):
    change: Callable[[Store], Awaitable[object]]
    look: dict[str, str]  # the first request that sees the change; it is never cached
    status: int
    names: list[str]  # on the page with limit=3
    available: list[str]


CASES = {
    "added, seen in a list": Case(
        lambda store: store.pets.add(NewPet("Dot", 1), NOW), {"query": "limit=9"}, 200, ["Ada", "Bea", "Cleo"],
        ["Ada", "Bea", "Cleo", "Dot"],
    ),
    "added, seen by its id": Case(
        lambda store: store.pets.add(NewPet("Dot", 1), NOW), {"path": "/v1/pets/4"}, 200, ["Ada", "Bea", "Cleo"],
        ["Ada", "Bea", "Cleo", "Dot"],
    ),
    "added, seen as a link to the next page": Case(
        lambda store: store.pets.add(NewPet("Dot", 1), NOW), {"query": "limit=3&x=1"}, 200, ["Ada", "Bea", "Cleo"],
        ["Ada", "Bea", "Cleo", "Dot"],
    ),
    "imported": Case(
        lambda store: imported(store, NewPet("Dot", 1)), {"query": "limit=9"}, 200, ["Ada", "Bea", "Cleo"],
        ["Ada", "Bea", "Cleo", "Dot"],
    ),
    "renamed": Case(
        lambda store: store.pets.update(1, PetChanges(name="Eve"), BY), {"path": "/v1/pets/1"}, 200,
        ["Eve", "Bea", "Cleo"], ["Eve", "Bea", "Cleo"],
    ),
    "moved to another filter, seen there": Case(
        lambda store: store.pets.set_status([2], "sold", BY), {"query": "status=sold&limit=9"}, 200,
        ["Ada", "Bea", "Cleo"], ["Ada", "Cleo"],
    ),
    "removed, seen as a 404": Case(
        lambda store: store.removals.remove([2], BY), {"path": "/v1/pets/2"}, 404, ["Ada", "Cleo"], ["Ada", "Cleo"],
    ),
    "all removed, seen as an empty list": Case(
        lambda store: store.removals.remove([1, 2, 3], BY), {"query": "limit=9"}, 200, [], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_one_client_has_seen_every_later_one_sees(world: World, case: Case) -> None:
    async def work(world: World) -> None:
        pages = {"limit=3": case.names, "status=available&limit=20": case.available}
        for query in pages:
            assert await world.b.names(world.key, query) == ["Ada", "Bea", "Cleo"]
        await case.change(world.dying)
        for query in pages:  # no request has seen the change yet
            assert await world.b.names(world.key, query) == ["Ada", "Bea", "Cleo"]
        assert (await world.a.ask(world.key, **case.look)).status == case.status
        for query, names in pages.items():
            assert await world.b.names(world.key, query) == names

    use(world, work)


def test_a_page_that_ends_a_list_gets_its_link_when_it_becomes_full(world: World) -> None:
    async def work(world: World) -> None:
        assert "link:" not in (await world.b.ask(world.key, "limit=3")).headers
        await world.dying.pets.add(NewPet("Dot", 1), NOW)
        assert (await world.a.ask(world.key, path="/v1/pets/4")).status == 200
        assert "link:" in (await world.b.ask(world.key, "limit=3")).headers

    use(world, work)


def test_a_replay_that_one_client_has_seen_every_later_list_has(world: World) -> None:
    async def work(world: World) -> None:
        body = b'{"name":"Dot","categoryId":1}'
        digest = hashlib.sha256(body).digest()
        assert await world.b.names(world.key) == ["Ada", "Bea", "Cleo"]
        await world.dying.pets.add(NewPet("Dot", 1), NOW, IdempotencyKey(world.key.record.id, "token", digest))
        replay = await world.a.ask(world.key, method="POST", body=body, idempotency_key="token")
        assert replay.status == 201 and "idempotent-replayed" in replay.headers
        assert await world.b.names(world.key) == ["Ada", "Bea", "Cleo", "Dot"]

    use(world, work)


@pytest.mark.parametrize(
    "change",
    [
        lambda store, key: store.keys.revoke(key.id, BY),
        lambda store, key: store.keys.suspend(key.id, BY),
        lambda store, key: store.keys.update(key.id, KeyChanges(expires=NOW - 1), BY),
        lambda store, key: store.keys.rotate(key.id, mint("live"), 1, 0.0, BY),
    ],
    ids=["revoked", "suspended", "expired", "rotated"],
)
def test_a_key_that_one_worker_has_refused_every_worker_refuses(
    world: World, change: Callable[[Store, ApiKey], Awaitable[object]]
) -> None:
    async def work(world: World) -> None:
        assert (await world.b.ask(world.key)).status == 200
        await change(world.dying, world.key.record)
        assert (await world.b.ask(world.key)).status == 200  # no worker has noticed the change yet
        assert (await world.a.ask(world.key)).status == 401  # looks up the key in the store
        assert (await world.b.ask(world.key)).status == 401

    use(world, work)


def test_a_change_that_nobody_reads_is_seen_within_a_second(world: World) -> None:
    async def work(world: World) -> None:
        for worker in (world.a, world.b):
            assert await worker.names(world.key) == ["Ada", "Bea", "Cleo"]
        await world.dying.removals.remove([2], BY)
        await world.dying.pets.add(NewPet("Dot", 1), NOW)
        await world.dying.keys.revoke(world.other.record.id, BY)
        world.clock.now += 0.999
        assert await world.a.names(world.key) == ["Ada", "Bea", "Cleo"]
        world.clock.now += 0.001
        assert await world.a.names(world.key) == ["Ada", "Cleo", "Dot"]
        assert await world.b.names(world.key) == ["Ada", "Cleo", "Dot"]
        assert (await world.b.ask(world.other)).status == 401
        world.clock.now -= 3600  # setting the clock back does not delay the next check
        await world.dying.removals.remove([1], BY)
        assert await world.b.names(world.key) == ["Cleo", "Dot"]

    use(world, work)


def test_a_store_that_was_restored_to_an_earlier_state_is_seen_within_a_second(world: World) -> None:
    """The restored numbers are lower than those announced, so they do not look like a new change."""

    async def work(world: World) -> None:
        await world.dying.pets.update(1, PetChanges(name="Eve"), BY)
        await world.dying.keys.revoke(world.other.record.id, BY)
        for worker in (world.a, world.b):
            assert await worker.names(world.key) == ["Eve", "Bea", "Cleo"]
            assert (await worker.ask(world.other)).status == 401
        world.place.by_hand("UPDATE pets SET name = 'Ada' WHERE id = 1")
        world.place.by_hand("DELETE FROM pets WHERE id = 3")
        world.place.by_hand("UPDATE keys SET revoked = NULL")
        world.place.by_hand("UPDATE changes SET edited = edited - 1, keys = keys - 1")
        world.clock.now += 1
        for worker in (world.a, world.b):
            assert await worker.names(world.key) == ["Ada", "Bea"]
            assert (await worker.ask(world.other)).status == 200

    use(world, work)


def test_a_change_by_hand_is_seen_within_a_minute(world: World) -> None:
    """A change made directly with SQL increments no number, so it is seen only when cached data expires."""

    async def work(world: World) -> None:
        assert await world.b.names(world.key) == ["Ada", "Bea", "Cleo"]
        assert (await world.b.ask(world.other)).status == 200
        world.place.by_hand("UPDATE pets SET name = 'Eve' WHERE id = 1")
        world.place.by_hand(f"UPDATE keys SET revoked = 1 WHERE id = '{world.other.record.id}'")
        world.clock.now += KEPT_SECONDS - 0.1
        assert await world.b.names(world.key) == ["Ada", "Bea", "Cleo"]
        assert (await world.b.ask(world.other)).status == 200
        world.clock.now += 0.1
        assert await world.b.names(world.key) == ["Eve", "Bea", "Cleo"]
        assert (await world.b.ask(world.other)).status == 401

    use(world, work)


def test_what_ends_by_time_ends_without_a_change(world: World) -> None:
    async def work(world: World) -> None:
        new = mint("live")
        await world.dying.keys.update(world.other.record.id, KeyChanges(expires=NOW + 5), BY)
        await world.dying.keys.rotate(world.key.record.id, new, 1, 3.0, Actor("a test", NOW))
        for at, old, expiring in [(0.0, 200, 200), (2.9, 200, 200), (3.0, 401, 200), (4.9, 401, 200), (5.0, 401, 401)]:
            world.clock.now = NOW + at
            for worker in (world.a, world.b):
                assert (await worker.ask(world.key)).status == old, at
                assert (await worker.ask(world.other)).status == expiring, at
                assert (await worker.ask(world.key._replace(secret=new))).status == 200

    use(world, work)


# What each write of a store announces, and when.


def test_a_caller_is_answered_after_the_announcement_and_not_before(store_at: StorePlace) -> None:
    async def work() -> None:
        announced, may_go = asyncio.Event(), asyncio.Event()

        async def announce(changes: Collection[Change]) -> None:
            announced.set()
            await may_go.wait()

        stores = open_stores(store_at.url, store_at.data, StorePolicy(bounds=PATIENT), lambda _: announce)
        store = stores["live"]
        key = new_key("live", "free", now=NOW)
        await store.keys.create(key, "secret", BY)
        for write in (
            store.pets.add(NewPet("Rex", 1), NOW),
            store.pets.add(NewPet("Rex", 1), NOW, IdempotencyKey("key_a", "token", b"digest")),
            store.pets.set_status([1], "sold", BY),
            store.keys.revoke(key.id, BY),
            store.pets.page(after=0, limit=9, status=None),
        ):
            announced.clear()
            may_go.clear()
            if inspect.iscoroutine(write) and "page" in write.__qualname__:  # this read is the first to see a change
                async with store_at.open() as other:
                    await other.pets.add(NewPet("Mia", 1), NOW)
            answered = asyncio.ensure_future(write)
            async with asyncio.timeout(20):
                await announced.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            assert not answered.done()
            may_go.set()
            await answered
        await close_stores(stores.values())

    asyncio.run(work())


async def prepared(store: Store) -> dict[str, Any]:
    """Adds the data that the writes below need. Returns what they refer to."""
    key, suspended = (new_key("live", "free", now=NOW) for _ in range(2))
    await store.keys.create(key, "secret", BY)
    await store.keys.rotate(key.id, "second secret", 1, 60.0, BY)
    await store.keys.create(suspended, "third secret", BY)
    await store.keys.suspend(suspended.id, BY)
    for name in ("Ada", "Bea"):
        await store.pets.add(NewPet(name, 1), NOW)
    await store.operators.add(new_operator("ada", NOW), "token", BY)
    done = await imported(store, NewPet("Cleo", 1), NewPet("Dot", 1))
    begun = await store.imports.begin("x.csv", "sha of one", 2, BY)
    removed = await store.removals.remove([2], BY)
    return {"key": key, "suspended": suspended, "done": done.id, "begun": begun, "removed": removed}


async def two_pets() -> AsyncIterator[tuple[int, list[NewPet]]]:
    yield 0, [NewPet("Rex", 1), NewPet("Max", 1)]


ERROR = RecentError("key_a", 1.0, "r", "listPets", 404, "not_found", "/v1/pets")
ROW = OperationUsage("key_a", int(NOW), "admitted", 1, "listPets")
# What each write method announces. Add new write methods here. The tests below fail until you do.
WRITES: dict[str, tuple[Collection[Change], Callable[[Store, dict[str, Any]], Awaitable[object]]]] = {
    "pets.add": (ADDED, lambda s, x: s.pets.add(NewPet("Rex", 1), NOW)),
    "pets.add_by_hand": (ADDED, lambda s, x: s.pets.add_by_hand(NewPet("Rex", 1), BY)),
    "pets.set_status": (EDITED, lambda s, x: s.pets.set_status([1], "sold", BY)),
    "pets.update": (EDITED, lambda s, x: s.pets.update(1, PetChanges(name="Eve"), BY)),
    "removals.remove": (EDITED, lambda s, x: s.removals.remove([1], BY)),
    "removals.remove_matching": (
        EDITED, lambda s, x: s.removals.remove_matching(PetQuery("Ada"), Matching(1, 0, 9), BY),
    ),
    "removals.restore": (EDITED, lambda s, x: s.removals.restore([x["removed"].pets[0].id], BY)),
    "removals.restore_all": (EDITED, lambda s, x: s.removals.restore_all(x["removed"].removal_id, BY)),
    "keys.create": (NOTHING, lambda s, x: s.keys.create(new_key("live", "free", now=NOW), "new", BY)),
    "keys.create_first": (NOTHING, lambda s, x: s.keys.create_first(new_key("live", "free", now=NOW), "new", BY)),
    "keys.identify": (NOTHING, lambda s, x: s.keys.identify("secret", BY)),
    "keys.update": (KEYS, lambda s, x: s.keys.update(x["key"].id, KeyChanges(name="x"), BY)),
    "keys.suspend": (KEYS, lambda s, x: s.keys.suspend(x["key"].id, BY)),
    "keys.resume": (KEYS, lambda s, x: s.keys.resume(x["suspended"].id, BY)),
    "keys.rotate": (KEYS, lambda s, x: s.keys.rotate(x["key"].id, "new", 2, 0.0, BY)),
    "keys.end_old_secret": (KEYS, lambda s, x: s.keys.end_old_secret(x["key"].id, BY)),
    "keys.revoke": (KEYS, lambda s, x: s.keys.revoke(x["key"].id, BY)),
    "audit.record": (NOTHING, lambda s, x: s.audit.record(ENTRY)),
    "usage.add": (NOTHING, lambda s, x: s.usage.add([ROW], {})),
    "usage.add_admissions": (
        NOTHING, lambda s, x: s.usage.add_admissions([AdmissionTotal("live", "key_a", "listPets", 1, 1)], int(NOW)),
    ),
    "usage.add_errors": (NOTHING, lambda s, x: s.usage.add_errors([ERROR])),
    "operators.add": (NOTHING, lambda s, x: s.operators.add(new_operator("bea", NOW), "new", BY)),
    "operators.set_role": (NOTHING, lambda s, x: s.operators.set_role("ada", "viewer", BY)),
    "operators.revoke": (NOTHING, lambda s, x: s.operators.revoke("ada", BY)),
    "imports.begin": (NOTHING, lambda s, x: s.imports.begin("x.csv", "sha", 1, BY)),
    "imports.add_chunk": (ADDED, lambda s, x: s.imports.add_chunk(x["begun"].id, 0, [NewPet("Rex", 1)], NOW)),
    "imports.add_pets": (ADDED, lambda s, x: s.imports.add_pets(x["begun"], two_pets, lambda: NOW)),
    "imports.undo": (EDITED, lambda s, x: s.imports.undo(x["done"], BY)),
    "transfer.put_rows": (CHANGES, lambda s, x: s.transfer.put_rows(PETS, [pet_row(99)])),
}  # fmt: skip
READS = {
    "pets.page", "pets.get", "pets.search", "pets.newest", "pets.matching", "pets.check_adder", "pets.origins",
    "pets.count", "pets.count_below", "keys.find", "keys.get", "keys.page", "keys.secrets", "keys.expiring",
    "keys.search", "keys.by_id", "audit.find", "audit.history", "usage.recent_errors", "usage.of_keys",
    "usage.busiest", "usage.totals", "usage.admitted", "operators.find", "operators.get", "operators.identify",
    "operators.all", "imports.get", "imports.page", "imports.of_file", "imports.earlier", "imports.undone",
    "imports.kept_ids", "removals.find", "removals.of_pets", "transfer.rows",
}  # fmt: skip
NOUNS = [field for field in Store._fields if field != "database"]


def test_every_method_of_every_noun_is_known_as_a_read_or_as_a_write(tmp_path: Path) -> None:
    async def methods(store: Store) -> set[str]:
        return {
            f"{noun}.{name}"
            for noun in NOUNS
            for name, method in inspect.getmembers(getattr(store, noun), inspect.iscoroutinefunction)
            if not name.startswith("_")
        }

    found = StorePlace(tmp_path).use(methods)
    assert found - READS - WRITES.keys() == set(), "add each method to WRITES with what it announces, or to READS"
    assert (READS | WRITES.keys()) - found == set(), "READS or WRITES names methods that the store does not have"


@pytest.mark.parametrize("name", WRITES)
def test_every_write_announces_what_it_changes(store_at: StorePlace, name: str) -> None:
    expected, write = WRITES[name]
    changes: list[Change] = []

    async def work(store: Store) -> None:
        made = await prepared(store)
        await store.freshness.check()
        changes.clear()
        await write(store, made)
        assert sorted(changes) == sorted(expected), f"{name} does not announce what its row in WRITES names"
        # The store knows that everything was announced, so the next reads announce nothing.
        changes.clear()
        await store.pets.page(after=0, limit=1000, status=None)
        await store.pets.get(1)
        await store.keys.find(digest_of("secret"))
        assert changes == []

    store_at.use(work, changes)


async def animals(store: Store) -> dict[int, Pet]:
    return {pet.id: pet for pet in (await store.pets.page(after=0, limit=1000, status=None)).pets}


@pytest.mark.parametrize("name", WRITES)
def test_every_write_announces_and_marks_the_animals_that_it_changes(store_at: StorePlace, name: str) -> None:
    """Also finds rows of WRITES that name the wrong change, because it compares the animals before and after."""
    changes: list[Change] = []

    async def work(store: Store) -> None:
        of_animal_1 = await imported(store, NewPet("Ada", 1), NewPet("Bea", 1))
        made = await prepared(store)
        before = await animals(store)
        changes.clear()
        await WRITES[name][1](store, made)
        announced = set(changes)
        after = await animals(store)

        ids = {pet_id for pet_id in before | after if before.get(pet_id) != after.get(pet_id)}
        earlier = [pet_id for pet_id in ids if pet_id <= max(before)]
        assert not earlier or "edited" in announced, f"{name} changes the animals {earlier} without announcing EDITED"
        assert len(earlier) == len(ids) or "added" in announced, f"{name} adds animals without announcing ADDED"

        await store.imports.undo(of_animal_1.id, BY)
        kept = await animals(store)
        lost = [pet_id for pet_id in before.keys() & after.keys() & ids if pet_id not in kept]
        assert lost == [], f"{name} does not mark animals as edited: undoing their import removes {lost}"

    store_at.use(work, changes)


# Calls of write methods that change nothing: unknown ids, or values that the record already has.
WITHOUT_EFFECT: list[tuple[str, Callable[[Store], Awaitable[object]]]] = [
    ("pets.update", lambda s: s.pets.update(99, PetChanges(name="Eve"), BY)),
    ("pets.update", lambda s: s.pets.update(1, PetChanges(name="Ada"), BY)),
    ("pets.set_status", lambda s: s.pets.set_status([98, 99], "sold", BY)),
    ("pets.set_status", lambda s: s.pets.set_status([1], "available", BY)),
    ("removals.remove", lambda s: s.removals.remove([98, 99], BY)),
    ("removals.remove_matching", lambda s: s.removals.remove_matching(PetQuery("Zoe"), Matching(1, 0, 9), BY)),
    ("removals.restore", lambda s: s.removals.restore([1, 99], BY)),
    ("removals.restore_all", lambda s: s.removals.restore_all("rem_unknown", BY)),
    ("imports.undo", lambda s: s.imports.undo("imp_unknown", BY)),
    ("keys.update", lambda s: s.keys.update("key_unknown", KeyChanges(name="x"), BY)),
    ("operators.set_role", lambda s: s.operators.set_role("ada", "operator", BY)),
]


def test_every_write_that_edits_animals_has_a_call_without_effect() -> None:
    edits = {name for name, (announced, _) in WRITES.items() if announced == EDITED}
    missing = edits - {name for name, _ in WITHOUT_EFFECT}
    assert missing == set(), "add a call with an unknown id to WITHOUT_EFFECT for each of these writes"


@pytest.mark.parametrize(("name", "call"), WITHOUT_EFFECT, ids=[name for name, _ in WITHOUT_EFFECT])
def test_a_write_without_effect_announces_and_records_nothing(
    store_at: StorePlace, name: str, call: Callable[[Store], Awaitable[object]]
) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        await prepared(store)
        await store.freshness.check()
        before = await store.audit.find()
        changes.clear()
        with suppress(OperatorError):
            await call(store)
        await store.freshness.check()  # would announce a number that was incremented
        assert changes == [], f"{name} announces a change although it changed nothing: raise Unchanged"
        if name != "removals.remove_matching":  # records its entry before it searches for animals
            assert await store.audit.find() == before, f"{name} records an audit entry although it changed nothing"

    store_at.use(work, changes)


def test_a_traversal_announces_once_and_not_page_by_page(store_at: StorePlace) -> None:
    changes: list[Change] = []

    async def work(store: Store) -> None:
        async with store_at.open() as other:
            for i in range(20):
                await other.pets.add(NewPet(f"Pet {i}", i), NOW)
        for after in range(0, 20, 2):
            await store.pets.page(after=after, limit=2, status=None)
        assert changes == ["added"]

    store_at.use(work, changes)


def test_a_change_that_cannot_be_announced_is_not_shown(store_at: StorePlace) -> None:
    class GateAway(list[Change]):
        away = True

        def append(self, change: Change) -> None:
            if self.away:
                raise Unavailable("the gate does not answer")
            super().append(change)

    changes = GateAway()

    async def work(store: Store) -> None:
        async with store_at.open() as other:
            await other.pets.add(NewPet("Rex", 1), NOW)
        for _ in range(2):
            with pytest.raises(Unavailable, match="the gate"):
                await store.pets.page(after=0, limit=9, status=None)
        changes.away = False
        assert (await store.pets.page(after=0, limit=9, status=None)).pets
        assert changes == ["added"]

    store_at.use(work, changes)


# The class Freshness without a store.


class Source:
    def __init__(self) -> None:
        self.numbers = Numbers()
        self.announced: list[list[Change]] = []
        self.fresh = Freshness(self._announce, self._read)

    async def _announce(self, changes: Collection[Change]) -> None:
        self.announced.append(list(changes))

    async def _read(self) -> Numbers:
        return self.numbers


def test_a_commit_covers_earlier_changes_of_its_own_kind_only() -> None:
    async def work() -> None:
        source = Source()
        source.numbers = Numbers(added=7, edited=3, keys=2)  # other processes have not announced 7 and 2
        await source.fresh.announce(EDITED, source.numbers)
        assert source.fresh.announced == Numbers(edited=3)
        await source.fresh.check()
        assert source.announced == [["edited"], ["added", "keys"]]
        assert source.fresh.announced == source.numbers
        await source.fresh.check()
        assert len(source.announced) == 2

    asyncio.run(work())


def test_numbers_that_went_down_are_announced_too() -> None:
    async def work() -> None:
        source = Source()
        source.numbers = Numbers(added=7, edited=3, keys=2)
        await source.fresh.check()
        source.numbers = Numbers(added=5, edited=1, keys=2)
        await source.fresh.check()
        assert source.announced == [["added", "edited", "keys"], ["added", "edited"]]
        assert source.fresh.announced == source.numbers

    asyncio.run(work())


def test_a_check_that_fails_is_repeated_by_the_next_request() -> None:
    async def work() -> None:
        source = Source()
        failing = True

        async def read() -> Numbers:
            if failing:
                raise Unavailable("a test")
            return Numbers()

        fresh = Freshness(source._announce, read)
        for _ in range(2):
            assert not fresh.checked <= NOW < fresh.due
            with pytest.raises(Unavailable):
                await fresh.check_at(NOW)
        failing = False
        await fresh.check_at(NOW)
        assert (fresh.checked, fresh.due) == (NOW, NOW + 1)

    asyncio.run(work())
