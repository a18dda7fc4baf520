"""Four processes that share one free key add every animal once, without a ban or an early request."""

import contextlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.servers import Server, serving
from petstore_client import Petstore
from recording import Event, sent_too_early

WORKER = Path(__file__).parent / "shared_key_worker.py"
PROCESSES = 4
ANIMALS = 200


class Result(NamedTuple):
    """What one process sent and received."""

    events: list[Event]
    codes: list[str | None]


def add_animals(server: Server, secret: str, each: int) -> list[Result]:
    results = []
    with contextlib.ExitStack() as stack:
        processes = []
        for name in range(PROCESSES):
            arguments = [server.url(""), secret, str(server.clock_file), str(name), str(each)]
            pipe = subprocess.PIPE
            process = subprocess.Popen([sys.executable, WORKER, *arguments], stdin=pipe, stdout=pipe, text=True)
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            output = json.loads(process.communicate(timeout=60)[0])
            results.append(Result([Event(*event) for event in output["events"]], output["codes"]))
    return results


@pytest.mark.thorough
def test_four_processes_with_one_free_key_add_200_animals(tmp_path: Path) -> None:
    """The service and the processes share a clock that skips the waits for the next window."""
    each = ANIMALS // PROCESSES
    with serving(tmp_path / "data") as server:
        results = add_animals(server, server.key("free").secret, each)
        with Petstore(server.key().secret, base_url=server.url("")) as store:
            names = Counter(pet.name for pet in store.list_pets())

    assert names == Counter({f"{worker}-{number}": 1 for worker in range(PROCESSES) for number in range(each)})
    codes = Counter(code for result in results for code in result.codes)
    assert set(codes) == {None, "rate_limit_exceeded"}, "there must be no ban"
    assert codes[None] == ANIMALS
    assert [sent_too_early(result.events) for result in results] == [[]] * PROCESSES
    moments = [event.moment for result in results for event in result.events]
    assert max(moments) - min(moments) > 3 * 60, "a minute admits 60 requests, so a fourth must have begun"
