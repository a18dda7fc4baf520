"""Runs a petstore command with a console whose counts appear older: `python -m tests.console.older_counts SECONDS …`.

In production, counts become this old only if counting takes a long time.
"""

import sys
from typing import Any

from petstore.cli import main
from petstore.console.background import BackgroundValue, Result


def make_older(seconds: float) -> None:
    latest = BackgroundValue.latest

    async def older(self: BackgroundValue[Any], *, first_timeout: float = 0.0) -> Result[Any] | None:
        result = await latest(self, first_timeout=first_timeout)
        return result and result._replace(age=result.age + seconds)

    BackgroundValue.latest = older  # type: ignore[method-assign]  # replaced on purpose


if __name__ == "__main__":
    make_older(float(sys.argv[1]))
    sys.argv = ["petstore", *sys.argv[2:]]
    main()
