"""The interface to `admit.lua`: names its records, packs its arguments and unpacks its replies."""

import asyncio
import hashlib
import itertools
import struct
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any, NamedTuple

from petstore.changes import CHANGES, Change
from petstore.errors import Unavailable
from petstore.gate import DIGEST_LENGTH, CatalogueVersion, bucket_of
from petstore.gate.records import pack_windows
from petstore.keys import ENVIRONMENTS, Environment
from petstore.rate_limits import Decision, Outcome, Window, Windows

Command = tuple[Any, ...]  # the words of one Redis command
Versions = tuple[int, ...]  # all versions, in the order of VERSION_NUMBER
ScriptResult = tuple[int, int, int, int, int, int]  # a decision's outcome, window, limit, remaining, reset and wait
# The versions and a result for each call. The result is Unavailable if the call's shard of a Redis Cluster failed.
ScriptReply = tuple[Versions, Sequence[ScriptResult | Unavailable]]

SCRIPT = resources.files("petstore.gate").joinpath("admit.lua").read_text()
LOAD_SCRIPT: Command = ("SCRIPT", "LOAD", SCRIPT)
SCRIPT_SHA1 = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()  # Redis identifies scripts by SHA-1

# The operations that the script can perform on a record.
KEY_LIVE, KEY_STAGING, ADDRESS, PEEK, LIFT, MARK, IS_MARKED = range(7)
KEY_OPERATION: dict[Environment, int] = {"live": KEY_LIVE, "staging": KEY_STAGING}
_KEY_ENVIRONMENT = {operation: environment for environment, operation in KEY_OPERATION.items()}
OUTDATED = 3  # the outcome of a call whose `keys_version` is out of date

# The number in the prefix is the version of the record format. Increment it whenever the format changes.
PREFIX = "petstore/1/"
VERSIONS_RECORD = f"{PREFIX}versions"
VERSION_NUMBER: dict[tuple[Environment, Change], int] = {
    name: number for number, name in enumerate(itertools.product(ENVIRONMENTS, CHANGES))
}
ALL_CHANGES = (1 << len(VERSION_NUMBER)) - 1  # a bitmask with one bit for each version

_versions = struct.Struct(f"<{len(VERSION_NUMBER)}q")
_call = struct.Struct("<5q")
_result = struct.Struct("<6q")
_WINDOW_NAMES: tuple[Window, Window] = ("minute", "day")
_OUTCOMES = tuple(Outcome)


class ScriptCall(NamedTuple):
    """One operation on one record, and the future for its result."""

    record: str
    operation: int
    keys_version: int
    per_minute: int
    per_day: int
    future: "asyncio.Future[tuple[Versions, ScriptResult]]"
    number: int = 0  # the number of the API operation to count


def key_record(key_id: str) -> str:
    """Returns the name of a key's record. In Redis Cluster, the part in braces (the hash tag) determines the slot."""
    return f"{PREFIX}key/{{{key_id}}}"


def key_id_of(record: bytes) -> str:
    return record.decode().partition("{")[2].removesuffix("}")


def mark_record(digest: bytes) -> str:
    return f"{PREFIX}valid/{digest[:DIGEST_LENGTH].hex()}"


def address_record(environment: Environment, address: str) -> str:
    return f"{PREFIX}address/{{{environment}-{bucket_of(address).hex()}}}"


def script_command(
    records: Sequence[str], now: str, bans: Sequence[int], announced: int | str, calls: Iterable[ScriptCall]
) -> Command:
    """Returns the command that runs the script. The arguments are documented in `admit.lua`."""
    pack = _call.pack
    packed = [pack(each.operation, each.keys_version, each.per_minute, each.per_day, each.number) for each in calls]
    return ("EVALSHA", SCRIPT_SHA1, len(records), *records, now, *bans, announced, b"".join(packed))


def unpack_reply(reply: bytes) -> ScriptReply:
    return unpack_versions(reply), unpack_results(memoryview(reply)[_versions.size :])


def unpack_versions(reply: bytes) -> Versions:
    return _versions.unpack_from(reply)


def catalogue_version(versions: Versions, environment: Environment) -> CatalogueVersion:
    return versions[VERSION_NUMBER[environment, "added"]], versions[VERSION_NUMBER[environment, "edited"]]


def unpack_results(reply: bytes | memoryview) -> list[ScriptResult]:
    return list(_result.iter_unpack(reply))


def decision_of(result: ScriptResult) -> Decision:
    outcome, window, limit, remaining, reset, wait = result
    return Decision(_OUTCOMES[outcome], _WINDOW_NAMES[window], limit, remaining, reset, wait)


def is_outdated(call: ScriptCall, versions: Versions) -> bool:
    """Whether any key has changed since the caller read this key's limits."""
    environment = _KEY_ENVIRONMENT.get(call.operation)
    return environment is not None and call.keys_version != versions[VERSION_NUMBER[environment, "keys"]]


def put_command(key_id: str, w: Windows) -> Command:
    """Returns the command that replaces the windows in a key's record but keeps its counts."""
    return ("SETRANGE", key_record(key_id), 0, pack_windows(w))
