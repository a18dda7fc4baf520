"""Reloads under load: requests over kept and over fresh connections while the service replaces itself.

Figures: how many reloads and requests, how many failed or were counted wrong, and the slowest one.
"""

import http.client
import os
import signal
import ssl
import threading
import time
from pathlib import Path

from petstore.plans import Limits
from prove.proof import Figures, Scale, folder, hold
from tests.certificates import self_signed
from tests.served import Served, wait_for
from tests.servers import Key

CLIENTS = 4
PER_SECOND = 2_000
SLOWEST = 1.0


class Load:
    """Clients that ask all the time: half of them on one connection, half on a new one for each request."""

    def __init__(self, server: Served, key: Key, *, tls: bool) -> None:
        self._server, self._key, self._tls = server, key, tls
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number % 2 == 0,)) for number in range(CLIENTS)]
        self._lock = threading.Lock()
        self.answered = 0
        self.slowest = 0.0
        self.failures: list[str] = []

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _connect(self) -> http.client.HTTPConnection:
        if not self._tls:
            return http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=10)
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection("127.0.0.1", self._server.port, timeout=10, context=trust)

    def _run(self, keeps: bool) -> None:
        connection = self._connect()
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                connection.request("GET", "/v1/pets?limit=1", headers=self._key.headers)
                response = connection.getresponse()
                response.read()
                fault = "" if response.status == 200 else f"status {response.status}"
                if not keeps or response.will_close:
                    connection.close()  # the next request opens a new one
            except (OSError, http.client.HTTPException) as error:
                fault = repr(error)
                connection.close()
            took = time.monotonic() - began
            with self._lock:
                self.answered += not fault
                self.slowest = max(self.slowest, took)
                if fault:
                    self.failures.append(fault)
            self._stop.wait(max(0.0, CLIENTS / PER_SECOND - took))
        connection.close()


def reload(server: Served) -> None:
    """Returns when the new workers serve. Raises Broken."""
    assert server.process is not None
    before = events(server, "reloaded")
    os.kill(server.process.pid, signal.SIGHUP)
    hold(wait_for(lambda: events(server, "reloaded") > before, 60), f"a reload ends: {server.log.read_text()[-1500:]}")


def events(server: Served, name: str) -> int:
    return sum(entry["event"] == name for entry in server.events)


def prove(scale: Scale) -> Figures:
    with folder() as data:
        plain = _under_load(data / "plain", scale.reloads, scale, tls=False)
        renewed = _under_load(data / "tls", max(2, scale.reloads // 10), scale, tls=True)
    return {**plain, **{f"{name}, with a new certificate each time": value for name, value in renewed.items()}}


def _under_load(place: Path, reloads: int, scale: Scale, *, tls: bool) -> Figures:
    place.mkdir()
    options: tuple[str, ...] = ()
    if tls:
        made = self_signed(place)
        options = ("--tls-cert", str(made.chain), "--tls-key", str(made.key))
    server = Served(place / "data", *options, workers=2, scheme="https" if tls else "http").start()
    try:
        key = server.key(limits=Limits(10**9, 10**9))
        with Load(server, key, tls=tls) as load:
            for _ in range(reloads):
                if tls:
                    self_signed(place)
                reload(server)
            if scale.plant:
                server.kill()
        counted = 0 if scale.plant else used_by(server, key)
    finally:
        server.stop()
    hold(not load.failures, f"no request fails: {len(load.failures)} did, such as {load.failures[:3]}")
    hold(counted == load.answered, f"each request is counted once: {load.answered} were answered, {counted} counted")
    if scale.full:
        hold(load.slowest < SLOWEST, f"no request takes {SLOWEST} s: one took {load.slowest:.2f} s")
    return {"reloads": reloads, "requests": load.answered, "failed": 0, "slowest seconds": round(load.slowest, 3)}


def used_by(server: Served, key: Key) -> int:
    """What the gate has counted for a key."""
    (windows,) = server.act(lambda backends: backends.gate.windows([key.id]))
    return int(windows.day_used)
