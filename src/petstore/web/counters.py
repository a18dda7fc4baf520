"""Counts the requests to one base address by outcome. For speed, counting a request only updates dictionaries.

The counts are published as metrics once a second, and written to the store as usage every few seconds. The gate counts
each key's admitted requests. This module counts errors, refusals, bans, and requests without a valid key. Each key's
recent errors are written more often than usage, because an operator may be waiting to see them.
"""

from collections import Counter, defaultdict, deque
from itertools import islice
from typing import Literal

from petstore.keys import ApiKey, Environment
from petstore.observability.metrics import ADMISSIONS, PAGE_CACHE, REQUEST_SECONDS, REQUESTS, SIMULATED
from petstore.operations import OperationName
from petstore.store.usage import Usage
from petstore.usage import AnonymousMeasure, KeyMeasure, OperationUsage, RecentError, TotalUsage, path_to_keep

CountedOperation = OperationName  # or SITE
SITE = "site"  # requests outside the base addresses
BANNED_429 = 4290  # a pseudo-status for 429s due to a ban, which are counted separately from other 429s
ROWS_MAX = 250  # usage rows per transaction; kept small so that create requests do not wait long for the lock
ERRORS_MAX, ERROR_KEYS_MAX = 10, 25  # the most errors per key, and the most keys with errors, in one flush
PER_SECOND = 100_000  # durations are counted in steps of 10 µs

# The responses that count as page cache hits or misses.
_PAGES = {("listPets", 200), ("listPets", 304)}


class RequestCounters:
    """Counters for one environment or for the site. No usage is recorded for the site, so it needs no store."""

    def __init__(self, environment: Environment | Literal["none"], usage_store: Usage | None = None) -> None:
        self._environment = environment
        self._usage_store = usage_store
        self._counts: defaultdict[tuple[str, str, CountedOperation, int], int] = defaultdict(int)
        self._durations: dict[CountedOperation, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._usage: Counter[tuple[str, OperationName, KeyMeasure]] = Counter()
        self._anonymous: Counter[AnonymousMeasure] = Counter()
        self._last_used: dict[str, float] = {}
        self._errors: dict[str, deque[RecentError]] = {}  # each key's errors since the last flush

    def note_error(
        self, key_id: str, at: float, request_id: str, operation: OperationName, status: int, code: str, path: str
    ) -> None:
        """Adds an error to the key's recent errors. In a flood of refusals, keeps only the first few."""
        of_key = self._errors.get(key_id)
        if of_key is None:
            if len(self._errors) >= ERROR_KEYS_MAX:
                return
            of_key = self._errors[key_id] = deque(maxlen=ERRORS_MAX)
        elif status == 429 and len(of_key) == ERRORS_MAX and of_key[-1].code == code:
            return
        of_key.append(RecentError(key_id, at, request_id, operation, status, code, path))

    def count(self, key: ApiKey | None, operation: CountedOperation, status: int, duration: float) -> None:
        if key is None:
            self._counts["", "none", operation, status] += 1
        else:
            self._counts[key.id, key.plan, operation, status] += 1
        self._durations[operation][int(duration * PER_SECOND)] += 1

    def count_simulated(self, key: ApiKey, operation: OperationName, code: str, now: float) -> None:
        """Counts a simulated error. Request metrics and recent errors do not include simulated errors."""
        SIMULATED.add(code)
        self._last_used[key.id] = now

    def publish(self, now: float, page_misses: int = 0) -> None:
        """Adds the counts since the last call to the metrics and to the usage that `flush` writes."""
        pages = 0
        counts, self._counts = self._counts, defaultdict(int)
        for (key_id, plan, operation, status), n in counts.items():
            self._add(key_id, plan, operation, status, n)
            if (operation, status) in _PAGES:
                pages += n
            if key_id:
                self._last_used[key_id] = now
        for operation, durations in self._durations.items():
            for step, times in durations.items():
                REQUEST_SECONDS.observe((step + 0.5) / PER_SECOND, operation, times=times)
            durations.clear()
        if pages:
            PAGE_CACHE.add(self._environment, "hit", by=pages - page_misses)
            PAGE_CACHE.add(self._environment, "miss", by=page_misses)

    def _add(self, key_id: str, plan: str, operation: CountedOperation, status: int, n: int) -> None:
        shown = "429" if status == BANNED_429 else str(status)
        REQUESTS.add(self._environment, operation, shown, plan, by=n)
        if operation == SITE:
            return
        if key_id:
            measure = _key_measure(status)
            if measure is not None:
                self._usage[key_id, operation, measure] += n
            outcome = measure if measure in ("refused", "banned") else "admitted"
            ADMISSIONS.add(self._environment, "key", outcome, by=n)
        else:
            anonymous = _anonymous_measure(status)
            self._anonymous[anonymous] += n
            if anonymous != "anonymous_server_error":
                outcome = "refused" if anonymous == "anonymous_refused" else "admitted"
                ADMISSIONS.add(self._environment, "address", outcome, by=n)

    @property
    def keys_seen(self) -> list[str]:
        """Returns the ids of the keys that have sent requests since the last flush."""
        return list(self._last_used)

    async def flush(self, now: float) -> None:
        """Writes the usage recorded since the last call, in one or more transactions.

        All of this usage is attributed to the current minute. If the store is unavailable, raises Unavailable and keeps
        the remaining usage for the next call.
        """
        if self._usage_store is None:
            return
        start = int(now)
        usage, anonymous, last_used = self._usage, self._anonymous, self._last_used
        self._usage, self._anonymous, self._last_used = Counter(), Counter(), {}
        try:
            while usage or anonymous or last_used:
                cells = list(islice(usage.items(), ROWS_MAX))
                rows = [OperationUsage(key_id, start, measure, n, name) for (key_id, name, measure), n in cells]
                used = dict(islice(last_used.items(), ROWS_MAX))
                totals = [TotalUsage(start, measure, n) for measure, n in anonymous.items()]
                await self._usage_store.add(rows, used, totals)
                anonymous.clear()
                for cell, _ in cells:
                    del usage[cell]
                for key_id in used:
                    del last_used[key_id]
        except BaseException:
            self._usage += usage
            self._anonymous += anonymous
            self._last_used = last_used | self._last_used
            raise

    async def flush_errors(self) -> None:
        """Writes the errors noted since the last call.

        If the store is unavailable, raises Unavailable and keeps the errors for the next call.
        """
        if self._usage_store is None or not self._errors:
            return
        errors, self._errors = self._errors, {}
        try:
            await self._usage_store.add_errors(
                [error._replace(path=path_to_keep(error.path)) for of_key in errors.values() for error in of_key]
            )
        except BaseException:
            self._errors = errors | self._errors  # a key's new errors replace its old ones
            raise


def _key_measure(status: int) -> KeyMeasure | None:
    """Returns the usage measure for a response, or None for a success, which the gate has already counted."""
    if status < 400:
        return None
    if status in (429, BANNED_429):
        return "refused" if status == 429 else "banned"
    return "client_error" if status < 500 else "server_error"


def _anonymous_measure(status: int) -> AnonymousMeasure:
    if status < 400:
        return "anonymous_ok"
    if status == 401:
        return "unauthorized"
    if status == 429:
        return "anonymous_refused"
    return "anonymous_client_error" if status < 500 else "anonymous_server_error"
