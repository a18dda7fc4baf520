"""One record and one log line for each try."""

import logging

import msgspec

logger = logging.getLogger("petstore_client")


class Try(msgspec.Struct, frozen=True):
    """One request that was sent, and what became of it."""

    method: str
    path: str
    """With its query, below the base URL."""
    number: int
    """Counted from 1."""
    of: int
    """How many tries there are at most."""
    seconds: float
    """From sending it to having the whole answer."""
    status: int | None
    """None if there was no answer."""
    code: str | None
    """The error's code; None for a success."""
    request_id: str | None
    wait: float | None
    """Seconds until the next try; None if this was the last."""

    def __str__(self) -> str:
        result = f"{self.status or 'no answer'}{f' {self.code}' if self.code else ''}"
        again = "" if self.wait is None else f", again in {self.wait:.2f} s"
        known = f", request {self.request_id}" if self.request_id else ""
        return (
            f"{self.method} {self.path}: {result} in {self.seconds:.3f} s, try {self.number} of {self.of}{again}{known}"
        )


def log_try(done: Try) -> None:
    """Successes at DEBUG, failures at INFO: what finally fails is raised, so nothing here is a warning."""
    level = logging.DEBUG if done.code is None else logging.INFO
    if logger.isEnabledFor(level):
        logger.log(level, "%s", done)
