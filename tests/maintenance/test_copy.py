"""`petstore copy`: copies in both directions are complete, or nothing is copied."""

import asyncio
import contextlib
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from harness.backends import Postgres, Redis, shared
from harness.commands import Commands
from harness.disks import small_disk
from harness.gates import all_versions, eventually
from harness.lost_commits import LosesCommits
from harness.other_user import as_nobody
from harness.served import wait_for
from harness.servers import PETSTORE, Host, Key, Server, started
from harness.stores import PATIENT
from harness.wire import asking
from petstore import data_dir
from petstore.backends import Backends, open_stores_for
from petstore.cli.copy import copy
from petstore.cli.data import announce_all
from petstore.errors import OperatorError
from petstore.gate import Gate, bans_in_force
from petstore.gate.recovery import is_clean
from petstore.keys import ENVIRONMENTS
from petstore.maintenance import copy as copying
from petstore.plans import Limits
from petstore.settings import Settings
from petstore.store import StorePolicy, close_stores, new_stores
from petstore.store.schema import PETS, TABLES
from tests.marks import only_as_root
from tests.pet_members import pet_row

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


def schemas(target: Server) -> list[str]:
    names = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'petstore%' ORDER BY 1"
    return [name for (name,) in shared(Postgres).execute(names, target.store)]


def migration_locks(target: Server) -> list[bool]:
    """Returns whether each migration lock in the target's database is granted, those that are not first."""
    locks = (
        "SELECT granted FROM pg_locks JOIN pg_database AS d ON d.oid = database"
        " WHERE locktype = 'advisory' AND datname = current_database() ORDER BY granted"
    )
    return [granted for (granted,) in shared(Postgres).execute(locks, target.store)]


@pytest.mark.parametrize("to", ["own", "cluster"])
def test_a_target_with_a_store_is_refused_and_unchanged(tmp_path: Path, to: Host) -> None:
    source, target = Server(tmp_path / "a"), Server(tmp_path / "b", to)
    with_some_data(source)
    target.create()  # a store without data
    before = target.act(everything)
    assert "already contains" in Commands(source).fails_in_one_line("copy", *where_to(target))
    assert target.act(everything) == before


def test_a_gate_with_counters_of_other_keys_is_refused_and_nothing_is_copied(tmp_path: Path) -> None:
    source, target, busy = Server(tmp_path / "a"), Server(tmp_path / "b", "cluster"), Server(tmp_path / "c", "cluster")
    with_some_data(source)
    with_some_data(busy)
    before = busy.act(everything)
    target.gate = busy.gate
    message = Commands(source).fails_in_one_line("copy", *where_to(target))
    assert "already contains counters of other keys: key_" in message
    assert busy.act(everything) == before and schemas(target) == []


def test_a_copy_that_failed_after_the_quotas_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = Server(tmp_path / "a"), Server(tmp_path / "b", "cluster")
    with_some_data(source)
    copy_quotas = copying.copy_quotas

    async def fail(*sides: Any) -> None:
        await copy_quotas(*sides)
        raise OperatorError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(copying, "copy_quotas", fail)
        assert "planted" in Commands(source).fails_in_one_line("copy", *where_to(target))
    assert schemas(target) == []
    copied_to(source, target)
    assert target.act(everything) == source.act(everything)


def test_the_changes_are_announced_after_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = Server(tmp_path / "a"), Server(tmp_path / "b", "cluster")
    source.fill(3)
    seen = []

    async def announce(gate: Gate) -> None:
        seen.append((schemas(target), await all_versions(gate)))
        await announce_all(gate)
        seen.append((schemas(target), await all_versions(gate)))

    monkeypatch.setattr("petstore.cli.copy.announce_all", announce)
    copied_to(source, target)
    (there, before), (_, after) = seen
    assert there == ["petstore_live", "petstore_staging"]
    assert all(after[name] > before[name] for name in before)


