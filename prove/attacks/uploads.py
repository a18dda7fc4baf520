"""Uploads files that could block the console or fill its memory: blank lines, one long line, an array of zeros.

Other pages respond while each file is uploaded and checked, memory stays bounded, and SIGTERM stops the console.
"""

import subprocess
import sys
import time
from pathlib import Path

from harness.claims import hold, temporary_directory
from harness.consoles import Console, ConsoleClient
from harness.servers import Server
from prove.attacks.altered import program
from prove.attacks.processes import MEBIBYTE, Process, megabytes
from prove.proof import Figures, Scale

MEMORY_MAX = 64 * MEBIBYTE
ANSWERED_WITHIN = 0.5
STOPPED_WITHIN = 5.0
CHECKED_WITHIN = 120.0
# Runs in a separate process, because an upload in this process would delay the measured pages.
UPLOAD = """
import pathlib, sys, httpx
origin, cookie, path = sys.argv[1:]
file = pathlib.Path(path)
headers = {"Origin": origin, "Cookie": cookie}
files = {"file": (file.name, file.open("rb"))}
answer = httpx.post(origin + "/live/animals/import", files=files, headers=headers, timeout=60)
print(answer.headers.get("location", answer.status_code))
"""


def prove(scale: Scale) -> Figures:
    files = {
        "line.jsonl": b"x" * (200 if scale.full else 100) * MEBIBYTE,
        "zeros.json": b"[" + b"0," * (30 if scale.full else 4) * MEBIBYTE + b"0]",
        "blank.jsonl": b"\n" * 8 * MEBIBYTE,
    }
    with temporary_directory() as data:
        server = Server(data / "data")
        server.create()
        server.program = program("uploads_kept") if scale.plant else program()
        console = Console(server)
        try:
            console.wait_until_ready()
            operator = console.sign_in("ada")
            process = Process(console.process.pid)
            _page(operator)
            before = process.memory
            most, slowest = 0, 0.0
            for name, content in files.items():
                file = data / name
                file.write_bytes(content)
                address, took = _during(operator, file)
                slowest = max(slowest, took)
                began = time.monotonic()
                while "refresh" in operator.get(address).headers:
                    slowest = max(slowest, _page(operator))
                    most = max(most, process.memory - before)
                    hold(time.monotonic() - began < CHECKED_WITHIN, f"{name} is checked within {CHECKED_WITHIN:.0f} s")
                most = max(most, process.memory - before)
            _during(operator, file)
            began = time.monotonic()
            console.stop()
            stopped = time.monotonic() - began
        finally:
            console.process.kill()
    hold(most <= MEMORY_MAX, f"memory grew by {megabytes(most)} MiB")
    if scale.full:
        hold(slowest <= ANSWERED_WITHIN, f"another page took {slowest:.2f} s")
        hold(stopped <= STOPPED_WITHIN, f"SIGTERM took {stopped:.1f} s")
    return {"slowest page during the upload ms": round(1000 * slowest), "memory growth MiB": megabytes(max(0, most)),
            "stopped after s": round(stopped, 1)}  # fmt: skip


def _during(operator: ConsoleClient, file: Path) -> tuple[str, float]:
    """Uploads a file. Returns the address of its job, and how many seconds the slowest page took meanwhile."""
    origin, cookies = operator.console.origin, operator.http.cookies
    cookie = "; ".join(f"{name}={value}" for name, value in cookies.items())
    words = [sys.executable, "-c", UPLOAD, origin, cookie, str(file)]
    slowest = 0.0
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as upload:
        while upload.poll() is None:
            slowest = max(slowest, _page(operator))
        printed, _ = upload.communicate(timeout=10)
    hold("/jobs/" in printed, f"{file.name} is uploaded: {printed}")
    return printed.strip(), slowest


def _page(operator: ConsoleClient) -> float:
    """Returns how many seconds a page takes. Raises Broken."""
    began = time.monotonic()
    answer = operator.get("/live/animals/imports")
    hold(answer.status_code == 200, f"the list of imports has the status 200, not {answer.status_code}")
    return time.monotonic() - began
