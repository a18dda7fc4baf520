"""A long mixed load at a fixed rate. Measures how fast resources grow that should stay constant.

Memory, descriptors and the log are sampled every second. Slopes are least-squares fits of the samples after the
warm-up. A write that was slow, or was refused for being slow, is excused only if the machine was late for at least half
of that time. Two probes measure how late the machine is: sleeps of 5 ms, and a sync after every tenth sleep.
"""

import asyncio
import bisect
import itertools
import os
import socket
import threading
import time
from collections import Counter
from pathlib import Path

from harness.claims import Skipped, hold, progress, temporary_directory
from harness.servers import Key, Server, started
from prove.load import Answer, percentile, steady
from prove.proof import Figures, Scale

PER_SECOND = 150
WRITES = 10  # one request in ten is a write
WARM_UP = 0.25  # fraction of the time
SLOPES_FROM_MINUTES = 30  # over a shorter time, a single memory page would look like a slope
MEGABYTES_PER_HOUR = 1.0
WAL_MAX = 64 * 1024 * 1024
SLOW_WRITE = 0.250
SLEEP, SLEEPS = 0.005, 10  # between two syncs
# Fractions of the time during which the machine is late. Above TOO_LATE, the probes miss so many delays that a write
# may be blamed wrongly. Above LATE_AT_RANDOM, up to twice this share of writes could be excused by chance.
TOO_LATE, LATE_AT_RANDOM = 0.01, 0.05
PROMPT = 0.005  # seconds. On an idle machine, neither a sync nor waking up from a sleep takes longer


class Watch(threading.Thread):
    """Samples a worker's resources periodically, and continuously measures how late the machine is."""

    def __init__(self, server: Server, *, every: float, plant: bool) -> None:
        super().__init__(daemon=True)
        self._every = every
        assert server.process is not None
        supervisor = server.process.pid
        worker = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()[0]
        self._worker = Path(f"/proc/{worker}")
        self._server = server
        self._leak: list[socket.socket] | None = [] if plant else None
        self._over = threading.Event()
        self.samples: list[tuple[float, float, float, float]] = []  # time, resident MiB, descriptors, bytes of the log
        self.late: list[tuple[float, float]] = []  # start and end of each period when the machine was late

    def run(self) -> None:
        probe = os.open(self._server.data.parent / "probe", os.O_WRONLY | os.O_CREAT, 0o600)
        due = time.monotonic()
        while not self._over.is_set():
            for _ in range(SLEEPS):
                began = time.monotonic()
                time.sleep(SLEEP)
                self._note(began + SLEEP)
            began = time.monotonic()
            os.pwrite(probe, os.urandom(4096), 0)
            os.fdatasync(probe)
            synced = self._note(began)
            if synced >= due:
                self.samples.append(self._sample(synced))
                due += self._every
                if len(self.samples) % 600 == 0:
                    _, memory, descriptors, log = self.samples[-1]
                    progress(f"soak: {memory:.1f} MiB, {descriptors:.0f} descriptors, {log / 2**20:.1f} MiB of log")
                if self._leak is not None:
                    self._leak += [socket.create_connection(("127.0.0.1", self._server.port)) for _ in range(10)]
        os.close(probe)

    def _note(self, due: float) -> float:
        now = time.monotonic()
        if now - due > PROMPT:
            self.late.append((due, now))
        return now

    def seconds_late(self, answer: Answer) -> float:
        """Returns how many seconds the machine was late while a request waited for its response."""
        begin, end = answer.due, answer.due + answer.seconds
        first = bisect.bisect_left(self.late, begin, key=lambda span: span[1])
        spans = itertools.takewhile(lambda span: span[0] < end, itertools.islice(self.late, first, None))
        return sum(min(end, to) - max(begin, since) for since, to in spans)

    def stop(self) -> None:
        self._over.set()
        self.join()
        for leaked in self._leak or ():
            leaked.close()

    def _sample(self, now: float) -> tuple[float, float, float, float]:
        pages = int((self._worker / "statm").read_text().split()[1])
        log = self._server.data / "live.db-wal"
        descriptors = len(list((self._worker / "fd").iterdir()))
        return now, pages * os.sysconf("SC_PAGE_SIZE") / 2**20, descriptors, log.stat().st_size if log.exists() else 0


