"""The pipeline. Every request goes through it in a straight line:

route → authenticate and pass the gate → method and scope → the operation → reply
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from petstore.errors import MethodNotAllowed, RequestError, Unavailable
from petstore.gate import Gate
from petstore.keys import ApiKey, Environment, without_keys
from petstore.observability.logs import Throttled, event, logger
from petstore.observability.metrics import REJECTED
from petstore.operations import OperationName
from petstore.rate_limits import BANNED, LIMITED, SECOND, Decision
from petstore.settings import Settings
from petstore.store import Store
from petstore.usage import RecentError
from petstore.web.admission import Admission, check_scope, too_many_requests
from petstore.web.client_address import client_address, networks
from petstore.web.cors import Cors
from petstore.web.counters import BANNED_429, RequestCounters
from petstore.web.paths import BASES, leads_to_staging, not_found
from petstore.web.pets import PetOperations
from petstore.web.replies import (
    REJECTIONS,
    Lines,
    Reply,
    common_headers,
    error_reply,
    line,
    reply_of,
    request_ids,
    seconds,
)
from petstore.web.requests import Request
from petstore.web.site import Scrape, Site

COLLECTION_METHODS = ("GET", "HEAD", "OPTIONS", "POST")
ITEM_METHODS = ("GET", "HEAD", "OPTIONS")


@dataclass(slots=True)
class Api:
    """One environment's interface, at its base address."""

    environment: Environment
    base: str
    admission: Admission
    pets: PetOperations
    counters: RequestCounters


