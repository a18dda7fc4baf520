"""Responses that never end, arrive slowly or take long to parse cost `petstore verify` a bounded time and memory."""

import os
import re
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import hostile_server as hostile
from harness.certificates import self_signed
from harness.hostile_server import HOSTILE, Response, hostile_server
from petstore.errors import OperatorError
from petstore.verify import session, transport
from petstore.verify.runner import Result, prepare, run
from petstore.verify.session import RUN_BYTES, Session
from petstore.verify.transport import EXCHANGE_BYTES, parse_address

FIRST = 4  # requests that are sent before the first check
SLACK = 5.0  # seconds that a busy machine may add
PARSED_MAX = 32 * 2**20  # memory that the values in one JSON response can take
# Responses that are short and arrive at once, so the checks begin.
COMPLETE = (hostile.compressed_gibibyte, hostile.many_values, hostile.long_name, hostile.unmoving_cursor)
EXCHANGE, RUN = 0.3, 2.0


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the time for an exchange and for a run."""
    monkeypatch.setattr(transport, "EXCHANGE_SECONDS", EXCHANGE)
    monkeypatch.setattr(session, "EXCHANGE_SECONDS", EXCHANGE)
    monkeypatch.setattr(session, "RUN_SECONDS", RUN)


@pytest.fixture
def peak() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def results(port: int) -> list[Result]:
    """Runs all checks. Raises OperatorError if the first request fails."""
    opened = Session([parse_address(f"http://127.0.0.1:{port}/v1")], "any-key")
    try:
        plan = prepare(opened, "contract", write=True)
        found = list(run(opened, plan))
        assert opened.sent <= plan.requests
        return found
    finally:
        opened.close()


@pytest.mark.usefixtures("peak")
@pytest.mark.parametrize("response", [each for each in HOSTILE if each not in COMPLETE], ids=lambda each: each.__name__)
def test_a_hostile_response_is_an_error_in_time_and_memory(response: Response) -> None:
    with hostile_server(response) as port:
        began = time.monotonic()
        with pytest.raises(OperatorError, match=r"is unreachable: the (response|headers)"):
            results(port)
        assert time.monotonic() - began < EXCHANGE + SLACK
    assert tracemalloc.get_traced_memory()[1] < 4 * EXCHANGE_BYTES


@pytest.mark.usefixtures("peak")
@pytest.mark.parametrize("response", HOSTILE, ids=lambda each: each.__name__)
def test_hostile_responses_to_all_checks_are_bounded_together(response: Response) -> None:
    with hostile_server(response, after=FIRST) as port:
        began = time.monotonic()
        found = results(port)
        assert time.monotonic() - began < RUN + SLACK
    assert tracemalloc.get_traced_memory()[1] < RUN_BYTES + PARSED_MAX
    assert any(result.result == "broken" for result in found)
    assert max(len(result.detail) for result in found) < 10_000


def test_the_whole_run_has_a_budget_of_bytes() -> None:
    with hostile_server(hostile.endless_chunks, after=FIRST) as port:
        details = "\n".join(result.detail for result in results(port))
    assert "received the response exceeded 1,024 KiB" in details
    assert "received the run exceeded 32,768 KiB" in details


def test_tls_is_bounded_too(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    with hostile_server(hostile.endless_chunks, certificate=certificate) as port:
        words = ("verify", f"https://127.0.0.1:{port}/v1", "--key", "any-key")
        done = subprocess.run(
            [sys.executable, "-m", "petstore", *words],
            env={**os.environ, "SSL_CERT_FILE": str(certificate.chain)}, capture_output=True, text=True,
        )  # fmt: skip
    assert done.returncode == 2
    assert re.fullmatch(r"petstore: https://\S+ is unreachable: the response exceeded 1,024 KiB\n", done.stderr)
