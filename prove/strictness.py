"""Sends the table of cases to the running service over raw sockets. Figure: how many responses are as expected."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from harness.claims import Broken, hold, temporary_directory
from harness.servers import Server, serving
from prove.cases import KEY, Case, all_cases
from prove.http import Conversation, converse
from prove.proof import Figures, Scale

SENTINEL = b"GET /healthz HTTP/1.1\r\nHost: behind\r\nConnection: close\r\n\r\n"
ALIVE = b'{"status":"alive"}'


def prove(scale: Scale) -> Figures:
    cases = all_cases()
    with temporary_directory() as data, serving(data / "data", "own", "--address-per-minute", "1000000") as server:
        secret = server.key().secret.encode()
        if scale.plant:  # a rule that no server follows
            cases = [*cases, cases[0]._replace(rule="planted", statuses=(418,))]
        with ThreadPoolExecutor(16) as pool:
            added = Counter(pool.map(lambda case: _fault(server, case, secret), cases))
        created = added.pop("a 201", 0)
        faults = [text for text in added if text]
        hold(not faults, f"{len(faults)} of {len(cases)} cases are not as listed: " + "; ".join(faults))
        _only_what_was_acknowledged(server, created)
    deviations = sum(bool(case.deviates) for case in cases)
    return {"cases": len(cases), "as listed": len(cases), "of them known deviations": deviations}


def _fault(server: Server, case: Case, secret: bytes) -> str:
    """Returns what is wrong with the response. If nothing is wrong, returns "a 201" for a 201 and otherwise ""."""
    pieces = (case.sent,) if isinstance(case.sent, bytes) else case.sent
    pieces = tuple(piece.replace(KEY, secret) for piece in pieces)
    if case.octets:
        pieces = tuple(pieces[0][at : at + case.octets] for at in range(0, len(pieces[0]), case.octets))
    if not case.half_close:
        pieces = (*pieces[:-1], pieces[-1] + SENTINEL)
    try:
        methods = (*case.methods, "GET")
        got = converse(server.port, pieces, methods, half_close=case.half_close, waits=case.waits)
        _judge(case, got)
    except Broken as broken:
        return f"[{case.section}] {case.rule}: {broken}"
    return "a 201" if got.final and got.final[0].status == 201 else ""


def _judge(case: Case, got: Conversation) -> None:
    """Raises Broken."""
    final = got.final
    seen = f"{[r.status for r in got.responses]}{', closed' if got.closed else ', left open'}"
    hold((final[0].status if final else 0) in case.statuses, f"expected {case.statuses}, got {seen}")
    hold(got.closed, f"the connection closes as the last request asks, got {seen}")
    answered_behind = len(final) > len(case.methods) and final[-1].body == ALIVE
    if case.fate == "stays":
        hold(answered_behind, f"the request after it is answered, got {seen}")
    elif case.fate == "closes":
        hold(len(final) <= len(case.methods), f"no request after it is answered, got {seen}")
    else:
        hold(len(final) <= len(case.methods) + 1, f"there are no more responses than requests, got {seen}")
    if final and not answered_behind and not case.half_close:
        hold("close" in (final[-1].field("connection") or ""), f"the last response has Connection: close, got {seen}")
    if case.check is not None:
        hold(case.check(got), f"got {got.responses}")


def _only_what_was_acknowledged(server: Server, created: int) -> None:
    """Raises Broken if a refused message added an animal, or if a 201 did not."""
    page = server.act(lambda backends: backends.stores["live"].pets.page(after=0, limit=10**6, status=None))
    names = Counter(pet.name for pet in page.pets)
    hold(names["never"] == 0, f"{names['never']} animals were added by messages that were refused")
    hold(sum(names.values()) == created, f"{created} first responses were 201, but {sum(names.values())} animals exist")
