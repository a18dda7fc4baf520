"""Messages shown when the store or the gate is not responding."""

from petstore.errors import DiskFull, Unavailable


def full_disk(error: DiskFull) -> str:
    return f"The disk used by {error.place} is full. Free some space."


def failed_change(error: Unavailable) -> str:
    """Returns the message for a change that was not confirmed. The change might have been made anyway."""
    cause = full_disk(error) if isinstance(error, DiskFull) else "The store or the gate did not respond."
    return f"{cause} Check whether the change was made before you try again."
