"""`python -m prove.advisories`: known vulnerabilities among the pinned versions, where the database can be reached."""

import json
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parent.parent / "requirements.lock"


def main() -> int:
    command = ["-m", "pip_audit", "--requirement", str(LOCK), "--no-deps", "--disable-pip", "--format", "json"]
    try:
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120, check=False)
        audited = [package for package in json.loads(done.stdout)["dependencies"] if "version" in package]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        audited = []
    if not audited:
        print("pip-audit SKIPPED: the database of advisories cannot be reached from here; nothing was audited")
        return 0
    found = [(package["name"], package["version"], fault["id"]) for package in audited for fault in package["vulns"]]
    for name, version, advisory in found:
        print(f"pip-audit: {name} {version} has {advisory}")
    print(f"pip-audit: {len(audited)} packages, {len(found)} advisories")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
