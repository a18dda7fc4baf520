"""The request pipeline. A request takes one of two paths:

the API:  route → authenticate and admit by key → check method and scope → run the operation → reply
the site: route → admit by address → serve the document or probe → reply
"""

import logging
from asyncio import CancelledError
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any

from petstore.errors import Gone, RequestError, Unavailable
from petstore.gate import Gate
from petstore.keys import ApiKey, Environment, without_keys
from petstore.observability.logs import Throttled, event, logger
from petstore.observability.metrics import REJECTED
from petstore.rate_limits import ADMITTED, BANNED, LIMITED, SECOND, Decision
from petstore.settings import Settings
from petstore.store import Store
from petstore.web.admission import Admission, insufficient_scope, unauthorized
from petstore.web.client_address import client_address, networks
from petstore.web.cors import Cors
from petstore.web.counters import BANNED_429, SITE, RequestCounters
from petstore.web.deadlines import Deadlines, Task
from petstore.web.pets import PetOperations
from petstore.web.preferences import NONE, Delays, Preferences, parse_preferences, simulate, simulated_decision
from petstore.web.replies import (
    NO_STORE,
    REJECTIONS,
    Lines,
    Reply,
    error_reply,
    internal_error,
    line,
    refusal,
    reply_of,
    request_ids,
    seconds,
    unavailable,
)
from petstore.web.requests import Request
from petstore.web.routes import Api, Route, Router, not_found, wrong_address
from petstore.web.site import Scrape, Site


