"""The console: the time of its pages with 1,000,000 animals and 10,000 keys, and its cost beside a loaded service.

Run as `.venv/bin/python bench/console.py [pages] [commands] [load]`; without words, all of them.
`--cluster` measures PostgreSQL and Redis (the servers of the tests), otherwise SQLite and LMDB.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from claims import PETSTORE, timed
from console_data import ANIMALS, ENTRIES, KEYS, fill
from report import CORES

sys.path.insert(0, str(Path(__file__).parent.parent))
from petstore.settings import Settings

SERVICE, CONSOLE = 8765, 8766
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

    def prepare(self) -> None:
        """Fill an empty data directory; one that was filled before is used as it is."""
        note = self.settings.data / "bench-key"
        if not note.exists():
            note.write_text(" ".join(asyncio.run(fill(self.settings))))
        self.key, self.secret = note.read_text().split()

    def pages(self) -> dict[str, dict[str, float]]:
        """Each page: the first request after a start of the console, then 15 more. Milliseconds."""
        found = {}
        for path in self.paths():
            with console(self) as open_page:
                first = open_page(path)
                before = processor_seconds(self.console_pid)
                again = [open_page(path) for _ in range(PAGES)]
                spent = 1000 * (processor_seconds(self.console_pid) - before) / PAGES
            took = {"median": statistics.median(again), "slowest": max(again), "first": first, "processor": spent}
            name = path.replace(self.key, "KEY")
            found[name] = {what: round(ms, 1) for what, ms in took.items()}
            print(f"  {name:<44} {found[name]}", flush=True)
        return found

    def paths(self) -> list[str]:
        """Every page, and every way to filter, sort and search that an operator would use."""
        key = f"keys/{self.key}"
        return [
            *(f"overview{part}?span={span}" for part in ("", "/refresh") for span in ("hour", "day", "month")),
            "animals", "animals?before=1000", "animals?status=sold", "animals?status=sold&before=1000",
            "animals?q=Shadow", "animals?q=Shadow&status=pending", "animals?q=nobody", "animals?q=nobody&status=sold",
            "animals?q=77777", "animals?q=Ärmel 1", "animals/rows?q=nobody&before=500000",
            "animals/500000", "animals/77777", "animals/77777/history",
            "keys", *(f"keys?sort={sort}" for sort in ("name", "last-used")),
            *(f"keys?plan={plan}&sort=name" for plan in ("free", "enterprise")),
            *(f"keys?state={state}" for state in ("active", "banned", "suspended", "expired", "revoked")),
            "keys?state=active&sort=name", "keys?state=banned&sort=last-used&plan=enterprise",
            "keys?q=Luna", "keys?q=Luna 99", "keys?q=nobody", "keys?q=Luna&plan=pro&state=active&sort=last-used",
            f"keys/rows?after={self.key}", f"keys/rows?after={self.key}&sort=name&state=active",
            "keys/new", "keys/identify",
            *(f"{key}{part}?span={span}" for part in ("", "/refresh") for span in ("hour", "day", "month")),
            f"{key}/revoke",
            "bans", "bans/refresh",
            "deprecated", "deprecated/rows?start=9000", "deprecated/export",
            "audit", "audit?who=operator 7", "audit?who=nobody", "audit?what=sign in", "audit?what=update key",
            "audit?q=77777", "audit?q=nobody", "audit/rows?before=5000",
            "operators", "health", "health/refresh",
        ]  # fmt: skip

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="pages, commands, load [default: all]")
    parser.add_argument("--cluster", action="store_true", help="PostgreSQL and Redis")
    parser.add_argument(
        "--data", type=Path, help="keep the data here, and use what is there [default: a new directory]"
    )
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        store = gate = None
        if options.cluster:
            from harness.backends import Postgres, Redis, running

            store = stack.enter_context(running(Postgres())).url()
            gate = stack.enter_context(running(Redis())).url()
        data = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        data.mkdir(exist_ok=True)
        bench = Bench(data, store, gate)
        pair = "PostgreSQL and Redis" if store else "SQLite and LMDB"
        print(f"{pair}: {ANIMALS:,} animals, {KEYS:,} keys, a month of usage, {ENTRIES:,} audit entries", flush=True)
        bench.report("preparing", f"{timed(bench.prepare):.0f} s")
        name = "console-cluster" if store else "console"
        words = options.what or ["pages", "commands", "load"]
        if "pages" in words:
            settings = {"animals": ANIMALS, "keys": KEYS, "entries": ENTRIES, "requests": PAGES}
            run = {"finished": time.strftime("%Y-%m-%d"), "cores": CORES, "settings": settings, "pages": bench.pages()}
            _keep(f"{name}-pages", run)
        for word in words:
            if word != "pages":
                {"commands": bench.commands, "load": bench.load}[word]()
        if words != ["pages"]:
            _keep(name, bench.results)


def _keep(name: str, results: object) -> None:
    path = Path(__file__).parent / f"results/{name}.json"
    path.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
