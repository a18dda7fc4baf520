"""What the console says when the store or the gate cannot answer."""

from petstore.errors import DiskFull, Unavailable

FULL = "The disk is full. Free some space."


def failed_change(error: Unavailable) -> str:
    """The response to a commit may be lost, so it is not known whether the change was made."""
    cause = FULL if isinstance(error, DiskFull) else "The store did not respond."
    return f"{cause} Check whether the change was made, then try again."
