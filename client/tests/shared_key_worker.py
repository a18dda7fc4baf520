"""One of several processes that share a key. It adds animals and prints, as JSON, what it sent and received."""

import json
import sys
from pathlib import Path

from fast_time import FastTime
from petstore_client import Attempt, Petstore
from recording import Recorder


def main(base_url: str, secret: str, clock_file: str, name: str, count: str) -> None:
    recorder = Recorder(FastTime(Path(clock_file)))
    attempts: list[Attempt] = []
    with Petstore(secret, base_url=base_url, transport=recorder, on_attempt=attempts.append) as store:
        print("ready", flush=True)
        sys.stdin.readline()  # wait until all processes are ready
        for number in range(int(count)):
            store.create_pet(f"{name}-{number}", 1)
    print(json.dumps({"events": recorder.events, "codes": [attempt.code for attempt in attempts]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
