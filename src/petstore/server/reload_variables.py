"""The environment variables that a reload uses. One marks the trial start, and the other passes state across `exec`."""

import json
import os

import msgspec

HANDOVER = "PETSTORE_RELOAD_HANDOVER"  # a `Handover` as JSON
TRIAL = "PETSTORE_RELOAD_TRIAL"  # set only for the trial start; contains the running workers' digests as JSON

# Maps the names of settings to digests of their values, because the values themselves can contain passwords.
Digests = dict[str, str]


class Handover(msgspec.Struct):
    """The state that the main process passes to its successor across the `exec`."""

    sockets: list[list[int]]  # file descriptors, which stay open across the `exec`
    workers: dict[int, int]  # maps each worker's process id to the index of its sockets
    retired: set[int]
    digests: Digests
    reload_again: bool

    @classmethod
    def from_environment(cls) -> "Handover | None":
        text = os.environ.pop(HANDOVER, None)
        return msgspec.json.decode(text, type=cls) if text is not None else None

    def in_environment(self) -> dict[str, str]:
        """Returns the environment variables for the successor."""
        return {**os.environ, HANDOVER: msgspec.json.encode(self).decode()}


def trial_environment(running: Digests) -> dict[str, str]:
    return {**os.environ, TRIAL: json.dumps(running)}


def running_digests() -> Digests:
    """Returns the running workers' digests. Must be called only in a trial start."""
    return dict(json.loads(os.environ[TRIAL]))


def is_trial() -> bool:
    """Whether this process was started only to check that the service can start."""
    return TRIAL in os.environ


def is_reload() -> bool:
    """Whether this process still has to take over its predecessor's workers."""
    return HANDOVER in os.environ
