"""The environment variables of a reload: one for the trial start, and one for the state that survives the `exec`."""

import json
import os

import msgspec

HANDOVER = "PETSTORE_RELOAD_HANDOVER"  # a `Handover` as JSON
TRIAL = "PETSTORE_RELOAD_TRIAL"  # set for the trial start: the digests of the running workers as JSON

# What workers were started with, by name, as digests: a URL in the environment would show its password.
Digests = dict[str, str]


class Handover(msgspec.Struct):
    """What a main process takes over from its predecessor, itself before the `exec`."""

    sockets: list[list[int]]  # descriptors, which stay open over the `exec`
    workers: dict[int, int]  # process ids, and the index of each worker's sockets
    retired: set[int]
    digests: Digests
    reload_again: bool

    @classmethod
    def from_environment(cls) -> "Handover | None":
        text = os.environ.pop(HANDOVER, None)
        return msgspec.json.decode(text, type=cls) if text is not None else None

    def in_environment(self) -> dict[str, str]:
        """The environment of the successor."""
        return {**os.environ, HANDOVER: msgspec.json.encode(self).decode()}


def trial_environment(running: Digests) -> dict[str, str]:
    return {**os.environ, TRIAL: json.dumps(running)}


def running_digests() -> Digests:
    """In a trial: what the workers that serve were started with."""
    return dict(json.loads(os.environ[TRIAL]))


def is_trial() -> bool:
    """Whether this process only tries whether the service could start."""
    return TRIAL in os.environ


def is_reload() -> bool:
    """Whether the workers of a predecessor serve, and this process has not yet taken them over."""
    return HANDOVER in os.environ
