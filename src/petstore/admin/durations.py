"""Durations as an operator writes them: `90d`, `24h`, `30m`, `10s`."""

import re

from petstore.errors import OperatorError

_DURATION = re.compile("([0-9]{1,9})([smhdw])").fullmatch
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_CENTURY = 100 * 365.25 * 86_400


def parse_duration(text: str, *, least: float = 0) -> float:
    """A number and a unit as seconds. Raises OperatorError, also for less than `least` seconds."""
    match = _DURATION(text.strip())
    if match is None:
        raise OperatorError(f"{text!r} is not a duration; write 90d, 24h, 30m or 10s")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds < least:
        raise OperatorError(f"{text!r} is too short; the least is {least:g}s")
    if seconds > _CENTURY:
        raise OperatorError(f"{text!r} is more than a hundred years")
    return seconds
