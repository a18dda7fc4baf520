"""Describes each log event and what operators can do about it. docs/reference/events.md is generated from this file."""

from typing import NamedTuple


class LogEvent(NamedTuple):
    meaning: str
    action: str = ""  # may contain Markdown links, which are relative to docs/


UNAVAILABLE = "[503 unavailable](at-3-am.md#503-unavailable)"
BUG = "[report the bug](at-3-am.md#500-internal-error)"
WORKERS = "[workers die](at-3-am.md#workers-die)"

EVENTS = {
    "request": LogEvent(
        "One request, from the client's `address`. `operation` is the name under which the request is counted, `key` is"
        " the key's id, `pet` is the id of the added animal, and `ms` is the duration in milliseconds. A message that"
        " is not a valid request has only `id`, `status` and `address`. Logged only with `--access-log`."
    ),
    "unavailable": LogEvent(
        "A request got a 503; see `cause`. Logged at most once per second for each cause. `others` counts the requests"
        " that were not logged.",
        UNAVAILABLE,
    ),
    "internal error": LogEvent("A request failed because of a bug; see `trace` and `request`.", BUG),
    "data readable by others": LogEvent(
        "On startup, other users had access to the files in `paths`.", "Run the command in `hint`."
    ),
    "started": LogEvent("All workers are ready."),
    "draining": LogEvent(
        "`SIGTERM` was received. The service keeps serving for `seconds`, because `connections` are open, but `/readyz`"
        " returns 503."
    ),
    "stopped": LogEvent("All workers have exited."),
    "store opening": LogEvent(
        "A start or a reload is waiting, because this node or another node is upgrading the schema.",
        "Wait. If you kill the process, the interrupted step is repeated when the service is next started.",
    ),
    "store down": LogEvent(
        "Reads or writes are failing; see `environment`, `access` (read or write) and `cause`.", UNAVAILABLE
    ),
    "store back": LogEvent("Reads or writes work again. The outage lasted `seconds`."),
    "gate down": LogEvent(
        "The gate does not respond. With Redis, `--gate-outage` determines how requests are handled.",
        "[Gate down](at-3-am.md#gate-down)",
    ),
    "gate back": LogEvent("The gate responds again. The outage lasted `seconds`."),
    "gate failed": LogEvent("The gate in Redis failed because of a bug, and requests got a 500; see `trace`.", BUG),
    "shard down": LogEvent(
        "One server of the Redis Cluster does not respond. `--gate-outage` applies only to the keys on that server.",
        "[Gate down](at-3-am.md#gate-down)",
    ),
    "shard back": LogEvent("The server responds again. Not logged if another server has taken over its slots."),
    "gate file damaged": LogEvent(
        "The gate file was unreadable, or was in use when the machine stopped. It was renamed, and counters start at"
        " zero.",
        "No action is needed. The cause is often a power cut or a full disk.",
    ),
    "housekeeping failed": LogEvent("A periodic task failed because of a bug; see `trace`. Other tasks continue.", BUG),
    "metrics not written": LogEvent(
        "A worker cannot create its files in `metrics/`. It keeps serving requests and tries again every second.",
        "Free disk space or fix permissions; see `cause`.",
    ),
    "worker died": LogEvent(
        "A worker exited with `status`, or was killed by a signal, in which case `status` is negative. The worker is"
        " replaced immediately, or after `retry_seconds`.",
        WORKERS,
    ),
    "worker failed": LogEvent(
        "A worker cannot start; see `cause` or `trace`. The main process tries again after `retry_seconds`. Until then,"
        " the other workers serve all new connections.",
        WORKERS,
    ),
    "workers keep dying": LogEvent(
        "Five workers in succession crashed on startup and no worker is ready, so the service stops.", WORKERS
    ),
    "connection refused": LogEvent(
        "There are too many connections, in total or from one `address`, or they use too much memory. Logged at most"
        " once per second.",
        "Raise `--connections-per-address`, or block the address.",
    ),
    "reload begins": LogEvent("SIGHUP was received."),
    "reloaded": LogEvent("All new workers are ready, and the old ones are finishing their requests."),
    "reload failed": LogEvent(
        "The new workers cannot start; see `cause` or `trace`. The current workers keep running.",
        "Fix the cause, then reload.",
    ),
    "reload queued": LogEvent("SIGHUP was received during a reload. Another reload will follow."),
    "reload ignored": LogEvent("SIGHUP was received during a shutdown."),
    "sign-in failed": LogEvent(
        "Someone tried to sign in to the console from `address` with an invalid token. `others` counts further failures"
        " since the previous line.",
        "No action is needed unless this keeps happening.",
    ),
    "background value failed": LogEvent(
        "The console could not update a count or a total. It shows the last value and its age.",
        "The store or the gate is unavailable; see `cause`.",
    ),
    "supervisor gone": LogEvent("The main process was killed, so the worker exits.", "Start the service again."),
}
