"""`python -m tools.containers`: builds the container image and uses it as documented, if this machine can."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path

from harness.claims import Broken, Skipped, hold, progress, temporary_directory
from tools.dist import ROOT
from tools.release import free_port

LARGEST = 150_000_000  # bytes
STARTS_WITHIN = 30.0
STOPS_WITHIN = 6.0
# A machine that is itself a container might be unable to raise limits or to use the default runtime.
MODEST = '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n[engine]\nruntime = "runc"\n'
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
IMAGE = "localhost/petstore"
PUBLIC_URL = "https://pets.example.com"


class Podman:
    """Podman with separate storage for images and containers, which is removed with its directory."""

    def __init__(self, at: Path) -> None:
        self._at = at
        self._variables = dict(os.environ)

    def __call__(self, *words: str, timeout: float = 900) -> str:
        """Returns the output of podman. Raises Broken if it fails."""
        where = ["--root", str(self._at / "storage"), "--runroot", str(self._at / "run")]
        done = subprocess.run(
            ["podman", *where, *words],
            cwd=ROOT, env=self._variables, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        hold(done.returncode == 0, f"podman {' '.join(words)}: {(done.stdout + done.stderr)[-2000:]}")
        return done.stdout

    def probe(self, image: str) -> None:
        """Finds settings with which this machine can run a container. Raises Skipped."""
        (self._at / "containers.conf").write_text(MODEST)
        for variables in ({}, {"CONTAINERS_CONF": str(self._at / "containers.conf")}):
            self._variables = {**os.environ, **variables}
            try:
                self("run", "--rm", "--network", "host", image, "true")
                return
            except Broken as error:
                reason = str(error)
        raise Skipped(f"this machine cannot run containers: {reason}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", help="the base image (default: one that debootstrap creates)")
    parser.add_argument("--suite", default="trixie", help="the Debian release that debootstrap installs")
    wanted = parser.parse_args()
    try:
        if shutil.which("podman") is None:
            raise Skipped("podman is not installed")
        with temporary_directory() as at:
            podman = Podman(at)
            try:
                print(f"container-check: {check(podman, wanted.base or make_base(podman, at, wanted.suite), at)}")
            finally:
                subprocess.run(["podman", "--root", at / "storage", "--runroot", at / "run", "rm", "--all", "--force"],
                               capture_output=True, check=False)  # fmt: skip
                # Podman leaves its overlay mounted. The directory can be removed only after the overlay is unmounted.
                subprocess.run(["umount", at / "storage/overlay"], capture_output=True, check=False)
    except Skipped as reason:
        print(f"container-check NOT TRIED: {reason}")
    except Broken as error:
        print(f"container-check FAILED: {error}")
        return 1
    return 0


def make_base(podman: Podman, at: Path, suite: str) -> str:
    """Creates an image that contains only Debian. Raises Skipped."""
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise Skipped("debootstrap is not installed, or this user is not root")
    progress(f"debootstrap {suite}")
    made = subprocess.run(
        ["debootstrap", "--variant=minbase", suite, at / "debian"], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        raise Skipped(f"debootstrap failed: {made.stdout[-500:]}")
    # A mirror that is a few days out of date is good enough, because this image is removed afterwards.
    (at / "debian/etc/apt/apt.conf.d/99-old-mirror").write_text('Acquire::Check-Valid-Until "false";\n')
    subprocess.run(["tar", "--directory", at / "debian", "--create", "--file", at / "debian.tar", "."], check=True)
    shutil.rmtree(at / "debian")
    podman("import", str(at / "debian.tar"), "localhost/base")
    return "localhost/base"


def check(podman: Podman, base: str, at: Path) -> str:
    """Builds and uses the image. Returns a summary. Raises Broken, or Skipped if this machine cannot run containers."""
    podman.probe(base)
    progress("podman build")
    (at / "pip.conf").write_text("[global]\ncert = /etc/host-ca.crt\n")
    # The build uses the network and the certificates of this machine.
    host = ["--network", "host", "--volume", f"{CERTIFICATES}:/etc/host-ca.crt:ro",
            "--volume", f"{at}/pip.conf:/etc/pip.conf:ro"]  # fmt: skip
    build = ["build", "--format", "docker", "--isolation", "chroot", "--layers", *host, "--build-arg", f"BASE={base}"]
    try:
        podman(*build, "--target", "debian", ".")
    except Broken as error:
        raise Skipped(f"Debian's Python could not be installed: {error}") from None
    podman(*build, "--tag", IMAGE, ".")
    (image,) = json.loads(podman("image", "inspect", IMAGE))
    hold(image["Size"] < LARGEST, f"the image is under {LARGEST / 1e6:.0f} MB: {image['Size'] / 1e6:.0f} MB")
    hold(image["Config"]["User"] == "10001:10001", "the image does not run as root")
    hold(list(image["Config"]["Volumes"]) == ["/var/lib/petstore"], "the image has one volume")
    hold(image["Config"]["StopSignal"] == "SIGTERM" and image["Healthcheck"], "stop signal and health check are set")
    progress("podman run")
    use(podman, at)
    python = podman("run", "--rm", "--network", "host", "--entrypoint", "python3", IMAGE, "--version").strip()
    return f"built on {base} with {python}, {image['Size'] / 1e6:.0f} MB; ran read-only, without root or capabilities"


def use(podman: Podman, at: Path) -> None:
    """Runs the image as documented. Raises Broken."""
    port = free_port()
    (at / "petstore.env").write_text(f"PETSTORE_PUBLIC_URL='{PUBLIC_URL}'\n")
    start = [
        "run", "--detach", "--name", "pets", "--network", "host", "--env", f"PETSTORE_PORT={port}",
        "--read-only", "--tmpfs", "/tmp", "--cap-drop", "all", "--security-opt", "no-new-privileges",
        "--volume", "pets:/var/lib/petstore", "--volume", f"{at}/petstore.env:/run/secrets/petstore.env:ro", IMAGE,
    ]  # fmt: skip
    podman(*start)
    wait_for(lambda: answers(port), lambda: podman("logs", "pets"))
    hold("pets_live_" not in podman("logs", "pets"), "no secret is in the log")
    key = json.loads(podman("exec", "pets", "petstore", "keys", "create", "--plan", "free", "--json"))["key"]
    status, headers, _ = ask(port, "/v1/pets", key, {"name": "Rex", "categoryId": 1})
    hold(status == 201, f"an animal is added: {status}")
    hold(headers["Location"].startswith(PUBLIC_URL), "the settings of the mounted secret are used")
    podman("healthcheck", "run", "pets")
    second = json.loads(podman("exec", "pets", "petstore", "keys", "create", "--plan", "free", "--json"))["key"]
    hold(ask(port, "/v1/pets", second)[0] == 200, "a command in the container acts on the running service")
    writes = "import pathlib; pathlib.Path('/opt/petstore/x').touch()"
    try:
        podman("exec", "pets", "/opt/petstore/.venv/bin/python", "-c", writes)
        raise AssertionError("the root file system can be written to")
    except Broken as error:
        hold(re.search(r"Read-only|Permission denied", str(error)), str(error))

    began = time.monotonic()
    podman("stop", "--time", "10", "pets")
    took = time.monotonic() - began
    (state,) = json.loads(podman("inspect", "pets"))
    hold(state["State"]["ExitCode"] == 0, f"it exits with 0: {podman('logs', 'pets')}")
    hold(took < STOPS_WITHIN, f"it stops within {STOPS_WITHIN} s: {took:.1f} s")
    podman("rm", "pets")
    podman(*start)
    wait_for(lambda: answers(port), lambda: podman("logs", "pets"))
    hold(b"Rex" in ask(port, "/v1/pets", key)[2], "the volume outlives the container")


def ask(port: int, path: str, key: str, body: object = None) -> tuple[int, Message, bytes]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.status, answer.headers, answer.read()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], log: Callable[[], str]) -> None:
    """Raises Broken."""
    deadline = time.monotonic() + STARTS_WITHIN
    while not condition():
        if time.monotonic() > deadline:
            raise Broken(f"it did not start: {log()}")
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
