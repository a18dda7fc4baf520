"""`python -m harness.failing_worker DIRECTORY command …`: runs petstore with a planted fault.

If DIRECTORY contains the file `fault`, one worker of the next reload waits for the file `go`, and then fails instead of
becoming ready.
"""

import sys
import time
from pathlib import Path

from harness.programs import run
from petstore.errors import OperatorError
from petstore.server.channel import READY, Channel

_report = Channel.report


def report(self: Channel, name: str, argument: str = "") -> None:
    directory = Path(sys.argv[1])
    if name == READY and (directory / "fault").exists():
        (directory / "fault").unlink()
        while not (directory / "go").exists():
            time.sleep(0.01)  # blocks the event loop, so that this worker accepts no connections
        raise OperatorError("planted")
    _report(self, name, argument)


if __name__ == "__main__":
    Channel.report = report  # type: ignore[method-assign]
    run(["harness.failing_worker", sys.argv[1]], sys.argv[2:])
