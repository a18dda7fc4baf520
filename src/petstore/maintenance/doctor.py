"""Implements `petstore check`, which checks everything that the service needs and changes nothing.

The command can be used while the service is running.
"""

import contextlib
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from petstore import data_dir
from petstore.errors import MissingPackage, OperatorError
from petstore.gate import GATE_FILE
from petstore.gate.doctor import CLOCK_TOLERANCE, check_gate_file, check_redis
from petstore.keys import ENVIRONMENTS
from petstore.maintenance.certificate import certificate_expiry
from petstore.settings import Settings, without_password
from petstore.store import check_url
from petstore.wording import counted

CERTIFICATE_DAYS = 14
FUTURE = 60.0  # how many seconds a record's timestamp may be in the future
FREE_BYTES_MIN, FREE_FILES_MIN = 256 * 1024 * 1024, 1_000
BACKUP_AGE_MAX = 26 * 3600.0  # seconds; allows a nightly backup to be two hours late
MOUNTS = Path("/proc/self/mounts")
NETWORK_FILE_SYSTEMS = (
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs", "fuse.s3fs"
)  # fmt: skip


class Finding(NamedTuple):
    subject: str
    faults: list[str]
    about: str = ""  # a short description, shown if there are no faults
    warnings: Sequence[str] = ()  # problems that do not prevent the service from running


def warnings_of(settings: Settings) -> list[str]:
    """Returns warnings about settings that are valid but probably unintended."""
    found = [
        f"--trusted-proxy {network}: every client can claim any address and evade the per-address limit;"
        " give the proxy's address"
        for network in settings.trusted_proxies
        if network.endswith("/0")
    ]
    if settings.public_url and not settings.trusted_proxies and not settings.tls_cert:
        found.append(
            "--public-url without --trusted-proxy: behind a proxy, all clients share one address and one limit, and may"
            " be mistaken for this machine; give the proxy's address, and block /metrics in the proxy"
        )
    return found


async def findings(
    settings: Settings, *, free_bytes: int = FREE_BYTES_MIN, free_files: int = FREE_FILES_MIN, mounts: Path = MOUNTS
) -> list[Finding]:
    """Runs all checks and returns one finding per subject. Reports problems as findings instead of raising them."""
    data = settings.data
    is_needed = settings.store is None or settings.gate is None or data.is_dir()
    found = [_data_directory(data, mounts)] if is_needed else []
    if settings.tls_cert and settings.tls_key:
        found.insert(0, _certificate(settings.tls_cert, settings.tls_key))
    if (data / data_dir.READY).exists():
        return [*found, Finding("restore", ["it was interrupted; the next start completes it"])]
    clocks: list[str] = []
    found += await _store(settings, clocks) + await _gate(settings, clocks)
    if settings.store is None:
        found.append(_last_backup(data))
    if is_needed:
        found.append(_free_space(data, free_bytes, free_files))
    found.append(Finding("clock", clocks, time.strftime("%Y-%m-%d %H:%M:%S %Z")))
    return found


async def _store(settings: Settings, clocks: list[str]) -> list[Finding]:
    if settings.store is not None:
        return await _postgresql(settings, settings.store, clocks)
    from petstore.store.schema import NEWEST_SCHEMA
    from petstore.store.sqlite.doctor import check_database_file

    found = []
    for environment in ENVIRONMENTS:
        path = settings.data / f"{environment}.db"
        if not path.exists():
            missing = [f"{path} is missing"] if data_dir.has_data(settings.data) else []
            found.append(Finding(f"store, {environment}", missing, "no file yet; the service creates it"))
            continue
        seen = check_database_file(path)
        later = "" if seen.schema >= NEWEST_SCHEMA else f", `petstore serve` migrates it to {NEWEST_SCHEMA}"
        counts = [counted(seen.rows.get(f"{noun}s", 0), shown) for noun, shown in (("pet", "animal"), ("key", "key"))]
        about = f"schema {seen.schema}{later}; {', '.join(counts)}"
        found.append(Finding(f"store, {environment}", seen.faults, about))
        ahead = (seen.newest or 0.0) - time.time()
        if ahead > FUTURE:
            clocks.append(f"the newest record in {environment} is {ahead:.0f} s in the future; was the clock set back?")
    return found


