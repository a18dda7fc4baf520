"""Logs one line per event to standard error. Lines are plain text on a terminal and JSON otherwise."""

import contextlib
import datetime
import logging
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import msgspec

from petstore.wording import printable, printable_lines

logger = logging.getLogger("petstore")
logger.addHandler(logging.NullHandler())  # only servers write logs; other commands print messages


def event(level: int, name: str, **fields: Any) -> None:
    """Logs one event. Fields must not contain secrets, so identify keys by their ids."""
    logger.log(level, name, extra={"fields": fields})


@contextlib.contextmanager
def bugs_logged() -> Iterator[None]:
    """Logs exceptions raised by a periodic task, so that they do not stop other tasks."""
    try:
        yield
    except Exception:
        logger.exception("housekeeping failed")


class Throttled:
    """Logs at most one line per second for each cause, so that an outage under load does not fill the disk.

    Each line's `others` field counts the events with the same cause that were not logged since the previous line.
    `now` is a time.monotonic() value.
    """

    # The maximum number of causes to track. Causes can contain port numbers, for example, so there can be many.
    CAUSES_MAX = 100

    def __init__(self, name: str) -> None:
        self._name = name
        self._silent_until: dict[str, float] = {}
        # For each cause, the number of suppressed events, and the fields of the last one.
        self._withheld: dict[str, tuple[int, dict[str, Any]]] = {}

    def event(self, now: float, cause: str, **fields: Any) -> None:
        if cause not in self._silent_until and len(self._silent_until) >= self.CAUSES_MAX:
            cause = "other causes"
        withheld, _ = self._withheld.pop(cause, (0, {}))
        if now < self._silent_until.get(cause, 0.0):
            self._withheld[cause] = withheld + 1, fields
        else:
            self._log(now, cause, withheld, fields)

    def flush(self, now: float) -> None:
        """Logs suppressed events whose cause was last logged at least a second ago. Called once a second."""
        for cause in [cause for cause, until in self._silent_until.items() if until <= now]:
            del self._silent_until[cause]
            if cause in self._withheld:
                withheld, fields = self._withheld.pop(cause)
                self._log(now, cause, withheld - 1, fields)

    def _log(self, now: float, cause: str, others: int, fields: dict[str, Any]) -> None:
        self._silent_until[cause] = now + 1.0
        event(logging.ERROR, self._name, **fields, cause=cause, **({"others": others} if others else {}))


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line = {
            "timestamp": time,
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "pid": record.process,
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["trace"] = "".join(traceback.format_exception(*record.exc_info))
        return printable(msgspec.json.encode(line, enc_hook=str).decode())


class Readable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = " ".join(f"{name}={value}" for name, value in getattr(record, "fields", {}).items())
        # Text from clients must not be able to move the cursor or forge a log line.
        line = printable(f"{time} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip())
        trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
        return line + ("\n" + printable_lines(trace) if trace else "")


def configure() -> None:
    """Logs Petstore's events and libraries' warnings to standard error in the same format."""
    handler = logging.StreamHandler()
    handler.setFormatter(Readable() if sys.stderr.isatty() else JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logger.setLevel(logging.INFO)
    logging.getLogger("asyncpg").setLevel(logging.ERROR)  # we log outages ourselves, so hide asyncpg's warnings
