"""Adds animals with the Python client, gathered and one after another, while the service has outages.

The service is killed with `kill -9`, frozen for longer than an attempt may take, and restarted. Every call must succeed
within its budget and return its own animal, and every animal must exist exactly once.
"""

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

import httpx2

from harness.claims import hold, progress, temporary_directory
from harness.servers import Server
from petstore_client import AsyncPetstore, Attempt, Pet, Petstore
from prove.proof import Figures, Parts, Scale

ATTEMPT_SECONDS = 1.0
FROZEN_SECONDS = 2.5
BUDGET_SECONDS = 300.0


class Outages(threading.Thread):
    """Interrupts the service each time that a share of the animals has been acknowledged."""

    def __init__(self, server: Server, creates: int, count: int) -> None:
        super().__init__(daemon=True)
        self.attempts = 0
        self.acknowledged = 0
        self.done = 0
        self._server = server
        self._moments = [creates * number // (count + 1) for number in range(1, count + 1)]
        self._dice = random.Random(7)
        self._is_over = threading.Event()

    def count(self, attempt: Attempt) -> None:
        """Counts an attempt of the client."""
        self.attempts += 1
        self.acknowledged += attempt.status == 201

    def run(self) -> None:
        interruptions: list[Callable[[], object]] = [self._kill, self._freeze, self._restart]
        for number, moment in enumerate(self._moments):
            while self.acknowledged < moment:
                if self._is_over.wait(0.001):
                    return
            interruptions[number % len(interruptions)]()
            self.done += 1

    def end(self) -> None:
        self._is_over.set()
        self.join()

    def _kill(self) -> None:
        self._server.kill()
        time.sleep(self._dice.uniform(0.0, 1.0))
        self._server.start()

    def _freeze(self) -> None:
        assert self._server.process is not None
        group = self._server.process.pid
        os.killpg(group, signal.SIGSTOP)
        time.sleep(FROZEN_SECONDS)
        os.killpg(group, signal.SIGCONT)

    def _restart(self) -> None:
        self._server.stop()
        self._server.start()


class Forgetful(httpx2.HTTPTransport):
    """The planted fault: every attempt has a new idempotency key."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return super().handle_request(_with_new_key(request))


class AsyncForgetful(httpx2.AsyncHTTPTransport):
    """The same for asyncio."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await super().handle_async_request(_with_new_key(request))


def _with_new_key(request: httpx2.Request) -> httpx2.Request:
    if "Idempotency-Key" in request.headers:
        request.headers["Idempotency-Key"] = os.urandom(16).hex()
    return request


def prove(scale: Scale) -> Figures:
    parts, figures = Parts(scale), Figures()
    for name, add in (("gathered", _gathered), ("one after another", _sequential)):
        with parts.part():
            figures |= _add_during_outages(name, add, scale)
    parts.judge()
    return figures | {"lost": 0, "twice": 0}


def _add_during_outages(name: str, add: "Add", scale: Scale) -> Figures:
    with temporary_directory() as place:
        server = Server(place / "data", workers=2)
        try:
            server.start()
            secret = server.key().secret
            outages = Outages(server, scale.creates, scale.outages)
            outages.start()
            began = time.monotonic()
            try:
                created = add(server.url(""), secret, scale, outages.count)
            finally:
                outages.end()
            seconds = time.monotonic() - began
            with Petstore(secret, base_url=server.url("")) as store:
                stored = {pet.id: pet.name for pet in store.list_pets()}
        finally:
            server.kill()
    progress(f"outage: {name}, {outages.done} outages, {outages.attempts:,} requests in {seconds:.0f} s")
    twice = [pet for pet, times in Counter(stored.values()).items() if times > 1]
    hold(outages.done == scale.outages, f"{outages.done} of {scale.outages} outages happened")
    hold(not twice, f"{len(twice)} animals exist twice")
    hold(len(stored) == scale.creates, f"{len(stored)} animals exist, but {scale.creates} were added")
    wrong = [pet.name for number, pet in enumerate(created) if (pet.name, stored.get(pet.id)) != (f"{number}",) * 2]
    hold(not wrong, f"{len(wrong)} calls did not return their own animal")
    return {f"{name}: animals": len(created), f"{name}: outages": outages.done, f"{name}: requests": outages.attempts}


Add = Callable[[str, str, Scale, Callable[[Attempt], object]], list[Pet]]


def _gathered(url: str, secret: str, scale: Scale, on_attempt: Callable[[Attempt], object]) -> list[Pet]:
    async def gather() -> list[Pet]:
        transport = AsyncForgetful() if scale.plant else None
        async with AsyncPetstore(
            secret, base_url=url, timeout=ATTEMPT_SECONDS, total_timeout=BUDGET_SECONDS, transport=transport,
            on_attempt=on_attempt,
        ) as store:  # fmt: skip
            return await asyncio.gather(*(store.create_pet(f"{number}", 1) for number in range(scale.creates)))

    return asyncio.run(gather())


def _sequential(url: str, secret: str, scale: Scale, on_attempt: Callable[[Attempt], object]) -> list[Pet]:
    transport = Forgetful() if scale.plant else None
    with Petstore(
        secret, base_url=url, timeout=ATTEMPT_SECONDS, total_timeout=BUDGET_SECONDS, transport=transport,
        on_attempt=on_attempt,
    ) as store:  # fmt: skip
        return [store.create_pet(f"{number}", 1) for number in range(scale.creates)]
