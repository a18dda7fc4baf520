"""The one place where errors of redis-py, the network and the clock become Unavailable, by their type.

Any other exception is a bug. It is not translated, so that it is logged with its traceback and answered 500.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from redis.exceptions import RedisError

from petstore.errors import Unavailable

# TimeoutError is an OSError. IncompleteReadError is neither: the server closed the connection within a reply.
DRIVER_ERRORS = (RedisError, OSError, asyncio.IncompleteReadError)


class QueueFull(Unavailable):
    """Redis answers, but too many calls wait for it. The fallback must not decide: a limit of N would admit more."""


def unavailable(error: Exception) -> Unavailable:
    """The same error as Unavailable. Raises the error itself when it comes from neither driver nor network."""
    if isinstance(error, Unavailable):
        return error
    if not isinstance(error, DRIVER_ERRORS):
        raise error
    return Unavailable(f"the gate failed: {type(error).__name__}: {error}")


@contextlib.asynccontextmanager
async def time_limit(seconds: float) -> AsyncIterator[None]:
    """Raises Unavailable when the block takes longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Unavailable("the gate did not answer in time") from None
