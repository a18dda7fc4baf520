"""Every decision of the client, and no I/O: what to send, whether to send it again, how long to wait.

A call is a generator, a `Flow`, that yields steps and is sent their outcomes. The shells that take the steps, one for
threads and one for asyncio, are in `_shells.py`.
"""

from collections.abc import Callable
from urllib.parse import urlencode

import msgspec

from petstore_client._answers import next_query, pet_of, pets_of, rate_limit_of, request_id_of, success_or_error
from petstore_client._errors import RateLimited, TimedOut
from petstore_client._models import Pet, Status
from petstore_client._pace import Pace
from petstore_client._retry import wait_after, worth_retrying
from petstore_client._steps import Answer, Flow, Send, Wait
from petstore_client._tries import Try

SHORTEST_NAP, LONGEST_NAP = 0.005, 0.25  # between two looks at whether the answer to another request has come
LONGEST_HOLD = 60.0  # until a call without a turn ends: what came before it is not being answered


class Rules(msgspec.Struct, frozen=True):
    """How often, and how long."""

    retries: int = 2
    max_wait: float = 60.0


class _NewPet(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    category_id: int
    status: Status | msgspec.UnsetType


class Core:
    """The three operations as flows, all at one pace."""

    def __init__(
        self,
        rules: Rules,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        random: Callable[[], float],
        report: Callable[[Try], object],
    ) -> None:
        self.pace = Pace()
        self._rules = rules
        self._clock = clock
        self._wall_clock = wall_clock
        self._random = random
        self._report = report

    def create_pet(self, name: str, category_id: int, status: Status | None, idempotency_key: str) -> Flow[Pet]:
        """Raises PetstoreError, and ValueError for a text that is not Unicode."""
        new = _NewPet(name, category_id, msgspec.UNSET if status is None else status)
        headers = {"Content-Type": "application/json", "Idempotency-Key": idempotency_key}
        try:
            body = msgspec.json.encode(new)
        except UnicodeEncodeError as error:
            raise ValueError("the name has characters that cannot be sent: it is not Unicode") from error
        return pet_of((yield from self._call(Send("POST", "/pets", headers, body))))

    def get_pet(self, pet_id: int) -> Flow[Pet]:
        """Raises PetstoreError."""
        return pet_of((yield from self._call(Send("GET", f"/pets/{pet_id:d}"))))

    def list_page(self, query: str) -> Flow[tuple[list[Pet], str | None]]:
        """The animals of one page, and the query of the next if there is one. Raises PetstoreError."""
        answer = yield from self._call(Send("GET", f"/pets?{query}"))
        return pets_of(answer), next_query(answer)

    def _call(self, request: Send) -> Flow[Answer]:
        """Send until there is a success, or an error that another try would not mend."""
        rules, number, refusal = self._rules, 0, None
        while True:
            number += 1
            yield from self._turn(goes_first=refusal is not None)
            began = self._clock()
            try:
                outcome = yield request
            except BaseException:  # the shell gave up: the task was cancelled, or Ctrl-C was pressed
                self.pace.leave()
                raise
            now = self._clock()
            result = success_or_error(outcome, self._wall_clock())
            error = None if isinstance(result, Answer) else result
            refusal = error if isinstance(error, RateLimited) else None
            wait = 0.0 if error is None else wait_after(error, number, self._random())
            limit = rate_limit_of(outcome)
            unlimited = limit is None and (isinstance(outcome, Answer) or outcome.unsent)
            self.pace.leave(limit, refusal, now + wait, unlimited=unlimited)
            again = error is not None and worth_retrying(error) and number <= rules.retries and wait <= rules.max_wait
            self._report(
                Try(
                    method=request.method,
                    path=request.path,
                    number=number,
                    of=rules.retries + 1,
                    seconds=now - began,
                    status=outcome.status if isinstance(outcome, Answer) else None,
                    code=None if error is None else error.code,
                    request_id=request_id_of(outcome),
                    wait=wait if again else None,
                )
            )
            if isinstance(result, Answer):
                return result
            if not again:
                raise result
            if refusal is None:  # the wait after a 429 is everybody's: the next turn keeps it
                yield from self._until(now + wait)

    def _turn(self, *, goes_first: bool) -> Flow[None]:
        """Hold back until the pace lets this call send.

        Raises RateLimited if a pause outlasts `max_wait`, and TimedOut if for too long no other request was answered.
        """
        nap, held, latest = SHORTEST_NAP, 0.0, None
        while (hold := self.pace.enter(now := self._clock())) is not None:
            if hold.refusal is not None:
                # Counted from the first pause met, so that a call that keeps losing the race for a place ends.
                latest = now + self._rules.max_wait if latest is None else latest
                if hold.pause_end > latest:
                    raise hold.refusal.replace(retry_after=hold.pause_end - now)
                yield from self._until(hold.pause_end)
                nap, held = SHORTEST_NAP, 0.0
                if goes_first:  # after a pause, the call that was refused: it would be hard on it to be refused again
                    continue
            if held > LONGEST_HOLD:
                raise TimedOut("not sent: for too long the requests before it got no answers", code="timed_out")
            yield Wait(nap)
            held += nap
            nap = min(nap * 2, LONGEST_NAP)

    def _until(self, moment: float) -> Flow[None]:
        while (left := moment - self._clock()) > 0:
            yield Wait(left)


class Walk:
    """One traversal of the list. It keeps its place: after an error, the same page is asked for again."""

    def __init__(self, core: Core, status: Status | None, limit: int) -> None:
        self._core = core
        self._query: str | None = urlencode({"limit": limit} | ({} if status is None else {"status": status}))

    def next_page(self) -> Flow[list[Pet]]:
        """The animals of the next page that has any; none at the end. Raises PetstoreError."""
        while self._query is not None:
            pets, self._query = yield from self._core.list_page(self._query)
            if pets:
                return pets
        return []
