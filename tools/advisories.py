"""`python -m tools.advisories`: looks up known vulnerabilities of the pinned packages. Fails if a lookup fails."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# The first lock file also contains all dependencies of the service.
LOCKS = (ROOT / "requirements-dev.lock", ROOT / "requirements-build.lock")
TIMEOUT = 120  # seconds


def main() -> int:
    """Returns 0 if all packages were looked up and have no advisories. ADVISORIES=optional allows failed lookups."""
    packages = _audit()
    seen = [package for package in packages if "vulns" in package]
    found = [(package["name"], package["version"], fault["id"]) for package in seen for fault in package["vulns"]]
    for name, version, advisory in found:
        print(f"advisories: {name} {version} has {advisory}")
    print(f"advisories: {len(seen)} packages looked up, {len(found)} advisories")
    if found:
        return 1
    if seen and len(seen) == len(packages):
        return 0
    optional = os.environ.get("ADVISORIES") == "optional"
    unseen = f"{len(packages) - len(seen)} packages" if packages else "all packages"
    print(f"advisories: NOT LOOKED UP: {unseen}. The advisory service could not be reached or does not know them.")
    print(f"advisories: {'ADVISORIES=optional allows' if optional else 'Set ADVISORIES=optional to allow'} this.")
    return 0 if optional else 1


def _audit() -> list[dict[str, Any]]:
    """Returns pip-audit's result for each package, or an empty list if it could not reach the advisory service."""
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--format", "json"]
    for lock in LOCKS:
        command += ["--requirement", str(lock)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return []
    return packages


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # rejects any other arguments
    sys.exit(main())
