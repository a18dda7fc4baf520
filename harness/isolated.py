"""Runs a function in a network namespace, where it can have any address, and load firewall rules."""

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from harness.backends import program
from harness.claims import Skipped
from harness.proxies import DEPLOY

# The first two addresses are in the same network of 64 bits.
ADDRESSES = ("fd00:0:0:1::1", "fd00:0:0:1::2", "fd00:0:0:2::1")


def isolated(function: Callable[..., Any], *arguments: str) -> Any:
    """Calls a function of a module in a new process, and returns its result as JSON. Raises Missing or Skipped."""
    prefix = [program("unshare"), "--map-root-user", "--net"]
    refused = subprocess.run([*prefix, "true"], capture_output=True, text=True)
    if refused.returncode:
        raise Skipped(f"cannot create a network namespace: {refused.stderr.strip()}")
    own = [sys.executable, "-m", __name__, function.__module__, function.__qualname__, *arguments]
    done = subprocess.run([*prefix, *own], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def load_firewall(port: int) -> None:
    """Loads deploy/petstore.nft with another port. Raises Missing."""
    rules, replaced = re.subn(r"dport 443\b", f"dport {port}", (DEPLOY / "petstore.nft").read_text())
    assert replaced
    subprocess.run([program("nft"), "--file", "-"], input=rules, text=True, check=True)


def main() -> None:
    ip = program("ip")
    for words in ("link set lo up", *(f"address add {address}/64 dev lo" for address in ADDRESSES)):
        subprocess.run([ip, *words.split()], check=True)
    module, name, *arguments = sys.argv[1:]
    print(json.dumps(getattr(importlib.import_module(module), name)(*arguments)))


if __name__ == "__main__":
    main()
