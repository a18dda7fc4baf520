"""THE pipeline. A request walks through it in a straight line, each room once:

locate → authenticate and pass the gate → route → scope → the operation → reply
"""

import logging
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import NamedTuple

from petstore.errors import InsufficientScope, MethodNotAllowed, NotFound, RequestError, Unavailable
from petstore.gate import Gate
from petstore.keys import ApiKey, Environment, without_keys
from petstore.observability.logs import Throttled, event, logger
from petstore.rate_limits import ADMITTED, BANNED, LIMITED, SECOND, Decision
from petstore.settings import Settings
from petstore.store import Store
from petstore.web.admission import Admission
from petstore.web.cors import Cors
from petstore.web.counters import BANNED_429, PER_SECOND, Operation, Traffic
from petstore.web.pets import PetOperations
from petstore.web.replies import Lines, Reply, common_headers, error_reply, line, refusal, request_ids, seconds
from petstore.web.requests import Request, client_address, networks
from petstore.web.site import Scrape, Site

BASES: dict[Environment, str] = {"live": "/v1", "staging": "/staging/v1"}
COLLECTION_METHODS = ("GET", "HEAD", "OPTIONS", "POST")
ITEM_METHODS = ("GET", "HEAD", "OPTIONS")


class Place:
    """One environment at its base address."""

    def __init__(self, environment: Environment, store: Store, gate: Gate, app: "App", public_base: str) -> None:
        self.environment: Environment = environment
        self.base = BASES[environment]
        self.collection = self.base + "/pets"
        self.admission = Admission(environment, store, gate, app.address_of)
        self.pets = PetOperations(store, partial(gate.raise_version, environment, "catalogue"), public_base + self.base)
        self.traffic = Traffic(environment, store)

    def settle(self, now: float) -> None:
        self.traffic.settle(now, self.pets.pages.take_misses())


class Route(NamedTuple):
    """Where a request goes, by its method and path. Nothing is decided by it yet."""

    place: Place | None  # whose base address the path is under
    methods: tuple[str, ...]  # what is answered there; none: there is nothing
    item: str | None  # the {petId}, in whatever form it came
    operation: Operation  # what to count the request as


