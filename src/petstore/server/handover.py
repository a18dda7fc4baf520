"""What a reload passes on through the environment: to the process that tries the start, and over the `exec`."""

import json
import os
import socket
from collections.abc import Mapping
from typing import NamedTuple

from petstore.server.sockets import inherited

HANDOVER = "PETSTORE_SUCCESSION"  # the variable; a running service sets it, so its name stays
TRIAL = "PETSTORE_TRIAL"  # set in the process that tries the start: what the workers that serve were started with

Sockets = list[socket.socket]
# What workers were started with, by name, as digests: a URL in the environment would show its password.
Digests = Mapping[str, str]


class Handover(NamedTuple):
    """What a main process takes over from its predecessor, itself before the `exec`."""

    sockets: list[Sockets]
    workers: dict[int, int]  # process ids, and the index of each worker's sockets
    retired: set[int]
    digests: Digests
    reload_again: bool

    @classmethod
    def from_environment(cls) -> "Handover | None":
        text = os.environ.pop(HANDOVER, None)
        if text is None:
            return None
        state = json.loads(text)
        workers = state["workers"]
        # The predecessor may be an earlier version, which leaves sockets and workers only.
        return cls(
            [[inherited(fd) for fd in fds] for fds in state["sockets"]],
            dict(zip(workers, state.get("slots", range(len(workers))), strict=True)),
            set(state.get("retired", ())),
            state.get("digests", {}),
            state.get("reload_again", False),
        )

    def in_environment(self) -> dict[str, str]:
        """The environment of the successor. The sockets stay open over the `exec`."""
        for sockets in self.sockets:
            for each in sockets:
                os.set_inheritable(each.fileno(), True)
        state = {
            "sockets": [[each.fileno() for each in sockets] for sockets in self.sockets],
            "workers": list(self.workers),
            "slots": list(self.workers.values()),
            "retired": sorted(self.retired),
            "digests": dict(self.digests),
            "reload_again": self.reload_again,
        }
        return {**os.environ, HANDOVER: json.dumps(state)}


def trial_environment(running: Digests) -> dict[str, str]:
    return {**os.environ, TRIAL: json.dumps(dict(running))}


def running_digests() -> Digests:
    """In a trial: what the workers that serve were started with. Empty when an earlier version runs the trial."""
    found = json.loads(os.environ[TRIAL])
    return found if isinstance(found, dict) else {}


def is_trial() -> bool:
    """Whether this process only tries whether the service could start."""
    return TRIAL in os.environ


def is_reload() -> bool:
    """Whether the workers of a predecessor serve, and this process has not yet taken them over."""
    return HANDOVER in os.environ
