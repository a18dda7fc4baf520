"""A full disk (a small tmpfs under the running service) and a disk whose syncs fail (the recording VFS).

On a full disk, create requests get a 503 within two seconds, and reads continue. Within five seconds after space is
available again, the service recovers by itself.
"""

import asyncio
import time

import httpx

from harness.claims import Broken, hold, temporary_directory
from harness.disks import filled, small_disk
from harness.servers import Server, started
from petstore.backends import Backends
from petstore.errors import Unavailable
from petstore.pets import NewPet
from petstore.settings import Settings
from petstore.store.sqlite.doctor import check_database_file
from prove.proof import Figures, Parts, Scale
from prove.recorder import recording

DISK_MEBIBYTES = 22  # the gate uses 16 of them
ANSWER_SECONDS, HEAL_SECONDS = 2.0, 5.0
CREATES_MAX = 20_000


def prove(scale: Scale) -> Figures:
    figures: Figures = {"lost": 0, "half-done": 0}
    parts = Parts(scale)
    with parts.part():
        figures["creates refused by failing syncs"] = asyncio.run(_syncs_that_fail(plant=scale.plant))
    with (
        parts.part(),
        temporary_directory() as place,
        small_disk(place / "data", DISK_MEBIBYTES) as data,
        started(Server(data, workers=2)) as server,
        httpx.Client(headers=server.key().headers, timeout=10, verify=False) as connection,
    ):
        client = Client(server, connection)
        heals = _fill_and_heal(server, client, HEAL_SECONDS if scale.full else 2.0, plant=scale.plant)
        figures |= {"creates refused by a full disk": client.refused, "healed after s": round(heals, 2)}
    parts.judge()
    return figures


class Client:
    def __init__(self, server: Server, connection: httpx.Client) -> None:
        self._server = server
        self._http = connection
        self.acknowledged: dict[int, str] = {}
        self.refused = 0
        self._number = 0

    def create(self) -> bool:
        """Returns whether the animal was added. Raises Broken if the response is neither a 201 nor a valid 503."""
        self._number += 1
        name = f"{self._number}.".ljust(250, "x")
        began = time.monotonic()
        answer = self._http.post(self._server.url("/pets"), json={"name": name, "categoryId": 1})
        took = time.monotonic() - began
        if answer.status_code == 201:
            self.acknowledged[answer.json()["id"]] = name
            return True
        hold(answer.status_code == 503, f"a create request on a full disk gets a 503, not a {answer.status_code}")
        hold(answer.json()["code"] == "unavailable", "a 503 has the code unavailable")
        hold("retry-after" in answer.headers, "a 503 has Retry-After")
        hold(took < ANSWER_SECONDS, f"a 503 arrives within {ANSWER_SECONDS} s, not after {took:.1f} s")
        self.refused += 1
        return False

    def reads(self) -> None:
        """Reads cached and uncached data. Raises Broken."""
        for path in ("/pets", f"/pets?limit={self._number % 100 + 1}", f"/pets/{max(self.acknowledged)}"):
            status = self._http.get(self._server.url(path)).status_code
            hold(status == 200, f"reads succeed while the disk is full: {path} got a {status}")


def _fill_and_heal(server: Server, client: Client, heal_seconds: float, *, plant: bool) -> float:
    """Returns how many seconds it took until a create request succeeded again. Raises Broken."""
    for _ in range(50):
        hold(client.create(), "create requests succeed before the disk is full")
    ballast = filled(server.data / "ballast")
    for _ in range(CREATES_MAX):
        if not client.create():
            break
    hold(client.refused, "the disk eventually becomes full")
    for _ in range(20):
        client.reads()
        client.create()
    if not plant:  # planted fault: the space is not freed
        ballast.unlink()
    began = time.monotonic()
    while not client.create():
        if time.monotonic() - began > heal_seconds:
            raise Broken(f"no create request succeeded within {heal_seconds} s after space was freed")
        time.sleep(0.05)
    heals = time.monotonic() - began
    for _ in range(20):
        hold(client.create(), "create requests keep succeeding after the recovery")
    hold(check_database_file(server.data / "live.db").faults == [], "integrity_check is ok")
    page = server.act(lambda backends: backends.stores["live"].pets.page(after=0, limit=10**6, status=None))
    stored = {pet.id: pet.name for pet in page.pets}
    hold(stored == client.acknowledged, "the store has exactly the acknowledged animals")
    return heals


async def _syncs_that_fail(*, plant: bool) -> int:
    """Returns the number of refused create requests. Raises Broken."""
    with temporary_directory() as data:
        acknowledged: dict[int, str] = {}
        refused = 0

        async def create(backends: Backends, name: str) -> None:
            nonlocal refused
            try:
                added = await backends.stores["live"].pets.add(NewPet(name, 1, "available"), 1.0)
                acknowledged[added.pet.id] = name
            except Unavailable:
                refused += 1

        with recording() as record:
            async with Backends(Settings(data=data)) as backends:
                for number in range(40):
                    record.sync_error = 10 <= number < 30 and not plant  # planted fault: no sync fails
                    await create(backends, str(number))
                    page = await backends.stores["live"].pets.page(after=0, limit=100, status=None)
                    seen = {pet.id: pet.name for pet in page.pets}
                    hold(seen == acknowledged, "readers see exactly the acknowledged animals even if syncs fail")
        hold(refused == 20, f"all 20 create requests whose sync failed are refused, not {refused}")
        hold(check_database_file(data / "live.db").faults == [], "integrity_check is ok after failed syncs")
        async with Backends(Settings(data=data)) as backends:
            page = await backends.stores["live"].pets.page(after=0, limit=100, status=None)
            hold({pet.id: pet.name for pet in page.pets} == acknowledged, "nothing is lost by a failed sync")
        return refused
