"""Messages for when the store or the gate does not respond."""

from petstore.errors import DiskFull, Unavailable

FULL = "The disk is full. Free some space."


def failed_change(error: Unavailable) -> str:
    """Returns the message for a failed change. The change may have been made, as only the response may be missing."""
    cause = FULL if isinstance(error, DiskFull) else "The store did not respond."
    return f"{cause} Check whether the change was made, then try again."
