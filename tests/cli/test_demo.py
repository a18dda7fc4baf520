"""`petstore serve --demo`: the data that it creates, and when it refuses to create any."""

import re
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from msgspec.structs import FieldInfo

from harness.backends import Postgres, free_port, shared
from harness.deprecations import deprecating
from harness.served import SECRET, Served, serve_fails_in_one_line, wait_for
from harness.servers import Server, takes_connections
from harness.stores import BY
from petstore.backends import Backends
from petstore.cli.demo import ANIMALS, ANONYMOUS_PER_HOUR, FILES, fill, has_data, is_demo
from petstore.data_dir import shared_lock
from petstore.keys import ENVIRONMENTS, Environment, KeyQuery
from petstore.operations import OPERATIONS, Operation, OperationName
from petstore.pets import NewPet
from petstore.reports.charts import key_bars
from petstore.reports.key_status import statuses
from petstore.usage import DAY, HOUR, MINUTE, SPANS, KeyMeasure
from tests.pet_members import MEMBERS

NOON = 1_800_014_400 + 4 * HOUR  # UTC


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Server:
    server = Server(tmp_path_factory.mktemp("demo") / "data")
    server.act(lambda backends: fill(backends.stores, backends.gate, NOON))
    return server


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_demo_has_hundreds_of_animals_of_every_status(demo: Server, environment: Environment) -> None:
    counts = demo.act(lambda backends: backends.stores[environment].pets.count())
    assert sum(counts.values()) == ANIMALS[environment]  # one animal was added by hand, and another was removed
    assert all(counts[status] > 0.05 * sum(counts.values()) for status in ("available", "pending", "sold"))


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.encode_name)
def test_a_demo_has_values_of_every_member_of_an_animal(demo: Server, member: FieldInfo) -> None:
    found = demo.act(lambda backends: backends.stores["live"].pets.page(after=0, limit=500, status=None))
    given = {pet.id for pet in found.pets if getattr(pet, member.name) not in (None, member.default)}
    share = ANIMALS["live"] // len(FILES)
    for number, file in enumerate(FILES):
        ids = range(number * share + 1, (number + 1) * share + 1)
        assert given.intersection(ids), f"no animal of {file} in the demo has a {member.encode_name}"


def test_a_demo_has_keys_of_every_plan_and_in_many_states(demo: Server) -> None:
    keys = demo.act(lambda backends: backends.stores["live"].keys.search(KeyQuery(), now=NOON))
    assert {key.plan for key in keys} == {"free", "pro", "business", "enterprise"}
    assert {key.state(NOON) for key in keys} == {"active", "suspended", "revoked"}
    assert any(key.expires is not None and NOON < key.expires < NOON + 7 * DAY for key in keys)


