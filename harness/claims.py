"""Claims that are true or false, for proofs and for checks of packages and images."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path


class Broken(AssertionError):
    """A claim is false."""


class Skipped(Exception):
    """The claim cannot be checked on this machine. The message says why."""


def hold(condition: object, claim: str) -> None:
    """Raises Broken with the claim if it is false."""
    if not condition:
        raise Broken(claim)


def progress(text: str) -> None:
    """Prints the progress of a long proof, which is not part of its result."""
    print(f"        … {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Creates a directory for data, and removes it at the end."""
    with tempfile.TemporaryDirectory(prefix="petstore-prove-") as name:
        yield Path(name)
