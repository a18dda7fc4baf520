"""The gate's file in a backup: copied out while it is in use, and made fit to be used after a restore."""

from pathlib import Path
from typing import Any

import lmdb

from petstore.errors import Unavailable
from petstore.gate.lmdb import INITIAL_SIZE, VERSION, new_versions
from petstore.gate.upgrade_from_1_1 import upgrade
from petstore.keys import ENVIRONMENTS


def copy_out(path: Path, target: Path) -> None:
    """Copy the file as it is at one moment, while others use it. Raises Unavailable."""
    try:
        with _open_offline(path, readonly=True) as env:
            env.copy(str(target))
    except (lmdb.Error, OSError) as error:
        raise Unavailable(f"the gate file cannot be copied: {error}") from error


def renew_versions(path: Path) -> None:
    """Give a file from a backup versions that no worker has seen. Raises Unavailable."""
    upgrade(path)
    try:
        with _open_offline(path, readonly=False) as env, env.begin(write=True) as txn:
            for environment in ENVIRONMENTS:
                txn.put(VERSION + environment.encode(), new_versions())
    except (lmdb.Error, OSError) as error:
        raise Unavailable(f"the gate file cannot be written: {error}") from error
    path.with_name(path.name + "-lock").unlink()


def _open_offline(path: Path, *, readonly: bool) -> Any:
    """The file, synced as usual, for work that is no request."""
    size = max(INITIAL_SIZE, path.stat().st_size)
    return lmdb.open(str(path), subdir=False, map_size=size, readonly=readonly)
