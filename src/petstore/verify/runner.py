"""Runs the checks: probes the addresses, plans the requests and converts findings to results."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Literal, NamedTuple

from petstore.errors import OperatorError
from petstore.pets import STATUSES
from petstore.verify import limits
from petstore.verify.causes import likely_cause
from petstore.verify.checks import CHECKS, Check, Level, Need
from petstore.verify.findings import Finding, Skip
from petstore.verify.responses import Response, shortened, shown
from petstore.verify.session import ListEnd, Session
from petstore.verify.transport import Address, NoResponse

REQUESTS_MAX = 400
LIST_PAGES_MAX = 6  # maximum number of pages to read per status when looking for the end of a list
DETAIL_MAX = 1_000  # maximum length of what was expected, of what was received, and of the cause
SHOWN_FINDINGS = 3  # maximum number of findings to show per check


class Result(NamedTuple):
    check: str
    promise: str
    result: Literal["ok", "broken", "skipped"]
    detail: str  # for a broken promise, what was expected and received; for a skipped check, the reason


class Plan(NamedTuple):
    checks: list[tuple[Check, str]]  # each check, with the reason for skipping it (empty if it will run)
    requests: int  # the maximum number
    limit_requests: int  # the maximum number of requests with the limit key
    writes: bool
    began: datetime  # on the service's clock
    environment: str


def prepare(session: Session, level: Level, write: bool) -> Plan:
    """Plans a run. Raises OperatorError for an unreachable address, an unsuitable key, or too many addresses."""
    first, *_ = [_probe(session, address) for address in session.addresses]
    limit_requests = 0
    if session.limit_key:
        limited = _probe(session, session.addresses[0], session.limit_key, "--limit-key")
        limit_requests = limits.most_requests(limited.number("x-ratelimit-limit") or 0)
    offers_errors = bool(_probed(session, "GET /pets?limit=1", "Prefer: error=not_found").values("preference-applied"))
    missing: dict[Need, str] = {}
    if not (offers_errors or write):
        missing["write"] = "it would add animals, and this address might be live; allow it with --write"
    elif _probed(session, "POST /pets", body=b"{}").status == 403:
        missing["write"] = "the key does not have the write scope; use a key that has it"
    if not session.limit_key:
        missing["limit key"] = "it requires a second key with a low limit; pass it with --limit-key"
    if len(session.addresses) == 1:
        missing["addresses"] = "it requires another address of the same environment; pass it with --also"
    if not offers_errors:
        missing["errors on demand"] = "this address does not offer errors on demand; staging does"
    wanted = [check for check in CHECKS if level == "contract" or check.level == "spec"]
    chosen = [(check, next((missing[need] for need in check.needs if need in missing), "")) for check in wanted]
    pages = LIST_PAGES_MAX * len(STATUSES) if level == "contract" and "write" not in missing else 0
    requests = pages + sum(check.most_requests(len(session.addresses)) for check, why in chosen if not why)
    if session.sent + requests > REQUESTS_MAX:
        raise OperatorError(
            f"{len(session.addresses)} addresses require more than {REQUESTS_MAX} requests; pass fewer addresses"
        )
    _check_limit(first, session.sent + requests - 1)  # the key's counter already includes the first request
    return Plan(
        checks=chosen,
        requests=session.sent + requests,
        limit_requests=limit_requests,
        writes="write" not in missing,
        began=datetime.fromtimestamp(first.date, UTC),
        environment="staging" if offers_errors else "live",
    )


def run(session: Session, plan: Plan) -> Iterator[Result]:
    """Runs a plan's checks in order. Raises OperatorError if the address is unreachable when the run begins."""
    if plan.writes and any(check.level == "contract" for check, _ in plan.checks):
        session.list_end = _list_end(session)
    for check, why in plan.checks:
        yield Result(check.name, check.promise, "skipped", why) if why else _run_one(session, check)


def _run_one(session: Session, check: Check) -> Result:
    try:
        findings = list(check.run(session))
    except Skip as skip:
        return Result(check.name, check.promise, "skipped", str(skip))
    except (NoResponse, OSError) as error:
        findings = [Finding("a response", str(error) or type(error).__name__)]
    texts = [_in_words(session, finding) for finding in islice(findings, SHOWN_FINDINGS)]
    if len(findings) > SHOWN_FINDINGS:
        texts.append(f"and {len(findings) - SHOWN_FINDINGS} more")
    return Result(check.name, check.promise, "broken" if findings else "ok", "\n".join(texts))


def _in_words(session: Session, finding: Finding) -> str:
    texts = finding.expected, finding.received, likely_cause(finding)
    expected, received, cause = (shortened(session.without_keys(text), DETAIL_MAX) for text in texts)
    return f"expected {expected}; received {received}" + (f"; likely cause: {cause}" if cause else "")


# Probing


def _probe(session: Session, address: Address, key: str | None = None, option: str = "--key") -> Response:
    """Requests a list to test the address and the key. Raises OperatorError if either cannot be used."""
    response = _probed(session, "GET /pets?limit=1", at=address, key=key)
    if response.status == 200 or (response.status == 429 and key):
        return response
    if response.status in (401, 403):
        reason = session.without_keys(shortened(str(response.error.get("message", ""))))
        raise OperatorError(f"{address.url} rejects the key for {option}: {response.status} {reason}")
    if response.status == 429:
        raise OperatorError(f"the key has reached its limit; Retry-After: {shown(response.value('retry-after'))}")
    hint = (
        "; is it a base address, such as https://staging.example.com/v1?" if response.status in (301, 302, 404) else ""
    )
    raise OperatorError(f"{address.url}/pets responds with {response.status}{hint}")


def _probed(
    session: Session,
    line: str,
    *headers: str,
    body: bytes | None = None,
    at: Address | None = None,
    key: str | None = None,
) -> Response:
    """Sends a request. Raises OperatorError if the address is unreachable."""
    try:
        return session.send(line, *headers, body=body, at=at, key=key)
    except (NoResponse, OSError) as error:
        raise OperatorError(f"{(at or session.addresses[0]).url} is unreachable: {error}") from None


def _check_limit(response: Response, requests: int) -> None:
    """Raises OperatorError if the key has fewer than `requests` requests remaining."""
    left, reset = response.number("x-ratelimit-remaining"), response.number("x-ratelimit-reset")
    if left is not None and left < requests:
        until = f" until {datetime.fromtimestamp(reset, UTC):%H:%M:%S} UTC" if reset and reset < 1e11 else ""
        raise OperatorError(
            f"the checks send up to {requests} requests, but the key has only {left} left{until};"
            " use a key with a higher limit"
        )


def _list_end(session: Session) -> ListEnd | None:
    """Returns the last page of the first list that is short enough, or None if every list is too long."""
    for status in STATUSES:
        query = f"limit=100&status={status}"
        for _ in range(LIST_PAGES_MAX):
            following = session.next_page(_probed(session, f"GET /pets?{query}"))
            if not following:
                return ListEnd(status, query)
            query = following
    return None
