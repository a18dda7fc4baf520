"""`petstore copy`: copies in both directions are complete, and the target of an interrupted copy must be emptied."""

import contextlib
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from harness.backends import Postgres, free_port, shared
from harness.commands import Commands
from harness.other_user import as_nobody
from harness.served import wait_for
from harness.servers import PETSTORE, Host, Key, Server, started
from harness.wire import asking
from petstore import data_dir
from petstore.backends import Backends
from petstore.cli.copy import copy
from petstore.errors import OperatorError
from petstore.gate import bans_in_force
from petstore.gate.recovery import SYNCED
from petstore.keys import ENVIRONMENTS
from petstore.maintenance import copy as copying
from petstore.plans import Limits
from petstore.settings import Settings
from petstore.store.schema import TABLES
from tests.marks import only_as_root

ANIMALS = 60_000
BODY = {"name": "Rex 🐕", "categoryId": -7, "status": "pending"}


async def everything(backends: Backends) -> dict[str, Any]:
    """Returns every row and every quota, except the audit entry of the copy."""
    found: dict[str, Any] = {
        f"{environment} {table.name}": [
            row for row in await store.transfer.rows(table, None, 10**6) if "copy" not in row
        ]
        for environment, store in backends.stores.items()
        for table in TABLES
    }
    found["quotas"] = sorted([row async for rows in backends.gate.all_windows() for row in rows])
    return found


def with_some_data(server: Server) -> tuple[Key, Key]:
    """Runs a service until it has animals, a used key and a banned key. Returns the keys."""
    server.start()
    busy, banned = server.key(limits=Limits(100, 1_000)), server.key(limits=Limits(1, 100))
    server.key(environment="staging", scopes=["read"], expires=time.time() + 9_999)
    server.fill(2_500)
    server.fill(7, "staging")
    with httpx.Client(headers={**busy.headers, "Idempotency-Key": "once"}) as client:
        assert client.post(server.url("/pets"), json=BODY).status_code == 201
    assert asking(server.port, 3, banned.headers)[-1].code == "key_banned"
    Commands(server).text("pets", "set-status", "3", "sold")
    server.stop()
    return busy, banned


def where_to(target: Server) -> list[str]:
    gate = ["--to-gate", target.gate] if target.gate else []
    return ["--to-store", target.store or str(target.data), *gate]


def copied_to(source: Server, target: Server) -> list[dict[str, Any]]:
    report: list[dict[str, Any]] = Commands(source).json("copy", *where_to(target))
    return report


@pytest.mark.thorough
def test_a_copy_to_a_cluster_and_back_is_complete(tmp_path: Path) -> None:
    first, cluster, last = Server(tmp_path / "a"), Server(tmp_path / "b", "cluster"), Server(tmp_path / "c")
    busy, banned = with_some_data(first)
    before = first.act(everything)
    assert len(before["live pets"]) == 2_501 and len(before["quotas"]) == 2
    assert all(before[f"live {name}"] for name in ("keys", "secrets", "idempotency", "audit", "usage"))

    report = copied_to(first, cluster)
    assert {each["what"]: each["rows"] for each in report} == {what: len(rows) for what, rows in before.items()}
    assert cluster.act(everything) == before
    cluster.start()
    with httpx.Client(headers={**busy.headers, "Idempotency-Key": "once"}) as client:
        again = client.post(cluster.url("/pets"), json=BODY)
        assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "true")
        assert again.headers["x-ratelimit-remaining"] == "98"  # one request before the copy, one after it
        new = client.post(cluster.url("/pets"), json=BODY, headers={"Idempotency-Key": "another"})
        assert new.json()["id"] > max(row[0] for row in before["live pets"])
    assert asking(cluster.port, 1, banned.headers)[0].code == "key_banned"
    cluster.stop()

    before = cluster.act(everything)
    copied_to(cluster, last)
    assert last.act(everything) == before
    with started(last) as served:
        assert asking(served.port, 1, banned.headers)[0].code == "key_banned"
        assert [ban.key_id for ban in served.act(lambda b: bans_in_force(b.gate, time.time()))] == [banned.id]
        answer = httpx.post(served.url("/pets"), json=BODY, headers=busy.headers, verify=False)
        assert answer.json()["id"] > max(row[0] for row in before["live pets"])


def without_animals(server: Server) -> None:
    """Removes all animals from both environments. Their ids must never be reused."""
    for environment in ENVIRONMENTS:
        if server.store:
            shared(Postgres).execute(f"DELETE FROM petstore_{environment}.pets", server.store)
        else:
            with contextlib.closing(apsw.Connection(str(server.data / f"{environment}.db"))) as by_hand:
                by_hand.execute("DELETE FROM pets")


