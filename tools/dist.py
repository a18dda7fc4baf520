"""`python -m tools.dist`: wheels and source archives of service and client, the same bytes each time, and an SBOM."""

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

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
    """The time that everything in the archives carries: the last commit's, unless SOURCE_DATE_EPOCH names another."""
    named = os.environ.get("SOURCE_DATE_EPOCH")
    if named is None:
        command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
        named = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(named)


def build(project: Path, into: Path, epoch: int) -> None:
    """Both forms of one distribution, by the backend that this environment has: the lock file pins it."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "--directory",
            str(into),
            "--target",
            "sdist",
            "--target",
            "wheel",
        ],
        cwd=project,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        check=True,
        capture_output=True,
    )


def sbom(epoch: int) -> str:
    """A CycloneDX document of all that the service can install, and of the JavaScript that it brings along."""
    service = _component("pypi", "petstore", __version__, "MIT")
    service.type = ComponentType.APPLICATION
    components = [*_packages(), *_vendored()]
    bom = Bom(
        components=components,
        # The same source gives the same document: neither its number nor its time is that of the build.
        serial_number=uuid5(NAMESPACE_URL, f"petstore-{__version__}-{epoch}"),
    )
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.metadata.component = service
    bom.register_dependency(service, components)
    return JsonV1Dot6(bom).output_as_string(indent=2)


def _packages() -> Iterator[Component]:
    for name, version in re.findall(r"(?m)^([a-z0-9._-]+)==(\S+)", (ROOT / "requirements.lock").read_text()):
        try:
            about = importlib.metadata.metadata(name).json
            licence = str(about.get("license_expression") or about.get("license") or "")
        except importlib.metadata.PackageNotFoundError:  # one that only other versions of Python need
            licence = ""
        yield _component("pypi", name, version, licence)


def _vendored() -> Iterator[Component]:
    for file in sorted((ROOT / "src").rglob("VERSION")):
        found = re.match(r"(\S+) (\S+) \(([^)]+)\)", file.read_text())
        assert found is not None, f"{file}: no name, version and licence"
        yield _component("npm", *found.groups())


def _component(registry: str, name: str, version: str, licence: str) -> Component:
    purl = PackageURL(registry, name=name, version=version)
    licences = [LicenseFactory().make_from_string(licence)] if licence else []
    return Component(name=name, version=version, purl=purl, bom_ref=purl.to_string(), licenses=licences)


if __name__ == "__main__":
    sys.exit(main())
