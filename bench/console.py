"""Measures the response times of the console's pages with 1,000,000 animals and 10,000 keys.

Run `.venv/bin/python bench/console.py`. With `--cluster`, it uses PostgreSQL and Redis instead of SQLite and LMDB.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import backends
import httpx
from console_data import ANIMALS, ENTRIES, KEYS, fill
from contenders import CORES

from petstore.settings import Settings

PETSTORE = Path(sys.executable).with_name("petstore")
PORT = 8766
REQUESTS = 15
STARTS_WITHIN = 20.0
SIGN_IN_LINK = re.compile(r"http\S+token=\S+")


def measure(settings: Settings, key_id: str) -> dict[str, dict[str, float]]:
    """Measures each page in milliseconds: the first request after the console starts, then 15 more."""
    found = {}
    for path in paths(key_id):
        with console(settings) as (open_page, processor_ms):
            first = open_page(path)
            before = processor_ms()
            again = [open_page(path) for _ in range(REQUESTS)]
            spent = (processor_ms() - before) / REQUESTS
        took = {"median": statistics.median(again), "slowest": max(again), "first": first, "processor": spent}
        name = path.replace(key_id, "KEY")
        found[name] = {what: round(ms, 1) for what, ms in took.items()}
        print(f"  {name:<44} {found[name]}", flush=True)
    return found


def paths(key_id: str) -> list[str]:
    """Returns every page, with the filters, sort orders and searches that an operator would use."""
    key = f"keys/{key_id}"
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
        f"keys/rows?after={key_id}", f"keys/rows?after={key_id}&sort=name&state=active",
        "keys/new", "keys/identify",
        *(f"{key}{part}?span={span}" for part in ("", "/refresh") for span in ("hour", "day", "month")),
        f"{key}/revoke",
        "bans", "bans/refresh",
        "deprecated", "deprecated/rows?start=9000", "deprecated/export",
        "audit", "audit?who=operator 7", "audit?who=nobody", "audit?what=sign in", "audit?what=update key",
        "audit?q=77777", "audit?q=nobody", "audit/rows?before=5000",
        "operators", "health", "health/refresh",
    ]  # fmt: skip


@contextlib.contextmanager
def console(settings: Settings) -> Iterator[tuple[Callable[[str], float], Callable[[], float]]]:
    """Starts the console. Yields two functions.

    The first opens a page of the live environment and returns how many milliseconds that took. The second returns the
    console's CPU time.
    """
    where = {"PETSTORE_DATA": str(settings.data), "PETSTORE_STORE": settings.store, "PETSTORE_GATE": settings.gate}
    environ = os.environ | {name: value for name, value in where.items() if value}
    command = [str(PETSTORE), "console", "--port", str(PORT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        link = next(found[0] for line in process.stdout if (found := SIGN_IN_LINK.search(line)))
        with httpx.Client(base_url=f"http://127.0.0.1:{PORT}", verify=False, timeout=30) as client:
            sign_in(client, link)

            def open_page(path: str) -> float:
                began = time.perf_counter()
                response = client.get(f"/live/{path}")
                took = 1000 * (time.perf_counter() - began)
                if response.status_code != 200:
                    raise SystemExit(f"{path}: {response.status_code}")
                return took

            yield open_page, lambda: processor_ms(process.pid)
        process.terminate()


def sign_in(client: httpx.Client, link: str) -> None:
    deadline = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if client.get(link).status_code == 303:
                return
        time.sleep(0.01)
    raise SystemExit("the console did not start")


def processor_ms(process: int) -> float:
    """Returns the CPU time of all threads. Unlike response times, it does not depend on other processes."""
    return sum(
        int((task / "schedstat").read_text().split()[0]) / 1e6 for task in Path(f"/proc/{process}/task").iterdir()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", action="store_true", help="use PostgreSQL and Redis")
    cluster = parser.parse_args().cluster
    store, gate = (backends.postgres().url(), backends.redis().url()) if cluster else (None, None)
    try:
        with tempfile.TemporaryDirectory() as directory:
            settings = Settings(data=Path(directory), store=store, gate=gate)
            pages = measure(settings, asyncio.run(fill(settings)))
    finally:
        backends.end()
    sizes = {"animals": ANIMALS, "keys": KEYS, "entries": ENTRIES, "requests": REQUESTS}
    run = {"finished": time.strftime("%Y-%m-%d"), "cores": CORES, "settings": sizes, "pages": pages}
    file = Path(__file__).parent / f"results/console-{'cluster-' if cluster else ''}pages.json"
    file.write_text(json.dumps(run, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