# Where a request goes: the interface whose base address the path is under, the methods that are answered there (none:
# nothing is there), the {petId} as it was sent, and the operation to count the request as. A plain tuple is faster.
Route = tuple[Api | None, tuple[str, ...], str | None, OperationName]
NOWHERE: Route = (None, (), None, "other")


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
        self._site_counters = RequestCounters("none")
        self._outages = Throttled("unavailable")
        self._apis = {each: self._api(each, store, settings) for each, store in stores.items()}
        self._collections = {api.base + "/pets": api for api in self._apis.values()}
        self._staging_url, self._public_url = settings.staging_url, settings.public_url

    def _api(self, environment: Environment, store: Store, settings: Settings) -> Api:
        return Api(
            environment,
            BASES[environment],
            Admission(environment, store, self._gate, self.address_of),
            PetOperations(store, settings.base_url(environment)),
            RequestCounters(environment, store),
        )

    @property
    def counters(self) -> list[RequestCounters]:
        return [api.counters for api in self._apis.values()]

    def address_of(self, request: Request) -> str:
        return client_address(request.peer, request.fields.get("x-forwarded-for", ""), self._trusted)

    def settle(self, ticks: float) -> None:
        """Once a second: pass on what was counted and held back. `ticks` is by perf_counter; infinity at the end."""
        now = self._clock()
        for api in self._apis.values():
            api.counters.settle(now, api.pets.pages.take_misses())
        self._site_counters.settle(now)
        self._outages.flush(ticks)

    async def answer(self, request: Request) -> Reply:
        """Never raises: every error is a reply."""
        now = self._clock()
        request_id = next(self._request_ids)
        method = request.method
        api, methods, item, operation = NOWHERE
        key: ApiKey | None = None
        decision: Decision | None = None
        try:
            api, methods, item, operation = self._route(request)
            if api is None:
                # What is not under a base address counts against the client's address; probes and scrapes do not.
                if not self._site.is_exempt(request):
                    decision = await self._gate.admit_address("live", self.address_of(request), now)
                if decision is not None and decision.outcome is LIMITED:
                    reply = too_many_requests(decision)
                else:
                    reply = await self._site.answer(request)
            else:
                key, decision, version, refusal = await api.admission.admit(request, now, operation)
                if method == "OPTIONS" and (refusal is None or key is None):
                    reply = self._options(request, methods, refusal)
                elif refusal is not None:
                    reply = refusal
                else:
                    assert key is not None  # an admitted request has a key
                    if method not in methods:
                        raise _wrong_address(request.path, methods)
                    check_scope(key, method)
                    if item is not None:
                        reply = await api.pets.get_pet(item, now)
                    elif method == "POST":
                        reply = await api.pets.create_pet(request, key, now)
                    else:
                        reply = await api.pets.list_pets(request, version, now)
        except RequestError as error:
            reply = reply_of(error)
        except Unavailable as error:
            self._outages.event(perf_counter(), str(error), request=request_id)
            reply = error_reply("unavailable", "The service cannot answer right now.", line("retry-after", "1"))
        except Exception:
            logger.exception("internal error", extra={"fields": {"request": request_id}})
            reply = error_reply("internal_error", f"Something went wrong; it is recorded as {request_id}.")

        # The reply to every request passes here. What never became a request gets its reply from `reject`.
        if decision is None:
            environment: Environment = "live" if api is None else api.environment
            decision = await self._peek(environment, self.address_of(request), now)
        headers = reply.headers + common_headers(decision, request_id)
        if api is not None and item is not None:
            headers += api.pets.deprecation
        took = perf_counter() - request.started
        if self._has_extras:
            headers += self._extras(request, reply, decision, api, key, request_id, took)
        reply.headers = headers
        status = BANNED_429 if decision.outcome is BANNED and reply.status == 429 else reply.status
        if api is None:
            self._site_counters.count(None, "site", status, took)
        else:
            api.counters.count(key, operation, status, took)
            if status >= 400 and key is not None:
                api.counters.note_error(RecentError(key.id, now, request_id, operation, reply.status))
        return reply

    async def reject(self, status: int, peer: str) -> Reply:
        """The reply to a message that never became a request. The address is not charged for it."""
        REJECTED.add(str(status))
        now = self._clock()
        decision = await self._peek("live", peer, now)
        reply = error_reply(*REJECTIONS[status], status=status)
        request_id = next(self._request_ids)
        reply.headers += common_headers(decision, request_id)
        if self._access_log:
            event(logging.INFO, "request", id=request_id, status=status, address=peer)
        return reply

    def _route(self, request: Request) -> Route:
        path = request.path
        if self._staging_url is not None and path.startswith("/v1"):
            host = request.fields.get("host", "")
            if leads_to_staging(host.lower(), self._staging_url, self._public_url):
                path = "/staging" + path
        reads = request.method in ("GET", "HEAD")
        api = self._collections.get(path)
        if api is not None:
            operation: OperationName = "listPets" if reads else "createPet" if request.method == "POST" else "other"
            return api, COLLECTION_METHODS, None, operation
        parent, _, item = path.rpartition("/")
        api = self._collections.get(parent)
        if api is not None and item not in ("", ".", ".."):
            return api, ITEM_METHODS, item, "getPet" if reads else "other"
        for api in self._apis.values():
            if path == api.base or path.startswith(api.base + "/"):
                return api, (), None, "other"
        return NOWHERE

    def _extras(
        self,
        request: Request,
        reply: Reply,
        decision: Decision,
        api: Api | None,
        key: ApiKey | None,
        request_id: str,
        took: float,
    ) -> Lines:
        """What the operator has asked for beyond the default: more headers, and a log line."""
        if self._access_log:
            event(
                logging.INFO, "request", id=request_id, method=without_keys(request.method),
                path=without_keys(request.path), status=reply.status, key=key.id if key else None, pet=reply.pet,
                address=self.address_of(request), ms=round(1000 * took, 2),
            )  # fmt: skip
        headers = ""
        if api is not None and self._ietf_headers:
            headers += _ietf_headers(decision, key)
        if api is not None and self._cors is not None:
            headers += self._cors.expose(request)
        return headers

    async def _peek(self, environment: Environment, address: str, now: float) -> Decision:
        """For the headers of responses that no decision came before: of the probes, of errors, in an outage."""
        try:
            return await self._gate.peek_address(environment, address, now)
        except Exception as error:
            if not isinstance(error, Unavailable):  # a bug of the gate: the response needs its headers all the same
                logger.exception("internal error")
            return Decision(LIMITED, "minute", self._address_limit, 0, int(now + 1) * SECOND, SECOND)

    def _options(self, request: Request, methods: tuple[str, ...], refusal: Reply | None) -> Reply:
        """OPTIONS needs no key. Raises NotFound."""
        is_preflight = self._cors is not None and self._cors.is_preflight(request)
        # A preflight has no key, so other clients at its address could use up what a page with a valid key needs.
        if refusal is not None and refusal.status == 429 and not is_preflight:
            return refusal
        if not methods:
            raise not_found(request.path)
        names = ", ".join(methods)
        preflight = self._cors.preflight(request, names) if self._cors else ""
        return Reply(204, line("allow", names) + preflight)


def _wrong_address(path: str, allowed: tuple[str, ...]) -> RequestError:
    if not allowed:
        return not_found(path)
    names = ", ".join(allowed)
    return MethodNotAllowed(f"This address answers {names}.", (("allow", names),))


def _ietf_headers(decision: Decision, key: ApiKey | None) -> Lines:
    """The fields of the IETF's draft, which say the same as X-RateLimit-*."""
    policy = f'"minute";q={key.per_minute if key else decision.limit};w=60'
    if key:
        policy += f', "day";q={key.per_day};w=86400'
    state = f'"{decision.window}";r={decision.remaining};t={seconds(decision.wait)}'
    return line("ratelimit-policy", policy) + line("ratelimit", state)
