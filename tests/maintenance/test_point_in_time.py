"""Point-in-time recovery of PostgreSQL with its own tools, as described in docs/reference/cluster.md."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.backends import Postgres, Redis, running, shared
from harness.commands import Commands
from harness.served import wait_for
from harness.servers import Server

CLUSTER = (Path(__file__).parents[2] / "docs/reference/cluster.md").read_text()


def documented_settings() -> dict[str, str]:
    """Returns the settings of postgresql.conf that the section shows."""
    section = CLUSTER[CLUSTER.index("## Point-in-time restore") :]
    return dict(re.findall(r"^([a-z_]+) = '?([^'\n]*?)'?(?: *#.*)?$", section.split("```")[1], re.MULTILINE))


@pytest.mark.thorough
def test_the_database_returns_to_a_moment_before_a_mistake(tmp_path: Path) -> None:
    documented = documented_settings()
    assert documented.keys() == {"archive_mode", "archive_command", "archive_timeout"}
    source = Postgres("archive_mode=on")
    archived = source.directory / "archive"
    source.settings += (f"archive_command={documented['archive_command'].replace('/var/backups/wal', str(archived))}",)
    archived.mkdir()
    source.give_to_server(archived)
    with running(source):
        petstore = Commands(Server(tmp_path / "data"))
        petstore.server.store, petstore.server.gate = source.url(), shared(Redis).url()
        petstore.text("pets", "add", "--name", "In the base backup", "--category-id", "1")
        base, url = source.directory / "base", source.url_of("postgres")
        source.run("pg_basebackup", "--checkpoint=fast", "--pgdata", str(base), "--dbname", url)
        petstore.text("pets", "add", "--name", "In the archive", "--category-id", "1")
        (moment,) = source.execute("SELECT now()::text")[0]
        petstore.text("pets", "set-status", "1", "sold")
        petstore.text("pets", "add", "--name", "A mistake", "--category-id", "1")
        source.execute("SELECT pg_switch_wal()")
        source.stop()  # archives the last segment
        database = str(petstore.server.store).rpartition("/")[2]

        restored = Postgres(
            f"restore_command=cp {archived}/%f %p", f"recovery_target_time={moment}", "recovery_target_action=promote"
        )
        shutil.rmtree(restored.directory / "data")
        shutil.copytree(base, restored.directory / "data")
        (restored.directory / "data/recovery.signal").touch()
        subprocess.run(["chmod", "-R", "go=", str(restored.directory / "data")], check=True)
        restored.give_to_server(restored.directory / "data")
        with running(restored):
            petstore.server.store = restored.url_of(database)
            assert wait_for(lambda: not restored.execute("SELECT pg_is_in_recovery()")[0][0])
            pets = petstore.json("pets", "list")
            assert [pet["name"] for pet in pets] == ["In the base backup", "In the archive"]
            assert pets[0]["status"] == "available"
            added = petstore.json("pets", "add", "--name", "After the restore", "--category-id", "1")
            assert added["id"] > pets[-1]["id"]
