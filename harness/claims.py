"""Checks claims and prints progress, for proofs and for the checks of packages and images."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path


class Broken(AssertionError):
    """Raised if a claim is false."""


class Skipped(Exception):
    """Raised if a claim cannot be checked on this machine. The message says why."""


def hold(condition: object, claim: str) -> None:
    """Raises Broken with the claim as its message if the condition is false."""
    if not condition:
        raise Broken(claim)


def progress(text: str) -> None:
    """Prints the progress of a long proof to standard error, because it is not part of the result."""
    print(f"        … {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def temporary_directory() -> Iterator[Path]:
    """Creates a temporary directory for data."""
    with tempfile.TemporaryDirectory(prefix="petstore-prove-") as name:
        yield Path(name)