async def _postgresql(settings: Settings, url: str, clocks: list[str]) -> list[Finding]:
    try:
        import asyncpg

        from petstore.store.postgres.doctor import check_server
    except ImportError as error:
        return [Finding("postgresql", [str(MissingPackage("--store", error.name, "cluster"))])]
    try:
        check_url(url)
        seen = await check_server(url, settings.workers * settings.postgres_pool)
    except OperatorError as error:
        return [Finding("postgresql", [str(error)])]
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        return [Finding("postgresql", [f"{without_password(url)} does not respond: {str(error) or 'timed out'}"])]
    _compare_clocks("PostgreSQL", seen.ahead, clocks)
    stores = [Finding(f"store, {e}", seen.stores[e], seen.about[e]) for e in ENVIRONMENTS]
    return [Finding("postgresql", seen.server), *stores]


async def _gate(settings: Settings, clocks: list[str]) -> list[Finding]:
    if settings.gate is None:
        faults, about, _ = check_gate_file(settings.data / GATE_FILE, in_use=data_dir.is_locked(settings.data))
        return [Finding("gate", faults, about)]
    try:
        faults, about, ahead = await check_redis(settings.gate)
    except (ImportError, OperatorError) as error:
        return [Finding("gate", [str(error)])]
    _compare_clocks("Redis", ahead, clocks)
    return [Finding("gate", faults, about)]


def _compare_clocks(server: str, ahead: float, clocks: list[str]) -> None:
    if abs(ahead) > CLOCK_TOLERANCE:
        clocks.append(
            f"the clocks of {server} and this machine differ by {abs(ahead):.0f} s; synchronise them with NTP"
        )


def _data_directory(data: Path, mounts: Path) -> Finding:
    faults: list[str] = []
    warnings: list[str] = []
    if readable := data_dir.readable_by_others(data):
        names = ", ".join(path.name for path in readable[:3]) + (" …" if len(readable) > 3 else "")
        text = f"other users have permissions for {names}; run `chmod -R go= {shlex.quote(str(data))}`"
        # Other users can open the files in a directory only if they also have permissions for the directory itself.
        (faults if readable[0] == data else warnings).append(text)
    if not os.access(data, os.W_OK):
        faults.append("it is not writable")
    if (kind := _file_system(data, mounts)) in NETWORK_FILE_SYSTEMS:
        faults.append(f"it is on a network file system ({kind}), where locks are unreliable; move it to a local disk")
    return Finding("data directory", faults, str(data.absolute()), warnings)


def _file_system(path: Path, mounts: Path) -> str:
    """Returns the type of the file system that contains a path, or an empty string if the type is unknown."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return ""
    absolute = path.resolve()
    types = {Path(at): kind for _, at, kind, *_ in lines}
    return next((types[directory] for directory in (absolute, *absolute.parents) if directory in types), "")


def _free_space(data: Path, free_bytes: int, free_files: int) -> Finding:
    system = os.statvfs(data)
    free = system.f_bavail * system.f_frsize
    faults = []
    if free < free_bytes:
        faults.append(
            f"only {free // 2**20} MiB are free; delete old backups or other files (in the data directory, delete only"
            " replaced-… and gate.mdb.damaged-…)"
        )
    if system.f_files and system.f_favail < free_files:
        faults.append(f"only {counted(system.f_favail, 'more file')} can be created; delete some files")
    return Finding("free space", faults, f"{free // 2**20:,} MiB")


def _last_backup(data: Path) -> Finding:
    """Checks the age of the last backup. If there is none, checks the age of the data directory's lock file."""
    about, warning = "none yet", "there is no backup"
    at = time.time()
    with contextlib.suppress(FileNotFoundError):
        at = (data / data_dir.LOCK).stat().st_mtime
        at = (data / data_dir.LAST_BACKUP).stat().st_mtime
        about = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))
        warning = f"it is {(time.time() - at) / 3600:.0f} hours old"
    if time.time() - at <= BACKUP_AGE_MAX:
        return Finding("last backup", [], about)
    return Finding("last backup", [], about, [f"{warning}; make one with `petstore backup DIR --keep 24`"])


def _certificate(cert: Path, key: Path) -> Finding:
    try:
        days = (certificate_expiry(cert, key) - time.time()) / 86_400
    except OperatorError as error:
        return Finding("certificate", [str(error)])
    left = counted(round(days), "day")
    faults = [f"{cert}: expires in {left}"] if days < CERTIFICATE_DAYS else []
    return Finding("certificate", faults, f"valid for {left}")
