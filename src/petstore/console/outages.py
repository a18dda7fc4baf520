"""Messages for when the store or the gate does not respond."""

from petstore.errors import DiskFull, Unavailable


def full_disk(error: DiskFull) -> str:
    return f"The disk of {error.place} is full. Free some space."


def failed_change(error: Unavailable) -> str:
    """Returns the message for a failed change. The change may have been made, as only the response may be missing."""
    cause = full_disk(error) if isinstance(error, DiskFull) else "The store did not respond."
    return f"{cause} Check whether the change was made, then try again."