@pytest.mark.parametrize("delivered", [False, True], ids=["before it", "after it"])
def test_a_commit_whose_outcome_is_unknown_is_reported_and_can_be_checked(tmp_path: Path, *, delivered: bool) -> None:
    source, target = Server(tmp_path / "a"), Server(tmp_path / "b", "cluster")
    with_some_data(source)
    with LosesCommits(str(target.store), delivered=delivered) as proxy:
        words = ["copy", "--to-store", proxy.url, "--to-gate", str(target.gate)]
        assert "it is unknown whether the copy is complete" in Commands(source).fails_in_one_line(*words)
        assert proxy.lost == 1
    assert wait_for(lambda: bool(schemas(target)) == delivered)
    if delivered:
        assert "already contains data" in Commands(source).fails_in_one_line("copy", *where_to(target))
    else:
        copied_to(source, target)
    assert target.act(everything) == source.act(everything)


def test_a_node_that_starts_during_a_copy_waits_for_the_commit(tmp_path: Path) -> None:
    target = Server(tmp_path / "b", "cluster")
    assert target.store

    async def work(url: str) -> int:
        async with new_stores(url, StorePolicy(bounds=PATIENT)) as stores:
            await stores["live"].transfer.put_rows(PETS, [pet_row(7)])
            node = open_stores_for(Settings(store=url), None, serving=True, bounds=PATIENT)
            first = asyncio.create_task(node["live"].pets.count())
            assert await eventually(lambda: migration_locks(target) == [False, True])
            assert not first.done()
        found = sum((await first).values())
        await close_stores(node.values())
        return found

    assert asyncio.run(work(target.store)) == 1


def test_a_running_cluster_is_not_copied(tmp_path: Path) -> None:
    source = Server(tmp_path / "a", "cluster")
    of_node = "application_name = 'petstore' AND datname = current_database()"
    used = f"SELECT max(state_change) FROM pg_stat_activity WHERE {of_node}"
    with started(source):
        ((first,),) = shared(Postgres).execute(used, source.store)
        # The node uses its connection even without requests. Otherwise, the pool would close it.
        assert wait_for(lambda: shared(Postgres).execute(used, source.store) > [(first,)])
        message = Commands(source).fails_in_one_line("copy", "--to-store", str(tmp_path / "b"))
        assert "is in use: processes of Petstore are connected to it from 127.0.0.1" in message
    assert not (tmp_path / "b").exists()
    copied_to(source, Server(tmp_path / "b"))


def test_no_timeout_of_the_server_ends_a_copy(postgres: Postgres) -> None:
    url = postgres.url()
    for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
        postgres.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET {name} = '500ms'")

    async def work() -> None:
        async with new_stores(url, StorePolicy(bounds=PATIENT)) as stores:
            await stores["live"].database.read("SELECT pg_sleep(0.6)::text")
            await asyncio.sleep(0.6)
            await stores["live"].transfer.put_rows(PETS, [pet_row(7)])

    asyncio.run(work())
    assert postgres.execute("SELECT id FROM petstore_live.pets", url) == [(7,)]


@only_as_root
@pytest.mark.parametrize("full", ["store", "gate"])
def test_a_full_disk_is_that_of_the_target(tmp_path: Path, full: str) -> None:
    source = Server(tmp_path / "a", "cluster")
    source.fill(20_000)
    with small_disk(tmp_path / "small", 1) as disk:
        data = disk / "b"
        to_gate = ["--to-gate", shared(Redis).url()] if full == "store" else []
        message = Commands(source).fails_in_one_line("copy", "--to-store", str(data), *to_gate)
        assert message.startswith(f"the target {data}")
        hint = f"check --data {data}`" if full == "gate" else f"the disk used by {data}/restore.part/new is full"
        assert hint in message and str(source.store) not in message
        assert [path.name for path in data.iterdir()] == ["lock"]