class App:
    def __init__(
        self,
        settings: Settings,
        stores: dict[Environment, Store],
        gate: Gate,
        clock: Callable[[], float],
        scrape: Scrape | None = None,
    ) -> None:
        self._clock = clock
        self._request_ids = request_ids()
        self._gate = gate
        self._access_log = settings.access_log
        self._ietf_headers = settings.ietf_headers
        self._address_limit = settings.address_per_minute
        self._trusted = networks(settings.trusted_proxies)
        self._cors = Cors(settings.cors_origins) if settings.cors_origins else None
        self._has_extras = settings.access_log or settings.ietf_headers or self._cors is not None
        self._site = Site(settings, stores, gate, clock, scrape)
        self._outside = Traffic("none")
        self._throttled = Throttled("unavailable")
        self.places = [
            Place(environment, store, gate, self, settings.public_base) for environment, store in stores.items()
        ]
        self._collections = {place.collection: place for place in self.places}

    def address_of(self, request: Request) -> str:
        return client_address(request, self._trusted)

    def settle(self, ticks: float) -> None:
        """Once a second: add what was counted to the metrics, and tell what the log has left out.

        `ticks` is what `perf_counter` says; infinity at the end.
        """
        now = self._clock()
        for place in self.places:
            place.settle(now)
        self._outside.settle(now)
        self._throttled.flush(ticks)

    async def answer(self, request: Request) -> Reply:
        """Never raises: whatever goes wrong is a reply too."""
        now = self._clock()
        request_id = next(self._request_ids)
        method = request.method
        memo = request.memo
        if memo.route is None:
            memo.route = self._locate(method, request.path)
        route: Route = memo.route
        place, methods, item, operation = route
        key: ApiKey | None = None
        decision: Decision | None = None
        try:
            if place is None:
                reply = await self._site.answer(request)
            else:
                key, decision, version = await place.admission.admit(request, now)
                if decision.outcome is not ADMITTED and not (key is None and self._is_preflight(request)):
                    reply = _refused(decision)
                elif method == "OPTIONS":
                    reply = self._options(request, methods)
                elif key is None:
                    reply = _unauthorized(request)
                else:
                    _check(method, methods, key)
                    if item is not None:
                        reply = await place.pets.get_pet(request, item, version, now)
                    elif method == "POST":
                        reply = await place.pets.create_pet(request, key, now)
                    else:
                        reply = await place.pets.list_pets(request, version, now)
        except RequestError as error:
            reply = refusal(error)
        except Unavailable as error:
            self._throttled.event(perf_counter(), str(error), request=request_id)
            reply = error_reply("unavailable", "The service cannot answer right now.", line("retry-after", "1"))
        except Exception:
            logger.exception("internal error", extra={"fields": {"request": request_id}})
            reply = error_reply("internal_error", f"Something went wrong; it is recorded as {request_id}.")

        # The one place that every response goes through.
        if decision is None:
            decision = await self._decision_on_a_stranger(request, place, now)
        headers = reply.headers + common_headers(decision, request_id)
        if item is not None and place is not None:
            headers += place.pets.deprecation
        if self._has_extras:
            headers += self._extras(request, reply, decision, place, key, request_id, now)
        reply.headers = headers
        # Counting must not be felt: docs/decisions/0007.
        tally = memo.tally
        if tally.key is not key:
            tally = memo.tally = (self._outside if place is None else place.traffic).tally(key, operation)
        status = reply.status
        tally.statuses[BANNED_429 if status == 429 and decision.outcome is BANNED else status] += 1
        tally.seconds[int((self._clock() - now) * PER_SECOND)] += 1
        return reply

    def _extras(
        self,
        request: Request,
        reply: Reply,
        decision: Decision,
        place: Place | None,
        key: ApiKey | None,
        request_id: str,
        now: float,
    ) -> Lines:
        """What the operator has asked for beyond the default: more headers, and a log line."""
        if self._access_log:
            took = round(1000 * (self._clock() - now), 2)
            event(
                logging.INFO, "request", id=request_id, method=request.method, path=without_keys(request.path),
                status=reply.status, key=key.id if key else None, address=self.address_of(request), ms=took,
            )  # fmt: skip
        headers = ""
        if place is not None and self._ietf_headers:
            headers += _ietf_headers(decision, key)
        if place is not None and self._cors is not None:
            headers += self._cors.expose(request)
        return headers

    def _locate(self, method: str, path: str) -> Route:
        reads = method in ("GET", "HEAD")
        place = self._collections.get(path)
        if place is not None:
            operation: Operation = "listPets" if reads else "createPet" if method == "POST" else "other"
            return Route(place, COLLECTION_METHODS, None, operation)
        parent, _, item = path.rpartition("/")
        place = self._collections.get(parent)
        if place is not None and item not in ("", ".", ".."):
            return Route(place, ITEM_METHODS, item, "getPet" if reads else "other")
        for place in self.places:
            if path == place.base or path.startswith(place.base + "/"):
                return Route(place, (), None, "other")
        return Route(None, (), None, "site")

    async def _decision_on_a_stranger(self, request: Request, place: Place | None, now: float) -> Decision:
        """For the headers of answers that no decision came before: outside the interface, or in an outage."""
        try:
            environment = "live" if place is None else place.environment
            return await self._gate.peek_address(environment, self.address_of(request), now)
        except Unavailable:
            return Decision(LIMITED, "minute", self._address_limit, 0, int(now + 1) * SECOND, SECOND)

    def _is_preflight(self, request: Request) -> bool:
        """A preflight has no key, so that others at its address could use up what a page with a valid one needs."""
        return self._cors is not None and self._cors.is_preflight(request)

    def _options(self, request: Request, methods: tuple[str, ...]) -> Reply:
        """Raises NotFound."""
        if not methods:
            raise _nothing_here()
        names = ", ".join(methods)
        preflight = self._cors.preflight(request, names) if self._cors else ""
        return Reply(204, line("allow", names) + preflight)


def _check(method: str, allowed: tuple[str, ...], key: ApiKey) -> None:
    """Raises NotFound, MethodNotAllowed and InsufficientScope."""
    if method not in allowed:
        if not allowed:
            raise _nothing_here()
        names = ", ".join(allowed)
        raise MethodNotAllowed(f"This address answers {names}.", (("allow", names),))
    scope = "write" if method == "POST" else "read"
    if scope not in key.scopes:
        challenge = f'Bearer error="insufficient_scope", scope="{scope}"'
        raise InsufficientScope(f"This key does not have the {scope} scope.", (("www-authenticate", challenge),))


def _nothing_here() -> NotFound:
    return NotFound("There is nothing at this address.")


def _refused(decision: Decision) -> Reply:
    retry_after = line("retry-after", str(max(1, seconds(decision.wait))))
    if decision.outcome is BANNED:
        return error_reply(
            "key_banned", "This key is banned for a while: it kept asking after being refused.", retry_after
        )
    return error_reply("rate_limit_exceeded", "Too many requests: wait as long as Retry-After says.", retry_after)


def _unauthorized(request: Request) -> Reply:
    challenge = 'Bearer realm="petstore"'
    if request.headers("authorization"):
        challenge += ', error="invalid_token"'
    return error_reply(
        "unauthorized", "Send a valid API key as Authorization: Bearer.", line("www-authenticate", challenge)
    )


def _ietf_headers(decision: Decision, key: ApiKey | None) -> Lines:
    """The fields of the IETF's draft, which say the same as X-RateLimit-* in other words."""
    policy = f'"minute";q={key.per_minute if key else decision.limit};w=60'
    if key:
        policy += f', "day";q={key.per_day};w=86400'
    now_left = f'"{decision.window}";r={decision.remaining};t={seconds(decision.wait)}'
    return line("ratelimit-policy", policy) + line("ratelimit", now_left)
