"""Every log event: what it means, and what an operator does. docs/reference/events.md is written from this table."""

from typing import NamedTuple


class LogEvent(NamedTuple):
    meaning: str
    action: str = ""  # may link to a document, relative to docs/


UNAVAILABLE = "[503 unavailable](at-3-am.md#503-unavailable)"
BUG = "[report the bug](at-3-am.md#500-internal-error)"
WORKERS = "[workers die](at-3-am.md#workers-die)"

EVENTS = {
    "request": LogEvent(
        "One request; `operation` is the name that it is counted under, `key` the id of its key, and `pet` that of the"
        " animal that it added. Only with `--access-log`."
    ),
    "unavailable": LogEvent(
        "A request got 503; `cause` says why. At most one line a second for each cause; `others` counts the rest.",
        UNAVAILABLE,
    ),
    "internal error": LogEvent("A request met a bug; `trace` and `request` show where.", BUG),
    "data readable by others": LogEvent(
        "At a start: other users have permissions for the files in `paths`.", "Run the command in `hint`."
    ),
    "store opening": LogEvent(
        "A start takes long, because this node or another one upgrades the schema.",
        "Wait. A start that is killed begins the step again.",
    ),
    "store down": LogEvent("Reads or writes (`access`) of an `environment` fail; `cause` says why.", UNAVAILABLE),
    "store back": LogEvent("They work again, after `seconds`."),
    "gate down": LogEvent(
        "The gate does not answer. With Redis, `--gate-outage` decides what happens meanwhile.",
        "[Gate down](at-3-am.md#gate-down)",
    ),
    "gate back": LogEvent("The gate answers again, after `seconds`."),
    "gate failed": LogEvent("The gate in Redis met a bug, and its requests got 500; `trace` shows where.", BUG),
    "shard down": LogEvent(
        "One server of the Redis Cluster does not answer. `--gate-outage` applies to its keys only.",
        "[Gate down](at-3-am.md#gate-down)",
    ),
    "shard back": LogEvent("The server answers again. There is no line when another server has taken its slots."),
    "gate file damaged": LogEvent(
        "`gate.mdb` could not be read, or was in use when the machine stopped. It was set aside; counting starts anew.",
        "Look for the cause: often a power cut or a full disk.",
    ),
    "housekeeping failed": LogEvent("A task of each second met a bug; `trace` shows which. Other tasks go on.", BUG),
    "metrics not written": LogEvent(
        "A worker cannot make its files in `metrics/`. It serves without metrics and tries again each second.",
        "Free disk space or fix permissions: see `cause`.",
    ),
    "worker died": LogEvent(
        "A worker ended with `status`, negative for a signal. It is replaced at once, or after `retry_seconds`.",
        WORKERS,
    ),
    "worker failed": LogEvent("A worker cannot start or continue; `cause` or `trace` says why.", WORKERS),
    "workers keep dying": LogEvent(
        "Five workers ended right after their start and no worker is ready, so the service ends.", WORKERS
    ),
    "connection refused": LogEvent(
        "Too many connections, from one `address` or in all, or they hold too much memory. At most one line a second.",
        "Raise `--connections-per-address`, or block the address.",
    ),
    "reload begins": LogEvent("SIGHUP was received."),
    "reloaded": LogEvent("All new workers serve, and the old ones finish."),
    "reload failed": LogEvent(
        "The new workers cannot start; `cause` says why. The present workers stay.", "Fix the cause, reload again."
    ),
    "reload queued": LogEvent("SIGHUP was received during a reload. One more reload follows it."),
    "reload ignored": LogEvent("SIGHUP was received during a stop."),
    "sign-in failed": LogEvent(
        "The console got an invalid token from `address`. `others` counts the failures since the line before.",
        "Nothing, unless it goes on.",
    ),
    "background value failed": LogEvent(
        "The console could not read a count or a sum. The page shows the age of the last value.",
        "The store or the gate is away: see `cause`.",
    ),
    "supervisor gone": LogEvent("The main process was killed, so the worker ends.", "Start the service again."),
}
