"""Runs a test of concurrent calls, in which the test decides when each request gets its response."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from fakes import HeldService
from petstore_client import AsyncPetstore, Attempt, Pet, Wait


class Stage(NamedTuple):
    service: HeldService
    client: AsyncPetstore
    waits: list[Wait]
    attempts: list[Attempt]

    @property
    def sent(self) -> int:
        """How many requests have been sent."""
        return len(self.service.held)

    async def start(self, *names: str, client: AsyncPetstore | None = None) -> list[asyncio.Task[Pet]]:
        """Starts a call that adds an animal for each name, and lets all calls wait or send."""
        tasks = [asyncio.create_task((client or self.client).create_pet(name, 7)) for name in names]
        await self.service.settle()
        return tasks

    async def advance(self, seconds: float) -> None:
        self.service.advance(seconds)
        await self.service.settle()


def staged(**options: Any) -> Callable[[Callable[[Stage], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Decorates a test that receives a stage whose client has these options."""

    def decorate(test: Callable[[Stage], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def play() -> None:
            service = HeldService()
            waits: list[Wait] = []
            attempts: list[Attempt] = []
            client = service.async_client(on_wait=waits.append, on_attempt=attempts.append, **options)
            async with client:
                await test(Stage(service, client, waits, attempts))
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                await service.settle()

        def run() -> None:
            asyncio.run(play())

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate
