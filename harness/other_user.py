"""Runs code as a user without permissions, for tests that run as root."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ANONYMOUS = 65534


@contextmanager
def directory_of_nobody() -> Iterator[Path]:
    """Creates a directory for the user nobody, who cannot enter pytest's own directories."""
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, ANONYMOUS, ANONYMOUS)
        yield Path(name)


def as_nobody(work: Callable[[], object]) -> str:
    """Runs `work` as the user nobody, and returns its result or error as a string. `work` must not import anything."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(ANONYMOUS)
            os.setuid(ANONYMOUS)
            outcome = str(work())
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        finally:
            os.write(write, outcome.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        outcome = pipe.read()
    os.waitpid(child, 0)
    return outcome
