"""Checks whether the files that are kept for this version (its OpenAPI document and its data) may still change."""

import re
from pathlib import Path

from petstore import __version__

CHANGELOG = Path(__file__).parent.parent / "CHANGELOG.md"
RELEASED = "{} is released, so its kept files must not change; set the next version in src/petstore/__init__.py first"


def is_released(version: str = __version__) -> bool:
    """Returns whether the changelog has a date for the version. Raises ValueError if it lacks the version."""
    heading = re.search(rf"(?m)^## \[{re.escape(version)}\] - (.+)$", CHANGELOG.read_text())
    if heading is None:
        raise ValueError(f"CHANGELOG.md has no section for {version}")
    return heading[1] != "Unreleased"


def check_unreleased() -> None:
    """Raises SystemExit if this version is released."""
    if is_released():
        raise SystemExit(RELEASED.format(__version__))
