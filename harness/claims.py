"""A claim that holds or is broken, for proofs and for checks of packages and images."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path


class Broken(AssertionError):
    """A claim does not hold."""


class Skipped(Exception):
    """This machine cannot try it; the text says why."""


def hold(condition: object, claim: str) -> None:
    """Raises Broken, naming the claim that does not hold."""
    if not condition:
        raise Broken(claim)


def progress(text: str) -> None:
    """For whoever waits: how far a long proof is. Not part of what it shows."""
    print(f"        … {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Somewhere to put data, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="petstore-prove-") as name:
        yield Path(name)
