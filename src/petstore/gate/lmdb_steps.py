"""The steps of requests, taken together: one transaction for all that one turn of the event loop has to ask.

With a transaction for each request, two workers often wait for each other's lock, and one that is interrupted while it
holds the lock stops the other. Together, the requests of a turn take the lock once.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

BATCH_MAX = 100  # steps in one transaction: some 300 µs, in which other workers may wait

T = TypeVar("T")
Results = list[Any]


class Steps:
    def __init__(self, transact: Callable[[Callable[[Any], Results]], Results], *, batch_max: int = BATCH_MAX) -> None:
        """`transact` calls a function with a transaction, again if it must, and returns its result."""
        self._transact = transact
        self._batch_max = batch_max
        self._waiting: list[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def take(self, step: Callable[..., T], *values: Any) -> "asyncio.Future[T]":
        """The result of `step`, which is called with a transaction and the values. It may be called more than once."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._waiting.append((future, step, values))
        if len(self._waiting) == 1:
            loop.call_soon(self._take_all)
        return future

    def _take_all(self) -> None:
        batch, self._waiting = self._waiting[: self._batch_max], self._waiting[self._batch_max :]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._take_all)
        try:
            results = self._transact(lambda txn: [step(txn, *values) for _, step, values in batch])
        except Exception as error:
            for future, _, _ in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (future, _, _), result in zip(batch, results, strict=True):
            if not future.done():  # otherwise its request was given up
                future.set_result(result)
