"""Runs `petstore verify` in this process."""

from collections.abc import Callable, Sequence
from typing import NoReturn

from harness.servers import Key, Server
from petstore.verify.checks import CHECKS, Level
from petstore.verify.findings import Skip
from petstore.verify.runner import Result, prepare, run
from petstore.verify.session import Session
from petstore.verify.transport import parse_address

Results = dict[str, Result]


def refuse_to_wait(seconds: float) -> NoReturn:
    raise Skip("this test does not wait")


def verified(
    urls: Sequence[str],
    key: Key,
    limit_key: Key | None = None,
    *,
    level: Level = "contract",
    write: bool = True,
    sleep: Callable[[float], None] = refuse_to_wait,
) -> Results:
    """Returns the results by check name. No check may send more requests than the table allows."""
    secret = limit_key.secret if limit_key else ""
    session = Session([parse_address(url) for url in urls], key.secret, secret, sleep)
    allowed = {check.name: check.most_requests(len(urls)) for check in CHECKS if "limit key" not in check.needs}
    results = {}
    try:
        plan = prepare(session, level, write)
        sent = 0
        for result in run(session, plan):
            # The command searches for the end of the list before the first check.
            assert not sent or result.check not in allowed or session.sent - sent <= allowed[result.check], result
            sent = session.sent
            results[result.check] = result
    finally:
        session.close()
    return results


def broken(results: Results) -> dict[str, str]:
    return {name: result.detail for name, result in results.items() if result.result == "broken"}


def skipped(results: Results) -> set[str]:
    return {name for name, result in results.items() if result.result == "skipped"}


def wait_by_clock(server: Server) -> Callable[[float], None]:
    """Moves the clock of a service instead of waiting."""
    return lambda seconds: server.move_clock(seconds)
