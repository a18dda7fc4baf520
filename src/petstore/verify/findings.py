"""Defines what a check can report (findings, or a reason for skipping it), and functions for common expectations."""

from collections.abc import Iterator
from typing import NamedTuple

from petstore.verify.responses import Response


class Finding(NamedTuple):
    """A broken promise. `cause` is the check's best guess, or empty. `causes.py` may find a better one."""

    expected: str
    received: str
    response: Response | None = None
    cause: str = ""


class Skip(Exception):
    """Raised if a promise cannot be tested. The message says why and, if possible, what to do about it."""


Findings = Iterator[Finding]


def unexpected(expected: str, response: Response, cause: str = "") -> Finding:
    return Finding(f"{expected} for {response.request}", response.summary, response, cause)


def expect(holds: bool, expected: str, response: Response, cause: str = "") -> Findings:
    if not holds:
        yield unexpected(expected, response, cause)


def expect_status(response: Response, status: int, cause: str = "") -> Findings:
    yield from expect(response.status == status, str(status), response, cause)


def expect_error(response: Response, status: int, code: str = "", cause: str = "") -> Findings:
    """Expects an `Error` body with this status and, unless `code` is empty, with this code."""
    right = response.status == status and is_error(response) and code in ("", response.error["code"])
    yield from expect(right, f"{status} {code}".rstrip() + " with an Error body", response, cause)


def is_error(response: Response) -> bool:
    """Whether the body is an `Error`, as the specification defines it."""
    error = response.error
    texts = isinstance(error.get("code"), str) and isinstance(error.get("message"), str)
    return texts and error.get("status") == response.status
