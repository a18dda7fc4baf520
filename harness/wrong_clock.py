"""`python -m harness.wrong_clock SECONDS command …`: runs petstore with a clock that is wrong by this many seconds."""

import sys
import time

_now = time.time

if __name__ == "__main__":
    _, seconds, *words = sys.argv
    time.time = lambda: _now() + float(seconds)

    from harness.programs import run  # imported later, because modules may import the clock

    run(["harness.wrong_clock", seconds], words)
