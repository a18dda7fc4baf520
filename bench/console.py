"""The console: the time of its pages with 1,000,000 animals and 10,000 keys, and its cost beside a loaded service.

Run as `.venv/bin/python bench/console.py [pages] [commands] [load] [--cluster]`; without words, all of them.
`--cluster` measures PostgreSQL and Redis (the servers of the tests), otherwise SQLite and LMDB.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
from claims import PETSTORE, PLENTY, timed

sys.path.insert(0, str(Path(__file__).parent.parent))
from petstore.audit import AuditEntry
from petstore.backends import Backends
from petstore.keys import ApiKey, digest_of, mint, new_key
from petstore.pets import STATUSES, NewPet
from petstore.rate_limits import Windows
from petstore.settings import Settings
from petstore.store.schema import TABLES, row_of
from petstore.usage import DAY, HOUR

ANIMALS, KEYS, ENTRIES = 1_000_000, 10_000, 100_000
ACTIVE = 0.2  # the share of keys that send requests in an hour
SERVICE, CONSOLE = 8765, 8766
NAMES = ["Rex", "Mia", "Bella", "Luna", "Max", "Felix", "Oscar", "Kitty", "Shadow", "Ärmel"]
ROUNDS, ROUND_SECONDS = 6, 10
PAGES = 15
PACED = ["-c140", 10]  # connections, and the milliseconds that each waits between two requests: about 10,000 a second


class Bench:
    def __init__(self, data: Path, store: str | None, gate: str | None) -> None:
        self.settings = Settings(data=data, store=store, gate=gate)
        where = {"PETSTORE_DATA": str(data), "PETSTORE_STORE": store, "PETSTORE_GATE": gate}
        self.environ = {**os.environ, **{name: value for name, value in where.items() if value}}
        self.results: dict[str, str] = {}
        self.key = ""
        self.secret = ""
        self.console_pid = 0

    def report(self, what: str, value: str) -> None:
        self.results[what] = value
        print(f"  {what:<44} {value}", flush=True)

    async def prepare(self) -> None:
        """The data of a busy month."""
        random.seed(1)
        now = time.time()
        async with Backends(self.settings) as backends:
            store = backends.stores["live"]
            await store.import_pets(_animals(), AuditEntry(now, "bench", "import", "bench.jsonl"))
            keys = [new_key("live", "enterprise", now=now - i, name=f"{random.choice(NAMES)} {i}", limits=PLENTY)
                    for i in range(KEYS)]  # fmt: skip
            self.key, self.secret = keys[0].id, mint("live")
            for name, rows in _history(keys, self.secret, int(now)).items():
                table = next(table for table in TABLES if table.name == name)
                for start in range(0, len(rows), 20_000):
                    await store.put_rows(table, rows[start : start + 20_000])
            await backends.gate.raise_version("live", "keys")
            at = int(now * 1000)
            windows = [Windows(at, 3, at, i, 0, at, at + 3_600_000 if i % 20 == 0 else at, 1) for i in range(KEYS)]
            await backends.gate.put_windows(zip((key.id for key in keys), windows, strict=True))
            await backends.gate.lift(self.key)

    def pages(self) -> None:
        """Each page: the first request after a start, then 15 more."""
        for path in self.paths():
            with console(self) as open_page:
                first = open_page(path)
                before = processor_seconds(self.console_pid)
                again = [open_page(path) for _ in range(PAGES)]
                spent = 1000 * (processor_seconds(self.console_pid) - before) / PAGES
            self.report(
                f"GET {path}",
                f"{statistics.median(again):5.1f} ms, slowest {max(again):5.1f}, first {first:5.1f},"
                f" {spent:5.1f} ms of processor time",
            )

    def paths(self) -> list[str]:
        paths = [f"overview?span={span}" for span in ("hour", "day", "month")]
        paths += ["overview/refresh?span=month", "animals", "animals?before=1000", "animals?status=sold&before=1000"]
        paths += [
            "animals/rows?q=Shadow",
            "animals/rows?q=nobody",
            "animals/rows?q=nobody&status=sold",
            "animals?q=77777",
            "animals/500000",
            "animals/77777",
        ]
        paths += ["keys", "keys?q=Luna 99", "keys?q=nobody", "keys?sort=name", "keys?sort=last_used&plan=enterprise"]
        paths += ["keys?state=banned", "keys?state=active&sort=name", "keys/identify"]
        paths += [f"keys/{self.key}?span={span}" for span in ("hour", "day", "month")]
        return [
            *paths,
            "keys/new",
            "bans",
            "deprecated",
            "operators",
            "health",
            "audit",
            "audit?who=operator 7",
            "audit?what=sign in",
            "audit?q=nobody",
        ]

    def commands(self) -> None:
        """The time of a whole command. `--help` shows the time that Python needs to start."""
        lines = ["--help", "usage", "usage --span hour", "usage --span month", f"usage {self.key}", "keys list"]
        lines += ["keys list --search Luna", "audit", "audit --who nobody", "audit --search 99999"]
        for line in lines:
            took = [timed(partial(self.run, *line.split())) for _ in range(5)]
            self.report(f"petstore {line}", f"{statistics.median(took):.2f} s, slowest {max(took):.2f}")

    def run(self, *words: str) -> None:
        subprocess.run([*PETSTORE, *words], env=self.environ, check=True, capture_output=True)

    def load(self) -> None:
        """Alternating rounds: without an operator, and with one who opens a page every second."""
        with service(self) as worker, console(self) as open_page:
            for name, pacing in (("at 10,000 a second", PACED), ("as fast as it can", ["-c64", 0])):
                alone, watched, pages = [], [], []
                before, began = cpu_seconds(self.console_pid), time.monotonic()
                for number in range(2 * ROUNDS):
                    with contextlib.ExitStack() as stack:
                        if number % 2:
                            pages.append(stack.enter_context(operator(self, open_page)))
                        (watched if number % 2 else alone).append(drive(self, pacing, worker))
                self._compare(name, alone, watched, [ms for some in pages for ms in some])
                # The console is idle in every other round, so its processor time belongs to half of the time.
                share = 200 * (cpu_seconds(self.console_pid) - before) / (time.monotonic() - began)
                self.report(f"{name}, the console's own CPU", f"{share:.1f} % of a core while an operator opens pages")

    def _compare(self, name: str, alone: list["Round"], watched: list["Round"], pages: list[float]) -> None:
        for title, rounds in (("alone", alone), ("watched", watched)):
            rates, cpu = [each.rate for each in rounds], [each.cpu for each in rounds]
            self.report(
                f"{name}, {title}",
                f"{statistics.median(rates):,.0f} requests/s ({min(rates):,.0f} to {max(rates):,.0f}),"
                f" p99 {statistics.median(each.p99 for each in rounds):.2f} ms,"
                f" {statistics.median(cpu):.1f} µs of CPU each",
            )
        for title, attribute, sign in (("rate", "rate", -1), ("CPU per request", "cpu", 1)):
            ratios = [getattr(w, attribute) / getattr(a, attribute) for a, w in zip(alone, watched, strict=True)]
            cost = 100 * sign * (statistics.median(ratios) - 1)
            self.report(f"{name}, cost in {title}", f"{cost:+.1f} % (median of {ROUNDS} pairs of rounds)")
        pages.sort()
        self.report(
            f"{name}, console pages",
            f"median {statistics.median(pages):.0f} ms, 95 % {pages[int(len(pages) * 0.95)]:.0f} ms,"
            f" slowest {pages[-1]:.0f} ms of {len(pages)}",
        )


class Round:
    def __init__(self, report: str, cpu: float) -> None:
        found = json.loads(next(line for line in report.splitlines() if line.startswith("{")))
        if found["failed"]:
            raise SystemExit(f"{found['failed']} requests failed\n{report}")
        self.rate = found["requests"] / (found["microseconds"] / 1e6)
        self.p99 = found["p99"] / 1000
        self.cpu = cpu / found["requests"] * 1e6


LUA = """
function delay() return %d end
function done(summary, latency)
  local e = summary.errors
  io.write(string.format('{"requests":%%d,"microseconds":%%d,"p99":%%d,"failed":%%d}\\n', summary.requests,
    summary.duration, latency:percentile(99), e.status + e.connect + e.read + e.write + e.timeout))
