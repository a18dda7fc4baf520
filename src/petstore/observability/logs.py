"""Logs: one line per event on standard error, for people on a terminal, as JSON otherwise."""

import datetime
import logging
import logging.config
import sys
import traceback
from typing import Any

import msgspec

logger = logging.getLogger("petstore")
logger.addHandler(logging.NullHandler())  # a command tells its operator itself; only the service logs


def event(level: int, name: str, **fields: Any) -> None:
    """Log one event. Fields never hold a secret: a key is named by its id."""
    logger.log(level, name, extra={"fields": fields})


class Throttled:
    """At most one line a second for each cause: an outage under load must not fill the disk with its own log.

    `others` in a line is how many events of the same cause had no line of their own since the one before. Time is
    passed in, in seconds of a clock that never goes back.
    """

    CAUSES_MAX = 100  # at a time; some causes differ each time, by a port or a number

    def __init__(self, name: str) -> None:
        self._name = name
        self._silent_until: dict[str, float] = {}
        self._left_out: dict[str, tuple[int, dict[str, Any]]] = {}  # how many, and the fields of the last

    def event(self, now: float, cause: str, **fields: Any) -> None:
        if cause not in self._silent_until and len(self._silent_until) >= self.CAUSES_MAX:
            cause = "other causes"
        left_out, _ = self._left_out.pop(cause, (0, {}))
        if now < self._silent_until.get(cause, 0.0):
            self._left_out[cause] = left_out + 1, fields
        else:
            self._line(now, cause, left_out, fields)

    def tell(self, now: float) -> None:
        """Once a second: what was left out, and would stay untold if nothing more came."""
        for cause in [cause for cause, until in self._silent_until.items() if until <= now]:
            del self._silent_until[cause]
            if cause in self._left_out:
                left_out, fields = self._left_out.pop(cause)
                self._line(now, cause, left_out - 1, fields)

    def _line(self, now: float, cause: str, others: int, fields: dict[str, Any]) -> None:
        self._silent_until[cause] = now + 1.0
        event(logging.ERROR, self._name, **fields, cause=cause, **({"others": others} if others else {}))


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line = {"at": at, "level": record.levelname.lower(), "event": record.getMessage(), "pid": record.process}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["trace"] = "".join(traceback.format_exception(*record.exc_info))
        return msgspec.json.encode(line, enc_hook=str).decode()


class Readable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = " ".join(f"{name}={_shown(value)}" for name, value in getattr(record, "fields", {}).items())
        line = f"{at} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        return line + ("\n" + "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else "")


def _shown(value: Any) -> str:
    """What a client has sent must not move the cursor, or look like another line."""
    text = str(value)
    return text if text.isprintable() else repr(text)


def configuration() -> dict[str, Any]:
    """For logging.config: our events, and the warnings of all that we use, in the same form."""
    form = Readable if sys.stderr.isatty() else JsonLines
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": form}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stderr"}},
        "loggers": {
            "petstore": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
            "asyncpg": {"level": "ERROR"},  # its warnings are stack traces of an outage that we tell of ourselves
        },
        "root": {"handlers": ["stderr"], "level": "WARNING"},
    }


def configure() -> None:
    logging.config.dictConfig(configuration())
