"""Four processes that share one free key: no ban, no early request, and no two return together after a pause."""

import itertools
from collections import Counter
from pathlib import Path

from coordinator import Coordinator
from petstore_client import Petstore
from recording import first_after_pauses, sent_too_early
from tests.servers import serving

PROCESSES = 4
ANIMALS = 200


def test_four_processes_with_one_free_key_add_200_animals(tmp_path: Path) -> None:
    """The minutes between the windows are skipped, on the clocks of the server and of the processes alike.

    Two of the processes cannot return together by chance: each returns in the time slot of its process id.
    """
    each = ANIMALS // PROCESSES
    with serving(tmp_path / "data") as server:
        secret = server.key("free").secret
        arguments = [[server.url(""), secret, str(worker), str(each)] for worker in range(PROCESSES)]
        results = Coordinator(arguments, server.move_clock).run()
        with Petstore(server.key().secret, base_url=server.url("")) as store:
            names = Counter(pet.name for pet in store.list_pets())

    assert names == Counter({f"{worker}-{number}": 1 for worker in range(PROCESSES) for number in range(each)})
    assert len(results) == PROCESSES

    codes = Counter(code for result in results for code in result.codes)
    assert set(codes) == {None, "rate_limit_exceeded"}, "and no ban"
    assert codes[None] == ANIMALS
    assert codes["rate_limit_exceeded"] >= PROCESSES, "each process was refused"

    assert [sent_too_early(result.events) for result in results] == [[]] * PROCESSES

    returned = sorted(moment for result in results for moment in first_after_pauses(result.events))
    assert returned[-1] - returned[0] > 60, "more than one pause"
    gaps = [after - before for before, after in itertools.pairwise(returned)]
    assert min(gaps) >= 0.1, f"two processes returned together: {returned}"