def test_a_source_that_fails_is_named(tmp_path: Path) -> None:
    source, target = Server(tmp_path / "a", "cluster"), Server(tmp_path / "b")
    source.fill(1)
    shared(Postgres).execute("ALTER TABLE petstore_live.usage RENAME TO gone", source.store)
    message = Commands(source).fails_in_one_line("copy", *where_to(target))
    assert message.startswith(f"the source {source.store} and {source.gate}: the store failed: UndefinedTable")


def test_copied_quotas_survive_a_reboot_before_the_first_start(tmp_path: Path) -> None:
    source, target = Server(tmp_path / "a"), Server(tmp_path / "b")
    with_some_data(source)
    copied_to(source, target)
    assert is_clean(target.data / "gate.mdb")
    assert target.act(everything) == source.act(everything)


def test_copied_quotas_survive_a_reboot_in_the_lock_directory_of_the_source(tmp_path: Path) -> None:
    source = Server(tmp_path / "a", "cluster")
    with_some_data(source)
    target = Server(source.data)
    (target.data / "gate.mdb").write_bytes(b"half a page")
    (target.data / "gate.mdb-boot").write_text("another boot")
    copied_to(source, target)
    assert is_clean(target.data / "gate.mdb")
    assert target.act(everything) == source.act(everything)


@pytest.mark.thorough
@pytest.mark.parametrize("to", ["own", "cluster"])
def test_a_killed_copy_leaves_nothing_and_can_be_repeated(tmp_path: Path, to: Host) -> None:
    source, target = Server(tmp_path / "a", "cluster" if to == "own" else "own"), Server(tmp_path / "b", to)
    Commands(source).text("keys", "create", "--plan", "pro")
    source.fill(ANIMALS)
    staged = target.data / "restore.part/new/live.db-wal"

    def begun() -> bool:
        if target.store:
            return bool(migration_locks(target))
        return staged.exists() and staged.stat().st_size > 1_000_000

    copy = subprocess.Popen([*PETSTORE, "copy", *where_to(target)], env=Commands(source).variables)
    assert wait_for(begun)
    copy.kill()
    assert copy.wait() == -signal.SIGKILL
    if target.store:
        assert wait_for(lambda: migration_locks(target) == [])
        assert schemas(target) == []
    else:
        assert not (target.data / "live.db").exists()
    copied_to(source, target)
    assert target.act(everything) == source.act(everything)
    assert not staged.exists()


def test_a_source_that_changes_during_the_copy_is_reported(tmp_path: Path) -> None:
    source, target = Server(tmp_path / "a"), Server(tmp_path / "b")
    source.fill(3)

    def change(rows: int) -> None:
        with contextlib.closing(apsw.Connection(str(source.data / "live.db"))) as by_hand:
            by_hand.execute("UPDATE pets SET name = 'Changed' WHERE id = 2")

    async def copied(backends: Backends) -> None:
        async with Backends(Settings(data=target.data)) as to:
            await copying.copy_stores(copying.Source("a", backends.stores, backends.gate), to.stores, change)

    with pytest.raises(OperatorError, match=r"^pets of live changed"):
        source.act(copied)


def test_the_data_of_a_running_service_are_not_copied(tmp_path: Path) -> None:
    with started(Server(tmp_path / "a")) as source:
        message = Commands(source).fails_in_one_line("copy", "--to-store", str(tmp_path / "b"))
    assert message.endswith("a service or a command is using it; stop it first")
    assert not (tmp_path / "b").exists()


def test_the_directory_of_a_copy_is_locked_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = Server(tmp_path / "source"), Server(tmp_path / "target")
    source.create()
    locked = []
    copy_stores = copying.copy_stores

    async def watched(*sides: Any) -> list[copying.Copied]:
        locked.append(data_dir.is_locked(target.data))
        return await copy_stores(*sides)

    monkeypatch.setattr(copying, "copy_stores", watched)
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
