"""Logs: one line per event on standard error, for people on a terminal, as JSON otherwise."""

import datetime
import logging
import logging.config
import sys
import traceback
from typing import Any

import msgspec

logger = logging.getLogger("petstore")


def event(level: int, name: str, **fields: Any) -> None:
    """Log one event. Fields never hold a secret: a key is named by its id."""
    logger.log(level, name, extra={"fields": fields})


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
        fields = " ".join(f"{name}={value}" for name, value in getattr(record, "fields", {}).items())
        line = f"{at} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        return line + ("\n" + "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else "")


def configuration() -> dict[str, Any]:
    """For logging.config: our events, and the HTTP server's warnings, in the same form."""
    form = Readable if sys.stderr.isatty() else JsonLines
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": form}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stderr"}},
        "loggers": {
            "petstore": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
            "_granian": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
        },
    }


def configure() -> None:
    logging.config.dictConfig(configuration())