end
"""


def drive(bench: Bench, pacing: list[Any], worker: int) -> Round:
    """One run of wrk against the service."""
    connections, wait = pacing
    script = bench.settings.data / "paced.lua"
    script.write_text(LUA % wait if wait else LUA.replace("function delay() return %d end", "") % ())
    before = cpu_seconds(worker)
    done = subprocess.run(
        ["wrk", "-t1", connections, f"-d{ROUND_SECONDS}s", "-s", str(script),
         "-H", f"Authorization: Bearer {bench.secret}", f"http://127.0.0.1:{SERVICE}/v1/pets"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return Round(done.stdout, cpu_seconds(worker) - before)


@contextlib.contextmanager
def operator(bench: Bench, open_page: Callable[[str], float]) -> Iterator[list[float]]:
    """An operator who opens a page every second while the overview refreshes every five seconds."""
    took: list[float] = []
    stop = threading.Event()

    def browse() -> None:
        paths = [path for path in bench.paths() if not path.startswith("overview")]
        turn = 0
        while not stop.wait(1):
            took.append(open_page(paths[turn % len(paths)]))
            if turn % 5 == 0:
                took.append(open_page("overview/refresh?span=day"))
            turn += 1

    thread = threading.Thread(target=browse)
    thread.start()
    yield took
    stop.set()
    thread.join()


@contextlib.contextmanager
def console(bench: Bench) -> Iterator[Callable[[str], float]]:
    """A function that opens a page of live and returns its milliseconds."""
    command = [*PETSTORE, "console", "--port", str(CONSOLE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=bench.environ) as process:
        assert process.stdout is not None
        bench.console_pid = process.pid
        link = next(found[0] for line in process.stdout if (found := re.search(r"http\S+token=\S+", line)))
        with httpx.Client(base_url=f"http://127.0.0.1:{CONSOLE}", verify=False, timeout=30) as client:
            _until(lambda: client.get(link).status_code == 303)

            def open_page(path: str) -> float:
                began = time.perf_counter()
                response = client.get(f"/live/{path}")
                took = 1000 * (time.perf_counter() - began)
                if response.status_code != 200:
                    raise SystemExit(f"{path}: {response.status_code}")
                return took

            yield open_page
        process.terminate()


@contextlib.contextmanager
def service(bench: Bench) -> Iterator[int]:
    """The worker's process id."""
    command = [*PETSTORE, "serve", "--port", str(SERVICE)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=bench.environ, start_new_session=True)
    try:
        _until(lambda: urllib.request.urlopen(f"http://127.0.0.1:{SERVICE}/readyz", timeout=1).status == 200)
        yield int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=10)


