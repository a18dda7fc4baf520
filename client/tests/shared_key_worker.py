"""One of several processes that share a key. It adds animals; a coordinator ends its sleeps.

Each message is one line of JSON. The last message has the times of all requests and responses.
"""

import json
import sys
import time
from typing import Any

from petstore_client import Attempt, Petstore
from recording import Recorder


class CoordinatedTime:
    """The monotonic clock of the machine, plus the seconds that the coordinator has skipped."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def clock(self) -> float:
        return time.monotonic() + self._skipped

    def sleep(self, seconds: float) -> None:
        send({"sleep_until": self.clock() + seconds})
        self._skipped = float(sys.stdin.readline())


def send(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def main(base_url: str, secret: str, name: str, count: str) -> None:
    coordinated = CoordinatedTime()
    recorder = Recorder(coordinated.clock)
    attempts: list[Attempt] = []
    with Petstore(
        secret,
        base_url=base_url,
        max_retries=5,
        transport=recorder,
        on_attempt=attempts.append,
        clock=coordinated.clock,
        sleep=coordinated.sleep,
    ) as store:
        coordinated.sleep(0.0)  # until all processes have started
        for number in range(int(count)):
            store.create_pet(f"{name}-{number}", 1)
    send({"events": recorder.events, "codes": [attempt.code for attempt in attempts]})


if __name__ == "__main__":
    main(*sys.argv[1:])
