"""The log has one line per event, and at most one line a second for each cause of an outage."""

import datetime
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.served import Served, wait_for
from petstore.observability.logs import JsonLines, Readable, Throttled, logger


class Recorded(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append({"event": record.getMessage(), **getattr(record, "fields", {})})


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    handler = Recorded()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def record_of(event: str, **fields: Any) -> logging.LogRecord:
    record = logging.makeLogRecord({"msg": event, "levelname": "INFO", "created": 0.0, "process": 7})
    record.fields = fields
    return record


def test_a_json_line_has_a_timestamp_in_utc_and_the_fields_of_the_event() -> None:
    assert json.loads(JsonLines().format(record_of("store down", environment="live"))) == {
        "timestamp": "1970-01-01T00:00:00.000+00:00",
        "level": "info",
        "event": "store down",
        "pid": 7,
        "environment": "live",
    }


def test_on_a_terminal_a_line_is_readable() -> None:
    time = datetime.datetime.fromtimestamp(0).strftime("%H:%M:%S")
    line = Readable().format(record_of("store down", environment="live", access="write"))
    assert line == f"{time} info    store down environment=live access=write"


def test_on_a_terminal_a_clients_text_cannot_start_a_line_or_move_the_cursor() -> None:
    line = Readable().format(record_of("request", path="/v1/x\n12:00:00 error  \x1b[2J", name="Zoë"))
    assert line.endswith(r" request path=/v1/x\u000a12:00:00 error  \u001b[2J name=Zoë")


@pytest.mark.parametrize("text", ["\x7f", "\x9b2J", "\u2028", "\u2029", "\u202e", "\u2066", "\u200f"])
def test_no_control_character_is_in_a_line(text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError:
        raised = sys.exc_info()
    record = record_of(f"from a library: {text}", path=text)
    record.exc_info = raised
    line = JsonLines().format(record)
    assert text not in line and line.isprintable()
    assert json.loads(line)["path"] == text and text in json.loads(line)["trace"]
    assert text not in Readable().format(record)


def test_libraries_log_in_the_same_form_and_asyncpg_logs_no_traces_of_an_outage() -> None:
    program = """
import asyncio, logging, asyncpg.pool
from petstore.observability.logs import configure, event
configure()
event(logging.INFO, "store opening")
try:
    raise OSError("connection refused")
except OSError:
    asyncpg.pool.logger.warning("Failed to restore the pool connection floor", exc_info=True)
    logging.getLogger("asyncio").error("a task has failed", exc_info=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    opening, failed = map(json.loads, done.stderr.splitlines())
    assert (opening["level"], opening["event"]) == ("info", "store opening")
    assert failed["event"] == "a task has failed" and "connection refused" in failed["trace"]


def events_in(lines: list[dict[str, Any]]) -> int:
    """Returns the number of events that the lines represent."""
    return sum(1 + int(line.get("others", 0)) for line in lines)


def test_each_cause_gets_one_line_a_second_and_the_next_line_counts_the_others(recorded: Recorded) -> None:
    throttled = Throttled("unavailable")
    for number in range(1_000):
        throttled.event(100 + number / 1_000, "disk full", request=f"r{number}")
        throttled.event(100 + number / 1_000, "gate down", request=f"r{number}")
    assert len(recorded.lines) == 2
    throttled.event(101.0, "disk full", request="last")
    assert recorded.lines[-1] == {"event": "unavailable", "request": "last", "cause": "disk full", "others": 999}


def test_withheld_events_are_logged_even_if_no_event_follows(recorded: Recorded) -> None:
    throttled = Throttled("unavailable")
    for number in range(5):
        throttled.event(100.0, "disk full", request=f"r{number}")
    throttled.flush(100.5)
    assert len(recorded.lines) == 1
    throttled.flush(101.0)
    assert recorded.lines[-1] == {"event": "unavailable", "request": "r4", "cause": "disk full", "others": 3}
    throttled.flush(102.0)
    throttled.flush(103.0)
    assert (len(recorded.lines), events_in(recorded.lines)) == (2, 5)
    throttled.event(103.0, "disk full", request="later")
    assert "others" not in recorded.lines[-1]


def test_the_number_of_causes_is_bounded(recorded: Recorded) -> None:
    throttled = Throttled("unavailable")
    for number in range(10_000):
        throttled.event(100.0, f"port {number}", request=f"r{number}")
    assert len(recorded.lines) <= Throttled.CAUSES_MAX + 1
    throttled.flush(101.0)
    assert events_in(recorded.lines) == 10_000
    assert len(recorded.lines) <= Throttled.CAUSES_MAX + 2


def test_an_outage_under_load_is_a_few_lines_that_count_every_request(tmp_path: Path) -> None:
    own = Served(tmp_path / "data")
    try:
        own.start()
        key = own.key()

        def create_twice(_: int) -> list[int]:
            body = {"name": "Rex", "categoryId": 1}
            with httpx.Client(timeout=15, verify=False) as client:
                return [client.post(own.url("/pets"), json=body, headers=key.headers).status_code for _ in range(2)]

        with own.writes_held_up(), ThreadPoolExecutor(20) as pool:
            statuses = [status for pair in pool.map(create_twice, range(20)) for status in pair]
        assert statuses == [503] * 40

        def lines() -> list[dict[str, Any]]:
            return [line for line in own.events if line["event"] == "unavailable"]

        assert wait_for(lambda: events_in(lines()) == 40)
        assert len(lines()) <= 12
        assert all(line["request"] for line in lines())
        down = [line for line in own.events if line["event"] == "store down"]
        assert [(line["environment"], line["access"]) for line in down] == [("live", "write")]
    finally:
        own.stop()