def _until(works: Callable[[], bool]) -> None:
    for _ in range(2_000):
        with contextlib.suppress(OSError, httpx.TransportError):
            if works():
                return
        time.sleep(0.01)
    raise SystemExit("the process did not start")


def processor_seconds(process: int) -> float:
    """The processor time of all threads. Other processes on the machine do not change it, as they do response times."""
    return sum(
        int((task / "schedstat").read_text().split()[0]) / 1e9 for task in Path(f"/proc/{process}/task").iterdir()
    )


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _animals() -> AsyncIterator[list[NewPet]]:
    for first in range(0, ANIMALS, 5_000):
        yield [NewPet(f"{NAMES[i % 10]} {i}", i % 50, STATUSES[i % 3]) for i in range(first, first + 5_000)]


def _history(keys: list[ApiKey], secret: str, now: int) -> dict[str, list[tuple[Any, ...]]]:
    """Rows by table: a month of days and hours in which some keys were active, an hour of minutes in which all were."""
    ids = sorted(key.id for key in keys)
    history: dict[str, list[tuple[Any, ...]]] = {
        "keys": sorted(row_of(msgspec.structs.replace(key, last_used=now)) for key in keys),
        "secrets": [(digest_of(secret), keys[0].id, None)],
    }
    totals: Counter[tuple[int, int, str]] = Counter()
    by_operation: list[tuple[Any, ...]] = []
    intervals = (("usage_days", DAY, 30, 0.9), ("usage", HOUR, 720, ACTIVE), ("usage_minutes", 60, 60, 1))
    for table, step, count, share in intervals:
        rows = history[table] = []
        for start in range(now // step * step - count * step, now // step * step, step):
            for key_id in ids:
                if random.random() < share:
                    used = {"ok": random.randrange(1, 300), "refused": 5 if random.random() < 0.1 else 0}
                    rows += [(key_id, start, response, n) for response, n in used.items() if n]
                    if step == DAY:  # what the page of deprecated calls reads
                        by_operation += [
                            (step, start, key_id, operation, response, n)
                            for operation in ("getPet", "listPets")
                            for response, n in used.items()
                            if n
                        ]
            if step < DAY:
                totals[step, start, "ok"] += 150 * int(share * len(ids))
    history["usage_by_operation"] = sorted(by_operation)
    history["traffic"] = sorted((*cell, n) for cell, n in totals.items())
    # The first entry is the import of the animals.
    history["deeds"] = [
        (i, float(now), f"operator {i % 50}", "set status", str(i), "sold") for i in range(2, ENTRIES + 2)
    ]
    return history


def main() -> None:
    words = [word for word in sys.argv[1:] if not word.startswith("--")] or ["pages", "commands", "load"]
    with contextlib.ExitStack() as stack:
        store = gate = None
        if "--cluster" in sys.argv:
            from tests.backends import Postgres, Redis, running

            store = stack.enter_context(running(Postgres())).url()
            gate = stack.enter_context(running(Redis())).url()
        bench = Bench(Path(stack.enter_context(tempfile.TemporaryDirectory())), store, gate)
        pair = "PostgreSQL and Redis" if store else "SQLite and LMDB"
        print(f"{pair}: {ANIMALS:,} animals, {KEYS:,} keys, a month of usage, {ENTRIES:,} audit entries", flush=True)
        bench.report("preparing", f"{timed(lambda: asyncio.run(bench.prepare())):.0f} s")
        for word in words:
            {"pages": bench.pages, "commands": bench.commands, "load": bench.load}[word]()
        results = Path(__file__).parent / "results"
        name = "console-cluster.json" if store else "console.json"
        (results / name).write_text(json.dumps(bench.results, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
