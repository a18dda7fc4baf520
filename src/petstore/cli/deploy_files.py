"""`petstore deploy-files`: the files that put the service under systemd, behind a proxy or into Kubernetes."""

import sys
from pathlib import Path

import click

import petstore
from petstore.errors import OperatorError

# The path in the files as they come. It is replaced by the path of the command that writes them.
COMMAND = "/opt/petstore/.venv/bin/petstore"


@click.command(name="deploy-files")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--force", is_flag=True, help="Replace files that are already there.")
def deploy_files(directory: Path, force: bool) -> None:
    """Write systemd units, proxy configurations and a Kubernetes manifest to DIR.

    The units start the petstore command that wrote them. Each file says at its top where it belongs.

    \b
    Examples:
      petstore deploy-files .
      petstore deploy-files /tmp/petstore --force
    """
    files = [file for file in sorted(_packaged().iterdir()) if file.is_file()]
    present = [file.name for file in files if (directory / file.name).exists()]
    if present and not force:
        raise OperatorError(f"{directory} already has {', '.join(present)}; --force replaces them")
    command = str(Path(sys.executable).with_name("petstore"))
    directory.mkdir(parents=True, exist_ok=True)
    for file in files:
        target = directory / file.name
        target.write_text(file.read_text("utf-8").replace(COMMAND, command), "utf-8")
        target.chmod(0o755 if target.suffix == ".sh" else 0o644)  # no secrets: every user may read them
        click.echo(target)


def _packaged() -> Path:
    """Inside the package when it was installed from a wheel, at the root of a checkout otherwise."""
    package = Path(petstore.__file__).parent
    return next(place for place in (package / "deploy", package.parents[1] / "deploy") if place.is_dir())
