"""Counts what became of the requests to one base address. A request only adds to a dictionary.

Once a second the counts go to the metrics, every few seconds to the usage of each key in the store. The gate counts the
admitted requests of keys, which enter the usage as class `ok`; from here come the refused ones and the errors.
"""

from collections import defaultdict, deque
from itertools import islice
from typing import Literal

from petstore.keys import ApiKey, Environment
from petstore.observability.metrics import ADMISSIONS, PAGE_CACHE, REQUEST_SECONDS, REQUESTS, SIMULATED
from petstore.operations import OperationName
from petstore.store.usage import Usage
from petstore.usage import ANONYMOUS, OperationUsage, RecentError, ResponseClass

CountedOperation = OperationName  # or SITE
SITE = "site"  # what is outside the base addresses
BANNED_429 = 4290  # the status under which a ban is counted, apart from other 429s
ROWS_MAX = 250  # rows of usage in one transaction, so that creates do not wait long for the write lock
ERRORS_MAX, ERROR_KEYS_MAX = 10, 25  # errors of a key, and keys, that one flush writes down
PER_SECOND = 100_000  # durations are counted in steps of 10 µs

# Responses that are a page: each came from the cache or was a miss.
_PAGES = {("listPets", 200), ("listPets", 304)}


class RequestCounters:
    """The counters of one environment. Without a store they count the site's pages, which are no key's usage."""

    def __init__(self, environment: Environment | Literal["none"], usage_store: Usage | None = None) -> None:
        self._environment = environment
        self._usage_store = usage_store
        self._counts: defaultdict[tuple[str, str, CountedOperation, int], int] = defaultdict(int)
        self._durations: dict[CountedOperation, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._usage: defaultdict[tuple[str, OperationName, ResponseClass], int] = defaultdict(int)
        self._last_used: dict[str, float] = {}
        self._errors: dict[str, deque[RecentError]] = {}  # of each key, since the last flush

    def note_error(self, error: RecentError) -> None:
        of_key = self._errors.get(error.key_id)
        if of_key is None:
            if len(self._errors) >= ERROR_KEYS_MAX:
                return
            of_key = self._errors[error.key_id] = deque(maxlen=ERRORS_MAX)
        of_key.append(error)

    def count(self, key: ApiKey | None, operation: CountedOperation, status: int, duration: float) -> None:
        if key is None:
            self._counts["", "none", operation, status] += 1
        else:
            self._counts[key.id, key.plan, operation, status] += 1
        self._durations[operation][int(duration * PER_SECOND)] += 1

    def count_simulated(self, key: ApiKey, operation: OperationName, code: str, now: float) -> None:
        """An error that the client of staging has preferred: not among the metrics of requests, nor a last error."""
        SIMULATED.add(code)
        self._usage[key.id, operation, "ok"] += 1
        self._last_used[key.id] = now

    def publish(self, now: float, page_misses: int = 0) -> None:
        """Add what was counted since the last call to the metrics, and to the usage that waits to be written."""
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
        response = _response_class(status)
        shown = "429" if status == BANNED_429 else str(status)
        REQUESTS.add(self._environment, operation, shown, plan, by=n)
        if self._usage_store is not None and operation != SITE:
            self._usage[key_id or ANONYMOUS, operation, response] += n
        if key_id or (operation != SITE and response != "server_error"):
            outcome = response if response in ("refused", "banned") else "admitted"
            ADMISSIONS.add(self._environment, "key" if key_id else "address", outcome, by=n)

    @property
    def keys_seen(self) -> list[str]:
        """The keys that sent requests since the last flush."""
        return list(self._last_used)

    async def flush(self, now: float) -> None:
        """Write the usage since the last call, under the present minute, some rows at a time.

        Raises Unavailable, and keeps what was not written for the next call.
        """
        if self._usage_store is None:
            return
        usage, last_used, errors = self._usage, self._last_used, self._errors
        self._usage, self._last_used, self._errors = defaultdict(int), {}, {}
        try:
            while cells := list(islice(usage, ROWS_MAX)):
                rows = [row for cell in cells for row in _rows(*cell, usage[cell], int(now))]
                used = {key_id: last_used[key_id] for key_id, *_ in cells if key_id in last_used}
                await self._usage_store.add(rows, used)
                for cell in cells:
                    del usage[cell]
            await self._usage_store.add_errors([error for of_key in errors.values() for error in of_key])
        except BaseException:
            for cell, n in usage.items():
                self._usage[cell] += n
            self._last_used = last_used | self._last_used
            self._errors = errors | self._errors  # of a key that has new errors, those
            raise


def _rows(
    key_id: str, operation: OperationName, response: ResponseClass, requests: int, at: int
) -> list[OperationUsage]:
    """What to add to the usage. An error of a key was admitted: it moves from `ok` to its own class."""
    row = OperationUsage(key_id, at, response, requests, operation)
    if key_id == ANONYMOUS or response in ("refused", "banned"):
        return [row]
    if response == "ok":
        return []
    return [row, row._replace(response="ok", requests=-requests)]


def _response_class(status: int) -> ResponseClass:
    if status < 400:
        return "ok"
    if status in (429, BANNED_429):
        return "refused" if status == 429 else "banned"
    if status == 401:
        return "unauthorized"
    return "client_error" if status < 500 else "server_error"