def prove(scale: Scale) -> Figures:
    seconds = 60 * scale.soak_minutes
    with temporary_directory() as data, started(Server(data / "data")) as server:
        server.fill(10_000)
        key = server.key()
        watch = Watch(server, every=1.0 if scale.full else 0.2, plant=scale.plant)
        watch.start()
        reads, writes = asyncio.run(_mixed(server, key, seconds))
        watch.stop()
    return _judge(scale, watch, reads, writes)


async def _mixed(server: Server, key: Key, seconds: float) -> tuple[list[Answer], list[Answer]]:
    """Sends reads and writes on separate connections, so that they do not wait for each other."""
    head = f"Host: x\r\nAuthorization: Bearer {key.secret}\r\n"

    def read(number: int) -> bytes:
        path = f"/v1/pets/{number % 9_999 + 1}" if number % 3 == 0 else f"/v1/pets?limit={number % 100 + 1}"
        return f"GET {path} HTTP/1.1\r\n{head}\r\n".encode()

    def write(number: int) -> bytes:
        body = f'{{"name":"Soaked {number}","categoryId":{number}}}'
        return f"POST /v1/pets HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    writes = PER_SECOND // WRITES
    return await asyncio.gather(
        steady(server.port, read, per_second=PER_SECOND - writes, seconds=seconds),
        steady(server.port, write, per_second=writes, seconds=seconds, lines=4),
    )


def _judge(scale: Scale, watch: Watch, reads: list[Answer], writes: list[Answer]) -> Figures:
    statuses = Counter(answer.status for answer in reads), Counter(answer.status for answer in writes)
    begin, end = min(answer.due for answer in reads), max(answer.due for answer in reads)
    slow = [answer for answer in writes if answer.seconds > SLOW_WRITE]
    excused = [answer for answer in slow if watch.seconds_late(answer) >= answer.seconds / 2]
    refused = sum(answer.status == 503 for answer in excused)
    late = sum(to - since for since, to in watch.late) / (end - begin)
    hold(
        set(statuses[0]) == {200} and statuses[1][201] == len(writes) - refused,
        f"every request gets the expected status: {statuses}, {refused} refused while the machine was late",
    )
    settled = [sample for sample in watch.samples if begin + WARM_UP * (end - begin) < sample[0] < end]
    hold(len(settled) >= 2, "there are enough samples")
    times = [sample[0] / 3600 for sample in settled]
    memory = slope(times, [sample[1] for sample in settled])
    descriptors = [sample[2] for sample in settled]
    log = max(sample[3] for sample in watch.samples)
    figures: Figures = {
        "minutes": scale.soak_minutes, "requests": len(reads) + len(writes),
        "MiB at the end": round(settled[-1][1], 1), "MiB per hour": round(memory, 2),
        "descriptors": f"{min(descriptors):.0f} to {max(descriptors):.0f}", "log MiB": round(log / 2**20, 1),
        "p99 of writes ms": round(percentile(writes, 0.99), 1), "writes over 250 ms": len(slow),
        "of them not the machine's": len(slow) - len(excused), "of them refused": refused,
        "% of the time that the machine was late": round(100 * late, 1),
    }  # fmt: skip
    most = 2 if scale.full else 20  # in the first seconds, a worker is still opening its metrics files
    hold(max(descriptors) - min(descriptors) <= most, f"the number of descriptors stays constant: {figures}")
    hold(log <= WAL_MAX, f"the log stays under 64 MiB: {figures}")
    if scale.soak_minutes >= SLOPES_FROM_MINUTES:
        hold(memory < MEGABYTES_PER_HOUR, f"memory grows by less than 1 MiB an hour: {figures}")
    if scale.full and late > (LATE_AT_RANDOM if len(slow) == len(excused) else TOO_LATE):
        raise Skipped(f"all else holds, but the machine was late too often to judge the times of writes: {figures}")
    hold(not scale.full or len(slow) == len(excused), f"no write takes 250 ms unless the machine is late: {figures}")
    return figures


def slope(xs: list[float], ys: list[float]) -> float:
    """Returns the slope of a least-squares fit."""
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((one - x) ** 2 for one in xs)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / spread if spread else 0.0