def test_usage_of_a_demo_is_a_day_with_less_at_night(demo: Server) -> None:
    rows = demo.act(lambda backends: backends.stores["live"].usage.totals(interval=HOUR, since=0))
    per_hour: Counter[int] = Counter()
    for row in rows:
        per_hour[row.start] += row.requests
    assert len(per_hour) >= 23
    assert max(per_hour) < NOON
    night, day = (next(n for at, n in per_hour.items() if at // HOUR % 24 == hour) for hour in (3, 14))
    assert 2 * night < day
    assert {row.measure for row in rows} == {*get_args(KeyMeasure), *ANONYMOUS_PER_HOUR}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_usage_of_a_demo_has_every_operation(demo: Server, operation: Operation) -> None:
    def busiest(backends: Backends) -> Any:
        usage = backends.stores["live"].usage
        return usage.busiest(interval=HOUR, since=NOON - DAY, limit=10, operation=operation.name)

    assert demo.act(busiest)


@pytest.mark.parametrize("names", [(), ("getPet", "listPets")], ids=["none", "two"])
def test_a_demo_has_every_operation_whichever_are_deprecated(names: tuple[OperationName, ...], tmp_path: Path) -> None:
    async def work(backends: Backends) -> None:
        await fill(backends.stores, backends.gate, NOON)
        used = backends.stores["live"].usage
        callers = {
            each.name: await used.busiest(interval=HOUR, since=NOON - DAY, limit=10, operation=each.name)
            for each in OPERATIONS
        }
        assert [name for name, found in callers.items() if not found] == []

    with deprecating(*names):
        Server(tmp_path / "data").act(work)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("now", [NOON, NOON + 59, NOON + HOUR - 1, NOON + 37 * MINUTE + 13])
def test_todays_use_last_use_and_charts_of_a_demo_agree(tmp_path: Path, environment: Environment, now: int) -> None:
    async def work(backends: Backends) -> None:
        await fill(backends.stores, backends.gate, now)
        store = backends.stores[environment]
        keys = await store.keys.search(KeyQuery(), now=now)
        charts = await key_bars(store.usage, [key.id for key in keys], SPANS["day"], now)
        assert sum(status.day_used > 0 for status in await statuses(backends.gate, keys, now)) >= 6
        for key, _, banned_until, minute_used, day_used in await statuses(backends.gate, keys, now):
            bars = charts[key.id]
            assert day_used == sum(bars.admitted) == bars.sum_of("ok", "client_error", "server_error")
            assert (day_used <= key.per_day, minute_used, banned_until) == (True, 0, None)
            used = [start for start, total in zip(bars.starts, bars.totals(), strict=True) if total]
            if used:
                assert key.last_used is not None and used[-1] <= key.last_used < used[-1] + bars.seconds
            else:
                assert key.last_used is None

    Server(tmp_path / "data").act(work)


def test_no_key_of_a_demo_is_used_beyond_its_limits(demo: Server) -> None:
    async def work(backends: Backends) -> None:
        store = backends.stores["live"]
        for total in await store.usage.busiest(interval=HOUR, since=0, limit=100):
            key = await store.keys.get(total.key_id)
            assert key is not None
            assert total.admitted <= key.per_day

    demo.act(work)


def test_audit_entries_of_a_demo_are_in_the_order_of_their_times(demo: Server) -> None:
    async def work(backends: Backends) -> None:
        for store in backends.stores.values():
            times = [entry.at for _, entry in (await store.audit.find()).entries]
            assert len(times) > 8
            assert times == sorted(times, reverse=True)

    demo.act(work)


def test_a_demo_is_recognised_also_after_changes(demo: Server) -> None:
    demo.act(lambda backends: backends.stores["live"].pets.add_by_hand(NewPet("Rex", 1), BY))
    assert demo.act(lambda backends: has_data(backends.stores["live"]))
    assert demo.act(lambda backends: is_demo(backends.stores["live"]))


def test_two_demos_have_the_same_animals_and_usage(tmp_path: Path) -> None:
    async def content(backends: Backends) -> list[Any]:
        await fill(backends.stores, backends.gate, NOON)
        store = backends.stores["live"]
        return [
            await store.usage.totals(interval=60, since=0),
            (await store.pets.page(after=0, limit=500, status=None)).pets,
        ]

    assert Server(tmp_path / "a").act(content) == Server(tmp_path / "b").act(content)


def test_serve_prints_a_key_and_a_curl_line_for_each_environment(serve: Callable[..., Served]) -> None:
    own = serve("--demo")
    lines = [line for line in own.printed.splitlines() if line.strip().startswith("curl ")]
    assert len(lines) == 2
    for line in lines:
        words = re.fullmatch(r"  curl -i (\S+) -H '([^:]+): ([^']+)'", line)
        assert words is not None
        assert len(httpx.get(words[1], headers={words[2]: words[3]}).json()) == 20


def test_a_second_start_with_demo_serves_and_prints_no_key(serve: Callable[..., Served]) -> None:
    own = serve("--demo")
    (secret, _) = dict.fromkeys(SECRET.findall(own.printed))
    own.stop()
    own.start()
    assert SECRET.findall(own.printed) == []
    assert httpx.get(own.url("/pets"), headers={"Authorization": f"Bearer {secret}"}).status_code == 200


def test_a_demo_that_was_interrupted_between_its_environments_is_other_data(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    server.act(lambda backends: fill({"live": backends.stores["live"]}, backends.gate, NOON))
    assert "contains other data" in demo_fails(server.data)


def test_of_two_that_start_at_once_one_fills_the_directory(tmp_path: Path) -> None:
    both = [Served(tmp_path / "data", "--demo") for _ in range(2)]
    both[1].output, both[1].log = tmp_path / "second.out", tmp_path / "second.log"
    with ExitStack() as stack:
        for own in both:
            stack.callback(own.kill)
            own.start(wait=False)
        assert wait_for(lambda: any(takes_connections(own.port) for own in both))
        assert len({secret for own in both for secret in SECRET.findall(own.printed)}) == 2
        assert counts(both[0]) == ANIMALS


def test_a_demo_starts_again_while_another_process_uses_its_data(serve: Callable[..., Served]) -> None:
    own = serve("--demo")
    own.stop()
    with shared_lock(own.data):  # as the console does
        own.start()
    assert counts(own) == ANIMALS


def test_demo_in_postgresql_is_refused(tmp_path: Path) -> None:
    message = demo_fails(tmp_path / "data", "--store", shared(Postgres).url())
    assert message == "petstore: --demo cannot be combined with --store\n"


def demo_fails(data: Path, *options: str) -> str:
    return serve_fails_in_one_line(["--demo", "--port", str(free_port()), "--data", str(data), *options])


def counts(server: Server) -> dict[Environment, int]:
    async def work(backends: Backends) -> dict[Environment, int]:
        return {name: sum((await store.pets.count()).values()) for name, store in backends.stores.items()}

    return server.act(work)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_demo_with_other_data_is_one_line_and_exit_code_2(tmp_path: Path, environment: Environment) -> None:
    server = Server(tmp_path / "data")
    server.fill(1, environment)
    message = demo_fails(server.data)
    reason = f"{server.data} contains other data; use another --data directory, or omit --demo"
    assert message == f"petstore: --demo: {reason}\n"
    assert server.act(lambda backends: backends.stores["live"].keys.page()) == []
