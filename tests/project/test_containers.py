"""Checks the container files without building an image. `make container-check` builds and runs the image."""

import re
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONTAINERFILE = (ROOT / "Containerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
OURS = ("petstore", "node1", "node2")


def test_secrets_are_in_no_commit_and_no_image() -> None:
    """Docker reads only .dockerignore. Podman also reads it if there is no .containerignore."""
    made = re.findall(r"(?m)^mkdir .* (\w+)$", (ROOT / "deploy/container/make-secrets.sh").read_text())
    assert made == ["secrets"] and "secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    everything, *exceptions = (ROOT / ".dockerignore").read_text().splitlines()
    assert everything == "*" and not [line for line in exceptions if "secrets" in line]
    assert not (ROOT / ".containerignore").exists()


def test_compose_starts_one_service_unless_the_cluster_is_asked_for() -> None:
    services = COMPOSE["services"]
    assert [name for name, service in services.items() if "profiles" not in service] == ["petstore"]
    assert {name for name, service in services.items() if service.get("profiles") == ["cluster"]} == {
        "node1", "node2", "postgres", "valkey", "proxy",
    }  # fmt: skip


@pytest.mark.parametrize("name", OURS)
def test_compose_runs_the_service_read_only_with_one_volume(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    (volume,) = service["volumes"]
    assert volume.endswith(":/var/lib/petstore")


def test_compose_finds_every_secret_that_the_script_makes(tmp_path: Path) -> None:
    subprocess.run([ROOT / "deploy/container/make-secrets.sh"], cwd=tmp_path, check=True)
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    made = {file.name for file in (tmp_path / "secrets").iterdir()}
    assert {Path(secret["file"]).name for secret in COMPOSE["secrets"].values()} == made
    assert {name for service in COMPOSE["services"].values() for name in service.get("secrets", ())} == made
    password = (tmp_path / "secrets/postgres-password").read_text()
    assert f":{password}@postgres/" in (tmp_path / "secrets/petstore.env").read_text()


def test_the_command_of_the_container_takes_settings_from_the_mounted_secret(tmp_path: Path) -> None:
    """Runs the script with paths on this machine and a command that prints its environment."""
    script = (ROOT / "deploy/container/petstore.sh").read_text()
    script = script.replace("/run/secrets", str(tmp_path)).replace("/opt/petstore/.venv/bin/petstore", "env")
    plain = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert "PETSTORE_STORE" not in plain.stdout
    (tmp_path / "petstore.env").write_text("PETSTORE_STORE='postgresql://pets:a b$c@db/pets'\n")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert "PETSTORE_STORE=postgresql://pets:a b$c@db/pets\n" in done.stdout


def test_the_image_is_built_on_a_base_that_can_be_chosen_and_has_nothing_writable() -> None:
    assert re.search(r"(?m)^ARG BASE=\S+\n\nFROM \$\{BASE\} AS ", CONTAINERFILE)
    assert re.findall(r"(?m)^VOLUME (.*)$", CONTAINERFILE) == ["/var/lib/petstore"]
    assert re.findall(r"(?m)^USER (.*)$", CONTAINERFILE) == ["10001:10001"]
    assert {"STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"} <= set(re.findall(r"(?m)^[A-Z]+", CONTAINERFILE))
