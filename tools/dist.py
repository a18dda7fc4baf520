"""`python -m tools.dist`: reproducibly builds wheels and source archives of the service and the client, and an SBOM."""

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from petstore import __version__

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"


def main() -> int:
    epoch = source_date_epoch()
    shutil.rmtree(DIST, ignore_errors=True)
    for project in (ROOT, ROOT / "client"):
        build(project, DIST, epoch)
    (DIST / f"petstore-{__version__}.cdx.json").write_text(sbom(epoch), "utf-8")
    for file in sorted(DIST.iterdir()):
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  dist/{file.name}")
    return 0


def source_date_epoch() -> int:
    """Returns the modification time of all files in the archives.

    This is SOURCE_DATE_EPOCH if it is set. Otherwise, it is the time of the last commit or, without Git, of the last
    change to CHANGELOG.md.
    """
    named = os.environ.get("SOURCE_DATE_EPOCH")
    if named is not None:
        return int(named)
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return int((ROOT / "CHANGELOG.md").stat().st_mtime)


def build(project: Path, into: Path, epoch: int, targets: tuple[str, ...] = ("sdist", "wheel")) -> None:
    """Builds the wheel and the source archive of one distribution with this environment's pinned build backend."""
    chosen = [word for target in targets for word in ("--target", target)]
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", str(into), *chosen],
        cwd=project,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        check=True,
        capture_output=True,
    )


def sbom(epoch: int) -> str:
    """Returns a CycloneDX document that lists the service's dependencies and vendored JavaScript."""
    service = {"type": "application", **_component("pypi", "petstore", __version__, "MIT")}
    parts = sorted(
        ({"type": "library", **each} for each in (*_packages(), *_vendored())), key=lambda each: each["purl"]
    )
    references = [each["bom-ref"] for each in parts]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # The document is reproducible, because the serial number and the time depend only on the source.
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, f'petstore-{__version__}-{epoch}')}",
        "version": 1,
        "metadata": {"timestamp": datetime.fromtimestamp(epoch, UTC).isoformat(), "component": service},
        "components": parts,
        "dependencies": [
            {"ref": service["bom-ref"], "dependsOn": references},
            *({"ref": reference} for reference in references),
        ],
    }
    return json.dumps(document, indent=2)


def _packages() -> Iterator[dict[str, Any]]:
    for name, version in re.findall(r"(?m)^([a-z0-9._-]+)==(\S+)", (ROOT / "requirements.lock").read_text()):
        try:
            about = importlib.metadata.metadata(name).json
            licence = str(about.get("license_expression") or about.get("license") or "")
        except importlib.metadata.PackageNotFoundError:  # needed only by other versions of Python
            licence = ""
        yield _component("pypi", name, version, licence)


def _vendored() -> Iterator[dict[str, Any]]:
    for file in sorted((ROOT / "src").rglob("VERSION")):
        found = re.match(r"(\S+) (\S+) \(([^)]+)\)", file.read_text())
        assert found is not None, f"{file}: no name, version and licence"
        yield _component("npm", *found.groups())


def _component(registry: str, name: str, version: str, licence: str) -> dict[str, Any]:
    purl = f"pkg:{registry}/{quote(name)}@{quote(version)}"
    component: dict[str, Any] = {"bom-ref": purl, "name": name, "version": version, "purl": purl}
    if licence:
        component["licenses"] = [_licence(licence)]
    return component


def _licence(text: str) -> dict[str, Any]:
    try:
        expression = canonicalize_license_expression(text)
    except InvalidLicenseExpression:
        return {"license": {"name": text}}
    return {"expression": expression} if " " in expression else {"license": {"id": expression}}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # rejects any other arguments
    sys.exit(main())