@pytest.mark.thorough
@pytest.mark.parametrize("to", ["own", "cluster"])
@pytest.mark.parametrize("of", ["own", "cluster"])
def test_ids_of_removed_animals_are_not_used_again_after_a_copy(tmp_path: Path, of: Host, to: Host) -> None:
    source, target = Server(tmp_path / "a", of), Server(tmp_path / "b", to)
    source.fill(4)
    source.fill(2, "staging")
    without_animals(source)
    source.fill(1, "staging")
    copied_to(source, target)
    for environment, last in (("live", 4), ("staging", 3)):
        added = Commands(target).json("pets", "add", "--name", "Next", "--category-id", "1", "--env", environment)
        assert added["id"] == last + 1


def test_a_target_that_is_not_empty_is_refused_and_unchanged(tmp_path: Path) -> None:
    source, target = Server(tmp_path / "a"), Server(tmp_path / "b", "cluster")
    with_some_data(source)
    Commands(target).text("pets", "add", "--name", "Mia", "--category-id", "1")
    before = target.act(everything)
    assert target.store and target.gate
    words = ["copy", "--to-store", target.store, "--to-gate", target.gate]
    assert "already" in Commands(source).fails_in_one_line(*words)
    assert target.act(everything) == before


def test_a_gate_with_counters_is_refused(tmp_path: Path) -> None:
    source, target, busy = Server(tmp_path / "a"), Server(tmp_path / "b", "cluster"), Server(tmp_path / "c", "cluster")
    with_some_data(source)
    with_some_data(busy)
    assert target.store and busy.gate
    before = busy.act(everything)
    for _ in range(2):
        message = Commands(source).fails_in_one_line("copy", "--to-store", target.store, "--to-gate", busy.gate)
        assert "already contains counters" in message
    assert busy.act(everything) == before
    assert target.act(lambda backends: backends.stores["live"].transfer.copying_from()) is None


def test_copied_quotas_survive_a_reboot_before_the_first_start(tmp_path: Path) -> None:
    source, target = Server(tmp_path / "a"), Server(tmp_path / "b")
    with_some_data(source)
    copied_to(source, target)
    assert (target.data / "gate.mdb-boot").read_text() == SYNCED


def test_copied_quotas_survive_a_reboot_in_the_lock_directory_of_the_source(tmp_path: Path) -> None:
    source = Server(tmp_path / "a", "cluster")
    with_some_data(source)
    target = Server(source.data)
    (target.data / "gate.mdb").write_bytes(b"half a page")
    (target.data / "gate.mdb-boot").write_text("another boot")
    copied_to(source, target)
    assert (target.data / "gate.mdb-boot").read_text() == SYNCED
    assert target.act(everything) == source.act(everything)


@pytest.mark.thorough
@pytest.mark.parametrize("direction", ["to the cluster", "back"])
def test_a_killed_copy_is_neither_served_nor_copied_over_and_says_how_to_empty_it(
    tmp_path: Path, direction: str
) -> None:
    source, target = Server(tmp_path / "a"), Server(tmp_path / "b", "cluster")
    if direction == "back":
        source, target = Server(tmp_path / "a", "cluster"), Server(tmp_path / "b")
    Commands(source).text("keys", "create", "--plan", "pro")
    source.fill(ANIMALS)

    def arrived() -> int:
        return sum(target.act(lambda backends: backends.stores["live"].pets.count()).values())

    copy = subprocess.Popen([*PETSTORE, "copy", *where_to(target)], env=Commands(source).variables)
    assert wait_for(lambda: arrived() > 0)
    copy.kill()
    assert copy.wait() == -signal.SIGKILL
    assert 0 < arrived() < ANIMALS
    refused = subprocess.run([*PETSTORE, "serve"], env=Commands(target).variables, capture_output=True, text=True)
    assert (refused.returncode, "is not finished" in refused.stderr) == (2, True)
    before = arrived()
    message = Commands(source).fails_in_one_line("copy", *where_to(target))
    assert "unfinished copy" in message and arrived() == before
    command = message.partition("empty it first: ")[2].partition(";")[0]
    if target.store:
        shared(Postgres).execute(command, target.store)
    else:
        subprocess.run(command, shell=True, check=True, timeout=60)
    copied_to(source, target)
    assert target.act(everything) == source.act(everything)


