"""Runs the petstore command with alterations that also apply to the service's workers."""

import sys
from collections.abc import Sequence

from petstore import worker
from petstore.cli import main
from petstore.server import worker_process


def run(program: Sequence[str], words: Sequence[str]) -> None:
    """Runs `petstore` with `words`. Call this after making the alterations.

    `program` is the module that makes the alterations, and its arguments. The service starts its workers with it.
    """
    if words == ["worker"]:
        worker.main()
    worker_process.WORKER = (*program, "worker")
    sys.argv = ["petstore", *words]
    main()
