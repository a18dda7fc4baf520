"""The log under an outage: at most a line a second for each cause, and no event is untold."""

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

from petstore.observability.logs import Readable, Throttled, logger
from tests.served import Served, wait_for


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append({"event": record.getMessage(), **getattr(record, "fields", {})})


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def test_on_a_terminal_nothing_that_a_client_sends_looks_like_another_line_or_moves_the_cursor() -> None:
    record = logging.makeLogRecord({"msg": "request", "levelname": "INFO"})
    record.fields = {"path": "/v1/x\n12:00:00 error  \x1b[2J", "name": "Zoë"}
    line = Readable().format(record)
    assert line.endswith(r" request path='/v1/x\n12:00:00 error  \x1b[2J' name=Zoë")


def test_what_libraries_log_is_in_the_same_form_and_without_the_traces_of_an_outage() -> None:
    program = """
import asyncio, logging, asyncpg.pool
from petstore.observability.logs import configure
configure()
try:
    raise OSError("nobody answers")
except OSError:
    asyncpg.pool.logger.warning("Failed to restore the pool connection floor", exc_info=True)
    logging.getLogger("asyncio").error("a task has failed", exc_info=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    (line,) = map(json.loads, done.stderr.splitlines())
    assert line["event"] == "a task has failed" and "nobody answers" in line["trace"]


def told(lines: list[dict[str, Any]]) -> int:
    """How many events the lines stand for."""
    return sum(1 + int(line.get("others", 0)) for line in lines)


def test_one_line_a_second_for_each_cause_and_the_next_tells_of_the_others(kept: Kept) -> None:
    log = Throttled("unavailable")
    for number in range(1_000):
        log.event(100 + number / 1_000, "disk full", request=f"r{number}")
        log.event(100 + number / 1_000, "gate down", request=f"r{number}")
    assert len(kept.lines) == 2
    log.event(101.0, "disk full", request="last")
    assert kept.lines[-1] == {"event": "unavailable", "request": "last", "cause": "disk full", "others": 999}


def test_what_was_left_out_is_told_even_if_nothing_more_comes(kept: Kept) -> None:
    log = Throttled("unavailable")
    for number in range(5):
        log.event(100.0, "disk full", request=f"r{number}")
    log.tell(100.5)
    assert len(kept.lines) == 1
    log.tell(101.0)
    assert kept.lines[-1] == {"event": "unavailable", "request": "r4", "cause": "disk full", "others": 3}
    log.tell(102.0)
    log.tell(103.0)
    assert (len(kept.lines), told(kept.lines)) == (2, 5)
    log.event(103.0, "disk full", request="later")
    assert "others" not in kept.lines[-1]


def test_causes_that_are_all_different_are_bounded_too(kept: Kept) -> None:
    log = Throttled("unavailable")
    for number in range(10_000):
        log.event(100.0, f"port {number}", request=f"r{number}")
    assert len(kept.lines) <= Throttled.CAUSES_MAX + 1
    log.tell(101.0)
    assert told(kept.lines) == 10_000
    assert len(kept.lines) <= Throttled.CAUSES_MAX + 2


def test_an_outage_under_load_is_a_few_lines_that_tell_all_of_it(tmp_path: Path) -> None:
    own = Served(tmp_path / "data")
    try:
        own.start()
        key = own.key()
        body = {"name": "Rex", "categoryId": 1}

        def create(_: int) -> int:
            with httpx.Client(timeout=15, verify=False) as client:
                return [client.post(own.url("/pets"), json=body, headers=key.headers).status_code for _ in "12"].count(
                    503
                )

        with own.writes_held_up(), ThreadPoolExecutor(20) as pool:
            refused = sum(pool.map(create, range(20)))
        assert refused == 40

        def lines() -> list[dict[str, Any]]:
            return [
                entry for entry in map(json.loads, own.log.read_text().splitlines()) if entry["event"] == "unavailable"
            ]

        assert wait_for(lambda: told(lines()) == refused)
        assert len(lines()) <= 12
        assert all(entry["request"] for entry in lines())
        down = [entry for entry in own.events if entry["event"] == "store down"]
        assert [(entry["environment"], entry["access"]) for entry in down] == [("live", "write")]
    finally:
        own.stop()
