"""`petstore check`: one look at everything that a service needs, which changes nothing, whether or not it runs."""

import contextlib
import os
import pwd
import ssl
import stat
import time
from pathlib import Path
from typing import NamedTuple

from petstore import data_dir as folder
from petstore.errors import OperatorError, to_install
from petstore.gate import GATE_FILE
from petstore.gate.doctor import CLOCKS_APART, inspect_file, inspect_redis
from petstore.keys import ENVIRONMENTS
from petstore.settings import Settings
from petstore.store import check_url

LOW_SPACE = 256 * 1024 * 1024
LOW_FILES = 1_000
FUTURE = 60.0  # seconds that a record may be ahead of the clock
CERTIFICATE_DAYS = 14
NETWORK_FILES = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs", "fuse.s3fs")


class Finding(NamedTuple):
    subject: str
    faults: list[str]
    about: str = ""  # in a few words, what is there


async def findings(settings: Settings) -> list[Finding]:
    """Whatever is wrong is in the findings. Raises nothing."""
    data = settings.data
    found = [Finding("certificate", *_certificate(settings))] if settings.tls_cert and settings.tls_key else []
    found.append(Finding("folder", _folder(data), str(data)))
    if (data / folder.READY).exists():
        return [*found, Finding("restore", ["it was cut short; the next start, or petstore restore, finishes it"])]
    clocks: list[str] = []
    found += await _store(settings, clocks) + await _gate(settings, clocks)
    found.append(Finding("free space", *_space(data)))
    found.append(Finding("clock", clocks, time.strftime("%Y-%m-%d %H:%M:%S %Z")))
    return found


async def _store(settings: Settings, clocks: list[str]) -> list[Finding]:
    if settings.store is not None:
        return await _postgresql(settings, settings.store, clocks)
    from petstore.store.sqlite.doctor import NEWEST_SCHEMA, inspect

    found = []
    for environment in ENVIRONMENTS:
        path = settings.data / f"{environment}.db"
        if not path.exists():
            missing = [] if not folder.contents(settings.data) else [f"{path} is missing"]
            found.append(Finding(f"store, {environment}", missing, "no file yet; the service makes one"))
            continue
        seen = inspect(path)
        later = "" if seen.schema >= NEWEST_SCHEMA else f", the next start brings it to {NEWEST_SCHEMA}"
        about = f"schema {seen.schema}{later}; {seen.rows.get('pets', 0):,} animals, {seen.rows.get('keys', 0):,} keys"
        found.append(Finding(f"store, {environment}", seen.faults, about))
        ahead = (seen.newest or 0.0) - time.time()
        if ahead > FUTURE:
            clocks.append(f"the newest record of {environment} is {ahead:.0f} s ahead: was the clock set back?")
    return found


async def _postgresql(settings: Settings, url: str, clocks: list[str]) -> list[Finding]:
    try:
        import asyncpg

        from petstore.store.postgres.doctor import inspect
    except ImportError as error:
        return [Finding("postgresql", [f"{error.name} is not installed: {to_install('cluster')}"])]
    try:
        check_url(url)
        seen = await inspect(url, settings.workers * settings.postgres_pool)
    except OperatorError as error:
        return [Finding("postgresql", [str(error)])]
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        return [Finding("postgresql", [f"PostgreSQL does not answer: {str(error) or 'not in time'}"])]
    _compare("PostgreSQL", seen.ahead, clocks)
    stores = [Finding(f"store, {e}", seen.stores[e], seen.about[e]) for e in ENVIRONMENTS]
    return [Finding("postgresql", seen.server), *stores]


async def _gate(settings: Settings, clocks: list[str]) -> list[Finding]:
    if settings.gate is None:
        faults, about, _ = inspect_file(settings.data / GATE_FILE, in_use=folder.in_use(settings.data))
        return [Finding("gate", faults, about)]
    try:
        faults, about, ahead = await inspect_redis(settings.gate)
    except (ImportError, OperatorError) as error:
        return [Finding("gate", [str(error)])]
    _compare("Redis", ahead, clocks)
    return [Finding("gate", faults, about)]


def _compare(whose: str, ahead: float, clocks: list[str]) -> None:
    if abs(ahead) > CLOCKS_APART:
        clocks.append(f"the clocks of {whose} and of this machine are {abs(ahead):.0f} s apart; let NTP set both")


def _folder(data: Path) -> list[str]:
    there = data.stat()
    faults = []
    if stat.S_IMODE(there.st_mode) & 0o077:
        faults.append(f"other users may look into it: chmod 700 {data}")
    if not os.access(data, os.W_OK):
        faults.append("the user of this command may not write there; run this, and the service, as its owner")
    for path in sorted(data.iterdir()):
        if path.name == "lost+found":  # where a disk is mounted: root's, and as it should be
            continue
        with contextlib.suppress(FileNotFoundError):  # commands that work there make notes that come and go
            owner = path.lstat().st_uid
            if owner != there.st_uid:
                faults.append(f"{path.name} belongs to {_user(owner)}, the folder to {_user(there.st_uid)}: chown it")
    if (kind := _file_system(data)) in NETWORK_FILES:
        faults.append(f"it is on a network file system ({kind}), where locks do not hold: move it to a local disk")
    return faults


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _file_system(path: Path) -> str:
    """The kind of the file system that a path is on; nothing where the kernel does not tell."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return ""
    here = path.resolve()
    kinds = {Path(at): kind for _, at, kind, *_ in mounts}
    return next((kinds[folder] for folder in (here, *here.parents) if folder in kinds), "")


def _space(data: Path) -> tuple[list[str], str]:
    there = os.statvfs(data)
    free = there.f_bavail * there.f_frsize
    faults = []
    if free < LOW_SPACE:
        faults.append(f"only {free // 2**20} MiB left; old backups, replaced-… and gate.mdb.damaged-… can go")
    if there.f_files and there.f_favail < LOW_FILES:
        faults.append(f"only {there.f_favail} more files can be made; remove some")
    return faults, f"{free // 2**20:,} MiB"


def _certificate(settings: Settings) -> tuple[list[str], str]:
    """A handshake with ourselves: OpenSSL then tells until when the certificate holds."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # trust this very certificate, whoever has signed it
    try:
        server.load_cert_chain(str(settings.tls_cert), str(settings.tls_key))
        client.load_verify_locations(str(settings.tls_cert))
        days = (_shown_until(server, client) - time.time()) / 86_400
    except ssl.SSLCertVerificationError as error:
        return [f"{settings.tls_cert}: {error.verify_message}"], ""
    except OSError as error:
        return [f"{settings.tls_cert} and {settings.tls_key} cannot be used: {error}"], ""
    faults = [f"{settings.tls_cert}: expires in {days:.0f} days"] if days < CERTIFICATE_DAYS else []
    return faults, f"valid for {days:.0f} days"


def _shown_until(server: ssl.SSLContext, client: ssl.SSLContext) -> float:
    """Until when the certificate holds that the client is shown. Raises SSLError."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(down, up)
    answering = server.wrap_bio(up, down, server_side=True)
    while True:
        try:
            asking.do_handshake()
            break
        except ssl.SSLWantReadError:
            with contextlib.suppress(ssl.SSLWantReadError):
                answering.do_handshake()
    return ssl.cert_time_to_seconds(str((asking.getpeercert() or {})["notAfter"]))
