"""`python -m tools.release`: installs the built wheels in a new environment and uses them from an empty directory."""

import argparse
import contextlib
import filecmp
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urljoin
from urllib.request import HTTPCookieProcessor, build_opener

from harness.claims import Broken, hold, temporary_directory
from petstore import __version__
from tools.dist import DIST, build, source_date_epoch
from tools.kept import is_released
from tools.release_data import FIXTURES

INSTALLED_WITHIN = 60.0  # seconds, including all checks in between
STARTS_WITHIN = 20.0
CURL = r"(?m)^  (curl .*)$"
# Keeps variables that pip needs to reach its index. Omits those that could make programs use the checkout.
VARIABLES = {
    name: text for name, text in os.environ.items() if not name.startswith(("PETSTORE_", "PYTHON", "VIRTUAL_"))
}


class Installation:
    """A new virtual environment and an empty working directory."""

    def __init__(self, at: Path, python: str) -> None:
        self.bin = at / "environment/bin"
        self.directory = at / "empty"
        self.directory.mkdir()
        run(self.directory, python, "-m", "venv", str(self.bin.parent))

    def install(self, what: str) -> None:
        self.run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", what)

    def run(self, program: str, *words: str, code: int = 0, variables: Mapping[str, str] | None = None) -> str:
        return run(self.directory, str(self.bin / program), *words, code=code, variables=variables)

    @contextlib.contextmanager
    def running(self, command: str, port: int, *options: str) -> Iterator[str]:
        """Runs `petstore serve` or `petstore console`. Once it listens, yields what it has printed."""
        log = self.bin.parent / f"{command}.log"
        words = [str(self.bin / "petstore"), command, "--port", str(port), *options]
        with log.open("wb") as output:
            process = subprocess.Popen(words, cwd=self.directory, env=VARIABLES, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + STARTS_WITHIN
            while not (_listens(port) and "http://" in log.read_text()):  # in either order
                hold(process.poll() is None and time.monotonic() < deadline, f"petstore {command}: {log.read_text()}")
                time.sleep(0.05)
            yield log.read_text()
            process.terminate()
            hold(process.wait(10) == 0, f"petstore {command} exits with 0: {log.read_text()}")
        finally:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable, help="the Python to install into")
    python = parser.parse_args().python
    wheel, client = (next(DIST.glob(f"{name}-*.whl")) for name in ("petstore", "petstore_client"))
    try:
        check_data_kept()
        with temporary_directory() as at:
            began = time.monotonic()
            here = Installation(at, python)
            first_steps(here, wheel)
            took = time.monotonic() - began
            if os.getloadavg()[0] < 2 * (os.cpu_count() or 1):
                hold(took < INSTALLED_WITHIN, f"installed and used within {INSTALLED_WITHIN:.0f} s: {took:.0f} s")
            else:
                print(f"release-check: this machine is busy; the limit of {INSTALLED_WITHIN:.0f} s is NOT CHECKED")
            further_steps(here, wheel, client)
            version = here.run("python", "--version").strip()
        build_again()
    except Broken as error:
        print(f"release-check FAILED: {error}")
        return 1
    print(f"release-check: installed and used on {version} in {took:.0f} s; every rebuilt archive has the same bytes")
    return 0


def check_data_kept() -> None:
    """Raises Broken if the repository has no data of this version. Tests of the next version upgrade this data."""
    if not is_released():
        print(f"release-check: {__version__} has no date in CHANGELOG.md; its data is NOT CHECKED")
        return
    hold(
        (FIXTURES / __version__ / "known.json").is_file(),
        f"tests/fixtures/{__version__} has data of this version. Run .venv/bin/python -m tools.release_data with the"
        " code of the release",
    )


def first_steps(here: Installation, wheel: Path) -> None:
    """Takes the first steps of a user who has only Python and the wheel. Raises Broken."""
    here.install(str(wheel))
    port = free_port()
    with here.running("serve", port, "--show-first-key") as printed:
        answer = run(here.directory, "sh", "-c", f"{found(CURL, printed)[1]} --silent --show-error")
        hold(answer.startswith("HTTP/1.1 200 ") and answer.endswith("\n[]"), f"the printed curl line works: {answer}")
        load_page(f"http://127.0.0.1:{port}/docs")
    refused = here.run("petstore", "console", code=2)
    hold(f"pip install './{wheel.name}[console]'" in refused, f"the message names the missing extra: {refused}")
    here.install(f"{wheel}[console]")
    with here.running("console", port) as printed:
        load_page(found(r"http://\S+", printed)[0])


def further_steps(here: Installation, wheel: Path, client: Path) -> None:
    """Tries the client, the other commands, and the wheel without installing it. Raises Broken."""
    here.install(str(client))
    port = free_port()
    key = json.loads(here.run("petstore", "keys", "create", "--plan", "free", "--json"))["key"]
    with here.running("serve", port):
        where = {"PETSTORE_API_KEY": key, "PETSTORE_BASE_URL": f"http://127.0.0.1:{port}/v1"}
        added = here.run("python", "-m", "petstore_client", "add", "Rex", "1", variables=where)
        hold("Rex" in added, f"the client adds an animal: {added}")
    here.run("petstore", "check")
    here.run("petstore", "deploy-files", "units")
    unit = (here.directory / "units/petstore.service").read_text()
    hold(f"ExecStart={here.bin}/petstore serve\n" in unit, "the unit starts the installed petstore")
    uv = Path(sys.executable).with_name("uv")
    run(here.directory, str(uv), "tool", "run", "--from", f"{wheel}[cluster,console]", "petstore", "--version")


def build_again() -> None:
    """Raises Broken unless the source archives build the same archives as the checkout."""
    for archive in DIST.glob("*.tar.gz"):
        with temporary_directory() as at:
            subprocess.run(["tar", "-xzf", archive, "-C", at], check=True)
            (source,) = at.iterdir()
            build(source, at / "dist", source_date_epoch())
            for made in (at / "dist").iterdir():
                hold(filecmp.cmp(made, DIST / made.name, shallow=False), f"{made.name} has the same bytes when rebuilt")


def load_page(url: str) -> None:
    """Loads a page with all its scripts, styles and pictures. Raises Broken."""
    opener = build_opener(HTTPCookieProcessor())
    with opener.open(url) as answer:
        text, base = answer.read().decode(), answer.url
    files = re.findall(r'(?:src|href)="([^"]+\.(?:js|css|svg)(?:\?[^"]*)?)"', text)
    hold(files, f"{url} has scripts and styles")
    for name in files:
        with opener.open(urljoin(base, name)) as answer:
            hold(answer.read(), f"{name} is not empty")


def found(pattern: str, text: str) -> re.Match[str]:
    """Returns the match. Raises Broken if there is none."""
    match = re.search(pattern, text)
    hold(match, f"{pattern} is in {text}")
    assert match is not None
    return match


def run(cwd: Path, *words: str, code: int = 0, variables: Mapping[str, str] | None = None) -> str:
    """Runs a program and returns its output. Raises Broken unless it exits with `code`."""
    done = subprocess.run(
        words, cwd=cwd, env={**VARIABLES, **(variables or {})}, capture_output=True, text=True, check=False
    )
    hold(done.returncode == code, f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    sys.exit(main())
