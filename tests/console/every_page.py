"""The addresses of all console pages, based on the console's routes, and data that puts the pages in every state.

New routes are included automatically. A route with a new kind of parameter needs an entry in `EveryPage.values`.
"""

import itertools
import re
import time
from typing import Any

from harness.consoles import Console
from harness.served import wait_for
from harness.servers import Server
from harness.stores import imported
from petstore.audit import Actor
from petstore.console.app import ROUTES
from petstore.keys import mint, new_key
from petstore.pets import STATUSES, NewPet
from petstore.plans import Limits, Plan
from petstore.rate_limits import Windows
from petstore.usage import OperationUsage, RecentError, TotalUsage

GET_ROUTES = [route.path for route in ROUTES if "GET" in (route.methods or ())]
FORM_ROUTES = {"/keys/new", "/keys/identify", "/keys/{key_id}/revoke"}  # pages that consist of a form
# Queries that show pages in other states.
QUERIES = {
    "/overview": ["?span=hour", "?span=month"],
    "/animals": ["?q=nobody", "?q=x&since=nonsense", "?status=sold"],
    "/keys": ["?q=nobody", "?state=banned"],
    "/keys/{key_id}": ["?span=hour"],
    "/bills": ["?month=2020-01"],
    "/audit": ["?who=nobody"],
}
NAMES = ["Rex", "<script>alert(1)</script>", "🐈" * 255, "\u202eright to left", "x" * 255, "Mia", "Luna", "Ærø"]
KEYS = ["Ada's laptop", "'; drop table keys; --", "🐕" * 255, "", "<script>alert(2)</script>", "Zoo Leipzig – booking"]
LONG = "x" * 64  # the longest name that an operator may have


def fill(server: Server) -> None:
    """Fills live with data, and leaves staging empty. No service is running."""
    now = time.time()
    plans: list[Plan] = ["free", "pro", "enterprise", "business", "free", "pro"]

    async def work(backends: Any) -> None:
        live = backends.stores["live"]
        pets = [NewPet(NAMES[i % len(NAMES)], i, STATUSES[i % 3]) for i in range(20)]
        await imported(live, *pets, by=Actor("ada", now - 9000), name="animals.jsonl")
        undone = await imported(live, *pets, by=Actor(LONG, now - 8000), name=f"{LONG * 3}.csv")
        await live.imports.undo(undone.id, Actor("ada", now - 7000))
        await live.imports.begin("interrupted.csv", "interrupted", 9, Actor("ada", now - 6000))
        keys = []
        for i, name in enumerate(KEYS):
            limits = Limits(50, 5000) if plans[i] == "enterprise" else None
            contact = f"{LONG}@example.com" if i == 2 else ""
            key = new_key("live", plans[i], now=now - 100 * i, name=name, contact=contact, limits=limits)
            await live.keys.create(key, mint("live"), Actor("ada", key.created))
            keys.append(key)
        await live.keys.revoke(keys[5].id, Actor("grace (command line)", now))
        for hour in range(700, 0, -7):
            start = int(now) - hour * 3600
            rows = [OperationUsage(key.id, start, "admitted", 900 - 100 * i, "listPets") for i, key in enumerate(keys)]
            refused = OperationUsage(keys[2].id, start, "refused", 40, "getPet")
            await live.usage.add([*rows, refused], {}, [TotalUsage(start, "unauthorized", 9)])
        path = f"/v1/{'long-path/' * 20}"[:200]
        errors = [(key.id, now - 70 * n, f"{n:032x}") for key in keys for n in range(6)]
        await live.usage.add_errors([RecentError(*each, "other", 404, "not_found", path) for each in errors])
        for minute in range(60):
            start = int(now) - 60 * minute
            rows = [OperationUsage(key.id, start, "admitted", 60 - minute, "getPet") for key in keys]
            await live.usage.add([*rows, OperationUsage(keys[2].id, start, "banned", 5, "listPets")], {keys[0].id: now})
        at = int(now * 1000)
        await backends.gate.put_windows(
            [
                (keys[0].id, Windows(at, 31, at, 612)),
                (keys[1].id, Windows(at, 0, at, 10_000)),
                (keys[2].id, Windows(at, 49, at, 4300, ban_start=at - 9000, ban_end=at + 3_000_000, bans=5)),
            ]
        )

    server.act(work)


class EveryPage:
    def __init__(self, console: Console) -> None:
        """Changes the data of `fill` as an operator would, so that pages in every state exist."""
        self._operator = operator = console.sign_in("ada")
        console.add_operator(LONG, "viewer")
        console.add_operator("revoked")
        operator.submit("/live/operators/revoke", name="revoked")
        key_ids = re.findall(r'href="/live/keys/(key_\w+)"', operator.get("/live/keys").text)
        rotated, suspended = operator.create_key(name="rotated")[0], operator.create_key(name="suspended")[0]
        operator.submit(f"/live/keys/{rotated}/rotate", newest="1", overlap="24h")
        operator.submit(f"/live/keys/{suspended}/suspend")
        operator.submit("/live/animals/selected", id=["3", "4"], action="remove")
        operator.submit("/live/animals/selected", id="5", to="sold")
        operator.submit("/live/animals/6/remove")
        self.values = {
            "pet_id": ["1", "3", "5", "6"],
            "key_id": [*dict.fromkeys(key_ids), rotated, suspended],
            "import_id": re.findall(r'/animals/imports/(imp_\w+)"', operator.get("/live/animals/imports").text),
            "job_id": [
                self._job("finished", "names.csv", "name,categoryId\nRex,1\n"),
                self._job("waiting", "names.csv", "name,categoryId\nRex,1\n"),
                self._job("failed", "wrong.csv", "name,categoryId\n" + f"{'x' * 300},{'9' * 30}\n" * 20),
                self._export(),
            ],
        }

    def addresses(self, route: str) -> list[str]:
        """Returns every address of a route in live, and one in staging, where the tables are empty."""
        parts = re.split(r"{(\w+)}", route)
        choices = [self.values[part] if index % 2 else [part] for index, part in enumerate(parts)]
        paths = ["".join(each) for each in itertools.product(*choices)]
        queries = [paths[0] + query for query in QUERIES.get(route, [])]
        empty = [f"/staging{route}"] if len(parts) == 1 else []
        return [*(f"/live{path}" for path in [*paths, *queries]), *empty]

    def is_page(self, address: str) -> bool:
        """Returns whether an address serves a whole page, as opposed to a file or a part of a page."""
        return self._operator.get(address).text.startswith("<!doctype html>")

    def _job(self, state: str, name: str, content: str) -> str:
        headers = {"Origin": self._operator.console.origin}
        started = self._operator.http.post("/live/animals/import", files={"file": (name, content)}, headers=headers)
        return self._ended(started.headers["location"], state)

    def _export(self) -> str:
        return self._ended(self._operator.post("/live/animals/export", form="csv").headers["location"], "finished")

    def _ended(self, path: str, state: str) -> str:
        marks = {"finished": "message ok", "waiting": "Import again", "failed": "message error"}
        assert wait_for(lambda: marks[state] in self._operator.get(path).text)
        return path.rpartition("/")[2]
