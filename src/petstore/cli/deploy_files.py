"""`petstore deploy-files`: writes files for systemd, proxies, Kubernetes and monitoring."""

import os
import sys
from pathlib import Path

import click

import petstore
from petstore.errors import OperatorError
from petstore.files import check_target, os_errors_of, replacing

# The packaged files refer to the petstore command by this path, which `deploy_files` replaces with the actual path.
COMMAND = "/opt/petstore/.venv/bin/petstore"
DOCUMENTS = ("docs/reference/settings.md", "docs/at-3-am.md")


@click.command(name="deploy-files")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--force", is_flag=True, help="Replace existing files that differ.")
def deploy_files(directory: Path, force: bool) -> None:
    """Write systemd units, proxy configurations, a Kubernetes manifest and monitoring files to DIR.

    The command prints the path of each new or changed file. After an upgrade, run it with --force to update the
    files and see which ones to install again.

    A comment at the top of each systemd unit, script and configuration file says where to install the file. The systemd
    units run the petstore command that wrote them. Import grafana-dashboard.json into Grafana. settings.md lists the
    variables that you can set in petstore.env. at-3-am.md says what to do when an alert fires.

    \b
    Examples:
      petstore deploy-files .
      petstore deploy-files ./deploy --force
    """
    files = sorted(_packaged(), key=lambda file: file.name)
    present = [file.name for file in files if os.path.lexists(directory / file.name)]
    if present and not force:
        raise OperatorError(f"{directory} already contains {', '.join(present)}; use --force to replace them")
    command = str(Path(sys.executable).with_name("petstore"))
    with os_errors_of(directory):
        directory.mkdir(parents=True, exist_ok=True)
    for file in files:  # check all targets before writing any file
        check_target(directory / file.name)
    for file in files:
        target = directory / file.name
        content = file.read_text("utf-8").replace(COMMAND, command)
        with os_errors_of(target):
            if target.is_file() and target.read_text("utf-8", errors="replace") == content:
                continue
            with replacing(target) as written:
                written.write(content)
                os.fchmod(written.fileno(), 0o755 if target.suffix == ".sh" else 0o644)  # they contain no secrets
        click.echo(target)


def _packaged() -> list[Path]:
    """Returns the files from the installed package, or from the repository if the command runs in a checkout."""
    package = Path(petstore.__file__).parent
    if (package / "deploy").is_dir():
        return [file for file in (package / "deploy").rglob("*") if file.is_file()]
    root = package.parents[1]
    units = [file for file in (root / "deploy").iterdir() if file.is_file()]
    return [*units, *(root / "docs/monitoring").iterdir(), *(root / name for name in DOCUMENTS)]