def test_a_source_that_changes_during_the_copy_is_reported(tmp_path: Path) -> None:
    source, target = Server(tmp_path / "a"), Server(tmp_path / "b")
    source.fill(3)

    def change(rows: int) -> None:
        with contextlib.closing(apsw.Connection(str(source.data / "live.db"))) as by_hand:
            by_hand.execute("UPDATE pets SET name = 'Changed' WHERE id = 2")

    async def copied(backends: Backends) -> None:
        async with Backends(Settings(data=target.data)) as to:
            await copying.copy_stores(backends.stores, to.stores, "a", change)

    with pytest.raises(OperatorError, match=r"^pets of live changed"):
        source.act(copied)


def test_the_data_of_a_running_service_are_not_copied(tmp_path: Path) -> None:
    with started(Server(tmp_path / "a")) as source:
        message = Commands(source).fails_in_one_line("copy", "--to-store", str(tmp_path / "b"))
    assert message.endswith("a service or a command is using it; stop it first")
    assert not (tmp_path / "b").exists()


def test_an_unfinished_copy_is_neither_copied_nor_opened_by_the_console_and_check_finds_it(tmp_path: Path) -> None:
    source = Server(tmp_path / "source")
    source.create()
    source.act(lambda backends: backends.stores["staging"].transfer.set_copying_from("elsewhere"))
    refused = "the copy of elsewhere to this store is not finished"
    assert refused in Commands(source).fails_in_one_line("copy", "--to-store", str(tmp_path / "target"))
    assert refused in Commands(source).fails_in_one_line("console", "--port", str(free_port()))
    checked = Commands(source).run("check")
    assert checked.returncode == 1 and refused in checked.stdout


def test_the_directory_of_a_copy_is_locked_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = Server(tmp_path / "source"), Server(tmp_path / "target")
    source.create()
    locked = []
    finish = copying.finish

    async def finish_watched(stores: copying.Stores) -> None:
        locked.append(data_dir.is_locked(target.data))
        await finish(stores)

    monkeypatch.setattr(copying, "finish", finish_watched)
    copied_to(source, target)
    assert locked == [True]


def test_a_copy_without_data_is_refused_in_one_line(tmp_path: Path) -> None:
    message = Commands(Server(tmp_path / "a")).fails_in_one_line("copy", "--to-store", str(tmp_path))
    assert message == f"{tmp_path / 'a'} has no Petstore data: it does not exist"
    assert not (tmp_path / "a").exists()


@only_as_root
def test_a_copy_without_permission_is_one_line(tmp_path: Path) -> None:
    words = ["--data", str(tmp_path / "a"), "--to-store", "/nowhere"]
    assert as_nobody(lambda: copy.main(words, standalone_mode=False)) == (
        f"OperatorError: --data {tmp_path / 'a'}: Permission denied"
    )


def test_the_urls_of_a_target_may_be_in_files(tmp_path: Path) -> None:
    source, target = Server(tmp_path / "a"), Server(tmp_path / "b", "cluster")
    source.fill(3)
    assert target.store and target.gate
    store, gate = tmp_path / "store url", tmp_path / "gate"
    store.write_text(target.store.replace("pets@", "pets:s3cret@") + "\n")
    gate.write_text(target.gate)
    printed = Commands(source).text("copy", "--to-store-file", str(store), "--to-gate-file", str(gate))
    assert f"petstore serve --store-file '{store}' --gate-file {gate}\n" in printed and "s3cret" not in printed
    assert target.act(everything) == source.act(everything)
    both = Commands(source).fails_in_one_line("copy", "--to-store", "x", "--to-store-file", str(store))
    assert "--to-store cannot be combined with --to-store-file" in both


def test_a_password_in_the_query_of_a_url_is_neither_printed_nor_stored(tmp_path: Path) -> None:
    source, target, other = Server(tmp_path / "a", "cluster"), Server(tmp_path / "b"), Server(tmp_path / "c", "cluster")
    source.fill(1)
    assert source.store and other.store
    given = "?application_name=a&password=s3cret"
    Commands(source).text("copy", "--store", source.store + given, "--to-store", str(target.data))
    (entry,) = [entry for entry in Commands(target).entries() if entry.action == "copy"]
    assert entry.subject == f"{source.store}?application_name=a"
    printed = Commands(target).text("copy", "--to-store", other.store.replace("pets@", "pets:s3cret@") + given)
    assert f"petstore serve --store '{other.store}?application_name=a'\n" in printed