class App:
    def __init__(
        self,
        settings: Settings,
        stores: dict[Environment, Store],
        gate: Gate,
        clock: Callable[[], float],
        scrape: Scrape | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._clock = clock
        self._deadlines = deadlines = deadlines or Deadlines(stores["live"].database.bounds.timeouts.deadline)
        self._reads_wait = not (gate.immediate and all(store.database.immediate for store in stores.values()))
        self._request_ids = request_ids()
        self._gate = gate
        self._access_log = settings.access_log
        self._ietf_headers = settings.ietf_headers
        self._address_limit = settings.address_per_minute
        self._trusted = networks(settings.trusted_proxies)
        self._cors = Cors(settings.cors_origins) if settings.cors_origins else None
        self._site = Site(settings, stores, gate, clock, scrape)
        self._site_counters = RequestCounters("none")
        self._outages = Throttled("unavailable")
        self._delays = Delays()
        self._apis = {
            each: Api(
                each,
                Admission(each, store.keys, store.freshness, gate, self.address_of),
                PetOperations(store.pets, settings.base_url(each), deadlines),
                RequestCounters(each, store.usage),
            )
            for each, store in stores.items()
        }
        self._router = Router(self._apis, settings)

    @property
    def counters(self) -> list[RequestCounters]:
        return [api.counters for api in self._apis.values()]

    def address_of(self, request: Request) -> str:
        return client_address(request.peer, request.fields.get("x-forwarded-for", ""), self._trusted)

    def publish(self, ticks: float) -> None:
        """Publishes the counters and logs how many events were suppressed. Called once a second.

        `ticks` is the value of `perf_counter`, or infinity on shutdown.
        """
        now = self._clock()
        for api in self._apis.values():
            api.counters.publish(now, api.pets.pages.take_misses())
        self._site_counters.publish(now)
        self._outages.flush(ticks)

    def drain(self) -> None:
        """Makes `/readyz` return 503, so that load balancers stop using this node. Called before a shutdown."""
        self._site.is_draining = True

    def end_delays(self) -> None:
        """Sends all delayed responses immediately. Called on shutdown."""
        self._delays.end()

    def answer(self, request: Request) -> Coroutine[Any, Any, Reply]:
        """Returns the reply to a request. Never raises, because every error becomes a reply."""
        route = self._router.find(request)
        if route is None:
            return self._answer_site_request(request)
        return self._answer_api_request(request, route)

    async def _answer_api_request(self, request: Request, route: Route) -> Reply:
        """Handles a request under a base address."""
        # A read from local files never blocks, so it needs no deadline. Skipping the deadline saves 1 µs.
        task = self._deadlines.begin() if self._reads_wait or request.method == "POST" else None
        now = self._clock()
        request_id = next(self._request_ids)
        api = route.api
        key: ApiKey | None = None
        decision: Decision | None = None
        preferences, delayed = NONE, 0.0
        try:
            key, decision, version = await api.admission.admit(request, now, route.counted_as)
            if request.method == "OPTIONS":
                reply = self._options(request, route, key, decision)
            elif decision.outcome is not ADMITTED:
                reply = refusal(decision)
            else:
                if key is None:
                    raise unauthorized(request, api.environment)
                if "prefer" in request.fields:
                    preferences = parse_preferences(request.fields["prefer"]).on(api.environment)
                    preferences = self._delays.granted(preferences)
                    delayed = await self._deadlines.pause(self._delays.wait(preferences.delay))
                    decision = simulated_decision(decision, preferences, now + delayed)
                    simulate(preferences, request, route, request_id)
                if route.operation is None or route.handler is None:
                    raise wrong_address(request.path, route.allow)
                if route.operation.scope not in key.scopes:
                    raise insufficient_scope(route.operation.scope)
                if now >= route.end:
                    raise Gone(route.gone)
                reply = await route.handler(api.pets, request, key, version, now, preferences.strict)
        except (Exception, CancelledError) as error:
            reply = self._reply_of(self._deadlines.cause(task, error), request_id)

        if decision is None:
            decision = await self._peek(task, api.environment, self.address_of(request), now)
        if task is not None:
            self._deadlines.end(task)
        return self._finish(reply, request_id, decision, request, now, route, key, preferences, delayed)

    async def _answer_site_request(self, request: Request) -> Reply:
        """Handles a request outside the base addresses. Probes and scrapes do not count against the address limit."""
        task = self._deadlines.begin()
        now = self._clock()
        request_id = next(self._request_ids)
        decision: Decision | None = None
        try:
            if not self._site.is_exempt(request):
                decision = await self._gate.admit_address("live", self.address_of(request), now)
            if decision is not None and decision.outcome is not ADMITTED:
                reply = refusal(decision)
            else:
                reply = await self._site.answer(request)
        except (Exception, CancelledError) as error:
            reply = self._reply_of(self._deadlines.cause(task, error), request_id)

        if decision is None:
            decision = await self._peek(task, "live", self.address_of(request), now)
        self._deadlines.end(task)
        return self._finish(reply, request_id, decision, request)

    async def reject(self, status: int, peer: str) -> Reply:
        """Returns the reply to an invalid message. Such messages do not count against the address limit."""
        REJECTED.add(str(status))
        request_id = next(self._request_ids)
        task = self._deadlines.begin()
        decision = await self._peek(task, "live", peer, self._clock())
        self._deadlines.end(task)
        if self._access_log:
            event(logging.INFO, "request", id=request_id, status=status, address=peer)
        return self._finish(error_reply(*REJECTIONS[status], status=status), request_id, decision)

    def _finish(
        self,
        reply: Reply,
        request_id: str,
        decision: Decision,
        request: Request | None = None,
        now: float = 0.0,
        route: Route | None = None,
        key: ApiKey | None = None,
        preferences: Preferences = NONE,
        delayed: float = 0.0,
    ) -> Reply:
        """Adds the headers that every response has. Counts and logs the request, unless it is a rejected message."""
        headers = (
            f"{reply.headers}x-ratelimit-limit: {decision.limit}\r\nx-ratelimit-remaining: {decision.remaining}\r\n"
            f"x-ratelimit-reset: {seconds(decision.reset)}\r\nx-request-id: {request_id}\r\n"
        )
        counters, operation = self._site_counters, SITE
        if request is not None and route is not None:
            counters, operation = route.api.counters, route.counted_as
            headers += route.headers
            if preferences is not NONE:
                headers += preferences.applied
            if self._ietf_headers:
                headers += _ietf_headers(decision, key)
            if self._cors is not None:
                headers += self._cors.expose(request)
        reply.headers = headers
        if request is None:
            return reply
        took = perf_counter() - request.started - delayed
        if key is not None and preferences.error is not None:
            counters.count_simulated(key, operation, preferences.error, now)
        else:
            status = BANNED_429 if decision.outcome is BANNED and reply.status == 429 else reply.status
            counters.count(key, operation, status, took)
            if key is not None and status >= 400:
                counters.note_error(key.id, now, request_id, operation, reply.status, reply.code, request.path)
        if self._access_log:
            event(
                logging.INFO, "request", id=request_id, method=without_keys(request.method),
                path=without_keys(request.path), operation=operation, status=reply.status,
                key=key.id if key else None, pet=reply.pet, address=self.address_of(request), ms=round(1000 * took, 2),
            )  # fmt: skip
        return reply

    def _options(self, request: Request, route: Route, key: ApiKey | None, decision: Decision) -> Reply:
        """Returns the reply to an OPTIONS request, which does not require a key. Raises NotFound."""
        is_preflight = self._cors is not None and self._cors.is_preflight(request)
        # Preflights never include a key, so the address limit is not enforced for them. Otherwise, it could block pages
        # whose requests have valid keys.
        if decision.outcome is not ADMITTED and (key is not None or not is_preflight):
            return refusal(decision)
        if not route.allow:
            raise not_found(request.path)
        preflight = self._cors.preflight(request, route.allow) if self._cors else ""
        return Reply(204, line("allow", route.allow) + NO_STORE + preflight)

    def _reply_of(self, error: Exception, request_id: str) -> Reply:
        if isinstance(error, RequestError):
            return reply_of(error)
        if isinstance(error, Unavailable):
            self._outages.event(perf_counter(), str(error), request=request_id)
            return reply_of(unavailable(1))
        logger.error("internal error", exc_info=error, extra={"fields": {"request": request_id}})
        return reply_of(internal_error(request_id))

    async def _peek(self, task: Task | None, environment: Environment, address: str, now: float) -> Decision:
        """Returns a decision for the response headers of a request that has not passed the gate, such as a probe."""
        if not self._deadlines.has_passed(task):
            try:
                return await self._gate.peek_address(environment, address, now)
            except (Exception, CancelledError) as error:
                cause = self._deadlines.cause(task, error)
                if not isinstance(cause, Unavailable):  # a bug in the gate; log it, but still send rate limit headers
                    logger.error("internal error", exc_info=cause)
        return Decision(LIMITED, "minute", self._address_limit, 0, int(now + 1) * SECOND, SECOND)


def _ietf_headers(decision: Decision, key: ApiKey | None) -> Lines:
    """Returns the rate limit headers of the IETF draft, with the same values as the X-RateLimit-* headers."""
    policy = f'"minute";q={key.per_minute if key else decision.limit};w=60'
    if key:
        policy += f', "day";q={key.per_day};w=86400'
    state = f'"{decision.window}";r={decision.remaining};t={seconds(decision.wait)}'
    return line("ratelimit-policy", policy) + line("ratelimit", state)
